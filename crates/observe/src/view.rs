//! What the screen shows, computed from two documents.
//!
//! Owns rates, shares and orders: a function of the two and of the time between them. Text of
//! programs in it is harmless to a terminal.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::Value;
use tailwater_stats::schema::PARTS;
use tailwater_testbed::account::Taker;
use tailwater_testbed::statistics::{CLASS, PROGRAM, alike, growth, quantile_ns};
use tailwater_testbed::text::plain;

/// To whom a part of a core's time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A service, which works.
    Service,
    /// A service, which polls without work.
    Polling,
    /// A batch job.
    Batch,
    /// Nobody: the core changed hands.
    Handoff,
    /// Nobody.
    Free,
}

impl Owner {
    /// All, in the order of the bars.
    pub const ALL: [Self; 5] = [Self::Service, Self::Polling, Self::Batch, Self::Handoff, Self::Free];

    /// Returns the words of the legend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Polling => "service, idle",
            Self::Batch => "batch",
            Self::Handoff => "hand-off",
            Self::Free => "free",
        }
    }

    /// Returns the phases of a core that are this owner's.
    fn phases(self) -> &'static [&'static str] {
        match self {
            Self::Service => &["service"],
            Self::Polling => &["service_idle"],
            Self::Batch => &["batch", "batch_idle"],
            Self::Handoff => &["wake", "cede", "start"],
            Self::Free => &["free"],
        }
    }
}

/// A core's time by owner, as parts of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Core {
    /// Its number.
    pub number: u64,
    /// The parts, in the order of [`Owner::ALL`].
    pub shares: [f64; 5],
}

/// A row of the table of programs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// `service`, `batch`, or `job` for a batch job that Linux runs.
    pub kind: &'static str,
    /// Cores that it has now; none for a batch job that Linux runs.
    pub cores: Option<f64>,
    /// Core time per second.
    pub used: f64,
    /// Runnable user threads, and rings with frames, that wait.
    pub queued: Option<f64>,
    /// Percentiles of the class of requests with the longest latency, in microseconds.
    pub p50: Option<f64>,
    /// See [`p50`](Self::p50).
    pub p99: Option<f64>,
    /// Frames per second, in and out.
    pub rx: f64,
    /// See [`rx`](Self::rx).
    pub tx: f64,
    /// Frames dropped per second, its own and for it, and requests.
    pub dropped: f64,
    /// Cores taken from it per second.
    pub preempted: f64,
}

/// Hand-offs of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Handoff {
    /// The kind.
    pub kind: String,
    /// How many per second.
    pub rate: f64,
    /// Percentiles of the interval in microseconds; none without hand-offs.
    pub percentiles: Option<(f64, f64)>,
}

/// See the module documentation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct View {
    /// The IOKernel in words.
    pub head: String,
    /// The managed cores.
    pub cores: Vec<Core>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Hand-offs of each kind.
    pub handoffs: Vec<Handoff>,
    /// Frames dropped per second, by reason; those that occurred.
    pub drops: Vec<(&'static str, f64)>,
    /// The chief other threads that ran on the cores, in words, those first for which a kthread
    /// waited; or why that is unknown.
    pub takers: Vec<String>,
}

/// Order of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Core time, most first.
    Used,
    /// What waits.
    Queued,
    /// The 99th percentile.
    P99,
    /// Frames in.
    Received,
    /// Drops.
    Dropped,
    /// The name.
    Name,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Self; 6] =
        [Self::Used, Self::Queued, Self::P99, Self::Received, Self::Dropped, Self::Name];

    /// Returns the one that is `steps` further.
    pub fn step(self, steps: isize) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0) as isize;
        Self::ALL[(at + steps).rem_euclid(Self::ALL.len() as isize) as usize]
    }

    /// Returns the heading of its column.
    pub fn column(self) -> &'static str {
        match self {
            Self::Used => "core s/s",
            Self::Queued => "queued",
            Self::P99 => "p99 us",
            Self::Received => "rx/s",
            Self::Dropped => "drop/s",
            Self::Name => "program",
        }
    }

    fn compare(self, a: &Program, b: &Program) -> Ordering {
        let number = |program: &Program| match self {
            Self::Used => program.used,
            Self::Queued => program.queued.unwrap_or(-1.0),
            Self::P99 => program.p99.unwrap_or(-1.0),
            Self::Received => program.rx,
            Self::Dropped => program.dropped,
            Self::Name => 0.0,
        };
        number(b).total_cmp(&number(a)).then_with(|| a.name.cmp(&b.name))
    }
}

/// Processes on lent cores that are named.
const MOST_TAKERS: usize = 8;

