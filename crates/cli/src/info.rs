//! `tailwater info NAME`: what an IOKernel knows of one program.
//!
//! Describes a batch job that Linux runs, too. Owns the reason why a program has no core now, as
//! far as two looks at the statistics tell. What waits is what the program reports. Who took time
//! from its cores is `testbed::account`'s.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tailwater_testbed::account::{Taker, Tracepoints, takers};
use tailwater_testbed::socket::IokernelArg;
use tailwater_testbed::statistics::{PROGRAM, alike};
use tailwater_testbed::table::number;

use crate::query;
use crate::stats::{addresses, cell, is_best_effort};

/// Show a program's addresses, grant and cores, why it has none now, who took time from its cores,
/// and its last refusal
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The exit status is 1 if no program or batch job has the name; its last refusal is shown all the same.

Examples:
  tailwater info web
  tailwater info web --json | jq '.programs[].no_core_because'"
)]
pub struct InfoArgs {
    /// Name of the program, as `tailwater ps` shows it
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Processes that are named as having taken time.
const MOST_TAKERS: usize = 4;

/// Time between the two looks.
const APART: Duration = Duration::from_millis(200);

/// Asks the IOKernel and prints what it knows.
///
/// # Errors
/// If nothing listens at the socket, no program or batch job has the name, or standard output is
/// closed.
pub fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let earlier = query::statistics(&args.iokernel)?;
    let tracepoints = Tracepoints::watch(&earlier);
    let (begun, before) = (Instant::now(), tracepoints.strangers(&earlier));
    std::thread::sleep(APART);
    let document = query::statistics_and_jobs(&args.iokernel, query::PATIENCE)?;
    let (time, after) = (begun.elapsed(), tracepoints.strangers(&document));
    let takers_of = |program: &Value| takers(&before, &after, Some(&threads(program)));
    let jobs = named(&document["batch_jobs"], &args.name).collect::<Vec<_>>();
    let found = programs(&document, &args.name).collect::<Vec<_>>();
    let refusal = document["refusals"].as_array().into_iter().flatten();
    let refusal = refusal.into_iter().find(|refusal| refusal["name"] == args.name);
    if args.json {
        let each = |program: &&Value| {
            let mut program = (*program).clone();
            program["no_core_because"] =
                json!(no_core_because(program_of(&earlier, &program), &program, &document));
            match takers_of(&program) {
                Ok(takers) => program["takers"] = json!(takers),
                Err(why) => program["takers_unknown_because"] = json!(&*why),
            }
            program
        };
        let all = json!({ "programs": found.iter().map(each).collect::<Vec<_>>(), "batch_jobs": jobs,
                          "last_refusal": refusal });
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        for program in &found {
            let why = no_core_because(program_of(&earlier, program), program, &document);
            let takers = describe_takers(&takers_of(program), time);
            write!(stdout(), "{}{takers}", describe(program, why.as_deref()))?;
        }
        for job in &jobs {
            write!(stdout(), "{}", describe_job(job))?;
        }
        if let Some(refusal) = refusal {
            writeln!(stdout(), "{}", describe_refusal(refusal))?;
        }
    }
    anyhow::ensure!(!found.is_empty() || !jobs.is_empty(), "{}", describe_absence(&args.name, &document));
    Ok(())
}

/// Returns the error for a program that the statistics do not have.
pub fn describe_absence(name: &str, document: &Value) -> String {
    match count(&document["runtimes_left_out"]) {
        0 => format!("no program {name:?} is registered; `tailwater ps` lists those that are"),
        left => format!(
            "no program {name:?} is among those of the statistics, which have no room for {left} more: it may be one of these"
        ),
    }
}

/// Returns the programs of a name: two while one replaces the other.
pub fn programs<'a>(document: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    named(&document["runtimes"], name)
}

fn named<'a>(list: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    list.as_array().into_iter().flatten().filter(move |one| one["name"] == name)
}

/// Returns the same program in another look.
fn program_of<'a>(document: &'a Value, program: &Value) -> &'a Value {
    alike(&document["runtimes"], program, PROGRAM)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Returns why a program has no core; `None` if it has one.
