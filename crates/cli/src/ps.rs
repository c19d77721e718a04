//! `tailwater ps`: the programs of an IOKernel, one line each.

use std::io::{Write, stdout};

use clap::Args;
use serde_json::{Value, json};
use tailwater_testbed::socket::IokernelArg;
use tailwater_testbed::table::{Table, number};

use crate::query::{self, PATIENCE};
use crate::stats::{addresses, cell, is_best_effort};

/// List the programs of an IOKernel, and its batch jobs
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater ps
  tailwater ps --json | jq '.runtimes[] | select(.counters.cores > 0) | .name'")]
pub struct PsArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Print `runtimes` and `batch_jobs` of `tailwater stats --json`
    #[arg(long)]
    json: bool,
}

/// Asks the IOKernel and prints the list.
///
/// # Errors
/// If nothing listens at the socket, or if standard output is closed.
pub fn run(args: &PsArgs) -> anyhow::Result<()> {
    let mut document = query::statistics_and_jobs(&args.iokernel, PATIENCE)?;
    if args.json {
        let [runtimes, jobs] = ["runtimes", "batch_jobs"].map(|key| document[key].take());
        let both = json!({ "runtimes": runtimes, "batch_jobs": jobs });
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&both)?)?;
    } else {
        write!(stdout(), "{}", describe(&document))?;
    }
    Ok(())
}

fn describe(document: &Value) -> String {
    let mut table = Table::new("program | kind | pid | user | cores | of | waiting | core time s | address");
    let seconds = |ns: &Value| ns.as_f64().map_or("-".to_owned(), |ns| number(ns / 1e9));
    for program in document["runtimes"].as_array().into_iter().flatten() {
        let waiting = ["queued_threads", "waiting_rings"].map(|key| program[key].as_u64());
        let waiting = waiting.into_iter().flatten().reduce(u64::saturating_add);
        table.row([
            cell(&program["name"]),
            if is_best_effort(program) { "batch" } else { "service" }.to_owned(),
            cell(&program["pid"]),
            cell(&program["user"]),
            cell(&program["counters"]["cores"]),
            cell(&program["kthreads"]),
            waiting.map_or("-".to_owned(), |waiting| waiting.to_string()),
            seconds(&program["counters"]["core_ns"]),
            addresses(program),
        ]);
    }
    for job in document["batch_jobs"].as_array().into_iter().flatten() {
        let none = || "-".to_owned();
        let (name, pid, time) = (cell(&job["name"]), cell(&job["pid"]), seconds(&job["usage"]["core_ns"]));
        table.row([name, "job".to_owned(), pid, none(), none(), none(), none(), time, none()]);
    }
    if table.rows().is_empty() { "no program is registered\n".to_owned() } else { table.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_jobs_have_a_line_each() {
        let text = describe(&json!({
            "runtimes": [{ "name": "web", "pid": 7, "user": 1000, "class": "latency-critical", "kthreads": 4,
                "ip": "10.77.0.2", "queued_threads": 2, "waiting_rings": 1,
                "counters": { "cores": 1, "core_ns": 2_500_000_000u64 } }],
            "batch_jobs": [{ "name": "xz", "pid": 9, "usage": { "core_ns": 1_000_000_000u64 } }],
        }));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            lines.contains(&vec!["web", "service", "7", "1000", "1", "4", "3", "2.50", "10.77.0.2"]),
            "{text}"
        );
        assert!(lines.contains(&vec!["xz", "job", "9", "-", "-", "-", "-", "1.00", "-"]), "{text}");
        assert!(describe(&Value::Null).contains("no program"));
        let hostile =
            describe(&json!({ "batch_jobs": [{ "name": "a\u{202e}b\u{2066}c\u{200b}", "pid": 9 }] }));
        assert!(hostile.contains("a?b?c?"), "{hostile}");
    }
}
