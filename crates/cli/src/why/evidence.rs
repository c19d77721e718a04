//! The evidence for a verdict, from what was gathered in a watch.
//!
//! Owns what counts as which cost. The wait for a core whose holder needed the preempt signal
//! counts for the holder's program. Where the holder was bypassed, which is mostly because Linux
//! ran another program on its core, it counts for that program if the tracepoints name one. So does
//! the time until a kthread that was woken starts, while other programs run on the cores. This
//! process is not one of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tailwater_shm::trace::Handoff;
use tailwater_shm::{Clock, Cycles};
use tailwater_testbed::account::{Strangers, Taker, Tracepoints, takers};
use tailwater_testbed::statistics::{lent_cores, place_of};

use super::linux::{Waits, quota_of, stolen_ns, throttled_ns, waits};
use super::verdict::{Cost, Evidence, Requests};
use crate::info::threads;
use crate::trace::collect::Collector;
use crate::trace::cores::Tenancy;
use crate::trace::stages::{Breakdown, Span, Stage};
use crate::trace::watch::Names;

/// What is read at the beginning of a watch and at its end.
#[derive(Debug)]
pub struct Look {
    strangers: Strangers,
    throttled: BTreeMap<PathBuf, u64>,
    stolen: Vec<(u16, u64)>,
}

impl Look {
    /// Looks at a program of an IOKernel with these statistics.
    pub fn new(document: &Value, program: &Value, tracepoints: &Tracepoints) -> Self {
        let polling = document["iokernel"]["iokernel_core"].as_u64();
        let mut cores: Vec<u16> = lent_cores(document).unwrap_or_default();
        cores.extend(polling.and_then(|core| u16::try_from(core).ok()));
        Self {
            strangers: tracepoints.strangers(document),
            throttled: throttled_ns(program["pid"].as_i64().unwrap_or(-1)),
            stolen: stolen_ns(&cores),
        }
    }
}

/// Where the kthreads of a program were seen waiting.
#[derive(Debug)]
pub struct Waiting {
    pid: i64,
    tids: Vec<i32>,
    looks: u64,
    /// Number of kthreads that were seen waiting, over all looks.
    locked: u64,
    in_calls: BTreeMap<String, u64>,
    is_refused: bool,
}

impl Waiting {
    /// Returns the looks at a program's kthreads, of which there was none.
    pub fn of(program: &Value) -> Self {
        let pid = program["pid"].as_i64().unwrap_or(-1);
        Self {
            pid,
            tids: threads(program),
            looks: 0,
            locked: 0,
            in_calls: BTreeMap::new(),
            is_refused: false,
        }
    }

    /// Looks where they wait now.
    pub fn look(&mut self) {
        self.looks += 1;
        for &tid in &self.tids {
            match waits(self.pid, tid) {
                Some(Waits::Nowhere) => {}
                Some(Waits::Lock) => self.locked += 1,
                Some(Waits::Call(name)) => *self.in_calls.entry(name).or_default() += 1,
                None => self.is_refused = true,
            }
        }
    }

    /// Returns the time of so many of the looks.
    fn time(&self, seen: u64, time_ns: u64) -> u64 {
        (u128::from(time_ns) * u128::from(seen) / u128::from(self.looks.max(1))) as u64
    }
}

/// Everything that was gathered.
#[derive(Debug)]
pub struct Gathered {
    /// The program, as the statistics show it.
    pub program: Value,
    /// The time that is judged.
    pub time_ns: u64,
    /// What only a watch sees.
    pub seen: Option<Seen>,
    /// Events of the record.
    pub collector: Collector,
    /// Names of programs.
    pub names: Names,
    /// The clock of the events.
    pub clock: Clock,
}

/// What a watch sees beside the record.
#[derive(Debug)]
pub struct Seen {
    /// What was read at its beginning.
    pub before: Look,
    /// What was read at its end.
    pub after: Look,
    /// Where kthreads waited.
    pub waiting: Waiting,
}

