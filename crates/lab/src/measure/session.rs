//! A session: experiment after experiment, each written as soon as it ends.
//!
//! Owns the order, which results are kept, what a failed experiment leaves, and the lines that a
//! user sees. What runs an experiment and what probes the machine are arguments, so tests run lists
//! of their own.

use std::path::Path;
use std::time::{Instant, SystemTime};

use serde_json::Value;
use tailwater_testbed::interrupt::Interrupted;
use tailwater_testbed::note;
use tailwater_testbed::table::number;

use super::envelope::{CoreNoise, Envelope, SCHEMA, utc};
use super::list::{Experiment, Kind, Plan};
use super::merge::merge;

/// What all experiments of a session have in common.
#[derive(Debug)]
pub struct Session<'a> {
    pub commit: &'a str,
    pub machine_name: &'a str,
    pub machine: Value,
    /// Where the results of this machine are.
    pub folder: &'a Path,
    pub quick: bool,
    /// Measure again what has a result of this commit.
    pub again: bool,
}

/// What a session does with the machine.
pub struct Hands<'a> {
    /// Runs one round of an experiment; returns its report.
    pub run: &'a mut dyn FnMut(&Experiment, &Plan) -> anyhow::Result<Value>,
    /// Measures the noise of each core.
    pub probe: &'a mut dyn FnMut() -> anyhow::Result<Vec<CoreNoise>>,
}

impl std::fmt::Debug for Hands<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").finish_non_exhaustive()
    }
}

impl Session<'_> {
    /// Measures the experiments, and returns the names of those that failed.
    ///
    /// # Errors
    /// [`Interrupted`]; a probe that fails; a file that cannot be written.
    pub fn measure(&self, list: &[Experiment], hands: &mut Hands<'_>) -> anyhow::Result<Vec<&'static str>> {
        let mut failed = Vec::new();
        for (index, experiment) in list.iter().enumerate() {
            let progress = format!("[{}/{}] {}", index + 1, list.len(), experiment.name);
            if self.is_measured(experiment) {
                note!("{progress}: is measured, --again measures it again");
                continue;
            }
            note!(
                "{progress}: {}, about {} s",
                experiment.title,
                number(experiment.plan(self.quick).seconds)
            );
            let result = self.one(experiment, hands)?;
            // A failure does not replace a result of the same code.
            if result.error.is_none() || !self.has_result(experiment) {
                result.write(self.folder)?;
            }
            let disturbed = if result.is_disturbed() { ", disturbed" } else { "" };
            match &result.error {
                None => note!("    {:.0} s{disturbed}", result.wall_seconds),
                Some(error) => {
                    note!("    failed: {error}");
                    failed.push(experiment.name);
                }
            }
        }
        Ok(failed)
    }

    /// Returns true if nothing is left to measure.
    pub fn is_measured(&self, experiment: &Experiment) -> bool {
        !self.again && self.has_result(experiment)
    }

    /// Returns true if there is a result of this very code and mode.
    fn has_result(&self, experiment: &Experiment) -> bool {
        let same = |result: &Envelope| {
            result.commit == self.commit && result.quick == self.quick && result.error.is_none()
        };
        let path = Envelope::path(self.folder, experiment.name);
        self.is_exact() && path.exists() && Envelope::read(&path).is_ok_and(|result| same(&result))
    }

    /// Returns true if the commit names one state of the code.
    fn is_exact(&self) -> bool {
        !self.commit.ends_with("-dirty") && self.commit != "unknown"
    }

    /// Measures one experiment; a failure becomes part of its result.
    fn one(&self, experiment: &Experiment, hands: &mut Hands<'_>) -> anyhow::Result<Envelope> {
        let plan = experiment.plan(self.quick);
        let start = Instant::now();
        let is_simulated = experiment.kind == Kind::Simulated;
        let mut probe = || if is_simulated { Ok(Vec::new()) } else { (hands.probe)() };
        let noise_before = probe()?;
        let rounds: anyhow::Result<Vec<Value>> =
            (0..plan.runs).map(|_| (hands.run)(experiment, plan)).collect();
        let noise_after = probe()?;
        if let Err(error) = &rounds
            && error.is::<Interrupted>()
        {
            return Err(Interrupted.into());
        }
        let (rounds, error) = match rounds {
            Ok(rounds) => (rounds, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let merged = merge(&rounds);
        // The report of a single run has its own spread, if any.
        let spread = merged.as_ref().filter(|_| plan.runs > 1);
        let mode = if self.quick { " --quick" } else { "" };
        Ok(Envelope {
            schema: SCHEMA,
            experiment: experiment.name.to_owned(),
            kind: experiment.kind,
            title: experiment.title.to_owned(),
            commit: self.commit.to_owned(),
            date: utc(SystemTime::now()),
            machine_name: self.machine_name.to_owned(),
            machine: self.machine.clone(),
            noise_before,
            noise_after,
            rounds: plan.runs * plan.rounds,
            quick: self.quick,
            wall_seconds: start.elapsed().as_secs_f64(),
            command: plan.command(),
            repeat: format!("tailwater-lab measure{mode} --only {} --again", experiment.name),
            error,
            lowest: spread.map_or(Value::Null, |merged| merged.lowest.clone()),
            highest: spread.map_or(Value::Null, |merged| merged.highest.clone()),
            report: merged.map_or(Value::Null, |merged| merged.median),
        })
    }
}

#[cfg(test)]
mod tests;