impl View {
    /// Returns what is seen between two looks that are `seconds` apart.
    pub fn between(from: &Value, to: &Value, seconds: f64) -> Self {
        let seconds = seconds.max(1e-3);
        let facts = &to["iokernel"];
        let numbers = array(facts, "managed_cores").filter_map(Value::as_u64);
        let head = format!(
            "IOKernel {} on core {}, lends {}, policy {}",
            shown(&facts["version"]),
            shown(&facts["iokernel_core"]),
            ranges(numbers),
            shown(&facts["policy"]),
        );
        let mut programs: Vec<Program> = array(to, "runtimes")
            .map(|program| runtime(alike(&from["runtimes"], program, PROGRAM), program, seconds))
            .collect();
        programs.extend(
            array(to, "batch_jobs")
                .map(|job| batch_job(alike(&from["batch_jobs"], job, &["pid"]), job, seconds)),
        );
        Self {
            head,
            cores: array(to, "account")
                .map(|core| shares(alike(&from["account"], core, &["core"]), core))
                .collect(),
            programs,
            handoffs: handoffs(&from["handoff"], &to["handoff"], seconds),
            drops: drops(&from["switch"], &to["switch"], seconds),
            takers: Vec::new(),
        }
    }

    /// Returns the view with those who ran on the cores between the two looks.
    pub fn with_takers(self, takers: &Result<Vec<Taker>, Arc<str>>, seconds: f64) -> Self {
        let percent = |ns: u64| format!("{:.1} %", ns as f64 / seconds.max(1e-3) / 1e7);
        let taker = |taker: &Taker| {
            let waited = percent(taker.waited_ns);
            format!(
                "{} {} of core {} (kthread waited {waited})",
                taker.name(),
                percent(taker.ran_ns),
                taker.core
            )
        };
        let takers = match takers {
            Ok(takers) => takers.iter().take(MOST_TAKERS).map(taker).collect(),
            Err(why) => vec![format!("not known: {}", plain(why))],
        };
        Self { takers, ..self }
    }

    /// Returns the programs whose name has `filter`, in this order.
    pub fn sorted(&self, sort: Sort, is_reversed: bool, filter: &str) -> Vec<&Program> {
        let mut chosen: Vec<&Program> =
            self.programs.iter().filter(|program| program.name.contains(filter)).collect();
        chosen.sort_by(|a, b| sort.compare(a, b));
        if is_reversed {
            chosen.reverse();
        }
        chosen
    }
}

/// Returns numbers in ascending order with ranges: `1-4,7`.
fn ranges(numbers: impl Iterator<Item = u64>) -> String {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let word = |(from, to): (u64, u64)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    found.into_iter().map(word).collect::<Vec<_>>().join(",")
}

/// Elements of an array of a document.
fn array<'a>(document: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    document[key].as_array().into_iter().flatten()
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "?".to_owned(),
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

fn shares(from: &Value, to: &Value) -> Core {
    let time = |owner: Owner| -> f64 {
        owner.phases().iter().map(|phase| growth(&from["ns"][phase], &to["ns"][phase])).sum()
    };
    let times = Owner::ALL.map(time);
    let all: f64 = times.iter().sum();
    let shares = if all > 0.0 { times.map(|time| time / all) } else { [0.0, 0.0, 0.0, 0.0, 1.0] };
    Core { number: to["core"].as_u64().unwrap_or_default(), shares }
}

fn runtime(from: &Value, to: &Value, seconds: f64) -> Program {
    let rate = |key: &str| growth(&from["counters"][key], &to["counters"][key]) / seconds;
    let refused: f64 = array(to, "classes")
        .map(|class| {
            let before = alike(&from["classes"], class, CLASS);
            growth(&before["dropped"], &class["dropped"]) / seconds
        })
        .sum();
    let slowest = array(to, "classes")
        .map(|class| &class["latency_ns"])
        .max_by_key(|latency| latency["p99"].as_u64().unwrap_or_default());
    let us = |key: &str| {
        slowest.and_then(|latency| latency[key].as_f64()).filter(|ns| *ns > 0.0).map(|ns| ns / 1e3)
    };
    let waiting = ["queued_threads", "waiting_rings"].map(|key| to[key].as_f64());
    Program {
        name: shown(&to["name"]),
        kind: if to["class"] == "best-effort" { "batch" } else { "service" },
        cores: to["counters"]["cores"].as_f64(),
        used: core_time(from, to, rate("core_ns") / 1e9),
        queued: waiting[0].map(|threads| threads + waiting[1].unwrap_or_default()),
        p50: us("p50"),
        p99: us("p99"),
        rx: rate("rx_frames"),
        tx: rate("tx_frames"),
        dropped: refused + dropped_keys().map(rate).sum::<f64>(),
        preempted: rate("preempted"),
    }
}