/// Returns the evidence.
pub fn of(gathered: &Gathered) -> Evidence {
    let Gathered { program, time_ns, .. } = gathered;
    let mut evidence = Evidence {
        name: program["name"].as_str().unwrap_or_default().to_owned(),
        time_ns: *time_ns,
        requests: requests(gathered),
        ..Evidence::default()
    };
    let all = match &gathered.seen {
        Some(seen) => enter_seen(seen, &threads(program), &mut evidence),
        None => {
            let unseen = "programs of Linux on the cores, quotas, locks and the host, which only a watch sees (--duration)";
            evidence.unknown.push(unseen.to_owned());
            Vec::new()
        }
    };
    late(gathered, &all, &mut evidence);
    evidence
}

/// Enters what only a watch sees; returns the programs that ran on the cores.
fn enter_seen(seen: &Seen, kthreads: &[i32], evidence: &mut Evidence) -> Vec<Taker> {
    let Seen { before, after, waiting } = seen;
    evidence.throttled = throttled(before, after, evidence.time_ns);
    evidence.stolen = stolen(before, after);
    let found = |kthreads: Option<&[i32]>| {
        let mut found = takers(&before.strangers, &after.strangers, kthreads)?;
        found.retain(|taker| taker.pid != std::process::id());
        Ok::<_, Arc<str>>(found)
    };
    let (all, own) = (found(None), found(Some(kthreads)));
    if let Err(why) = &all {
        evidence.unknown.push(format!("which programs ran on the cores: {why}"));
    }
    let (all, own) = (all.unwrap_or_default(), own.unwrap_or_default());
    evidence.taken = taken(&own, &all, evidence);
    let time_ns = evidence.time_ns;
    evidence.locked = Cost { ns: waiting.time(waiting.locked, time_ns), ..Cost::default() };
    let calls: u64 = waiting.in_calls.values().sum();
    let chief = waiting.in_calls.iter().max_by_key(|(_, seen)| **seen).map(|(name, _)| name.clone());
    evidence.in_calls =
        Cost { ns: waiting.time(calls, time_ns), chief: chief.unwrap_or_default(), detail: String::new() };
    if waiting.is_refused {
        evidence
            .unknown
            .push("where its kthreads wait: needs CAP_SYS_PTRACE, or its user and ptrace_scope 0".to_owned());
    }
    all
}

/// Fraction of the time watched from which programs that ran on the cores may have kept a woken
/// kthread from starting.
const RAN: u64 = 10;

/// Returns what other programs cost the program: the time for which its kthreads waited for them,
/// or the same part of the time as its requests waited for kthreads to start beside them.
fn taken(own: &[Taker], all: &[Taker], evidence: &Evidence) -> Cost {
    let waited = cost_of(own);
    let ran: u64 = all.iter().map(|taker| taker.ran_ns).sum();
    let start_ns = share(evidence, evidence.requests.start_ns);
    if ran < evidence.time_ns / RAN || start_ns <= waited.ns {
        return waited;
    }
    let Some(chief) = all.iter().max_by_key(|taker| taker.ran_ns) else { return waited };
    Cost { ns: start_ns, chief: chief.name(), detail: chief.group() }
}

/// Returns the time for which kthreads waited for other programs, and the chief of these.
fn cost_of(takers: &[Taker]) -> Cost {
    let chief = takers.first();
    Cost {
        ns: takers.iter().map(|taker| taker.waited_ns).sum(),
        chief: chief.map(Taker::name).unwrap_or_default(),
        detail: chief.map(Taker::group).unwrap_or_default(),
    }
}

fn throttled(before: &Look, after: &Look, time_ns: u64) -> Cost {
    let gained = |(folder, ns): (&PathBuf, &u64)| {
        (ns.saturating_sub(before.throttled.get(folder).copied().unwrap_or(*ns)), folder.clone())
    };
    let Some((ns, folder)) = after.throttled.iter().map(gained).max() else { return Cost::default() };
    let detail = if ns > 0 { quota_of(&folder) } else { String::new() };
    // Linux adds up the times of the CPUs.
    let ns = ns.min(time_ns);
    Cost { ns, chief: folder.display().to_string(), detail }
}

fn stolen(before: &Look, after: &Look) -> Cost {
    let pairs = before.stolen.iter().zip(&after.stolen).filter(|(from, to)| from.0 == to.0);
    let most = pairs.map(|(from, to)| (to.1.saturating_sub(from.1), to.0)).max();
    most.map_or(Cost::default(), |(ns, core)| Cost {
        ns,
        chief: format!("core {core}"),
        detail: String::new(),
    })
}

