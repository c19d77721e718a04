//! The statistics of one IOKernel, and the document of them.
//!
//! Owns [`Stats`]: which counters there are of which port, runtime, capture and core at present,
//! and what the document says of them beside numbers. The polling thread writes the numbers, and
//! any thread reads them through a [`StatsHandle`]. The list of runtimes is behind a lock that only
//! the control thread and readers take, never the polling thread.
//!
//! Never here: what a counter is and what a number means; that is the crate `tailwater-stats`.

mod length;
mod refusals;
mod registrations;

pub use crate::firewall::stats::{FirewallStats, RuleStats};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tailwater_ports::Account;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::classes::{ClassReader, ClassRecord, Percentiles};
use tailwater_shm::clock;
use tailwater_shm::control::MAX_MESSAGE;
use tailwater_shm::control::{CaptureRequest, ProgramClass, TraceRequest};
use tailwater_shm::layout::Queues;
use tailwater_stats::account::CoreAccount;
use tailwater_stats::{BOUNDS_NS, CoreCounters, Counter, HandoffHistograms, HandoffKind, LoopCounters};
use tailwater_stats::{ReclaimHistograms, RuntimeCounters, SharedHistogram, SwitchCounters};
use tailwater_wire::MacAddr;

use crate::control::watch::Progress;
use crate::firewall::FirewallConfig;
use refusals::Refusals;
use registrations::Registrations;

/// Identity and counters of one registered runtime.
#[derive(Debug)]
pub struct RuntimeStats {
    /// Its slot.
    pub id: RuntimeId,
    /// Its name.
    pub name: String,
    /// Process that registered it.
    pub pid: i32,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address, if it has one.
    pub ip6: Option<Ipv6Addr>,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its class.
    pub class: ProgramClass,
    /// Its kthreads.
    pub kthreads: u16,
    /// Thread numbers of its kthreads.
    pub threads: Vec<i32>,
    /// Cores guaranteed to it.
    pub guaranteed: u16,
    /// Its counters.
    pub counters: RuntimeCounters,
    /// Reads what it publishes of its classes of requests.
    pub classes: Option<ClassReader>,
    /// Reads what waits for its kthreads.
    pub queues: Option<Queues>,
    /// The user who registered it.
    pub user: u32,
    /// Number of the grant that it counts to, from 1; 0: it needs none.
    pub grant: Counter,
}

impl RuntimeStats {
    /// Returns everything but the classes of requests, with these thread numbers. As many words are
    /// read as thread numbers are shown.
    fn to_json(&self, threads: &[i32]) -> Value {
        let waiting = self.queues.as_ref().filter(|_| !threads.is_empty()).map(Queues::waiting);
        let grant = Some(self.grant.get()).filter(|grant| *grant > 0);
        json!({
            "id": self.id.0,
            "name": self.name,
            "pid": self.pid,
            "user": self.user,
            "grant": grant,
            "ip": self.ip,
            "ip6": self.ip6,
            "mac": self.mac.to_string(),
            "class": self.class,
            "kthreads": self.kthreads,
            "threads": threads,
            "guaranteed": self.guaranteed,
            "queued_threads": waiting.map(|waiting| waiting.threads),
            "waiting_rings": waiting.map(|waiting| waiting.rings),
            "counters": self.counters,
            "classes": [],
            "classes_left_out": 0,
        })
    }

    /// Returns the classes of requests as the program publishes them. Numbers that contradict each
    /// other stay as they are: they are that program's.
    fn classes_to_json(&self) -> Vec<Value> {
        let times = |times: Percentiles| json!({ "p50": times.p50_ns, "p99": times.p99_ns });
        let class = |c: ClassRecord| {
            json!({ "name": c.name, "dispatcher": c.dispatcher, "slo_ns": c.slo_ns, "accepted": c.accepted,
                    "dropped": c.dropped, "finished": c.finished, "panicked": c.panicked,
                    "preemptions": c.preemptions, "held": c.held, "late": c.late,
                    "slo_ratio": (c.slo_ns > 0).then(|| c.latency.p99_ns as f64 / c.slo_ns as f64),
                    "queue_delay_ns": times(c.queue_delay), "service_ns": times(c.service),
                    "latency_ns": times(c.latency) })
        };
        self.classes.iter().flat_map(ClassReader::read).map(class).collect()
    }
}