/// Returns the counters of a program that are frames of it, or for it, that were dropped.
fn dropped_keys() -> impl Iterator<Item = &'static str> {
    const REASONS: [&str; 7] =
        ["_full", "_spoofed", "_malformed", "_refused", "_denied", "_limited", "_broadcast"];
    let counters = PARTS.iter().filter(|part| part.place() == "runtimes[].counters");
    let keys = counters.flat_map(|part| part.shape.fields()).map(|field| field.key);
    keys.filter(|key| {
        (key.starts_with("rx_") || key.starts_with("tx_"))
            && REASONS.iter().any(|reason| key.ends_with(reason))
    })
}

/// Returns the core time per second of a program. Its counter grows when a core changes hands: by
/// none of the time of a program that keeps its cores, which this is then, and at the end by more
/// than passed since the last look.
fn core_time(from: &Value, to: &Value, rate: f64) -> f64 {
    let [before, now] = [&from["counters"], &to["counters"]];
    let keeps = before["cores"] == now["cores"] && before["grants"] == now["grants"];
    if keeps { float(&now["cores"]) } else { rate.min(float(&to["kthreads"])) }
}

fn batch_job(from: &Value, to: &Value, seconds: f64) -> Program {
    Program {
        name: shown(&to["name"]),
        kind: "job",
        used: growth(&from["usage"]["core_ns"], &to["usage"]["core_ns"]) / 1e9 / seconds,
        ..Program::default()
    }
}

fn handoffs(from: &Value, to: &Value, seconds: f64) -> Vec<Handoff> {
    let kinds = to.as_object().into_iter().flatten();
    kinds
        .map(|(kind, now)| {
            let (before, now) = (&from[kind]["running_ns"], &now["running_ns"]);
            Handoff {
                kind: plain(kind),
                rate: growth(&before["count"], &now["count"]) / seconds,
                percentiles: percentiles(before, now),
            }
        })
        .collect()
}

/// Returns median and 99th percentile, in microseconds, of the values between two readings of a
/// histogram: the bound of the bucket that has it.
fn percentiles(from: &Value, to: &Value) -> Option<(f64, f64)> {
    let us = |part| quantile_ns(from, to, part).map(|ns| ns / 1e3);
    Some((us(0.5)?, us(0.99)?))
}

