//! The highest loads that several programs serve within a latency limit, searched for in turn.
//!
//! Owns the order of trials: the searches take turns, one trial each, in the opposite order in
//! every second turn, so that a change of the machine's speed affects all alike. Then all programs
//! are measured at the load that the slowest reached, in interleaved rounds. Every trial is a newly
//! started system, with its store filled first. Owns also the charts, tables and notes of searches.

use std::time::Duration;

use tailwater_loadgen::search::{Bound, Found, Search, SearchPlan, Slo};
use tailwater_workload::{Rate, ServiceTime};

use super::contest::Sample;
use super::figure::{Bar, Context, Figure, Pace, Panel, Spread, Table, cell, number};
use super::rounds::turns;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::latency_or_timeout;
use tailwater_testbed::point::point;
use tailwater_testbed::program::Program;
use tailwater_testbed::progress::Progress;

/// Rounds at the load that all programs reached.
const ROUNDS: usize = 3;

/// A program and the limit of its search.
#[derive(Debug, Clone)]
pub struct Contender {
    /// The name of its workload: contenders under the same one are compared.
    pub workload: String,
    /// The program's name.
    pub name: String,
    pub program: Program,
    pub slo: Slo,
}

/// The outcome of a contender's search.
#[derive(Debug, Clone)]
pub struct Highest {
    pub contender: Contender,
    pub found: Found,
    /// The measurement of each trial.
    pub samples: Vec<Sample>,
    /// Measurements at the load of the slowest contender under the same workload; empty if that
    /// reached no load.
    pub equal: Vec<Sample>,
}

/// Searches for the highest loads of all `contenders`.
pub fn highest(
    figure: &Figure,
    context: &Context,
    contenders: Vec<Contender>,
) -> anyhow::Result<Vec<Highest>> {
    let rig = context.rig()?;
    let (plan, pace) = (search_plan(context.options.quick)?, pace(context.options.quick));
    let progress = Progress::new(figure.name, u64::from(plan.max_trials) * contenders.len() as u64);
    let mut handoffs = HandoffRecord::default();
    let mut trial = |program: &Program, rate: Rate, seed: u64| -> anyhow::Result<_> {
        let plan = pace.plan_at(rate, &ServiceTime::constant(0));
        let measured = point(program, &rig.testbed, &plan, context.options.seed + seed, &mut handoffs)?;
        Ok((Sample::new(&measured), measured.measurement.summary))
    };
    let mut searches: Vec<(Search, Vec<Sample>)> =
        contenders.iter().map(|_| (Search::new(plan), Vec::new())).collect();
    for turn in 0..u64::from(plan.max_trials) {
        for index in turns(contenders.len(), turn as usize) {
            let (contender, (search, samples)) = (&contenders[index], &mut searches[index]);
            progress.advance();
            let Some((rate, _)) = search.next_rate() else { continue };
            let (sample, summary) = trial(&contender.program, rate, turn)?;
            search.record(contender.slo.judge(&summary));
            samples.push(sample);
        }
    }
    let mut all: Vec<Highest> = contenders
        .into_iter()
        .zip(searches)
        .map(|(contender, (search, samples))| Highest {
            contender,
            found: search.found(),
            samples,
            equal: Vec::new(),
        })
        .collect();
    for round in 0..context.rounds(ROUNDS) {
        for index in turns(all.len(), round) {
            let Some(rate) = common_load(&all, &all[index].contender.workload) else { continue };
            let (sample, _) = trial(&all[index].contender.program, rate, round as u64)?;
            all[index].equal.push(sample);
        }
    }
    Ok(all)
}

/// Returns the highest load that all contenders under a workload serve.
fn common_load(all: &[Highest], workload: &str) -> Option<Rate> {
    let own = all.iter().filter(|highest| highest.contender.workload == workload);
    let loads: Option<Vec<Rate>> = own.map(|highest| highest.found.load).collect();
    loads?.into_iter().reduce(|a, b| if b < a { b } else { a })
}

fn search_plan(quick: bool) -> anyhow::Result<SearchPlan> {
    let (from, up_to) = (Rate::new(25_000.0)?, Rate::new(4_000_000.0)?);
    Ok(if quick {
        SearchPlan { from, up_to, resolution: 0.5, repeats: 1, max_trials: 5 }
    } else {
        SearchPlan { from, up_to, resolution: 0.06, repeats: 3, max_trials: 40 }
    })
}

fn pace(quick: bool) -> Pace {
    let ms = Duration::from_millis;
    if quick {
        Pace { rounds: 1, warm_up: ms(30), counted: ms(100) }
    } else {
        Pace { rounds: ROUNDS, warm_up: ms(150), counted: ms(1_000) }
    }
}

impl Highest {
    /// Returns the highest load in requests per second; 0 if none was within the limit.
    pub fn load_rps(&self) -> f64 {
        self.found.load.map_or(0.0, Rate::per_second)
    }

    /// Returns the spread of a figure over the rounds at equal load.
    pub fn at_equal_load(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.equal.iter().filter_map(value))
    }

    /// Returns the bound of the load in words.
    pub fn bound(&self) -> &'static str {
        match self.found.bound {
            Bound::Limit => "the limit",
            Bound::Generator => "the generator",
            Bound::Ceiling => "the highest load tried",
            Bound::Nothing => "no load tried is within the limit",
            Bound::Trials => "the trials allowed; not confirmed",
        }
    }
}

