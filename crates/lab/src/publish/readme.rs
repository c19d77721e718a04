//! The figures of README: what a reader who has half a minute sees.
//!
//! Owns their choice: one figure a row, beside Linux or the best peer, the tail first. They are
//! medians; the pages that README links to have the spread.

use tailwater_plot::table::Table;

use super::demo::{self, README_LOAD};
use super::lines::{marked, wrapped};
use super::results::{Report, Results, number};
use super::threads;

/// Experiments that the rows are from.
pub const EXPERIMENTS: [&str; 4] = ["demo", "tcp", "threads", "handoff"];

/// A figure beside its peers', the best of which is the first.
struct Row {
    label: String,
    unit: &'static str,
    own: Option<f64>,
    /// Who they are, where Linux is not enough, and their figures.
    peers: Vec<(&'static str, Option<f64>)>,
    more_is_better: bool,
}

impl Row {
    /// Returns Tailwater's cell, the peers', and how many times the best peer it is better.
    fn cells(&self) -> [String; 3] {
        let with_unit = |value: f64| format!("{} {}", number(value), self.unit).trim_end().to_owned();
        let peer = |(name, value): &(&str, Option<f64>)| Some(format!("{name} {}", with_unit((*value)?)));
        let peers: Vec<String> = self.peers.iter().filter_map(peer).collect();
        let best = self.peers.first().and_then(|(_, value)| *value);
        let times =
            self.own.zip(best).map(|(own, best)| if self.more_is_better { own / best } else { best / own });
        [
            self.own.map(with_unit).unwrap_or_default(),
            peers.join("; ").trim_start().to_owned(),
            times.map(|times| format!("{times:.1}")).unwrap_or_default(),
        ]
    }
}

/// Returns the rows from the report of an experiment.
type Rows = fn(&Report<'_>) -> Vec<Row>;

/// Returns the table under a sentence on machine, date and commit.
pub fn table(results: &Results) -> String {
    let head = ["", "Tailwater", "Linux, or the best peer, in the same run", "times better"];
    let mut table = Table::new(&head.join(" | "));
    let all: [(&str, Rows); 4] =
        [("demo", demo_rows), ("handoff", handoff_rows), ("tcp", tcp_rows), ("threads", thread_rows)];
    for (experiment, rows) in all {
        let Some(report) = results.report(experiment) else {
            table.row([experiment.to_owned(), "not measured".to_owned(), String::new(), String::new()]);
            continue;
        };
        for row in rows(&report) {
            let label = marked(report.result, row.label.clone());
            table.row([label].into_iter().chain(row.cells()));
        }
    }
    format!("{}\n{}", provenance(results), table.to_markdown())
}

fn demo_rows(report: &Report<'_>) -> Vec<Row> {
    let [own, linux] = ["Tailwater", "Linux"].map(|system| demo::point(report, system, README_LOAD));
    let ideal = report.items("/ideal").into_iter().find(|ideal| ideal.median("/load") == Some(README_LOAD));
    let ideal =
        |pointer| ideal.as_ref().and_then(|ideal| ideal.median(pointer)).map(number).unwrap_or_default();
    let row = |label, unit, pointer, more_is_better| {
        let [own, linux] = [&own, &linux].map(|point| demo::median(point.as_ref(), pointer));
        Row { label, unit, own, peers: vec![("", linux)], more_is_better }
    };
    let tail = format!(
        "a service beside a batch job, at {README_LOAD} % of its capacity: p99.9 ({} us without any overhead)",
        ideal("/win_p999_us")
    );
    let speed =
        format!("the batch job's speed beside it, alone 1 ({} without any overhead)", ideal("/batch_share"));
    vec![row(tail, "us", "/win_p999_us", false), row(speed, "", "/batch_share", true)]
}

fn handoff_rows(report: &Report<'_>) -> Vec<Row> {
    vec![Row {
        label: "a core moves from a running batch job to a service: p99".to_owned(),
        unit: "us",
        own: report.median("/busy_p99_us"),
        peers: vec![("by a signal and an eventfd:", report.median("/signal_p99_us"))],
        more_is_better: false,
    }]
}

fn tcp_rows(report: &Report<'_>) -> Vec<Row> {
    let thousand = |pointer| report.median(pointer).map(|per_second| per_second / 1e3);
    vec![
        Row {
            label: "64 bytes over TCP from a port to a service and back: p99".to_owned(),
            unit: "us",
            own: report.median("/rr_p99_us"),
            peers: vec![("loopback, both sides spin:", report.median("/kernel_rr_p99_us"))],
            more_is_better: false,
        },
        Row {
            label: "the same over 64 connections at once, thousand a second".to_owned(),
            unit: "",
            own: thousand("/echo_rps"),
            peers: vec![("loopback:", thousand("/kernel_echo_rps"))],
            more_is_better: true,
        },
    ]
}

fn thread_rows(report: &Report<'_>) -> Vec<Row> {
    let row = |label: &str, operation| {
        let of = |(name, system)| (name, threads::median(report, operation, system));
        let mut peers: Vec<_> = [("Go", "go"), ("Tokio", "tokio")].map(of).into();
        peers.sort_by(|a, b| a.1.unwrap_or(f64::MAX).total_cmp(&b.1.unwrap_or(f64::MAX)));
        peers.truncate(1);
        peers.push(of(("`std`", "std")));
        let own = threads::median(report, operation, "tailwater");
        Row { label: label.to_owned(), unit: "ns", own, peers, more_is_better: false }
    };
    vec![row("a thread yields to another", "yield"), row("a thread is started and joined", "spawn_join")]
}

fn provenance(results: &Results) -> String {
    let names = EXPERIMENTS.map(str::to_owned);
    let Some(first) = results.of_experiments(&names).next() else {
        return "Not measured yet: `tailwater-lab measure`.\n".to_owned();
    };
    let rounds = results.of_experiments(&names).map(|result| result.rounds).min().unwrap_or(1);
    let quick = if first.quick { " Quick runs: shapes, not results." } else { "" };
    let rounds = match rounds {
        1 => "Single rounds".to_owned(),
        several => format!("Medians of {several} rounds or more"),
    };
    wrapped(&format!(
        "{rounds}, {}, commit {}, on {}.{quick}",
        super::day(&first.date),
        first.commit,
        super::machine_in_words(first)
    ))
}
