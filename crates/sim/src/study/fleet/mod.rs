//! Capacity planning for a fleet: from a trace of what its services used, the cores that lending
//! saves, and at which tail.
//!
//! Owns the question, the sample and the search; `trace` reads the file, `load` simulates one
//! machine in one interval. Services stay on the machine on which the trace has them.
//!
//! For each machine three numbers of cores are compared, each the fewest with which every service
//! meets its objective:
//!
//! | | cores |
//! |---|---|
//! | set aside | each service has cores of its own, enough for each simulated interval and for that of its largest maximum; best-effort work has those that it used on average |
//! | resized | the same, resized for each interval by a controller that knows it in advance: the mean over time |
//! | lent | all services and the best-effort work share the machine's cores under congestion detection; the fewest for the hardest intervals that also leave the best-effort work, on average, what it used; and one for the IOKernel |
//!
//! # Bounds
//!
//! At most [`FleetStudy::machines`] machines, drawn by the seed, are simulated; totals are scaled
//! and have the interval of that sample. Of each machine [`FleetStudy::intervals`] intervals are:
//! that of the largest mean, that of the largest maximum, and others drawn by the seed. A machine
//! is simulated with some [`Effort::requests`] requests for each interval and each of the few
//! numbers of cores that halving tries. Beyond that the trace is read and sorted once.
//!
//! All averages are over the machine's whole time in the trace. While no service runs there, all
//! lent cores are left to best-effort work, and services need none.

mod load;
mod trace;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use tailwater_plot::table::{Table, number};
use tailwater_plot::{Line, Panel};
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::units::parse_duration_ns;

use self::load::lend;
use self::trace::{Defaults, Interval, Load, MachineTrace, Stretch};
use super::Effort;
use super::plan::{fewest, parse_slo};
use crate::costs::Costs;
use crate::mix::Mix;
use crate::report::percent;
use crate::scenario::{parallel, seed_of};
use crate::stats::Estimate;

/// Objectives that are planned for: each service's own limit times these.
const TIMES: [f64; 3] = [1.0, 2.0, 4.0];
/// Cores of each machine that lends its cores which the IOKernel has for itself.
const IOKERNEL_CORES: usize = 1;
/// Most cores of a simulated machine.
const MAX_CORES: usize = 1024;
/// Longest bursts.
const MAX_BURST_NS: u64 = 1_000_000_000;
/// The random stream that draws machines and intervals.
const DRAWS: u32 = 7;

/// The question's parameters.
#[derive(Clone, Debug, Serialize)]
pub struct FleetStudy {
    /// The trace.
    pub fleet: PathBuf,
    /// Names of its columns, if its first line has none.
    pub columns: Option<String>,
    /// Cores of the machine of which its uses are shares.
    pub machine_cores: Option<f64>,
    /// Service time of services for which the trace has none.
    pub service: String,
    /// Objective of services for which the trace has none.
    pub slo: String,
    /// Length of the bursts of services whose maximum exceeds their mean.
    pub burst: String,
    /// Cost profile.
    pub costs: String,
    /// Most machines that are simulated.
    pub machines: usize,
    /// Most intervals of a machine that are simulated.
    pub intervals: usize,
    /// The amount to run: `requests` are those of a machine in an interval; there are no
    /// replications.
    pub effort: Effort,
}

impl Default for FleetStudy {
    fn default() -> Self {
        Self {
            fleet: PathBuf::new(),
            columns: None,
            machine_cores: None,
            service: "exp:10us".to_owned(),
            slo: "p99.9<200us".to_owned(),
            burst: "5ms".to_owned(),
            costs: "paper-2019".to_owned(),
            machines: 16,
            intervals: 6,
            effort: Effort { requests: 50_000, replications: 1, ..Effort::default() },
        }
    }
}

/// The cores that one machine needs for one multiple of the objectives.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cores {
    /// Cores set aside for each service, and for best-effort work.
    pub set_aside: f64,
    /// The same, resized for each interval.
    pub resized: f64,
    /// Cores lent to all, and the IOKernel's.
    pub lent: f64,
    /// With those the largest latency over its limit.
    pub worst: f64,
    /// With those the cores that were left to best-effort work, on average.
    pub batch: f64,
    /// With those the services that had too few requests to be judged, in the interval where there
    /// were most.
    pub unjudged: usize,
}

