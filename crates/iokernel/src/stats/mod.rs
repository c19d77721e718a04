//! Counters and histograms of the IOKernel.
//!
//! Owns [`Stats`], written by the polling thread with plain relaxed additions (one writer, no
//! locked instruction) and read by any thread through a [`StatsHandle`]. The list of runtimes is
//! behind a lock that only the control thread and readers take, never the polling thread. Numbers
//! read together may be a few nanoseconds apart; no counter goes backwards.

pub mod account;
pub(crate) mod counter;
mod histogram;
mod length;
mod refusals;
mod registrations;
pub mod schema;

pub use crate::firewall::stats::{FirewallCounters, FirewallStats, RuleStats};
pub use account::CoreAccount;
pub use counter::Counter;
pub use histogram::{BOUNDS_NS, SharedHistogram};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tailwater_ports::Account;
use tailwater_ports::frame::MacAddr;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::classes::{ClassReader, ClassRecord, Percentiles};
use tailwater_shm::clock;
use tailwater_shm::control::MAX_MESSAGE;
use tailwater_shm::control::{CaptureRequest, Class, TraceRequest};
use tailwater_shm::layout::Queues;

use crate::control::watch::Progress;
use crate::firewall::FirewallConfig;
use counter::counters;
use refusals::Refusals;
use registrations::Registrations;

counters! {
    /// Counters of the switch.
    SwitchCounters {
        /// Frames taken from egress rings.
        from_runtimes,
        /// Frames injected by ports.
        from_ports,
        /// Copies put into ingress rings.
        delivered,
        /// Acknowledgments put into a ring without waking their program, because no thread waits
        /// for them.
        held_acks,
        /// Flow groups whose next frame went to another kthread than the previous one.
        moved_groups,
        /// Moved flow groups whose earlier frames still waited, and are read first.
        fenced_groups,
        /// Frames handed to ports.
        to_ports,
        /// Broadcast and multicast frames.
        flooded,
        /// Dropped: the receiver's ingress ring was full; or half full, of frames to a group.
        dropped_full,
        /// Answers to frames for addresses without a program.
        answered_absent,
        /// Answers for addresses without a program that were not sent, because the program or port
        /// has been sent too many.
        absent_limited,
        /// Reports to programs that the program at another address has ended.
        departures,
        /// Dropped: no runtime or port has the destination address, and there is no uplink.
        dropped_unknown,
        /// Dropped: source MAC, source IP, ARP sender, or advertised or probed address was not the
        /// runtime's own.
        dropped_spoofed,
        /// Dropped: a frame from a port claimed to be of a program of this machine.
        dropped_foreign,
        /// Dropped: truncated, or lengths that contradict one another.
        dropped_malformed,
        /// Dropped: neither IPv4, IPv6 nor ARP, nor a configured EtherType.
        dropped_ethertype,
        /// Dropped: a runtime sent a VLAN tag.
        dropped_tagged,
        /// Dropped: a runtime sent a message of routers (advertisement, redirect, query), a source
        /// route, neighbour discovery in fragments or with a hop limit other than 255, or ARP that
        /// is neither request nor reply.
        dropped_refused,
        /// Dropped: a firewall rule, or the firewall's default, denied it.
        dropped_denied,
        /// Dropped: over a rate limit.
        dropped_limited,
        /// Dropped: broadcast and multicast frames of runtimes that caused too many copies.
        dropped_broadcast,
        /// Dropped: the sender changed the frame while it was copied to a port.
        dropped_torn,
        /// Dropped: the port refused it, or it was longer than the network's packets may be.
        dropped_port,
    }
}

