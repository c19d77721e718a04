//! `tailwater stats`: the counters of an IOKernel.
//!
//! Owns the tables. What programs publish of their requests is theirs. A number that the answer
//! lacks, because the IOKernel is of another version, is shown as a dash.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tailwater_testbed::account::{self, Shares, Snapshot, Taker, Tracepoints};
use tailwater_testbed::socket::IokernelArg;
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::text::plain;

use crate::query;

/// Show an IOKernel's counters: cores, hand-offs, frames, programs
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater stats
  tailwater stats --json | jq .handoff.polling.running_ns
  tailwater stats --account
  tailwater stats --iokernel @other")]
pub struct StatsArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Watch the IOKernel for a second and print where the time of each core went, and which other
    /// programs ran there
    #[arg(long)]
    account: bool,
}

/// Time between the two looks of `--account`.
const WATCH: Duration = Duration::from_secs(1);

/// Asks the IOKernel and prints its answer.
///
/// # Errors
/// If nothing listens at the socket, if the answer has another form, or if standard output is
/// closed.
pub fn run(args: &StatsArgs) -> anyhow::Result<()> {
    let stats = query::statistics_and_jobs(&args.iokernel, query::PATIENCE)?;
    if args.account {
        let tracepoints = Tracepoints::watch(&stats);
        // Asked anew: the tracepoints count since the watch began, which took some milliseconds.
        let look = || {
            let stats = query::statistics(&args.iokernel)?;
            let snapshot = Snapshot::new(&stats, &tracepoints)?;
            let strangers = snapshot.strangers(&tracepoints);
            Ok::<_, anyhow::Error>((snapshot, strangers, Instant::now()))
        };
        let (from, before, begun) = look()?;
        std::thread::sleep(WATCH);
        let (to, after, ended) = look()?;
        let (cores, takers) = (account::between(&from, &to), account::takers(&before, &after, None));
        let seconds = (ended - begun).as_secs_f64();
        write!(stdout(), "{}", describe_account(&cores, &takers, seconds, args.json)?)?;
    } else if args.json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&stats)?)?;
    } else {
        write!(stdout(), "{}", describe(&stats))?;
    }
    Ok(())
}