/// Returns a table with a row for each trial and each round at equal load.
pub fn data(all: &[Highest]) -> Table {
    let mut table = Table::new(
        "workload | system | limit | part | rate_rps | verdict | achieved_rps | p50_us | \
         p99_us | p999_us | win_p999_us | completed | lost | late",
    );
    for highest in all {
        for (trial, sample) in highest.found.trials.iter().zip(&highest.samples) {
            let (part, verdict) = (format!("{:?}", trial.purpose), format!("{:?}", trial.judgement.verdict));
            table.row(row(highest, &part, &verdict, sample));
        }
        for sample in &highest.equal {
            table.row(row(highest, "EqualLoad", "", sample));
        }
    }
    table
}

fn row(highest: &Highest, part: &str, verdict: &str, sample: &Sample) -> Vec<String> {
    let figures = &sample.figures;
    let us = |value: Option<f64>| value.map_or_else(String::new, |us| format!("{us:.3}"));
    let Contender { workload, name, slo, .. } = &highest.contender;
    vec![
        workload.clone(),
        name.clone(),
        slo.to_string(),
        part.to_owned(),
        format!("{:.0}", figures.offered_rps),
        verdict.to_owned(),
        format!("{:.0}", figures.achieved_rps),
        us(figures.p50_us),
        us(figures.p99_us),
        us(figures.p999_us),
        us(figures.win_p999_us),
        figures.completed.to_string(),
        figures.lost.to_string(),
        figures.late.to_string(),
    ]
}

/// Returns a table with a row for each contender.
pub fn summary(all: &[Highest]) -> Table {
    let mut table = Table::new(
        "workload | system | limit | highest load/s | bound by | \
         at equal load: windowed p99.9 us | raw p99.9 us",
    );
    for highest in all {
        let Contender { workload, name, slo, .. } = &highest.contender;
        let at_equal = |value: &dyn Fn(&Sample) -> Option<f64>| cell(highest.at_equal_load(value));
        table.row([
            workload.clone(),
            name.clone(),
            slo.to_string(),
            number(highest.load_rps()),
            highest.bound().to_owned(),
            at_equal(&|sample| Some(latency_or_timeout(sample.figures.win_p999_us))),
            at_equal(&|sample| Some(latency_or_timeout(sample.figures.p999_us))),
        ]);
    }
    table
}

/// Returns the conditions of every search.
pub fn notes(quick: bool) -> Vec<String> {
    let mut notes = vec![
        "A load counts as within the limit when it is so in the majority of up to three trials of a second, and is tried again at \
         the end; at most 1 % of the requests may be lost. Searches take turns, a trial each, \
         in every second turn in the opposite order."
            .to_owned(),
        "win-p99.9 is the median over 100 ms windows of each one's p99.9, because a virtual machine's own stalls are in any \
         raw p99.9; p99 is that of all requests."
            .to_owned(),
    ];
    if quick {
        notes.push("Quick run: five short trials, coarse steps. A shape, not a result.".to_owned());
    }
    notes
}

/// Returns a chart for each workload.
pub fn panels(all: &[Highest]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for highest in all {
        let (title, load) = (&highest.contender.workload, highest.load_rps() / 1e3);
        let sure = |rate: Option<Rate>| rate.map_or(load, |rate| rate.per_second() / 1e3);
        let (low, high) = (sure(highest.found.always_met_up_to), sure(highest.found.never_met_from));
        let range = (low.min(load), high.max(load));
        let bar = Bar { name: highest.contender.name.clone(), value: load, range };
        match panels.iter_mut().find(|panel| panel.title == *title) {
            Some(panel) => panel.bars.push(bar),
            None => panels.push(Panel::of_bars(title, "thousand requests/s within the limit", vec![bar])),
        }
    }
    panels
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use super::super::contest::tests::point;
    use super::*;
    use tailwater_loadgen::protocol::Echo;

    /// Returns an outcome in which `name` reached this load.
    pub fn reached(workload: &str, name: &str, load_rps: f64, bound: Bound) -> Highest {
        let program = Program::kv(1, Arc::new(Echo::new(8).unwrap()));
        let contender = Contender {
            workload: workload.to_owned(),
            name: name.to_owned(),
            program,
            slo: "p99=500us".parse().unwrap(),
        };
        let load = Rate::new(load_rps).ok();
        let found = Found { load, bound, always_met_up_to: None, never_met_from: None, trials: Vec::new() };
        let equal = point(name, 10.0, &[100.0], 0.5, false).samples;
        Highest { contender, found, samples: Vec::new(), equal }
    }

    #[test]
    fn all_are_compared_at_the_load_of_the_slowest() {
        let all = vec![
            reached("usr", "a", 400e3, Bound::Limit),
            reached("usr", "b", 100e3, Bound::Limit),
            reached("etc", "a", 50e3, Bound::Limit),
        ];
        assert_eq!(common_load(&all, "usr").map(Rate::per_second), Some(100e3));
        assert_eq!(common_load(&all, "etc").map(Rate::per_second), Some(50e3));
        assert_eq!(common_load(&all, "none"), None);
        assert_eq!((data(&all).rows().len(), summary(&all).rows().len()), (3, 3));
    }
}
