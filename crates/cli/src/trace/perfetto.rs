//! A trace as JSON in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.
//!
//! | process | threads |
//! |---|---|
//! | 1, "cores" | one for each core, with its tenants, and one for its hand-offs |
//! | 2, "requests" | none: each request is an asynchronous slice, its stages are slices within |
//! | 3, "Linux on managed cores" | two for each core: the threads that ran there, and interrupts |
//! | from 100 on, programs by registration | one for each kthread, with the traced requests that it ran |
//!
//! Times are microseconds since the first event, with fractions to the nanosecond.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tailwater_shm::trace::{Handoff, Who};
use tailwater_shm::{Clock, Cycles};
use tailwater_testbed::core_use::{Seen, Use};

use super::collect::Collector;
use super::cores::Tenancy;
use super::stages::{Breakdown, Span, Stage};
use super::watch::Names;

const CORES: u32 = 1;
const REQUESTS: u32 = 2;
const LINUX: u32 = 3;
/// Process id of the first program.
const PROGRAMS: u32 = 100;
/// Id of the first thread of hand-offs, and of interrupts, above those of the cores.
const HANDOFFS: u32 = 1 << 16;

struct Drawing<'a> {
    names: &'a Names,
    clock: &'a Clock,
    origin: Cycles,
    events: Vec<Value>,
    /// Process ids of programs, by place and beginning of their registration: one that has ended is
    /// another one than its successor in the same place.
    pids: BTreeMap<(u32, Cycles), u32>,
}

/// Returns the document of everything that was collected up to `until`, with what Linux did, as far
/// as that was seen.
pub fn document(
    collector: &Collector,
    names: &Names,
    clock: &Clock,
    until: Cycles,
    linux: Option<&Seen<'_>>,
) -> Value {
    let requests: Vec<Breakdown> =
        collector.requests.values().filter_map(|request| Breakdown::of(request, &collector.cores)).collect();
    let tenancies = collector.cores.tenancies();
    let beginnings = tenancies.iter().map(|it| it.decided).chain(requests.iter().map(|it| it.from));
    let origin = beginnings.min().unwrap_or(0);
    let end = requests.iter().map(|it| it.to).chain(tenancies.iter().filter_map(|it| it.lost.or(it.running)));
    let end = end.max().unwrap_or(origin).max(until);
    let mut drawing = Drawing { names, clock, origin, events: Vec::new(), pids: BTreeMap::new() };
    drawing.name_tracks(tenancies, &requests);
    for (tenancy, limits) in tenancies.iter().zip(limits(tenancies, end)) {
        drawing.tenancy(tenancy, limits, end);
    }
    requests.iter().for_each(|request| drawing.request(request));
    linux.iter().for_each(|seen| drawing.linux(seen));
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "program": "tailwater trace", "version": env!("CARGO_PKG_VERSION") },
        "traceEvents": drawing.events,
    })
}