/// The answer for one machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineRow {
    /// Its name.
    pub machine: String,
    /// Its latency-critical services.
    pub services: usize,
    /// Its intervals with services in the trace, and those simulated.
    pub intervals: (usize, usize),
    /// Cores that best-effort work used on average.
    pub batch_cores: f64,
    /// For each multiple of the objectives.
    pub cores: Vec<Cores>,
}

/// The answer for the fleet for one multiple of the objectives; with intervals of the sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FleetRow {
    /// The multiple.
    pub times: f64,
    /// Cores set aside.
    pub set_aside: Estimate,
    /// Cores resized for each interval.
    pub resized: Estimate,
    /// Cores lent, and those of the IOKernels.
    pub lent: Estimate,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct FleetPlan {
    /// Machines of the trace.
    pub machines: usize,
    /// For each multiple of the objectives.
    pub rows: Vec<FleetRow>,
    /// The machines that were simulated.
    pub sampled: Vec<MachineRow>,
    /// The answer in words.
    pub verdict: String,
}

impl FleetRow {
    /// Returns the share of the cores set aside that lending saves.
    #[must_use]
    pub fn saved(&self) -> f64 {
        1.0 - self.lent.value / self.set_aside.value
    }
}

impl FleetStudy {
    /// Returns the number of steps that [`FleetStudy::run`] reports; those of machines that the
    /// trace does not have are over at once.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.machines as u64
    }

    /// Answers the question. `tick` is called once per machine.
    ///
    /// # Errors
    ///
    /// If a field does not make sense or the trace cannot be read; the message says which, where,
    /// and what to write.
    pub fn run(&self, tick: &(dyn Fn() + Sync)) -> anyhow::Result<FleetPlan> {
        ensure!(self.machines > 0 && self.intervals > 0, "simulate at least one machine and one interval");
        let (slo, mix) = (parse_slo(&self.slo)?, Mix::parse(&self.service)?);
        let (columns, machine_cores) = (self.columns.as_deref(), self.machine_cores);
        let defaults = Defaults { slo, mix, columns, machine_cores };
        let burst_ns = parse_duration_ns(&self.burst).with_context(|| format!("burst `{}`", self.burst))?;
        ensure!(
            (1..=MAX_BURST_NS).contains(&burst_ns),
            "burst `{}`: write a time such as 5ms, at most 1s",
            self.burst
        );
        let costs = Costs::load(&self.costs)?;
        let path = self.fleet.display();
        let text =
            std::fs::read_to_string(&self.fleet).with_context(|| format!("cannot read trace {path}"))?;
        let fleet = trace::parse(&text, &defaults).with_context(|| format!("trace {path}"))?;
        let fleet: Vec<_> = fleet.into_iter().filter(MachineTrace::has_services).collect();

        let sample = draw(fleet.len(), self.machines, self.effort.seed);
        (sample.len()..self.machines).for_each(|_| tick());
        let results = parallel(sample.len(), self.effort.threads(), tick, |job| {
            let machine = &fleet[sample[job]];
            let effort = load::Effort {
                costs: &costs,
                requests: self.effort.requests.max(100),
                burst_ns,
                seed: seed_of(self.effort.seed, sample[job] as u32),
            };
            plan_machine(machine, self.intervals, &effort)
                .with_context(|| format!("machine `{}`", machine.name))
        });
        let sampled = results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let rows = totals(&sampled, fleet.len());
        let verdict = verdict(&rows, &sampled, fleet.len());
        Ok(FleetPlan { machines: fleet.len(), rows, sampled, verdict })
    }
}

/// Draws `most` of `all` without repetition, in order.
fn draw(all: usize, most: usize, seed: u64) -> Vec<usize> {
    let mut prng = stream(seed, DRAWS);
    let mut left: Vec<usize> = (0..all).collect();
    while left.len() > most {
        let position = ((1.0 - unit_open_closed(&mut prng)) * left.len() as f64) as usize;
        left.swap_remove(position);
    }
    left.sort_unstable();
    left
}