/// Enters the waits for holders that did not cede when they were asked.
fn late(gathered: &Gathered, all: &[Taker], evidence: &mut Evidence) {
    let Gathered { program, collector, names, clock, .. } = gathered;
    let id = place_of(program);
    let (mut for_it, mut bypassed_by) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    let mut by_it = 0;
    let registered = names.registration(id, Cycles::MAX);
    for tenancy in collector.cores.tenancies() {
        let Some((from, ns)) = late_ns(tenancy, clock) else { continue };
        // Another program had the place before.
        let is_it = |place| place == id && names.registration(id, tenancy.decided) == registered;
        match (is_it(tenancy.who.runtime), is_it(from)) {
            (true, false) => {
                let is_bypassed = tenancy.handoff == Handoff::Bypass;
                let waits = if is_bypassed { &mut bypassed_by } else { &mut for_it };
                *waits.entry(names.runtime(from, tenancy.decided)).or_default() += ns;
            }
            (false, true) => by_it += ns,
            _ => {}
        }
    }
    let bypassed: u64 = bypassed_by.values().sum();
    let displaced: u64 = all.iter().map(|taker| taker.waited_ns).sum();
    let mut of_requests = evidence.requests.unpolled_ns;
    // If Linux ran others on the cores of the holders for at least as long, it was these.
    if bypassed > 0 && displaced >= bypassed {
        let own = evidence.taken.ns;
        evidence.taken = Cost { ns: own.saturating_add(bypassed), ..cost_of(all) };
    } else {
        bypassed_by.into_iter().for_each(|(holder, ns)| *for_it.entry(holder).or_default() += ns);
        of_requests += evidence.requests.bypassed_ns;
    }
    let chief = for_it.iter().max_by_key(|(_, ns)| **ns).map(|(holder, _)| holder.clone());
    let waits: u64 = for_it.values().sum();
    let waits = if for_it.is_empty() { 0 } else { waits.max(share(evidence, of_requests)) };
    evidence.own_unpolled = by_it > waits;
    evidence.unpolled = if evidence.own_unpolled {
        Cost { ns: by_it, chief: evidence.name.clone(), detail: String::new() }
    } else {
        Cost { ns: waits, chief: chief.unwrap_or_default(), detail: String::new() }
    };
}

/// Returns the wait for a holder that needed the preempt signal, and the holder's program.
fn late_ns(tenancy: &Tenancy, clock: &Clock) -> Option<(u32, u64)> {
    let from = tenancy.from?;
    tenancy.signalled?;
    let end = tenancy.running.or(tenancy.ceded).or(tenancy.lost)?;
    Some((from.runtime, clock.to_ns(end.saturating_sub(tenancy.decided))))
}

/// Returns the same part of the time watched as `ns` are of the time of requests: few requests of
/// which each waits are slow all the same.
fn share(evidence: &Evidence, ns: u64) -> u64 {
    (u128::from(evidence.time_ns) * u128::from(ns) / u128::from(evidence.requests.all_ns.max(1))) as u64
}

fn requests(gathered: &Gathered) -> Requests {
    let Gathered { collector, clock, .. } = gathered;
    let mut sums = Requests::default();
    for breakdown in collector.requests.values().filter_map(|it| Breakdown::of(it, &collector.cores)) {
        sums.answered += 1;
        sums.all_ns += clock.to_ns(breakdown.total());
        for span in &breakdown.spans {
            add(&mut sums, span, clock);
        }
    }
    sums
}