/// Returns the account of the cores, and who ran there, as tables or as JSON.
fn describe_account(
    cores: &[Shares],
    takers: &Result<Vec<Taker>, Arc<str>>,
    seconds: f64,
    json: bool,
) -> anyhow::Result<String> {
    if json {
        let (takers, unknown) = match takers {
            Ok(takers) => (Some(takers), None),
            Err(why) => (None, Some(&**why)),
        };
        let all = json!({ "cores": cores, "seconds": seconds, "takers": takers, "takers_unknown_because": unknown });
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    anyhow::ensure!(!cores.is_empty(), "the IOKernel entered no time: it has just started, or is stopped");
    let table = account::table("", cores.iter().map(|shares| (String::new(), shares)));
    Ok(format!("{table}\n{}", account::takers_table(takers, seconds)))
}

/// Returns the counters as tables.
fn describe(stats: &Value) -> String {
    let facts = &stats["iokernel"];
    let mut text = format!(
        "IOKernel {} on core {}, lends cores {}, policy {}\n",
        cell(&facts["version"]),
        cell(&facts["iokernel_core"]),
        cell(&facts["managed_cores"]),
        cell(&facts["policy"]),
    );
    let runtimes = stats["runtimes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut table = Table::new(
        "program | pid | address | class | cores | of | core time s | rx | tx | dropped | \
         denied rx/tx | limited rx/tx",
    );
    for runtime in runtimes {
        let counters = &runtime["counters"];
        let seconds = counters["core_ns"].as_f64().map(|ns| number(ns / 1e9));
        table.row([
            cell(&runtime["name"]),
            cell(&runtime["pid"]),
            addresses(runtime),
            cell(&runtime["class"]),
            cell(&counters["cores"]),
            cell(&runtime["kthreads"]),
            seconds.unwrap_or_else(|| "-".to_owned()),
            cell(&counters["rx_frames"]),
            cell(&counters["tx_frames"]),
            cell(&counters["rx_full"]),
            format!("{}/{}", cell(&counters["rx_denied"]), cell(&counters["tx_denied"])),
            format!("{}/{}", cell(&counters["rx_limited"]), cell(&counters["tx_limited"])),
        ]);
    }
    if runtimes.is_empty() {
        text += "no program is registered\n";
    } else {
        text += &format!("\n{table}");
    }
    text += &batch_jobs(&stats["batch_jobs"]);
    text += &classes(runtimes);
    text += &firewall(&stats["firewall"]);
    let mut table = Table::new("hand-off of a core | count | p50 us | p99 us | p99.9 us");
    for (kind, latencies) in stats["handoff"].as_object().into_iter().flatten() {
        let running = &latencies["running_ns"];
        let us = |key: &str| running[key].as_f64().map_or("-".to_owned(), |ns| number(ns / 1e3));
        table.row([kind.clone(), cell(&running["count"]), us("p50"), us("p99"), us("p999")]);
    }
    text += &format!("\n{table}");
    let reclaim = &stats["reclaim"]["since_alive_ns"];
    if let (Some(p50), Some(max)) = (reclaim["p50"].as_f64(), reclaim["max"].as_f64()) {
        text += &format!(
            "\ncores taken back from programs that died: {}, within {} us at the median, {} us at most\n",
            cell(&reclaim["count"]),
            number(p50 / 1e3),
            number(max / 1e3)
        );
    }
    for part in ["cores", "switch", "loop"] {
        let counters = stats[part].as_object().into_iter().flatten();
        let shown: Vec<String> = counters
            .filter(|(_, value)| value.as_u64() != Some(0))
            .map(|(name, value)| format!("{name} {}", cell(value)))
            .collect();
        text +=
            &format!("\n{part}: {}", if shown.is_empty() { "all 0".to_owned() } else { shown.join(", ") });
    }
    text + "\n"
}

/// Returns the batch jobs that Linux runs, and what they got; empty if there are none.
fn batch_jobs(jobs: &Value) -> String {
    let jobs = jobs.as_array().map_or(&[][..], Vec::as_slice);
    let mut table = Table::new(
        "batch job | pid | processes | threads | core time s | of each core, s | of its cores now, %",
    );
    for job in jobs {
        let usage = &job["usage"];
        let seconds = usage["core_ns"].as_f64().map(|ns| number(ns / 1e9));
        let share = |core: &Value| {
            let part = usage["share"][cell(core)].as_f64().unwrap_or(0.0);
            format!("{}: {:.0}", cell(core), 100.0 * part)
        };
        let times = usage["by_core_ns"].as_object().into_iter().flatten();
        let times: Vec<String> =
            times.filter_map(|(core, ns)| Some(format!("{core}: {}", number(ns.as_f64()? / 1e9)))).collect();
        let shares: Vec<String> = job["cores"].as_array().into_iter().flatten().map(share).collect();
        table.row([
            cell(&job["name"]),
            cell(&job["pid"]),
            cell(&usage["processes"]),
            cell(&usage["threads"]),
            seconds.unwrap_or_else(|| "-".to_owned()),
            times.join(", "),
            shares.join(", "),
        ]);
    }
    if jobs.is_empty() { String::new() } else { format!("\n{table}") }
}

/// Returns what programs publish of their classes of requests; empty if none does.
fn classes(runtimes: &[Value]) -> String {
    let mut table = Table::new(
        "requests of | class | accepted | finished | dropped | preempted | beyond SLO | \
         queue delay us p50/p99 | service us p50/p99 | latency us p99 | of SLO",
    );
    let us = |ns: &Value| ns.as_f64().map_or("-".to_owned(), |ns| number(ns / 1e3));
    let both = |times: &Value| format!("{}/{}", us(&times["p50"]), us(&times["p99"]));
    let mut is_empty = true;
    for runtime in runtimes {
        for class in runtime["classes"].as_array().into_iter().flatten() {
            is_empty = false;
            table.row([
                cell(&runtime["name"]),
                cell(&class["name"]),
                cell(&class["accepted"]),
                cell(&class["finished"]),
                cell(&class["dropped"]),
                cell(&class["preemptions"]),
                cell(&class["late"]),
                both(&class["queue_delay_ns"]),
                both(&class["service_ns"]),
                us(&class["latency_ns"]["p99"]),
                class["slo_ratio"].as_f64().map_or("-".to_owned(), number),
            ]);
        }
    }
    if is_empty { String::new() } else { format!("\n{table}") }
}

/// Returns the firewall's rules with the number of packets that each decided; empty without rules.
fn firewall(stats: &Value) -> String {
    let rules = stats["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let mut table = Table::new("firewall rule | program | direction | action | packets");
    for rule in rules {
        let runtime = if rule["runtime"].is_null() { "any".to_owned() } else { cell(&rule["runtime"]) };
        table.row([
            cell(&rule["name"]),
            runtime,
            cell(&rule["direction"]),
            cell(&rule["action"]),
            cell(&rule["matched"]),
        ]);
    }
    let mut text = if rules.is_empty() { String::new() } else { format!("\n{table}") };
    let (default, opaque) = (&stats["denied_by_default"], &stats["opaque"]);
    if [default, opaque].iter().any(|count| count.as_u64().unwrap_or(0) > 0) {
        text += &format!("\nfirewall: denied by default {}, unreadable {}\n", cell(default), cell(opaque));
    }
    text
}

/// Returns a value as a cell of a table, where a name does nothing to the terminal; a dash for what
/// the answer lacks.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Returns the addresses of a runtime.
pub fn addresses(runtime: &Value) -> String {
    match &runtime["ip6"] {
        Value::Null => cell(&runtime["ip"]),
        ip6 => format!("{} {}", cell(&runtime["ip"]), cell(ip6)),
    }
}

/// Returns whether a runtime is a batch job.
pub fn is_best_effort(runtime: &Value) -> bool {
    runtime["class"] == "best-effort"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_answer_is_shown_and_an_empty_one_does_no_harm() {
        let text = describe(&json!({
            "iokernel": { "version": "0.1.0", "iokernel_core": 0, "managed_cores": [1, 2], "policy": "static" },
            "runtimes": [{ "name": "kv", "pid": 7, "ip": "10.77.0.2", "ip6": "fd00:7477::2", "class": "latency-critical", "kthreads": 2,
                "counters": { "cores": 1, "core_ns": 2_500_000_000u64, "rx_frames": 5, "tx_frames": 4, "rx_full": 0 },
                "classes": [{ "name": "SCAN", "accepted": 1234, "slo_ratio": 0.25,
                    "queue_delay_ns": { "p50": 7100, "p99": 81_000 } }] }],
            "batch_jobs": [{ "name": "xz", "pid": 4711, "cores": [1, 2],
                "usage": { "processes": 1, "threads": 5, "core_ns": 7_300_000_000u64,
                    "by_core_ns": { "1": 4_400_000_000u64, "2": 2_900_000_000u64 }, "share": { "1": 0.834 } } }],
            "firewall": { "denied_by_default": 4, "opaque": 0, "rules": [
                { "name": "web", "runtime": null, "direction": "ingress", "action": "allow", "matched": 17 }] },
            "handoff": { "polling": { "running_ns": { "count": 3, "p50": 3600, "p99": 5100, "p999": 9000 } } },
            "reclaim": { "since_alive_ns": { "count": 2, "p50": 150_000, "max": 300_000 } },
            "cores": { "ticks": 9, "signals": 0 }, "switch": {}, "loop": { "sleeps": 1 },
        }));
        for part in [
            "lends cores 1,2",
            "kv",
            "2.50",
            "4711",
            "7.30",
            "1: 4.40, 2: 2.90",
            "1: 83, 2: 0",
            "10.77.0.2 fd00:7477::2",
            "SCAN",
            "1234",
            "7.10/81.0",
            "0.25",
            "web",
            "any",
            "17",
            "denied by default 4, unreadable 0",
            "polling",
            "3.60",
            "ticks 9",
            "sleeps 1",
            "switch: all 0",
            "died: 2, within 150 us",
        ] {
            assert!(text.contains(part), "`{part}` is missing:\n{text}");
        }
        assert!(!text.contains("signals"), "zeros are left out:\n{text}");
        assert!(describe(&Value::Null).contains("no program"));
    }
}