impl Drawing<'_> {
    fn us(&self, at: Cycles) -> f64 {
        self.clock.to_ns(at.saturating_sub(self.origin)) as f64 / 1000.0
    }

    /// Adds a slice to a track whose slices do not overlap.
    fn slice(&mut self, (pid, tid): (u32, u32), name: &str, (from, to): (Cycles, Cycles), args: &Value) {
        let (ts, dur) = (self.us(from), self.us(to) - self.us(from));
        self.events.push(
            json!({ "ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur.max(0.0), "args": args }),
        );
    }

    fn name_tracks(&mut self, tenancies: &[Tenancy], requests: &[Breakdown]) {
        let ran = requests.iter().flat_map(|it| &it.spans);
        let ran = ran.filter_map(|span| Some((self.registration(span.who?, span.from), span.who?.kthread)));
        let had = tenancies.iter().map(|it| (self.registration(it.who, it.decided), it.who.kthread));
        let kthreads: BTreeSet<((u32, Cycles), u16)> = had.chain(ran).collect();
        let programs: BTreeSet<(u32, Cycles)> = kthreads.iter().map(|(program, _)| *program).collect();
        self.pids = programs.into_iter().zip(PROGRAMS..).collect();
        let cores: BTreeSet<u16> = tenancies.iter().map(|it| it.core).collect();
        self.name("process_name", CORES, 0, "cores");
        self.name("process_name", REQUESTS, 0, "requests");
        for core in cores {
            self.name("thread_name", CORES, core.into(), &format!("core {core}"));
            self.name("thread_name", CORES, HANDOFFS + u32::from(core), &format!("core {core}: hand-offs"));
        }
        for (program, pid) in self.pids.clone() {
            self.name("process_name", pid, 0, &self.names.runtime(program.0, program.1));
        }
        for (program, kthread) in kthreads {
            self.name("thread_name", self.pids[&program], kthread.into(), &format!("kthread {kthread}"));
        }
    }

    /// Returns which registration a kthread belonged to at a moment: its place and its beginning.
    fn registration(&self, who: Who, at: Cycles) -> (u32, Cycles) {
        (who.runtime, self.names.registration(who.runtime, at).map_or(0, |(began, _)| began))
    }

    /// Adds a tenancy. The limits are the decision of the next tenancy on the core, and the first
    /// run of a later one: a tenancy without an end, because events are missing or it never ran,
    /// ends there.
    fn tenancy(&mut self, tenancy: &Tenancy, (next_decided, next_runs): (Cycles, Cycles), end: Cycles) {
        let Tenancy { who, core, decided, running, lost, .. } = *tenancy;
        let program = self.names.runtime(who.runtime, decided);
        let args = json!({ "program": program, "kthread": who.kthread });
        if let Some(running) = running {
            let until = lost.unwrap_or(end).min(next_runs).max(running);
            // Of what ended before the beginning of the record, nothing is left.
            if until > running {
                let name = format!("{program} kthread {}", who.kthread);
                self.slice((CORES, core.into()), &name, (running, until), &args);
            }
        }
        let over = running.or(lost).unwrap_or(end).min(next_decided).max(decided);
        if over > decided {
            let how = match tenancy.handoff {
                Handoff::Polling => "cede at a poll point",
                Handoff::Idle => "taken from an idle kthread",
                Handoff::Wake => "wake",
                Handoff::Signal => "preempt signal",
                Handoff::Bypass => "bypass",
                Handoff::Evict => "taken back",
            };
            let name = format!("to {program}: {how}");
            self.slice((CORES, HANDOFFS + u32::from(core)), &name, (decided, over), &args);
        }
    }

    fn request(&mut self, request: &Breakdown) {
        let name = format!("request {}", request.id);
        self.nested("b", request.id, &name, request.from);
        for span in &request.spans {
            self.nested("b", request.id, span.stage.name(), span.from);
            self.nested("e", request.id, span.stage.name(), span.to);
            if let Span { stage: Stage::Run, from, to, who: Some(who), .. } = *span {
                let pid = self.pids[&self.registration(who, from)];
                self.slice((pid, who.kthread.into()), &name, (from, to), &json!({ "request": request.id }));
            }
        }
        self.nested("e", request.id, &name, request.to);
    }

    /// Adds what Linux did since the first of the other events.
    fn linux(&mut self, seen: &Seen<'_>) {
        let mut cores = BTreeSet::new();
        for slice in seen.slices {
            let [from, to] = [slice.from_ns, slice.to_ns].map(|ns| seen.cycles(ns).max(self.origin));
            if from == to {
                continue;
            }
            cores.insert(slice.core);
            let core = u32::from(slice.core);
            match &slice.used {
                Use::Thread { command, pid, tid } => {
                    let args = json!({ "process": pid, "thread": tid });
                    self.slice((LINUX, core), &format!("{command}[{tid}]"), (from, to), &args);
                }
                Use::Interrupt(name) => self.slice((LINUX, HANDOFFS + core), name, (from, to), &json!({})),
            }
        }
        self.name("process_name", LINUX, 0, "Linux on managed cores");
        for core in cores {
            self.name("thread_name", LINUX, core.into(), &format!("core {core}: threads"));
            let interrupts = HANDOFFS + u32::from(core);
            self.name("thread_name", LINUX, interrupts, &format!("core {core}: interrupts"));
        }
    }

    /// Names a process or a track.
    fn name(&mut self, kind: &str, pid: u32, tid: u32, name: &str) {
        self.events
            .push(json!({ "ph": "M", "pid": pid, "tid": tid, "name": kind, "args": { "name": name } }));
    }

    fn nested(&mut self, phase: &str, id: u32, name: &str, at: Cycles) {
        let ts = self.us(at);
        self.events.push(
            json!({ "ph": phase, "cat": "request", "id": id, "pid": REQUESTS, "tid": 0, "name": name, "ts": ts }),
        );
    }
}

/// For each tenancy, the decision of the next one on its core, and the first run of a later one
/// there.
fn limits(tenancies: &[Tenancy], end: Cycles) -> Vec<(Cycles, Cycles)> {
    let mut decided: BTreeMap<u16, Cycles> = BTreeMap::new();
    let mut running: BTreeMap<u16, Cycles> = BTreeMap::new();
    let mut limits = Vec::with_capacity(tenancies.len());
    for tenancy in tenancies.iter().rev() {
        let next_decided = decided.insert(tenancy.core, tenancy.decided).unwrap_or(end);
        limits.push((next_decided, running.get(&tenancy.core).copied().unwrap_or(end)));
        if let Some(at) = tenancy.running {
            running.insert(tenancy.core, at);
        }
    }
    limits.reverse();
    limits
}