fn drops(from: &Value, to: &Value, seconds: f64) -> Vec<(&'static str, f64)> {
    let switch = PARTS.iter().filter(|part| part.place() == "switch");
    let keys = switch.flat_map(|part| part.shape.fields()).map(|field| field.key);
    let reasons = keys.filter_map(|key| Some((key, key.strip_prefix("dropped_")?)));
    reasons
        .map(|(key, reason)| (reason, growth(&from[key], &to[key]) / seconds))
        .filter(|(_, rate)| *rate > 0.0)
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    fn program(name: &str, id: u64, class: &str, core_ns: u64, p99: u64) -> Value {
        json!({ "id": id, "name": name, "pid": 100 + id, "class": class, "queued_threads": id, "waiting_rings": 0, "kthreads": 2,
            "counters": { "cores": 1, "grants": core_ns / 1_000, "core_ns": core_ns, "rx_frames": core_ns / 10_000, "tx_frames": 10,
                "rx_full": core_ns / 100_000_000, "preempted": 5 },
            "classes": [{ "name": "GET", "dispatcher": 0, "dropped": 0,
                "latency_ns": { "p50": p99 / 10, "p99": p99 } }] })
    }

    /// A document of a machine with `cores` managed cores, after `ns` nanoseconds.
    pub fn document(cores: u64, ns: u64) -> Value {
        let account = (1..=cores).map(|core| {
            let part = ns / 10;
            json!({ "core": core, "ns": { "service": part * 4, "service_idle": part, "batch": part * 3,
                "batch_idle": 0, "wake": 0, "cede": part / 2, "start": part / 2, "free": part } })
        });
        let bounds = tailwater_stats::BOUNDS_NS;
        let buckets = bounds.map(|bound| if bound >= 5_000 { ns / 10_000 } else { 0 });
        json!({
            "iokernel": { "version": "0.1.0", "iokernel_core": 0, "managed_cores": [1, 2], "policy": "adaptive" },
            "account": account.collect::<Vec<_>>(),
            "runtimes": [program("web", 0, "latency-critical", ns / 2, 480_000),
                program("kv\u{1b}[2J", 1, "latency-critical", ns / 4, 90_000),
                program("swaptions", 2, "best-effort", ns, 0)],
            "batch_jobs": [{ "name": "xz", "pid": 9, "usage": { "core_ns": ns / 5 } }],
            "handoff": { "polling": { "running_ns": { "count": ns / 10_000, "buckets": buckets } },
                "signal": { "running_ns": { "count": 0, "buckets": bounds.map(|_| 0) } } },
            "switch": { "dropped_full": ns / 10_000_000, "dropped_spoofed": 0 },
        })
    }

    #[test]
    fn rates_and_shares_are_those_between_the_two_looks() {
        let view = View::between(&document(2, 1_000_000_000), &document(2, 3_000_000_000), 2.0);
        let shares = view.cores[1].shares.map(|share| (share * 100.0).round());
        assert_eq!(shares, [40.0, 10.0, 30.0, 10.0, 10.0]);
        let web = &view.programs[0];
        assert_eq!((web.used, web.p50, web.p99), (0.5, Some(48.0), Some(480.0)));
        assert_eq!((web.rx, web.dropped), (50_000.0, 5.0));
        assert_eq!((view.programs[3].kind, view.programs[3].used), ("job", 0.2));
        assert_eq!(view.programs[1].name, "kv?[2J");
        assert_eq!((view.handoffs[0].rate, view.handoffs[0].percentiles), (100_000.0, Some((5.0, 5.0))));
        assert_eq!(view.handoffs[1].percentiles, None);
        assert_eq!(view.drops, [("full", 100.0)]);
    }

    #[test]
    fn the_time_of_a_core_that_is_kept_counts_although_the_counter_stands() {
        let look = |cores: u64, grants: u64, core_ns: u64| {
            json!({ "runtimes": [{ "id": 1, "name": "b", "pid": 1, "kthreads": 2,
                "counters": { "cores": cores, "grants": grants, "core_ns": core_ns } }] })
        };
        let used = |from: Value, to: Value| View::between(&from, &to, 1.0).programs[0].used;
        assert_eq!(used(look(1, 5, 7), look(1, 5, 7)), 1.0);
        assert_eq!(used(look(0, 5, 7), look(0, 5, 7)), 0.0);
        assert_eq!(used(look(1, 5, 0), look(1, 6, 500_000_000)), 0.5);
        assert_eq!(used(look(1, 5, 0), look(0, 5, 60_000_000_000)), 2.0, "more than it can have used");
    }

    #[test]
    fn programs_are_sorted_and_filtered() {
        let view = View::between(&document(1, 0), &document(1, 1_000_000_000), 1.0);
        let names = |sort, reversed, filter: &str| -> Vec<String> {
            view.sorted(sort, reversed, filter).iter().map(|program| program.name.clone()).collect()
        };
        assert_eq!(names(Sort::Used, false, ""), ["swaptions", "web", "kv?[2J", "xz"]);
        assert_eq!(names(Sort::P99, false, ""), ["web", "kv?[2J", "swaptions", "xz"]);
        assert_eq!(names(Sort::Name, true, "w"), ["web", "swaptions"]);
        assert_eq!((Sort::Name.step(1), Sort::Used.step(-1)), (Sort::Used, Sort::Name));
    }

    #[test]
    fn what_has_begun_anew_or_is_missing_does_no_harm() {
        let view = View::between(&document(2, 3_000_000_000), &document(2, 1_000_000_000), 1.0);
        assert!(view.programs.iter().all(|program| program.used >= 0.0));
        assert_eq!(View::between(&Value::Null, &Value::Null, 0.0).programs, []);
    }

    /// A view in which a program with a hostile name took time.
    pub fn taken(view: View) -> View {
        let taker = Taker {
            command: "stress\x1b[2J".to_owned(),
            pid: 4_711,
            is_kernel: false,
            control_group: None,
            core: 1,
            ran_ns: 123_000_000,
            waited_ns: 45_000_000,
        };
        view.with_takers(&Ok(vec![taker]), 1.0)
    }

    #[test]
    fn who_took_time_is_named_with_its_shares_or_why_it_is_unknown() {
        let named = taken(View::default()).takers;
        assert_eq!(named, ["stress?[2J[4711] 12.3 % of core 1 (kthread waited 4.5 %)"]);
        assert_eq!(View::default().with_takers(&Err("no\x1b".into()), 0.0).takers, ["not known: no?"]);
    }

    #[test]
    fn numbers_of_cores_are_ranges() {
        assert_eq!(ranges([1, 2, 3, 7].into_iter()), "1-3,7");
        assert_eq!(ranges([].into_iter()), "");
    }

    #[test]
    fn the_drops_of_a_program_are_those_of_the_list() {
        let keys: Vec<&str> = dropped_keys().collect();
        assert!(
            keys.contains(&"rx_full") && keys.contains(&"tx_spoofed") && !keys.contains(&"rx_frames"),
            "{keys:?}"
        );
    }
}
