//! Whether two measurements may be compared.
//!
//! Owns the differences between them beside the server, and the defects of one. Percentiles show
//! neither: a run that lost an agent half way looks faster, and other requests make another load.

use clap::ValueEnum;
use tailwater_workload::units::format_duration_ns;

use crate::load::document::{Document, Point};

/// One of the two measurements.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The file.
    pub document: &'a Document,
    /// The load in the file.
    pub point: &'a Point,
}

/// A difference between two measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// In words.
    pub text: String,
    /// True if the requests or their times differ, so that the latencies are of different loads.
    pub is_grave: bool,
}

/// Lists the differences between `a` and `b` beside the server, its machine, the seed and the
/// commit.
pub fn differences(a: Side<'_>, b: Side<'_>) -> Vec<Difference> {
    let described = |side: Side<'_>| {
        let (document, plan) = (side.document, &side.point.plan);
        let over =
            document.over.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        [
            ("protocol", true, document.protocol.clone()),
            ("load", true, side.point.name.clone()),
            ("arrivals", true, plan.arrivals.to_string()),
            ("service time", true, plan.service.to_string()),
            ("timeout", true, format_duration_ns(plan.timeout_ns)),
            ("warm-up", true, format_duration_ns(plan.warm_up_ns)),
            ("length", false, format_duration_ns(plan.schedule.length_ns())),
            ("over", false, over),
            ("TCP connections", false, document.connections.to_string()),
            ("flows", false, plan.flows.to_string()),
            ("agents", false, document.agents.to_string()),
        ]
    };
    described(a)
        .into_iter()
        .zip(described(b))
        .filter(|((_, _, a), (_, _, b))| a != b)
        .map(|((what, is_grave, a), (_, _, b))| Difference {
            text: format!("{what}: {a} in A, {b} in B"),
            is_grave,
        })
        .collect()
}

/// Describes the runs of `point` that are incomplete.
pub fn broken_runs(point: &Point) -> Vec<String> {
    let mut broken = Vec::new();
    for (number, run) in (1..).zip(&point.runs) {
        if run.report.interrupted {
            broken.push(format!("run {number} was ended before its plan"));
        }
        for agent in run.agents.iter().filter(|agent| agent.failure.is_some()) {
            broken.push(format!("run {number} lacks the share of agent {}", agent.agent));
        }
    }
    broken
}