fn add(sums: &mut Requests, span: &Span, clock: &Clock) {
    let ns = clock.to_ns(Cycles::saturating_sub(span.to, span.from));
    match span.stage {
        Stage::Blocked => sums.blocked_ns += ns,
        Stage::Detection | Stage::Cede | Stage::Start => {
            sums.core_ns += ns;
            if span.stage == Stage::Start {
                sums.start_ns += ns;
            }
            match span.tenancy {
                Some(tenancy) if tenancy.handoff == Handoff::Bypass => sums.bypassed_ns += ns,
                Some(tenancy) if tenancy.signalled.is_some() => sums.unpolled_ns += ns,
                _ => {}
            }
        }
        Stage::Ring | Stage::Socket | Stage::RunQueue | Stage::Dispatch | Stage::Preempted => {
            sums.queue_ns += ns;
        }
        Stage::Run => sums.run_ns += ns,
        Stage::Port | Stage::Switch | Stage::Stack | Stage::Egress | Stage::Out => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::verdict::{Cause, judge};
    use serde_json::json;
    use tailwater_bpf::core_time::Stranger;
    use tailwater_shm::trace::{CoreStep, TraceEvent, Who};

    const WEB: Who = Who { runtime: 0, kthread: 0 };
    const BATCH: Who = Who { runtime: 1, kthread: 0 };

    fn gathered(collector: Collector) -> Gathered {
        let look = || Look { strangers: Ok(vec![]), throttled: BTreeMap::new(), stolen: vec![(1, 5)] };
        let program = json!({ "name": "web", "id": 0, "pid": 7, "threads": [8] });
        let mut names = Names::default();
        names.register(1, 0, "xz");
        Gathered {
            seen: Some(Seen {
                before: look(),
                after: look(),
                waiting: Waiting { looks: 100, ..Waiting::of(&program) },
            }),
            program,
            time_ns: 1_000_000,
            collector,
            names,
            clock: Clock::from_hz(1_000_000_000),
        }
    }

    /// A hand-off from the batch job to the service that takes 500 us of a watch of 1 ms.
    fn handed_over(kind: Handoff, is_signalled: bool) -> Collector {
        let mut collector = Collector::default();
        let mut core = |at, step, handoff, who, from| {
            collector.push(at, TraceEvent::Core { core: 1, step, handoff, who, from });
        };
        core(0, CoreStep::Running, Handoff::Wake, BATCH, None);
        core(1_000, CoreStep::Decided, Handoff::Polling, WEB, Some(BATCH));
        if is_signalled {
            core(6_000, CoreStep::Signalled, Handoff::Signal, BATCH, None);
        }
        core(500_000, CoreStep::Ceded, kind, BATCH, None);
        core(501_000, CoreStep::Running, kind, WEB, None);
        collector
    }

    #[test]
    fn a_holder_that_needed_the_signal_is_named_and_one_that_ceded_is_not() {
        let evidence = of(&gathered(handed_over(Handoff::Signal, true)));
        assert_eq!((evidence.unpolled.ns, evidence.unpolled.chief.as_str()), (500_000, "xz"));
        assert_eq!(judge(&evidence).cause, Cause::NoPollPoints);
        let evidence = of(&gathered(handed_over(Handoff::Polling, false)));
        assert_eq!(judge(&evidence).cause, Cause::Nothing);
    }

    #[test]
    fn a_bypass_while_others_ran_hides_no_holder_that_needed_the_signal() {
        let mut collector = handed_over(Handoff::Signal, true);
        let mut core = |at, step, handoff, who, from| {
            collector.push(at, TraceEvent::Core { core: 1, step, handoff, who, from });
        };
        core(600_000, CoreStep::Decided, Handoff::Polling, BATCH, Some(WEB));
        core(601_000, CoreStep::Running, Handoff::Polling, BATCH, None);
        core(700_000, CoreStep::Decided, Handoff::Polling, WEB, Some(BATCH));
        core(705_000, CoreStep::Signalled, Handoff::Signal, BATCH, None);
        core(800_000, CoreStep::Ceded, Handoff::Bypass, BATCH, None);
        core(800_000, CoreStep::Running, Handoff::Bypass, WEB, None);
        let mut gathered = gathered(collector);
        let evidence = of(&gathered);
        assert_eq!((evidence.unpolled.ns, evidence.taken.ns), (600_000, 0), "nothing else ran");
        let hog = Stranger {
            core: 1,
            pid: 9,
            tid: 9,
            command: "stress".to_owned(),
            is_kernel: false,
            group: None,
            waiter: Some(77),
            ns: 150_000,
        };
        gathered.seen.as_mut().unwrap().after.strangers = Ok(vec![hog]);
        let evidence = of(&gathered);
        assert_eq!((evidence.unpolled.ns, evidence.unpolled.chief.as_str()), (500_000, "xz"));
        assert_eq!((evidence.taken.ns, evidence.taken.chief.as_str()), (100_000, "stress[9]"));
    }

    #[test]
    fn the_holders_own_program_is_told_that_others_waited_for_it() {
        let mut gathered = gathered(handed_over(Handoff::Signal, true));
        gathered.program = json!({ "name": "xz", "id": 1, "pid": 7, "threads": [8] });
        let evidence = of(&gathered);
        assert!(evidence.own_unpolled && evidence.unpolled.ns == 500_000, "{evidence:?}");
    }

    #[test]
    fn what_an_ended_program_did_at_the_place_of_another_is_not_that_ones() {
        let mut gathered = gathered(handed_over(Handoff::Signal, true));
        gathered.program = json!({ "name": "next", "id": 1, "pid": 7, "threads": [8] });
        gathered.names.register(1, 600_000, "next");
        let evidence = of(&gathered);
        assert!(!evidence.own_unpolled && evidence.unpolled.ns == 0, "{evidence:?}");
        gathered.program = json!({ "name": "web", "id": 0, "pid": 7, "threads": [8] });
        assert_eq!(of(&gathered).unpolled.chief, "xz");
        gathered.names.register(0, 0, "ended");
        gathered.names.register(0, 550_000, "web");
        assert_eq!(of(&gathered).unpolled.ns, 0);
    }

    #[test]
    fn a_program_beside_which_woken_kthreads_start_late_is_named() {
        let taker = |ran_ns| Taker {
            command: "stress".to_owned(),
            pid: 9,
            is_kernel: false,
            control_group: Some("/g".to_owned()),
            core: 1,
            ran_ns,
            waited_ns: 0,
        };
        let requests = Requests { answered: 9, all_ns: 100, start_ns: 30, ..Requests::default() };
        let evidence = Evidence { time_ns: 1_000, requests, ..Evidence::default() };
        assert_eq!(taken(&[], &[taker(99)], &evidence), Cost::default());
        let found = taken(&[], &[taker(500)], &evidence);
        assert_eq!((found.ns, found.chief.as_str(), found.detail.as_str()), (300, "stress[9]", "/g"));
    }

    #[test]
    fn waits_quotas_and_the_host_are_parts_of_the_time() {
        let mut gathered = gathered(Collector::default());
        let seen = gathered.seen.as_mut().unwrap();
        seen.waiting.locked = 30;
        seen.waiting.in_calls = [("read".to_owned(), 5), ("fsync".to_owned(), 6)].into();
        seen.before.throttled = [("/g/a".into(), 10), ("/g".into(), 0)].into();
        seen.after.throttled = [("/g/a".into(), 400_010), ("/g".into(), 7), ("/new".into(), 9)].into();
        seen.after.stolen = vec![(1, 100_005)];
        let evidence = of(&gathered);
        assert_eq!((evidence.locked.ns, evidence.in_calls.ns), (300_000, 110_000));
        assert_eq!(evidence.in_calls.chief, "fsync");
        assert_eq!((evidence.throttled.ns, evidence.throttled.chief.as_str()), (400_000, "/g/a"));
        assert_eq!((evidence.stolen.ns, evidence.stolen.chief.as_str()), (100_000, "core 1"));
        assert_eq!(judge(&evidence).cause, Cause::Quota);
        // On several CPUs a group is stopped for more than the time watched.
        let seen = gathered.seen.as_mut().unwrap();
        seen.after.throttled = [("/g/a".into(), 7_000_010)].into();
        seen.after.strangers = Err("needs CAP_BPF".into());
        let evidence = of(&gathered);
        assert_eq!(evidence.throttled.ns, 1_000_000);
        assert!(evidence.unknown[0].contains("needs CAP_BPF"));
    }

    #[test]
    fn of_the_past_there_is_the_record_only_and_the_verdict_says_so() {
        let mut gathered = gathered(handed_over(Handoff::Signal, true));
        gathered.seen = None;
        let verdict = judge(&of(&gathered));
        assert_eq!(verdict.cause, Cause::NoPollPoints);
        assert!(verdict.text.contains("Not known: programs of Linux") && verdict.text.contains("--duration"));
    }
}
