//! The figures of `bench programs`, as JSON and as text.
//!
//! Owns their names, which readers of the JSON rely on. All are medians over the rounds; ratios are
//! of figures of one round.

use serde::Serialize;
use tailwater_testbed::BatchRates;
use tailwater_testbed::table::{Table, number};

use crate::bench::{median, median_of_some};

pub(super) mod posix;

use posix::Posix;

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub(super) beside: Vec<Beside>,
    pub(super) idle: Vec<Idle>,
    #[serde(flatten)]
    pub(super) posix: Posix,
}

/// A service and a batch job on one system, in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Figures {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    win_p999_us: Option<f64>,
    /// Microseconds of processor time that the job gets in a second.
    job_rate: f64,
    /// The same over that of the job alone.
    job_share: f64,
}

impl Figures {
    pub(super) fn new(figures: &tailwater_workload::Figures, batch: BatchRates) -> Self {
        let tailwater_workload::Figures { p50_us, p99_us, win_p999_us, .. } = *figures;
        Self { p50_us, p99_us, win_p999_us, job_rate: batch.beside, job_share: batch.share() }
    }
}

/// One round at one load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) tailwater: Figures,
    pub(super) linux: Figures,
    /// From the decision to lend a core to the kthread's first look: p50, p99.
    pub(super) wake_us: (f64, f64),
}

/// A job beside a service at one load.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    job: &'static str,
    /// In percent of the shared cores.
    load: f64,
    tailwater: Figures,
    linux: Figures,
    /// From the decision to lend a core that the job uses to the kthread's first look.
    wake_p50_us: f64,
    wake_p99_us: f64,
    /// Median latency on Linux over that on Tailwater.
    p50_gain: Option<f64>,
    /// Windowed p99.9 on Tailwater over that on Linux.
    win_p999_over_linux: Option<f64>,
    /// The job's rate on Tailwater over that on Linux.
    job_over_linux: f64,
}

impl Beside {
    /// Returns the medians over the rounds.
    pub(super) fn new(job: &'static str, load: f64, rounds: &[Round]) -> Self {
        let of = |system: fn(&Round) -> &Figures| {
            let some = |figure: fn(&Figures) -> Option<f64>| {
                median_of_some(rounds.iter().map(|round| figure(system(round))))
            };
            let all = |figure: fn(&Figures) -> f64| median(rounds.iter().map(|round| figure(system(round))));
            Figures {
                p50_us: some(|figures| figures.p50_us),
                p99_us: some(|figures| figures.p99_us),
                win_p999_us: some(|figures| figures.win_p999_us),
                job_rate: all(|figures| figures.job_rate),
                job_share: all(|figures| figures.job_share),
            }
        };
        let ratio = |upper: fn(&Round) -> Option<f64>, lower: fn(&Round) -> Option<f64>| {
            median_of_some(rounds.iter().map(|round| Some(upper(round)? / lower(round)?)))
        };
        Self {
            job,
            load,
            tailwater: of(|round| &round.tailwater),
            linux: of(|round| &round.linux),
            wake_p50_us: median(rounds.iter().map(|round| round.wake_us.0)),
            wake_p99_us: median(rounds.iter().map(|round| round.wake_us.1)),
            p50_gain: ratio(|round| round.linux.p50_us, |round| round.tailwater.p50_us),
            win_p999_over_linux: ratio(|round| round.tailwater.win_p999_us, |round| round.linux.win_p999_us),
            job_over_linux: median(
                rounds.iter().map(|round| round.tailwater.job_rate / round.linux.job_rate),
            ),
        }
    }
}

/// A job and an IOKernel without traffic.
#[derive(Debug, Serialize)]
pub(super) struct Idle {
    job: &'static str,
    /// Processor time of all threads of the IOKernel, in percent of a core.
    iokernel_cpu_percent: f64,
    /// The job's rate over that without an IOKernel.
    job_over_linux: f64,
}

impl Idle {
    /// Returns the medians over rounds of both figures.
    pub(super) fn new(job: &'static str, rounds: &[(f64, f64)]) -> Self {
        Self {
            job,
            iokernel_cpu_percent: median(rounds.iter().map(|round| round.0)),
            job_over_linux: median(rounds.iter().map(|round| round.1)),
        }
    }
}

/// Returns the figures as text.
pub(super) fn describe(report: &Report) -> String {
    let mut text = String::new();
    let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), number);
    if !report.beside.is_empty() {
        let mut table = Table::new(
            "beside | load | p50 us | p99 us | win p99.9 us | job | Linux: p50 us | p99 us | win p99.9 us | job | \
             p50 gain | p99.9 ratio | job ratio | wake us p50/p99",
        );
        for row in &report.beside {
            let system = |f: &Figures| {
                [shown(f.p50_us), shown(f.p99_us), shown(f.win_p999_us), format!("{:.3}", f.job_share)]
            };
            let ratios = [row.p50_gain, row.win_p999_over_linux, Some(row.job_over_linux)];
            let ratios =
                ratios.map(|ratio| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
            let head = [row.job.to_owned(), format!("{} %", row.load)];
            let cells = head.into_iter().chain(system(&row.tailwater)).chain(system(&row.linux));
            let wake = format!("{}/{}", number(row.wake_p50_us), number(row.wake_p99_us));
            table.row(cells.chain(ratios).chain([wake]));
        }
        text += &format!(
            "{table}\njob: its rate beside the service over its rate alone. Ratios are of one round.\n"
        );
    }
    if !report.idle.is_empty() {
        let mut table = Table::new("without traffic, beside | IOKernel, % of a core | job over Linux");
        for row in &report.idle {
            let percent = number(row.iokernel_cpu_percent);
            table.row([row.job.to_owned(), percent, format!("{:.3}", row.job_over_linux)]);
        }
        text += &format!("{table}\n");
    }
    text + &posix::describe(&report.posix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(p50: f64, rate: f64) -> Figures {
        let us = |factor: f64| Some(p50 * factor);
        Figures { p50_us: us(1.0), p99_us: us(2.0), win_p999_us: us(4.0), job_rate: rate, job_share: 0.5 }
    }

    #[test]
    fn ratios_are_of_one_round_and_a_missing_figure_is_shown_as_one() {
        let round = |p50| Round {
            tailwater: figures(p50, 9.0),
            linux: figures(2.0 * p50, 10.0),
            wake_us: (20.0, 60.0),
        };
        let beside = Beside::new("xz", 10.0, &[round(1.0), round(5.0), round(20.0)]);
        assert_eq!((beside.p50_gain, beside.win_p999_over_linux), (Some(2.0), Some(0.5)));
        assert_eq!((beside.job_over_linux, beside.tailwater.p50_us), (0.9, Some(5.0)));
        let idle = vec![Idle::new("xz", &[(0.5, 1.0)])];
        let mut report = Report { beside: vec![beside], idle, posix: Posix::default() };
        report.beside[0].p50_gain = None;
        let text = describe(&report);
        for part in ["xz", "10 %", "0.50", "0.90", "-", "without traffic"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