/// An interval that is simulated, and the share of the machine's time that it stands for.
struct Chosen {
    interval: Interval,
    share: f64,
}

/// Chooses the hardest intervals, which stand for themselves, and others, which stand for the rest
/// of the time in which services run.
fn choose(machine: &MachineTrace, stretches: &[Stretch], most: usize, seed: u64) -> Vec<Chosen> {
    let hardest = |measure: fn(&Stretch) -> f64| {
        (0..stretches.len()).max_by(|&a, &b| measure(&stretches[a]).total_cmp(&measure(&stretches[b])))
    };
    let mut hard: Vec<usize> = [hardest(|stretch| stretch.max_cpu), hardest(|stretch| stretch.cpu)]
        .into_iter()
        .flatten()
        .take(most)
        .collect();
    hard.dedup();
    let rest: Vec<usize> = (0..stretches.len()).filter(|at| !hard.contains(at)).collect();
    let others = draw(rest.len(), most - hard.len(), seed).into_iter().map(|at| rest[at]).collect::<Vec<_>>();

    let seconds = |chosen: &[usize]| chosen.iter().map(|&at| stretches[at].seconds()).sum::<f64>();
    // Without others the hard ones stand for all.
    let (hard_scale, scale) = match others.is_empty() {
        true => ((seconds(&hard) + seconds(&rest)) / seconds(&hard), 0.0),
        false => (1.0, seconds(&rest) / seconds(&others)),
    };
    let chosen = |at: usize, scale: f64| Chosen {
        interval: machine.interval(&stretches[at]),
        share: stretches[at].seconds() * scale / machine.seconds(),
    };
    let hard = hard.into_iter().map(|at| chosen(at, hard_scale));
    hard.chain(others.into_iter().map(|at| chosen(at, scale))).collect()
}

fn plan_machine(machine: &MachineTrace, most: usize, effort: &load::Effort) -> anyhow::Result<MachineRow> {
    let stretches = machine.stretches();
    let chosen = choose(machine, &stretches, most, effort.seed);
    let hardest = machine.hardest();
    let batch_cores = machine.batch_cores();
    let mut alone = Alone { effort, known: BTreeMap::new() };
    let mut together = Together { effort, chosen: &chosen, known: BTreeMap::new() };
    let mut cores = Vec::new();
    for times in TIMES {
        // Another interval may need more than that of the largest maximum: by its mean, or its
        // objective.
        let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
        for (&name, load) in &hardest {
            needed.insert(name, alone.fewest(name, load, times)?);
        }
        let mut resized = batch_cores;
        for Chosen { interval, share } in &chosen {
            for (name, load) in &interval.loads {
                let fewest = alone.fewest(name, load, times)?;
                resized += share * fewest as f64;
                let most = needed.entry(name).or_default();
                *most = fewest.max(*most);
            }
        }
        let set_aside = batch_cores.ceil() + needed.values().sum::<usize>() as f64;
        cores.push(together.fewest(set_aside, resized, batch_cores, times)?);
    }
    Ok(MachineRow {
        machine: machine.name.clone(),
        services: hardest.len(),
        intervals: (stretches.len(), chosen.len()),
        batch_cores,
        cores,
    })
}

/// The results for services on cores of their own.
struct Alone<'a> {
    effort: &'a load::Effort<'a>,
    /// Latency over its limit, by all that a load consists of, and cores.
    known: BTreeMap<(String, usize), f64>,
}

