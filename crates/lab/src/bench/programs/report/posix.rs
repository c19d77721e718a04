//! The figures of unmodified programs, with the aim of each and whether it is reached.
//!
//! All are medians over the rounds; ratios are of figures of one round.

use serde::Serialize;
use tailwater_testbed::table::{Table, number};

use crate::bench::median;

/// Processor time of an idle service that is aimed at, in percent of a core.
const IDLE_AIM: f64 = 0.1;
/// Processor time of a request over that on Linux that is aimed at.
const CPU_AIM: f64 = 0.4;

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub struct Posix {
    pub served: Vec<Served>,
    /// User time of programs that use no socket.
    pub computing: Vec<Ratio>,
    /// Nanoseconds of a hand-off between threads.
    pub waits: Vec<Ratio>,
    /// Processor time of a service without clients, and of the IOKernel, in percent of a core.
    pub idle_percent: Option<(f64, f64)>,
    /// Processor time of the service without clients on Linux.
    pub idle_percent_on_linux: Option<f64>,
}

/// A service and its client on one side.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ServedFigures {
    pub requests_s: f64,
    pub p99_us: f64,
    /// Processor time of service and client for a request.
    pub cpu_us: f64,
}

/// A service on both sides.
#[derive(Debug, Serialize)]
pub struct Served {
    program: &'static str,
    tailwater: ServedFigures,
    linux: ServedFigures,
    requests_over_linux: f64,
    p99_over_linux: f64,
    cpu_over_linux: f64,
    /// Of `requests_over_linux`.
    aim: Option<f64>,
}

impl Served {
    /// Returns the medians over the rounds.
    pub fn new(program: &'static str, aim: Option<f64>, rounds: &[(ServedFigures, ServedFigures)]) -> Self {
        let of = |side: fn(&(ServedFigures, ServedFigures)) -> &ServedFigures| {
            let of =
                |figure: fn(&ServedFigures) -> f64| median(rounds.iter().map(|round| figure(side(round))));
            ServedFigures {
                requests_s: of(|figures| figures.requests_s),
                p99_us: of(|figures| figures.p99_us),
                cpu_us: of(|figures| figures.cpu_us),
            }
        };
        let ratio = |figure: fn(&ServedFigures) -> f64| {
            median(rounds.iter().map(|(tailwater, linux)| figure(tailwater) / figure(linux)))
        };
        Self {
            program,
            tailwater: of(|round| &round.0),
            linux: of(|round| &round.1),
            requests_over_linux: ratio(|figures| figures.requests_s),
            p99_over_linux: ratio(|figures| figures.p99_us),
            cpu_over_linux: ratio(|figures| figures.cpu_us),
            aim,
        }
    }
}

/// A figure of which less is better, on both sides.
#[derive(Debug, Serialize)]
pub struct Ratio {
    name: String,
    tailwater: f64,
    linux: f64,
    over_linux: f64,
    /// Of `over_linux`.
    aim: Option<f64>,
}

impl Ratio {
    /// Returns the medians over rounds of both sides.
    pub fn new(name: &str, aim: Option<f64>, rounds: &[(f64, f64)]) -> Self {
        Self {
            name: name.to_owned(),
            tailwater: median(rounds.iter().map(|round| round.0)),
            linux: median(rounds.iter().map(|round| round.1)),
            over_linux: median(rounds.iter().map(|round| round.0 / round.1)),
            aim,
        }
    }
}

/// Returns a ratio beside its aim.
fn judged(ratio: f64, aim: Option<f64>, reached: fn(&f64, &f64) -> bool) -> String {
    match aim {
        None => format!("{ratio:.2}"),
        Some(aim) if reached(&ratio, &aim) => format!("{ratio:.2} (aim {aim}: reached)"),
        Some(aim) => format!("{ratio:.2} (aim {aim}: not reached)"),
    }
}

/// Returns the figures as text.
pub fn describe(report: &Posix) -> String {
    let mut text = String::new();
    if !report.served.is_empty() {
        let mut table = Table::new(
            "served | requests/s | p99 us | CPU us | Linux: requests/s | p99 us | CPU us | requests ratio | p99 ratio | \
             CPU ratio",
        );
        for row in &report.served {
            let side = |f: &ServedFigures| [f.requests_s, f.p99_us, f.cpu_us].map(number);
            let ratios = [
                judged(row.requests_over_linux, row.aim, f64::ge),
                judged(row.p99_over_linux, row.aim.map(|_| 1.0), f64::le),
                judged(row.cpu_over_linux, row.aim.map(|_| CPU_AIM), f64::le),
            ];
            let cells = side(&row.tailwater).into_iter().chain(side(&row.linux)).chain(ratios);
            table.row([row.program.to_owned()].into_iter().chain(cells));
        }
        text += &format!("{table}\n");
    }
    for (head, rows) in [("user time, s", &report.computing), ("a hand-off, ns", &report.waits)] {
        if rows.is_empty() {
            continue;
        }
        let mut table = Table::new(&format!("{head} | Tailwater | Linux | ratio"));
        for row in rows {
            let ratio = judged(row.over_linux, row.aim, f64::le);
            table.row([row.name.clone(), number(row.tailwater), number(row.linux), ratio]);
        }
        text += &format!("{table}\n");
    }
    if let Some(((service, iokernel), linux)) = report.idle_percent.zip(report.idle_percent_on_linux) {
        let service = judged(service, Some(IDLE_AIM), f64::le);
        text += &format!(
            "idle redis, % of a core: {service}; on Linux: {linux:.2}; the IOKernel: {iokernel:.2}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_stands_beside_its_aim() {
        let side = |requests_s, cpu_us| ServedFigures { requests_s, p99_us: 100.0, cpu_us };
        let rounds = [(side(300.0, 3.0), side(100.0, 10.0)), (side(310.0, 5.0), side(100.0, 10.0))];
        let served = Served::new("redis", Some(3.05), &rounds);
        assert_eq!((served.requests_over_linux, served.cpu_over_linux), (3.1, 0.5));
        let report = Posix {
            served: vec![served],
            computing: vec![Ratio::new("xz", Some(1.0), &[(1.0, 0.5)])],
            waits: vec![Ratio::new("mutex", None, &[(1.0, 8.0)])],
            idle_percent: Some((0.05, 0.2)),
            idle_percent_on_linux: Some(0.13),
        };
        let text = describe(&report);
        for part in [
            "3.10 (aim 3.05: reached)",
            "1.00 (aim 1: reached)",
            "0.50 (aim 0.4: not reached)",
            "2.00 (aim 1: not reached)",
            "0.12",
            "0.05 (aim 0.1: reached); on Linux: 0.13;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