counters! {
    /// Counters of the allocator and of hand-offs.
    CoreCounters {
        /// Looks at all queues.
        ticks,
        /// Free cores lent.
        grants,
        /// Cores taken from a busy kthread.
        preemptions,
        /// Cores taken from an idle kthread.
        idle_takes,
        /// Decisions dropped because the idle victim found work first.
        idle_lost,
        /// Cores that a kthread gave up without being asked.
        parks,
        /// Affinity changes before a grant.
        rebinds,
        /// Affinity changes the kernel refused.
        rebind_failures,
        /// Managed cores that Linux does not let the IOKernel use at present.
        absent: Gauge,
        /// Step of the policy, from 0; only policies with steps change it.
        step: Gauge,
        /// Cores of that step.
        in_use: Gauge,
        /// Cores that ordinary threads are kept off at present.
        reserved: Gauge,
        /// Preempt signals sent.
        signals,
        /// Threads moved off their core because they did not cede.
        evictions,
        /// Cores taken back because the kthread never started.
        no_starts,
        /// Transitions the ledger refused: defects of the IOKernel, never of a runtime.
        ledger_refusals,
        /// Wakes repeated because a kthread that was lent a core had not started.
        rewakes,
        /// Cores ceded by a kthread that promised to wake the next owner at the board.
        board_wakes,
        /// Cores ceded with such a promise whose next owner did not start in time.
        late_board_wakes,
    }
}

counters! {
    /// Counters of the polling loop and the control thread.
    LoopCounters {
        /// Iterations of the polling loop.
        iterations,
        /// Times the polling thread went to sleep.
        sleeps,
        /// Time for which the polling thread slept.
        slept_ns,
        /// Sleeps that a program's doorbell ended.
        rung,
        /// Times other programs began to compete for the cores, with `neighbour-share` above 0.
        contests,
        /// Time for which other programs have competed for the cores, without the contest that goes
        /// on.
        contested_ns,
        /// Times that a batch job which Linux runs was noticed on the lent cores.
        batch_jobs,
        /// Slices of its core that the polling thread left to ordinary threads.
        slices,
        /// Time of the slices of its core that the polling thread left to ordinary threads.
        sliced_ns,
        /// Times the polling thread let threads of this machine run that may be the peer of a port.
        yields,
        /// Time in calls that let threads run which may be the peer of a port.
        yielded_ns,
        /// Calls that let such threads run and lasted over 1 ms: another thread computed, or the
        /// machine stood still.
        long_yields,
        /// Time for which no such call was made, after one that was long.
        withheld_ns,
        /// Runtimes registered.
        registered,
        /// Processor time in which the polling thread attached programs and ended registrations.
        registration_ns,
        /// Registrations refused.
        refused,
        /// Registrations ended by the runtime: exit, crash or close.
        departed,
        /// Registrations ended by the IOKernel because of what the runtime did.
        expelled,
        /// Times the polling thread ended no iteration for 100 ms although it ran, or waited in the
        /// kernel. Should be 0.
        stalls,
        /// Times Linux did not let the polling thread run for 100 ms.
        starvations,
    }
}

counters! {
    /// Counters of one runtime.
    RuntimeCounters {
        /// Wakes that its kthreads were sent again and again and did not get, as they report; none
        /// is known to be possible.
        lost_wakes,
        /// Frames put into its ingress rings.
        rx_frames,
        /// Bytes of the frames put into its ingress rings.
        rx_bytes,
        /// Frames dropped because an ingress ring was full; or half full, of frames to a group.
        rx_full,
        /// Frames taken from its egress rings.
        tx_frames,
        /// Bytes of the frames taken from its egress rings.
        tx_bytes,
        /// Its frames dropped because a source address was not its own.
        tx_spoofed,
        /// Its frames dropped because they were malformed.
        tx_malformed,
        /// Its frames dropped because no runtime may send their kind: other EtherTypes, VLAN tags,
        /// messages of routers.
        tx_refused,
        /// Its frames dropped by a firewall rule or the default.
        tx_denied,
        /// Its frames dropped because they were over its rate limit.
        tx_limited,
        /// Its broadcast and multicast frames dropped because it caused too many copies.
        tx_broadcast,
        /// Frames for it dropped by a firewall rule or the default.
        rx_denied,
        /// Frames for it dropped because they were over its rate limit.
        rx_limited,
        /// Cores it holds now.
        cores: Gauge,
        /// Cores that it requested and owns now.
        granted_cores: Gauge,
        /// Requests for cores that were cut because they exceeded what it may own.
        cut_requests,
        /// Times it was lent a core.
        grants,
        /// Times a busy core was taken from it.
        preempted,
        /// Times one of its threads was moved off the managed cores, because it did not cede.
        evictions,
        /// Doorbells that ended a sleep of the polling thread for nothing.
        vain_rings,
        /// Cores that it asked for and gave up without having done anything.
        vain_cores,
        /// Time for which services waited for cores that it, a best-effort program, had not started
        /// on or did not cede, or that were taken from it, another tenant's service; and of these
        /// cores in vain.
        late_ns,
        /// Time of the polling thread for what was refused or of no use: frames, and doorbells and
        /// cores in vain.
        offence_ns,
        /// Times its tenant was not served for a while, because it had not paid for the polling
        /// thread's time.
        throttled,
        /// Core time it had, up to the last time a core changed hands.
        core_ns,
    }
}