impl Alone<'_> {
    /// Returns the fewest cores with which a service has at most so many times its limit.
    fn fewest(&mut self, service: &str, load: &Load, times: f64) -> anyhow::Result<usize> {
        let most = (2.0 * load.max_cpu).ceil() as usize + 4;
        let at = |cores: usize| {
            let key = (format!("{load:?}"), cores);
            if let Some(&known) = self.known.get(&key) {
                return Ok(known);
            }
            let ratio = load::set_aside(load, cores, self.effort)?;
            self.known.insert(key, ratio);
            Ok(ratio)
        };
        let (found, ratio) = fewest(load.cpu.floor() as usize, most, at, |ratio| *ratio <= times)?;
        found.with_context(|| {
            format!(
                "service `{service}`: {most} cores do not meet its objective for a load of {} cores (latency {} times \
                 the limit): requests of {} may take that long by themselves. Give it a looser `slo`, or its own \
                 `request`",
                load.cpu,
                number(ratio),
                load.mix.describe()
            )
        })
    }
}

/// The results for a machine whose cores are lent.
struct Together<'a> {
    effort: &'a load::Effort<'a>,
    chosen: &'a [Chosen],
    known: BTreeMap<usize, load::Lent>,
}

impl Together<'_> {
    /// Returns the fewest cores with which all services have at most so many times their limits,
    /// and best-effort work what it used.
    fn fewest(&mut self, set_aside: f64, resized: f64, batch: f64, times: f64) -> anyhow::Result<Cores> {
        let most = 2 * set_aside as usize + 2;
        ensure!(most <= MAX_CORES, "{set_aside} cores would be set aside: at most {}", MAX_CORES / 2 - 1);
        let floor = self.chosen.iter().map(|chosen| chosen.interval.cpu()).fold(0.0, f64::max);
        let met = |lent: &load::Lent| lent.worst <= times && lent.batch >= batch;
        let (found, result) = fewest(floor.floor() as usize, most, |cores| self.at(cores), met)?;
        let Some(found) = found else {
            ensure!(
                result.worst <= times,
                "{most} lent cores do not meet the objectives: the worst latency is {} times its limit. Loosen `slo`, \
                 or lengthen the run by --requests",
                number(result.worst)
            );
            bail!(
                "{most} lent cores leave {} to best-effort work on average, which used {}: the objectives are met. \
                 Lengthen the run by --requests",
                number(result.batch),
                number(batch)
            )
        };
        let lent = (found + IOKERNEL_CORES) as f64;
        let load::Lent { worst, batch, unjudged } = result;
        Ok(Cores { set_aside, resized, lent, worst, batch, unjudged })
    }

    /// Returns what so many cores give over all chosen intervals.
    fn at(&mut self, cores: usize) -> anyhow::Result<load::Lent> {
        if let Some(&known) = self.known.get(&cores) {
            return Ok(known);
        }
        let busy: f64 = self.chosen.iter().map(|chosen| chosen.share).sum();
        let mut all = load::Lent { worst: 0.0, batch: (1.0 - busy).max(0.0) * cores as f64, unjudged: 0 };
        for Chosen { interval, share } in self.chosen {
            let one = lend(interval, u16::try_from(cores)?, self.effort)?;
            all.worst = all.worst.max(one.worst);
            all.batch += share * one.batch;
            all.unjudged = all.unjudged.max(one.unjudged);
        }
        self.known.insert(cores, all);
        Ok(all)
    }
}

/// Scales the sums over the sampled machines to the fleet.
fn totals(sampled: &[MachineRow], machines: usize) -> Vec<FleetRow> {
    let total = |index: usize, figure: fn(&Cores) -> f64| {
        let scaled: Vec<f64> =
            sampled.iter().map(|machine| figure(&machine.cores[index]) * machines as f64).collect();
        let value = scaled.iter().sum::<f64>() / scaled.len() as f64;
        match sampled.len() == machines {
            true => Estimate { value, error: 0.0 },
            false => Estimate::from_batches(value, &scaled),
        }
    };
    let row = |(index, &times): (usize, &f64)| FleetRow {
        times,
        set_aside: total(index, |cores| cores.set_aside),
        resized: total(index, |cores| cores.resized),
        lent: total(index, |cores| cores.lent),
    };
    TIMES.iter().enumerate().map(row).collect()
}