fn no_core_because(earlier: &Value, program: &Value, document: &Value) -> Option<String> {
    let counters = &program["counters"];
    if count(&counters["cores"]) > 0 {
        return None;
    }
    let grew = |key: &str| count(&counters[key]) > count(&earlier["counters"][key]);
    let waiting = ["queued_threads", "waiting_rings"].map(|key| program[key].as_u64());
    if waiting == [Some(0); 2] {
        return Some("it has no work: no thread of it is runnable, and no frame waits for it".to_owned());
    }
    if grew("throttled") {
        return Some(
            "the IOKernel does not serve its user's programs for a while, because they cost it too much time: refused \
             frames, or requests without need (counters throttled, offence_ns)"
                .to_owned(),
        );
    }
    if grew("evictions") {
        return Some("a thread of it did not cede a core, and is lent none before it has parked".to_owned());
    }
    let managed = document["iokernel"]["managed_cores"].as_array().map_or(0, Vec::len) as u64;
    let there = managed.saturating_sub(count(&document["cores"]["absent"]));
    if there == 0 {
        return Some("Linux lets the IOKernel use none of its managed cores at present".to_owned());
    }
    if waiting.contains(&None) {
        return Some(
            "it is unknown whether it has work: the statistics show that for 4,096 kthreads, and those of other \
             programs come first"
                .to_owned(),
        );
    }
    let holders = document["runtimes"].as_array().into_iter().flatten();
    let holders = holders.filter(|other| count(&other["counters"]["cores"]) > 0);
    let held: u64 = holders.clone().map(|other| count(&other["counters"]["cores"])).sum();
    if held < there {
        return Some(
            "a core is free: it is lent to it within microseconds, unless its kthreads do not start"
                .to_owned(),
        );
    }
    let names =
        holders.map(|other| format!("{} ({})", cell(&other["name"]), cell(&other["counters"]["cores"])));
    let order = if is_best_effort(program) { "; services come before best-effort programs" } else { "" };
    Some(format!("all {there} cores are held: {}{order}", names.collect::<Vec<_>>().join(", ")))
}

fn describe(program: &Value, why: Option<&str>) -> String {
    let counters = &program["counters"];
    let kind = if is_best_effort(program) { "best-effort program" } else { "service" };
    let seconds = counters["core_ns"].as_f64().map_or("-".to_owned(), |ns| number(ns / 1e9));
    let grant = match program["grant"].as_u64() {
        Some(number) => format!("[[grant]] number {number} of the configuration"),
        None => "none needed: a program of root or of the IOKernel's user".to_owned(),
    };
    let mut text = format!(
        "{}: {kind}, process {} of user {}\n\
         addresses     {}, {}\n\
         cores         {} of {} now, {} guaranteed, {} requested and granted; {seconds} s of core time\n\
         grant         {grant}\n\
         waiting       {} runnable threads, frames for {} kthreads\n",
        cell(&program["name"]),
        cell(&program["pid"]),
        cell(&program["user"]),
        addresses(program).replace(' ', ", "),
        cell(&program["mac"]),
        cell(&counters["cores"]),
        cell(&program["kthreads"]),
        cell(&program["guaranteed"]),
        cell(&counters["granted_cores"]),
        cell(&program["queued_threads"]),
        cell(&program["waiting_rings"]),
    );
    if let Some(why) = why {
        text += &format!("no core now   {why}\n");
    }
    let bad = [
        "rx_full",
        "tx_spoofed",
        "tx_refused",
        "tx_denied",
        "rx_denied",
        "throttled",
        "evictions",
        "late_ns",
    ];
    let bad = bad.iter().filter(|key| count(&counters[**key]) > 0);
    let bad: Vec<String> = bad.map(|key| format!("{key} {}", cell(&counters[*key]))).collect();
    if !bad.is_empty() {
        text += &format!("look at       {}\n", bad.join(", "));
    }
    text
}

/// Returns the thread numbers of a program's kthreads.
pub fn threads(program: &Value) -> Vec<i32> {
    let tids = program["threads"].as_array().into_iter().flatten();
    tids.filter_map(|tid| i32::try_from(tid.as_i64()?).ok()).collect()
}

/// Returns which other threads ran while a kthread of the program waited for its core, as one line.
fn describe_takers(takers: &Result<Vec<Taker>, Arc<str>>, time: Duration) -> String {
    let percent = |ns: u64| 100.0 * ns as f64 / time.as_nanos().max(1) as f64;
    let taker = |taker: &Taker| {
        format!("{} {:.1} % of core {} ({})", taker.name(), percent(taker.ran_ns), taker.core, taker.group())
    };
    let named = match takers {
        Err(why) => format!("not known: {why}"),
        Ok(takers) if takers.is_empty() => format!("nothing, in {} ms", time.as_millis()),
        Ok(takers) => takers.iter().take(MOST_TAKERS).map(taker).collect::<Vec<_>>().join(", "),
    };
    format!("took time     {named}\n")
}

fn describe_job(job: &Value) -> String {
    let usage = &job["usage"];
    let seconds = usage["core_ns"].as_f64().map_or("-".to_owned(), |ns| number(ns / 1e9));
    format!(
        "{}: batch job that Linux runs, process {}\n\
         cores         it may use {}, while no program has them; {seconds} s of processor time\n\
         runs          {} processes, {} threads\n",
        cell(&job["name"]),
        cell(&job["pid"]),
        cell(&job["cores"]),
        cell(&usage["processes"]),
        cell(&usage["threads"]),
    )
}