/// How a core was handed to a kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoffKind {
    /// From a busy kthread that reached a poll point.
    Polling,
    /// From an idle kthread.
    Idle,
    /// The core was free; the IOKernel woke the kthread.
    Wake,
    /// From a busy kthread that needed the preempt signal.
    Signal,
    /// From a kthread that ceded neither when asked nor when signalled, mostly because Linux had
    /// descheduled it: the IOKernel woke the successor beside it.
    Bypass,
    /// From a program that ended, or a kthread that had not started on the core.
    Evict,
}

impl HandoffKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Polling, Self::Idle, Self::Wake, Self::Signal, Self::Bypass, Self::Evict];

    /// Returns the name in the JSON document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Idle => "idle",
            Self::Wake => "wake",
            Self::Signal => "signal",
            Self::Bypass => "bypass",
            Self::Evict => "evict",
        }
    }
}

/// Latencies of one kind of hand-off, from the IOKernel's decision.
#[derive(Debug, Default, Serialize)]
pub struct HandoffHistograms {
    /// Until the owner gave the core up, by its own statement; of busy owners only.
    #[serde(rename = "gave_up_ns")]
    pub gave_up: SharedHistogram,
    /// Until the core was seen ceded.
    #[serde(rename = "ceded_ns")]
    pub ceded: SharedHistogram,
    /// Until the new owner was seen running.
    #[serde(rename = "running_ns")]
    pub running: SharedHistogram,
}

/// How long it took until the core of a dead runtime was free or lent again, one value for each
/// core that it held.
#[derive(Debug, Default, Serialize)]
pub struct ReclaimHistograms {
    /// Since the IOKernel noticed the death.
    #[serde(rename = "since_notice_ns")]
    pub since_notice: SharedHistogram,
    /// Since the last look that found the runtime alive: an upper bound from the death itself.
    #[serde(rename = "since_alive_ns")]
    pub since_alive: SharedHistogram,
}

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
    pub class: Class,
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

/// Read access to the statistics from any thread, also after the IOKernel has ended.
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
mod tests {
    use super::*;
    use tailwater_shm::classes::{CLASSES, NAME_LEN};
    use tailwater_shm::control::ServerMessage;
    use tailwater_shm::layout::{Region, RegionSpec};

    #[test]
    fn the_document_names_every_part() {
        let stats = Stats::new(vec![("load".to_owned(), None)], &FirewallConfig::default(), [CoreId(3)]);
        stats.set_facts(json!({ "cores": [1] }));
        stats.switch.dropped_spoofed.add(3);
        stats.handoff(HandoffKind::Idle).running.record(700);
        let document = stats.to_json();
        assert_eq!(document["switch"]["dropped_spoofed"], 3);
        assert_eq!(document["handoff"]["idle"]["running_ns"]["count"], 1);
        assert_eq!(document["handoff"]["polling"]["running_ns"]["count"], 0);
        assert_eq!(document["reclaim"]["since_alive_ns"]["count"], 0);
        assert_eq!(document["ports"][0]["name"], "load");
        assert_eq!(document["iokernel"]["cores"][0], 1);
        assert_eq!(document["account"][0]["core"], 3);
        assert_eq!(document["account"][0]["ns"]["free"], 0);
    }