fn verdict(rows: &[FleetRow], sampled: &[MachineRow], machines: usize) -> String {
    let first = &rows[0];
    let services: usize = sampled.iter().map(|machine| machine.services).sum();
    let unjudged = sampled.iter().map(|machine| machine.cores[0].unjudged).sum::<usize>();
    let sample = match sampled.len() == machines {
        true => String::new(),
        false => format!(" (from {} machines, drawn by the seed)", sampled.len()),
    };
    let (judged, few) = match unjudged {
        0 => ("", String::new()),
        n => (
            " of those judged",
            format!(" {n} of {services} services had too few requests to be judged: raise --requests."),
        ),
    };
    format!(
        "With cores that are lent, {} cores meet every objective{judged} where {} are needed if each service has its own{sample}: \
         {} of the cores are saved. Resizing them for each interval, known in advance, would need {} on average.{few}",
        cores(&first.lent),
        cores(&first.set_aside),
        percent(first.saved()),
        cores(&first.resized),
    )
}

/// Returns a number of cores with the interval that a sample has.
fn cores(estimate: &Estimate) -> String {
    match estimate.error {
        0.0 => number(estimate.value),
        error if error.is_finite() => format!("{} ±{}", number(estimate.value), number(error)),
        _ => format!("some {}", number(estimate.value)),
    }
}

/// Returns the answer for the fleet as a table.
#[must_use]
pub fn table(plan: &FleetPlan) -> Table {
    let mut table = Table::new("objectives | cores set aside | resized | lent | saved");
    for row in &plan.rows {
        let name =
            if row.times == 1.0 { "as given".to_owned() } else { format!("{} times looser", row.times) };
        let figures = [&row.set_aside, &row.resized, &row.lent].map(cores);
        table.row([name].into_iter().chain(figures).chain([percent(row.saved())]));
    }
    table
}

/// Returns the machines that were simulated as a table, for the objectives as given.
#[must_use]
pub fn machines_table(plan: &FleetPlan) -> Table {
    let mut table = Table::new(
        "machine | services | cores set aside | resized | lent | saved | worst latency of limit | batch used | batch left",
    );
    for machine in &plan.sampled {
        let Cores { set_aside, resized, lent, worst, batch, .. } = machine.cores[0];
        table.row([
            machine.machine.clone(),
            machine.services.to_string(),
            format!("{set_aside}"),
            number(resized),
            format!("{lent}"),
            percent(1.0 - lent / set_aside),
            percent(worst),
            number(machine.batch_cores),
            number(batch),
        ]);
    }
    table
}

/// Draws the cores of the fleet over the objectives, and those of each machine.
#[must_use]
pub fn panels(plan: &FleetPlan) -> Vec<Panel> {
    let over_times = |name: &str, figure: fn(&FleetRow) -> f64| {
        Line::new(name, plan.rows.iter().map(|row| (row.times, figure(row))).collect())
    };
    let mut machines: Vec<&Cores> = plan.sampled.iter().map(|machine| &machine.cores[0]).collect();
    machines.sort_by(|a, b| a.set_aside.total_cmp(&b.set_aside));
    let by_machine = |name: &str, figure: fn(&Cores) -> f64| {
        let point = |(rank, cores): (usize, &&Cores)| ((rank + 1) as f64, figure(cores));
        Line::new(name, machines.iter().enumerate().map(point).collect())
    };
    let most = plan.rows.iter().map(|row| row.set_aside.value).fold(1.0, f64::max);
    let largest = machines.last().map_or(1.0, |cores| cores.set_aside);
    vec![
        Panel::new(
            "Cores of the fleet",
            "limit of latency, times the objective",
            "cores",
            vec![
                over_times("set aside", |row| row.set_aside.value),
                over_times("resized each interval", |row| row.resized.value),
                over_times("lent", |row| row.lent.value),
            ],
        )
        .within((0.0, 1.1 * most)),
        Panel::new(
            "Cores of each machine",
            "machine, by cores set aside",
            "cores",
            vec![
                by_machine("set aside", |cores| cores.set_aside),
                by_machine("resized each interval", |cores| cores.resized),
                by_machine("lent", |cores| cores.lent),
            ],
        )
        .within((0.0, 1.1 * largest)),
    ]
}