/// Counters of one port.
#[derive(Debug, Serialize)]
pub struct PortStats {
    /// Its name.
    pub name: String,
    /// Frames it injected.
    pub injected: Counter,
    /// Frames it took.
    pub transmitted: Counter,
    /// Frames it refused, and those that were longer than the network's packets may be.
    pub refused: Counter,
    /// Set to 1 when it failed and was detached.
    #[serde(serialize_with = "as_bool")]
    pub failed: Counter,
    /// Its own report.
    #[serde(serialize_with = "as_document")]
    pub account: Option<Arc<dyn Account>>,
}

fn as_bool<S: Serializer>(counter: &Counter, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(counter.get() != 0)
}

fn as_document<S: Serializer>(account: &Option<Arc<dyn Account>>, to: S) -> Result<S::Ok, S::Error> {
    account.as_ref().map(|account| account.to_json()).serialize(to)
}

/// Counters of one capture.
#[derive(Debug)]
pub struct CaptureStats {
    /// Number of the capture, as sent to its watcher.
    pub id: u64,
    /// The watcher's request.
    pub request: CaptureRequest,
    /// Frames copied.
    pub captured: Counter,
    /// Frames not copied because the watcher was slow.
    pub dropped: Counter,
}

impl CaptureStats {
    pub(crate) fn new(id: u64, request: CaptureRequest) -> Self {
        Self { id, request, captured: Counter::default(), dropped: Counter::default() }
    }
}

/// Counters of a trace of single requests.
#[derive(Debug)]
pub struct TraceStats {
    /// Number of the trace, as sent to its tracer.
    pub id: u64,
    /// The tracer's request.
    pub request: TraceRequest,
    /// Frames chosen.
    pub sampled: Counter,
    /// Steps that kthreads claim to have overwritten before the IOKernel read them.
    pub lost: Counter,
}

impl TraceStats {
    pub(crate) fn new(id: u64, request: TraceRequest) -> Self {
        Self { id, request, sampled: Counter::default(), lost: Counter::default() }
    }
}

/// All counters.
#[derive(Debug)]
pub struct Stats {
    /// Counters of the switch.
    pub switch: SwitchCounters,
    /// Counters of the allocator.
    pub cores: CoreCounters,
    /// Counters of the loop.
    pub polling: LoopCounters,
    /// IOKernel time per hand-off in nanoseconds: to carry out the decision and to notice its end.
    pub apply: SharedHistogram,
    /// Time in nanoseconds until the frames that a moved flow group had left were read.
    pub fence: SharedHistogram,
    /// Cores taken back from runtimes that died.
    pub reclaim: ReclaimHistograms,
    /// Counters of the firewall.
    firewall: Mutex<Arc<FirewallStats>>,
    /// In which stage the polling thread is.
    pub(crate) progress: Progress,
    account: Vec<CoreAccount>,
    handoffs: [HandoffHistograms; HandoffKind::ALL.len()],
    ports: Vec<PortStats>,
    /// Locked by the control thread and by readers; never by the polling thread.
    runtimes: Mutex<Vec<Arc<RuntimeStats>>>,
    /// As `runtimes`.
    captures: Mutex<Vec<Arc<CaptureStats>>>,
    /// As `runtimes`.
    trace: Mutex<Option<Arc<TraceStats>>>,
    /// Facts about this IOKernel that do not change once it runs: cores, policy, priorities.
    facts: Mutex<Value>,
    /// As `runtimes`.
    refusals: Mutex<Refusals>,
    /// As `runtimes`.
    registrations: Mutex<Registrations>,
}

