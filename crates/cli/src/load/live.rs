//! Output while a load runs: a line a second, and a line for each trial or load.
//!
//! Owns whether anything is printed: to standard error, if that is a terminal or with `--live`.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tailwater_loadgen::live::{Line, Live};
use tailwater_loadgen::search::slo::Limit;
use tailwater_loadgen::search::{Judgement, Purpose, Slo, Verdict};
use tailwater_workload::{Interval, Rate};

use tailwater_testbed::note;
use tailwater_testbed::table::number;

/// Prints progress if it is on.
#[derive(Debug)]
pub struct Progress {
    on: bool,
    /// True if the table's header was printed.
    headed: AtomicBool,
}

impl Progress {
    /// On if `wanted` or if standard error is a terminal, unless `quiet`.
    pub fn new(wanted: bool, quiet: bool) -> Self {
        Self { on: !quiet && (wanted || std::io::stderr().is_terminal()), headed: AtomicBool::new(false) }
    }

    /// Returns whether anything is printed.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Prints a line.
    pub fn note(&self, text: &str) {
        if self.on {
            note!("{text}");
        }
    }

    /// Returns a view of one run of `generators`.
    pub fn view(&self, generators: usize) -> View<'_> {
        View { progress: self, live: Live::new(generators) }
    }
}

/// The lines of one run.
pub struct View<'a> {
    progress: &'a Progress,
    live: Live,
}

impl View<'_> {
    /// Adds an interval of `length_ns` of generator `index` and prints the lines that it completes.
    pub fn push(&mut self, index: usize, length_ns: u64, interval: &Interval) {
        if !self.progress.on {
            return;
        }
        for line in self.live.push(index, length_ns, interval) {
            if !self.progress.headed.swap(true, Relaxed) {
                note!("{HEAD}");
            }
            note!("{}", describe_line(&line));
        }
    }
}

const HEAD: &str = "     s     due/s  answered/s    p50 us    p99 us  p99.9 us      lost      late";

/// One line under [`HEAD`].
pub fn describe_line(line: &Line) -> String {
    let per_second = |count: u64| number(count as f64 * 1e9 / line.length_ns as f64);
    let us = |quantile| line.latency_us(quantile).map_or("-".to_owned(), number);
    let counts = &line.interval.counts;
    format!(
        "{:>6}  {:>8}  {:>10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}",
        line.second,
        per_second(counts.offered),
        per_second(counts.completed),
        us(0.5),
        us(0.99),
        us(0.999),
        counts.lost,
        counts.late
    )
}

/// One trial of a search.
pub fn describe_trial(number: u64, rate: Rate, purpose: Purpose, slo: &Slo, judgement: &Judgement) -> String {
    let purpose = match purpose {
        Purpose::Bracket => "bracket",
        Purpose::Bisect => "bisect",
        Purpose::Recheck => "recheck",
        Purpose::Confirm => "confirm",
    };
    let verdict = match judgement.verdict {
        Verdict::Met => "within",
        Verdict::Missed => "over",
        Verdict::GeneratorBehind => "over, and the generator ran behind",
    };
    let measured = |(limit, us): (&Limit, &Option<f64>)| {
        let us = us.map_or("lost".to_owned(), |us| format!("{} us", tailwater_testbed::table::number(us)));
        format!("{} {us}", limit.measure)
    };
    let measured: Vec<String> = slo.limits().iter().zip(&judgement.measured_us).map(measured).collect();
    format!(
        "trial {number:>2}, {purpose:<7} {:>8}/s: {}: {verdict}",
        tailwater_testbed::table::number(rate.per_second()),
        measured.join(", ")
    )
}