fn describe_refusal(refusal: &Value) -> String {
    let (ago, user) = (cell(&refusal["seconds_ago"]), cell(&refusal["user"]));
    format!("last refusal  {ago} s ago, of user {user}: {}", cell(&refusal["why"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(waiting: u64, free: u64) -> Value {
        json!({ "iokernel": { "managed_cores": [1, 2] }, "cores": { "absent": 0 }, "runtimes": [
            { "id": 0, "name": "web", "class": "latency-critical", "counters": { "cores": 2 - free } },
            { "id": 1, "name": "xz", "pid": 9, "user": 1000, "grant": 2, "ip": "10.77.0.3", "ip6": "fd00::3",
              "mac": "02:00", "class": "best-effort", "kthreads": 2, "guaranteed": 0,
              "queued_threads": waiting, "waiting_rings": 0,
              "counters": { "cores": 0, "throttled": 1, "core_ns": 2_000_000_000u64 } }] })
    }

    fn why(waiting: u64, free: u64, throttled_before: u64) -> String {
        let document = document(waiting, free);
        let xz = programs(&document, "xz").next().unwrap();
        let earlier = json!({ "counters": { "throttled": throttled_before } });
        no_core_because(&earlier, xz, &document).unwrap()
    }

    #[test]
    fn the_reason_why_a_program_has_no_core_is_named() {
        assert!(why(0, 0, 1).contains("no work"));
        assert!(why(3, 0, 1).contains("held: web (2); services come before"));
        assert!(why(3, 1, 1).contains("a core is free"));
        assert!(why(3, 0, 0).contains("does not serve"));
        let mut document = document(0, 0);
        let web = programs(&document, "web").next().unwrap();
        assert_eq!(no_core_because(&Value::Null, web, &document), None);
        document["runtimes"][1]["waiting_rings"] = Value::Null;
        let xz = programs(&document, "xz").next().unwrap();
        let earlier = json!({ "counters": { "throttled": 1 } });
        assert!(no_core_because(&earlier, xz, &document).unwrap().contains("unknown"));
    }

    #[test]
    fn a_job_that_linux_runs_is_described_and_nothing_in_its_name_reaches_the_terminal() {
        let document = json!({ "batch_jobs": [{ "name": "x\u{202e}z", "pid": 9, "cores": [1, 2],
            "usage": { "processes": 1, "threads": 2, "core_ns": 1_500_000_000u64 } }] });
        let text = describe_job(named(&document["batch_jobs"], "x\u{202e}z").next().unwrap());
        for part in ["x?z: batch job that Linux runs, process 9", "1,2", "1.50 s", "2 threads"] {
            assert!(text.contains(part), "`{part}` is missing:\n{text}");
        }
    }

    #[test]
    fn who_took_time_is_one_line_without_control_characters() {
        let taker = Taker {
            command: "x\x1b[2Jz".to_owned(),
            pid: 9,
            is_kernel: false,
            control_group: Some("/batch".to_owned()),
            core: 1,
            ran_ns: 50_000_000,
            waited_ns: 50_000_000,
        };
        let line = |takers| describe_takers(&takers, Duration::from_millis(200));
        assert_eq!(line(Ok(vec![taker])), "took time     x?[2Jz[9] 25.0 % of core 1 (/batch)\n");
        assert_eq!(line(Ok(vec![])), "took time     nothing, in 200 ms\n");
        assert_eq!(line(Err("needs CAP_BPF".into())), "took time     not known: needs CAP_BPF\n");
        assert_eq!(threads(&json!({ "threads": [4, "x", u64::MAX, 5] })), [4, 5]);
    }

    #[test]
    fn a_program_that_may_be_left_out_is_not_called_absent() {
        assert!(describe_absence("web", &Value::Null).contains("tailwater ps"));
        assert!(describe_absence("web", &json!({ "runtimes_left_out": 3 })).contains("3 more"));
    }

    #[test]
    fn addresses_grant_and_reason_are_shown() {
        let document = document(3, 0);
        let xz = program_of(&document, programs(&document, "xz").next().unwrap());
        let text = describe(xz, Some("all cores are held"));
        for part in [
            "xz: best-effort program, process 9 of user 1000",
            "10.77.0.3, fd00::3, 02:00",
            "[[grant]] number 2",
            "3 runnable threads",
            "no core now   all cores are held",
            "throttled 1",
        ] {
            assert!(text.contains(part), "`{part}` is missing:\n{text}");
        }
        let refusal = json!({ "name": "xz", "user": 7, "why": "the name is taken", "seconds_ago": 12 });
        assert_eq!(describe_refusal(&refusal), "last refusal  12 s ago, of user 7: the name is taken");
    }
}