/// Locks; ignores poisoning, since each value is consistent whenever a holder may panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stats {
    /// Returns zeroed counters for ports of these names, with their own reports, for the rules of
    /// this firewall, and for these managed cores, in the topology's order.
    pub(crate) fn new(
        ports: Vec<(String, Option<Arc<dyn Account>>)>,
        firewall: &FirewallConfig,
        cores: impl IntoIterator<Item = CoreId>,
    ) -> Self {
        let port = |(name, account)| PortStats {
            name,
            account,
            injected: Counter::default(),
            transmitted: Counter::default(),
            refused: Counter::default(),
            failed: Counter::default(),
        };
        Self {
            switch: SwitchCounters::default(),
            cores: CoreCounters::default(),
            polling: LoopCounters::default(),
            apply: SharedHistogram::new(),
            fence: SharedHistogram::new(),
            reclaim: ReclaimHistograms::default(),
            firewall: Mutex::new(Arc::new(FirewallStats::new(firewall))),
            progress: Progress::default(),
            account: cores.into_iter().map(CoreAccount::new).collect(),
            handoffs: Default::default(),
            ports: ports.into_iter().map(port).collect(),
            runtimes: Mutex::new(Vec::new()),
            captures: Mutex::new(Vec::new()),
            trace: Mutex::new(None),
            facts: Mutex::new(Value::Null),
            refusals: Mutex::default(),
            registrations: Mutex::default(),
        }
    }

    /// Returns the latencies of one kind of hand-off.
    pub fn handoff(&self, kind: HandoffKind) -> &HandoffHistograms {
        &self.handoffs[kind as usize]
    }

    /// Returns the account of each managed core, in the topology's order.
    #[inline(always)]
    pub fn account(&self) -> &[CoreAccount] {
        &self.account
    }

    /// Returns the ports' counters, in the order the ports were given.
    pub fn ports(&self) -> &[PortStats] {
        &self.ports
    }

    /// Returns the registered runtimes.
    pub fn runtimes(&self) -> Vec<Arc<RuntimeStats>> {
        lock(&self.runtimes).clone()
    }

    pub(crate) fn set_facts(&self, facts: Value) {
        *lock(&self.facts) = facts;
    }

    /// Adds a runtime, which the polling thread does not know yet.
    pub(crate) fn add_runtime(&self, runtime: Arc<RuntimeStats>) {
        lock(&self.registrations).note(runtime.id, &runtime.name, clock::now());
        lock(&self.runtimes).push(runtime);
    }

    pub(crate) fn remove_runtime(&self, id: RuntimeId) {
        lock(&self.runtimes).retain(|runtime| runtime.id != id);
    }

    /// Notes that a registration under this name was refused.
    pub(crate) fn note_refusal(&self, name: &str, user: u32, why: &str) {
        lock(&self.refusals).note(name, user, why, Instant::now());
    }

    /// Returns the active captures.
    pub fn captures(&self) -> Vec<Arc<CaptureStats>> {
        lock(&self.captures).clone()
    }

    pub(crate) fn add_capture(&self, capture: Arc<CaptureStats>) {
        lock(&self.captures).push(capture);
    }

    pub(crate) fn remove_capture(&self, id: u64) {
        lock(&self.captures).retain(|capture| capture.id != id);
    }

    /// Returns the counters of the present firewall rules.
    pub fn firewall(&self) -> Arc<FirewallStats> {
        Arc::clone(&lock(&self.firewall))
    }

    /// Replaces the counters, for new rules.
    pub(crate) fn set_firewall(&self, rules: Arc<FirewallStats>) {
        *lock(&self.firewall) = rules;
    }

    /// Returns the active trace.
    pub fn trace(&self) -> Option<Arc<TraceStats>> {
        lock(&self.trace).clone()
    }

    pub(crate) fn set_trace(&self, trace: Option<Arc<TraceStats>>) {
        *lock(&self.trace) = trace;
    }

    /// Returns everything as one JSON document.
    pub fn to_json(&self) -> Value {
        let handoffs = BTreeMap::from(HandoffKind::ALL.map(|kind| (kind.name(), self.handoff(kind))));
        let mut threads = MOST_THREADS;
        let runtime = |r: &Arc<RuntimeStats>| {
            let shown = if r.threads.len() <= threads { &r.threads[..] } else { &[] };
            threads -= shown.len();
            r.to_json(shown)
        };
        let runtimes: Vec<Value> = self.runtimes().iter().map(runtime).collect();
        let capture = |c: &Arc<CaptureStats>| {
            json!({ "id": c.id, "runtime": c.request.runtime, "port": c.request.port,
                    "captured": c.captured, "dropped": c.dropped })
        };
        let captures: Vec<Value> = self.captures().iter().map(capture).collect();
        let trace = self.trace().map(|t| {
            json!({ "id": t.id, "every": t.request.every, "runtime": t.request.runtime,
                    "sampled": t.sampled, "lost": t.lost })
        });
        let mut document = json!({
            "bucket_bounds_ns": BOUNDS_NS,
            "iokernel": *lock(&self.facts),
            "loop": self.polling,
            "switch": self.switch,
            "firewall": self.firewall().to_json(),
            "cores": self.cores,
            "apply_ns": self.apply,
            "fence_ns": self.fence,
            "reclaim": self.reclaim,
            "handoff": handoffs,
            "account": self.account.iter().map(CoreAccount::to_json).collect::<Vec<_>>(),
            "ports": self.ports,
            "runtimes": runtimes,
            "captures": captures,
            "trace": trace,
            "refusals": lock(&self.refusals).to_json(Instant::now()),
            "registrations": lock(&self.registrations).to_json(),
        });
        let length = length::shorten(&mut document, MAX_MESSAGE - REST_OF_MESSAGE);
        self.add_classes(&mut document, (MAX_MESSAGE - REST_OF_MESSAGE).saturating_sub(length));
        document
    }

    /// Adds what programs publish of their classes, in at most `left` bytes, which are divided
    /// evenly among them.
    fn add_classes(&self, document: &mut Value, left: usize) {
        let mut published: Vec<_> = self.runtimes().iter().map(|r| r.classes_to_json()).collect();
        let programs = published.iter().filter(|classes| !classes.is_empty()).count();
        let share = left / programs.max(1);
        for (runtime, classes) in
            document["runtimes"].as_array_mut().into_iter().flatten().zip(&mut published)
        {
            let mut used = 0;
            let fits = |class: &&Value| {
                // With a comma.
                used += class.to_string().len() + 1;
                used <= share
            };
            let shown = classes.iter().take_while(fits).count();
            runtime["classes_left_out"] = json!(classes.len() - shown);
            classes.truncate(shown);
            runtime["classes"] = Value::Array(core::mem::take(classes));
        }
    }
}

/// Maximum number of thread numbers in the document; runtimes beyond show none, and not what waits
/// for their threads.
const MOST_THREADS: usize = 4096;

/// What a message has besides the document, what names of kinds that are left out take, and what
/// counts of classes take more than the 0 that each is at first, in bytes.
const REST_OF_MESSAGE: usize = 1024;

/// The statistics, to be read from any thread, also after the IOKernel has ended. To write to them
/// is the IOKernel's: another writer makes numbers wrong, nothing worse.
#[derive(Debug, Clone)]
pub struct StatsHandle(Arc<Stats>);

impl StatsHandle {
    pub(crate) fn new(stats: Arc<Stats>) -> Self {
        Self(stats)
    }
}

impl core::ops::Deref for StatsHandle {
    type Target = Stats;
    fn deref(&self) -> &Stats {
        &self.0
    }
}

#[cfg(test)]
mod tests;