    #[test]
    fn runtimes_come_and_go() {
        let stats = Stats::new(Vec::new(), &FirewallConfig::default(), []);
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let (region, ..) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
        let latency = Percentiles { p50_ns: 1_000, p99_ns: 5_000 };
        let name = "GET".to_owned();
        // More finished than accepted.
        let class =
            ClassRecord { name, slo_ns: 2_000, finished: u64::MAX, latency, ..ClassRecord::default() };
        stats.add_runtime(runtime(7, Some(region.class_reader())));
        assert_eq!(stats.to_json()["runtimes"][0]["name"], "spin");
        assert_eq!(stats.to_json()["runtimes"][0]["classes"], json!([]));
        region.classes().write(3, &class);
        let shown = &stats.to_json()["runtimes"][0]["classes"];
        assert_eq!((&shown[0]["name"], &shown[0]["finished"]), (&json!("GET"), &json!(u64::MAX)));
        assert_eq!((&shown[0]["slo_ratio"], &shown[0]["latency_ns"]["p99"]), (&json!(2.5), &json!(5_000)));
        region.classes().write(3, &ClassRecord { slo_ns: 0, ..class });
        assert_eq!(stats.to_json()["runtimes"][0]["classes"][0]["slo_ratio"], Value::Null);
        stats.remove_runtime(RuntimeId(7));
        assert!(stats.runtimes().is_empty());
    }

    #[test]
    fn what_programs_publish_leaves_the_document_a_message() {
        let stats = Stats::new(Vec::new(), &FirewallConfig::default(), []);
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let (region, ..) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
        for entry in 0..CLASSES {
            let (most, times) = (u64::MAX, Percentiles { p50_ns: u64::MAX, p99_ns: u64::MAX });
            let class = ClassRecord {
                // A quote is escaped in the document.
                name: "\"".repeat(NAME_LEN),
                dispatcher: most,
                slo_ns: most,
                accepted: most,
                dropped: most,
                finished: most,
                panicked: most,
                preemptions: most,
                held: most,
                late: most,
                queue_delay: times,
                service: times,
                latency: times,
            };
            region.classes().write(entry, &class);
        }
        for id in 0..16 {
            stats.note_refusal(&"\"".repeat(1_000), id, &"\u{10ffff}".repeat(1_000));
        }
        for id in 0..40 {
            stats.add_runtime(runtime(id, Some(region.class_reader())));
        }
        let document = stats.to_json();
        assert_is_message(&document);
        assert_eq!(document["left_out"], json!([]));
        let shown = |at: usize| document["runtimes"][at]["classes"].as_array().unwrap().len();
        assert!((0..40).all(|at| shown(at) == shown(0) && shown(0) > 0), "each its share: {}", shown(0));
        assert_eq!(document["runtimes"][39]["classes_left_out"], json!(CLASSES - shown(0)));
        // As many programs as there are at most by default, and then with long numbers.
        for id in 40..256 {
            stats.add_runtime(runtime(id, Some(region.class_reader())));
        }
        let document = stats.to_json();
        assert_is_message(&document);
        assert_eq!(document["runtimes"].as_array().unwrap().len(), 256, "{}", document["left_out"]);
        for runtime in stats.runtimes() {
            let counters = &runtime.counters;
            let busy = [&counters.rx_frames, &counters.rx_bytes, &counters.tx_frames, &counters.tx_bytes];
            let also = [&counters.grants, &counters.preempted, &counters.core_ns, &counters.late_ns];
            busy.iter().chain(&also).for_each(|counter| counter.add(99_999_999_999));
        }
        let document = stats.to_json();
        assert_is_message(&document);
        assert_eq!(document["runtimes"].as_array().unwrap().len(), 256, "{}", document["left_out"]);
        for id in 256..1_024 {
            stats.add_runtime(runtime(id, Some(region.class_reader())));
        }
        let document = stats.to_json();
        assert_is_message(&document);
        let programs = document["runtimes"].as_array().unwrap().len();
        assert_eq!(document["runtimes_left_out"], json!(1_024 - programs));
    }

    fn assert_is_message(document: &Value) {
        let bytes = tailwater_shm::control::encode(&ServerMessage::Stats(document.clone()));
        assert!(bytes.len() <= MAX_MESSAGE, "{} bytes", bytes.len());
    }

    fn runtime(id: u32, classes: Option<ClassReader>) -> Arc<RuntimeStats> {
        Arc::new(RuntimeStats {
            id: RuntimeId(id),
            name: "spin".to_owned(),
            pid: 1,
            ip: Ipv4Addr::LOCALHOST,
            ip6: None,
            mac: MacAddr::default(),
            class: Class::LatencyCritical,
            kthreads: 4,
            threads: vec![4_000_000; 4],
            guaranteed: 1,
            counters: RuntimeCounters::default(),
            classes,
            queues: None,
            user: 0,
            grant: Counter::default(),
        })
    }
}
