//! A registered runtime, as the polling thread represents it.
//!
//! Owns the mapped region, both private ends of each ring, the thread ids and the latest grant of
//! each kthread. Made by the control thread, used by the polling thread alone, and returned to the
//! control thread to be dropped: mapping and unmapping never happen on the polling thread. Nothing
//! here trusts the region: generations, ring positions and identity are our own copies.

use rustix::fd::OwnedFd;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_host::SessionWeight;
use tailwater_sched::ledger::{RegisterError, RuntimeClass, RuntimeSpec};
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::control::{self, ControlError, Register};
use tailwater_shm::layout::{IoKernelEnds, Region};
use tailwater_shm::priority::Rank;
use tailwater_shm::ring::{Consumer, LINE, Producer, RingLie};
use tailwater_shm::trace::TraceReader;
use tailwater_shm::{Cycles, Generation, Grant, KthreadShared, NextOwner, Parker, Version};
use tailwater_stats::{Counter, RuntimeCounters};
use tailwater_wire::MacAddr;

use crate::control::client::ClientSocket;
use crate::control::directory::Assignment;
use crate::control::process::Folder;
use crate::firewall::{Direction, Guard, Ruling};
use crate::stats::{FirewallStats, RuntimeStats, Stats};
use crate::status_cache::StatusCache;
use crate::switch::check::Identity;
use crate::switch::flow::FlowGroups;
use crate::switch::shares::Shares;
use crate::tenant::{Key, Prices, Tenant, TenantId, Tenants};
use crate::trace::Claims;

/// First minor version of the protocol whose programs know the board.
const BOARD_MINOR: u16 = 1;

/// Returns whether a program of this version knows the board.
pub(crate) fn knows_board(version: u32) -> bool {
    Version(version).minor() >= BOARD_MINOR
}

/// Why a registration ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The runtime exited, crashed or closed its control socket.
    #[error("the program has ended, or has closed its connection")]
    Departed,
    /// It wrote something impossible into an egress ring.
    #[error(
        "kthread {kthread} wrote an impossible egress ring: {lie}; its memory is corrupt or it is hostile"
    )]
    EgressLie {
        /// The kthread.
        kthread: u16,
        /// What was found.
        lie: RingLie,
    },
    /// It wrote an impossible consumer position.
    #[error(
        "kthread {kthread} wrote an impossible ingress position: {lie}; its memory is corrupt or it is hostile"
    )]
    IngressLie {
        /// The kthread.
        kthread: u16,
        /// What was found.
        lie: RingLie,
    },
    /// It sent a message that its conversation does not allow.
    #[error(transparent)]
    Protocol(#[from] ControlError),
    /// The ledger refused it, which is a defect of the IOKernel.
    #[error("the IOKernel's ledger of cores has no place for it: {0}")]
    Ledger(#[from] RegisterError),
    /// There is no memory for its region.
    #[error("the IOKernel could not make the memory: {0}")]
    NoMemory(String),
    /// The program has not made all of its memory.
    #[error(
        "byte {hole} of the {len} bytes of its shared memory has no memory yet: a program has to make all of it before \
         it sends its kthreads, so that it is charged to the program; map the region with MAP_POPULATE, and look for a \
         memory limit of its control group"
    )]
    Unpopulated {
        /// The first one.
        hole: usize,
        /// Bytes of its region.
        len: usize,
    },
    /// The memory cannot be protected from the program.
    #[error("the program has sealed its shared memory itself, which is the IOKernel's to do: {0}")]
    Sealed(String),
    /// The IOKernel ends.
    #[error("the IOKernel ends")]
    Shutdown,
}

/// The reading end of an egress ring and its owner, as the switch polls them.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) consumer: Consumer,
    pub(crate) sender: Sender,
}

/// The kthread that an egress ring belongs to.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) owner: KthreadId,
    pub(crate) identity: Identity,
    /// Its runtime has a [`Guard`], as of the present batch.
    pub(crate) guarded: bool,
    /// Who pays for its frames, as of the present iteration.
    pub(crate) tenant: TenantId,
    pub(crate) stats: Arc<RuntimeStats>,
}

/// One kthread.
#[derive(Debug)]
pub(crate) struct Kthread {
    pub(crate) ingress: Producer,
    /// The senders' shares of the ingress ring.
    pub(crate) shares: Shares,
    /// `None` while the switch polls it.
    pub(crate) egress: Option<Egress>,
    /// The steps that it writes about traced requests.
    pub(crate) steps: TraceReader,
    pub(crate) tid: i32,
    /// It has a core, is promised one, or was evicted and still runs: its egress ring is polled
    /// even when empty.
    pub(crate) may_run: bool,
    /// Generation of the latest grant.
    pub(crate) generation: Generation,
    /// The core its thread is bound to; `None` before the first grant and after a move to unmanaged
    /// cores.
    pub(crate) bound: Option<CoreId>,
    /// Consecutive grants it did not start on; each doubles the pause before the next.
    pub(crate) no_starts: u32,
    /// [`Runtime::fingerprint`] when it was lent a core.
    pub(crate) fingerprint: u64,
    /// How Linux ranks its thread; `None` if that is not known.
    pub(crate) rank: Option<Rank>,
}

/// The cores to which Linux does not bind a runtime's threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RefusedCores {
    /// Time at which they are forgotten; `None` if there are none.
    pub(crate) forget_at: Option<Cycles>,
    pub(crate) has_warned: bool,
}

/// Frames that wait in the ingress ring of a kthread without waking its runtime: all that are in
/// the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldAcks {
    pub(crate) kthread: u16,
    /// When they become work like other frames.
    pub(crate) until: Cycles,
}

/// One runtime.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) id: RuntimeId,
    pub(crate) spec: RuntimeSpec,
    /// Maximum number of cores that it may own by request.
    pub(crate) may_request: u16,
    /// Cores that clients of the control socket request for it, as a word of requests.
    pub(crate) requested_outside: u64,
    /// Its latest word of requests, with those from outside.
    pub(crate) requests: u64,
    /// Number of requested cores that are its own, as last written for it.
    pub(crate) granted: u16,
    pub(crate) pid: i32,
    pub(crate) mac: MacAddr,
    pub(crate) ip: Ipv4Addr,
    pub(crate) identity: Identity,
    pub(crate) region: Region,
    pub(crate) doorbell: OwnedFd,
    /// The control socket: its hang-up reports the runtime's death.
    pub(crate) socket: Arc<ClientSocket>,
    /// Becomes readable when the process exits, even if a child process keeps the socket open.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) kthreads: Vec<Kthread>,
    pub(crate) groups: FlowGroups,
    /// Number of lines of each ring.
    pub(crate) ring_lines: u32,
    /// Its user, and the grant by which it is registered, as of the latest reload; `None` if the
    /// user is [trusted](Self::is_trusted), and needs none.
    pub(crate) key: Option<Key>,
    /// Who pays for it, once it is in the table.
    pub(crate) tenant: TenantId,
    /// When its tenant has paid for the polling thread's time. Until then it waits.
    pub(crate) waits_until: Cycles,
    /// Cores to which Linux does not bind its threads.
    pub(crate) refused_cores: RefusedCores,
    /// Its words as last read.
    pub(crate) cache: StatusCache,
    /// Sum of its words, as of the last look.
    pub(crate) fingerprint: u64,
    /// The fingerprint and its number of cores before the polling thread last announced that it
    /// sleeps.
    pub(crate) before_sleep: (u64, u64),
    /// Its firewall rules and rate limits, if there are any.
    pub(crate) guard: Option<Box<Guard>>,
    /// Counters of the rules that the guard was compiled from.
    pub(crate) rules: Arc<FirewallStats>,
    pub(crate) stats: Arc<RuntimeStats>,
    /// The folder of its process, which shows as which user that runs.
    pub(crate) folder: Option<Folder>,
    /// The weight of its session, if that is lowered; restored on drop.
    pub(crate) _session: Option<SessionWeight>,
    /// When it registered, its process was in a control group that is kept off reserved cores. The
    /// observation has it from its attachment on.
    pub(crate) confined: bool,
    /// The user at whose board its kthreads sleep and wake others.
    pub(crate) board: Option<u32>,
    /// Place of kthread 0 at a board.
    pub(crate) first_place: Option<u16>,
    /// It knows all that a request to cede can say.
    pub(crate) knows_board: bool,
    /// The group in which Linux ranks its threads, as a number that is compared only.
    pub(crate) group: u64,
    /// Earliest timer of its kthreads, as of the last look.
    pub(crate) next_timer: Cycles,
    /// The policy has been asked for a core for this runtime, which has none and has work; a burst
    /// of frames asks once. When it asked.
    pub(crate) woken: Option<Cycles>,
    /// Frames that alone are no reason to lend it a core; `None` while it has one.
    pub(crate) held: Option<HeldAcks>,
    /// Events about requests that it may still cause while no tracer is connected.
    pub(crate) claims: Claims,
    /// The registration is [marked as ended](crate::world::World::mark_ended): nothing is delivered
    /// or granted any more.
    pub(crate) is_ended: bool,
    /// The earlier instance of its program, which has the same address: frames for it that it
    /// passes on go there.
    pub(crate) earlier: Option<RuntimeId>,
}

/// What a runtime is made from.
pub(crate) struct Admission {
    pub(crate) place: Assignment,
    pub(crate) request: Register,
    pub(crate) region: Region,
    pub(crate) ends: Vec<IoKernelEnds>,
    pub(crate) doorbell: OwnedFd,
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) socket: Arc<ClientSocket>,
    pub(crate) process: Option<OwnedFd>,
    pub(crate) guard: Option<Box<Guard>>,
    /// Counters of the rules that the guard was compiled from.
    pub(crate) rules: Arc<FirewallStats>,
}

impl Runtime {
    /// Returns a runtime with a newly initialised region and one thread per kthread.
    pub(crate) fn new(admission: Admission, tids: &[i32]) -> Box<Self> {
        let Admission { place, request, region, ends, doorbell, pid, user, socket, process, guard, rules } =
            admission;
        let Assignment { id, ip, ip6, mac, first_place, .. } = place;
        let knows_board = knows_board(request.version);
        let count = request.kthreads;
        let stats = Arc::new(RuntimeStats {
            id,
            name: request.name,
            pid,
            ip,
            ip6,
            mac,
            class: request.class,
            kthreads: count,
            threads: tids.to_vec(),
            guaranteed: request.guaranteed,
            counters: RuntimeCounters::default(),
            classes: Some(region.class_reader()),
            queues: Some(region.queues()),
            user,
            grant: Counter::default(),
        });
        let identity = Identity::new(mac, ip, ip6);
        let kthread = |(index, ends): (u16, IoKernelEnds)| Kthread {
            ingress: ends.ingress,
            shares: Shares::default(),
            egress: Some(Egress {
                consumer: ends.egress,
                sender: Sender {
                    owner: KthreadId::new(id, index),
                    identity,
                    guarded: guard.is_some(),
                    tenant: TenantId::default(),
                    stats: Arc::clone(&stats),
                },
            }),
            steps: ends.steps,
            tid: tids[usize::from(index)],
            may_run: false,
            generation: Generation::default(),
            bound: None,
            no_starts: 0,
            fingerprint: 0,
            rank: None,
        };
        let kthreads = (0..count).zip(ends).map(kthread).collect();
        let class = match request.class {
            control::ProgramClass::LatencyCritical => RuntimeClass::LatencyCritical,
            control::ProgramClass::BestEffort => RuntimeClass::BestEffort,
        };
        Box::new(Self {
            id,
            spec: RuntimeSpec { guaranteed: request.guaranteed, max: count, kthreads: count, class },
            may_request: count,
            requested_outside: 0,
            requests: 0,
            granted: 0,
            pid,
            mac,
            ip,
            identity,
            kthreads,
            region,
            doorbell,
            socket,
            process,
            groups: FlowGroups::new(count),
            ring_lines: request.ring_bytes / LINE as u32,
            key: None,
            tenant: TenantId::default(),
            waits_until: 0,
            refused_cores: RefusedCores::default(),
            cache: StatusCache::new(count),
            fingerprint: 0,
            before_sleep: (0, 0),
            guard,
            rules,
            stats,
            folder: None,
            _session: None,
            confined: false,
            board: None,
            first_place,
            knows_board,
            claims: Claims::default(),
            group: 0,
            next_timer: Cycles::MAX,
            woken: None,
            held: None,
            is_ended: false,
            earlier: None,
        })
    }

    /// Returns whether its user is root, the IOKernel's own, or the one who started it by sudo.
    pub(crate) fn is_trusted(&self) -> bool {
        self.key.is_none()
    }

    /// Returns whether the process of a user without rights runs as another user by now, as the
    /// set-user-ID program that a user has it become.
    pub(crate) fn is_of_other_user(&self) -> bool {
        !self.is_trusted() && self.folder.as_ref().is_some_and(|folder| !folder.is_of_user())
    }

    /// Makes it a program of this tenant: it waits until the tenant has paid.
    fn pay_as(&mut self, id: TenantId, tenant: &Tenant, prices: &Prices) {
        (self.tenant, self.waits_until) = (id, tenant.pays_at(self.spec.class, prices));
    }

    /// Returns whether the firewall rules and rate limits let a frame pass; counts it if they do
    /// not.
    #[inline(never)]
    pub(crate) fn permits(
        &mut self,
        direction: Direction,
        shown: &[u8],
        len: usize,
        stats: &Stats,
        now: Cycles,
    ) -> bool {
        let Some(guard) = &mut self.guard else { return true };
        let ruling = guard.judge(direction, shown, len, now, &self.rules);
        let counters = &self.stats.counters;
        let egress = direction == Direction::Egress;
        match ruling {
            Ruling::Pass => return true,
            Ruling::Denied => {
                if egress { &counters.tx_denied } else { &counters.rx_denied }.add(1);
                stats.switch.dropped_denied.add(1);
            }
            Ruling::Limited => {
                if egress { &counters.tx_limited } else { &counters.rx_limited }.add(1);
                stats.switch.dropped_limited.add(1);
            }
        }
        false
    }

    /// Returns true if it is lent no core and not heard for now, because its tenant has not paid.
    #[inline(always)]
    pub(crate) fn is_left_alone(&self, now: Cycles) -> bool {
        now < self.waits_until
    }

    /// Tells its kthreads whether ranks differ; with `real_time`, that a trusted service has
    /// real-time rank.
    pub(crate) fn set_ranks(&mut self, ranks_differ: bool, real_time: bool) {
        let is_service = self.spec.class == RuntimeClass::LatencyCritical;
        self.region.set_ranks(ranks_differ, real_time && self.is_trusted() && is_service);
    }

    /// Returns the shared words of one kthread.
    #[inline(always)]
    pub(crate) fn shared(&self, kthread: u16) -> &KthreadShared {
        self.region.kthread(kthread)
    }
}

/// The table of registered runtimes, by slot.
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    slots: Vec<Option<Box<Runtime>>>,
    pub(crate) tenants: Tenants,
}

impl Runtimes {
    #[inline(always)]
    pub(crate) fn get(&self, id: RuntimeId) -> Option<&Runtime> {
        self.slots.get(id.0 as usize)?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: RuntimeId) -> Option<&mut Runtime> {
        self.slots.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Returns a kthread that the ledger names.
    ///
    /// # Panics
    /// If it does not exist: ledger and table contradict each other.
    #[inline(always)]
    pub(crate) fn kthread(&self, id: KthreadId) -> (&Runtime, &Kthread) {
        let runtime = self.get(id.runtime).expect("the ledger names registered runtimes only");
        (runtime, &runtime.kthreads[usize::from(id.index)])
    }

    /// Asks a kthread that the ledger names to cede, without a successor.
    ///
    /// # Panics
    /// As [`Self::kthread`].
    pub(crate) fn ask_to_cede(&self, id: KthreadId) {
        let (runtime, kthread) = self.kthread(id);
        let cede = Grant::Cede { successor: NextOwner::None };
        runtime.shared(id.index).grant.0.store(cede, kthread.generation);
    }

    /// Returns where a kthread that the ledger names sleeps.
    ///
    /// # Panics
    /// As [`Self::kthread`].
    pub(crate) fn parker(&self, id: KthreadId) -> &Parker {
        &self.kthread(id).0.shared(id.index).parker
    }

    /// As [`Self::kthread`], mutably.
    ///
    /// # Panics
    /// As [`Self::kthread`].
    #[inline(always)]
    pub(crate) fn kthread_mut(&mut self, id: KthreadId) -> &mut Kthread {
        &mut self.runtime_of(id).kthreads[usize::from(id.index)]
    }

    /// Returns the runtime of a kthread that the ledger names.
    ///
    /// # Panics
    /// As [`Self::kthread`].
    #[inline(always)]
    pub(crate) fn runtime_of(&mut self, id: KthreadId) -> &mut Runtime {
        self.get_mut(id.runtime).expect("the ledger names registered runtimes only")
    }

    pub(crate) fn insert(&mut self, mut runtime: Box<Runtime>, prices: &Prices, now: Cycles) {
        let tenant = self.tenants.enter(runtime.key, runtime.spec.kthreads, now);
        runtime.pay_as(tenant, self.tenants.get(tenant), prices);
        let slot = runtime.id.0 as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        debug_assert!(self.slots[slot].is_none(), "the control thread gave slot {slot} away twice");
        self.slots[slot] = Some(runtime);
    }

    /// Returns the other instance of the program with this number and address.
    pub(crate) fn other_instance(&self, id: RuntimeId, ip: Ipv4Addr) -> Option<&Runtime> {
        self.iter().find(|other| other.ip == ip && other.id != id)
    }

    /// As [`other_instance`](Self::other_instance), mutably.
    pub(crate) fn other_instance_mut(&mut self, id: RuntimeId, ip: Ipv4Addr) -> Option<&mut Runtime> {
        self.iter_mut().find(|other| other.ip == ip && other.id != id)
    }

    pub(crate) fn remove(&mut self, id: RuntimeId) -> Option<Box<Runtime>> {
        let runtime = self.slots.get_mut(id.0 as usize)?.take()?;
        self.tenants.leave(runtime.tenant, runtime.spec.kthreads);
        Some(runtime)
    }

    /// Moves programs to the tenants of these keys. Numbers of grants may change places: all
    /// programs with another key leave their tenants before the first one enters its new one.
    pub(crate) fn rekey(&mut self, mut keys: Vec<(RuntimeId, Key)>, prices: &Prices, now: Cycles) {
        let Self { slots, tenants } = self;
        keys.retain(|&(id, key)| {
            let Some(Some(runtime)) = slots.get_mut(id.0 as usize) else { return false };
            let changes = runtime.key.replace(key) != Some(key);
            if changes {
                tenants.leave(runtime.tenant, runtime.spec.kthreads);
            }
            changes
        });
        for (id, key) in keys {
            if let Some(Some(runtime)) = slots.get_mut(id.0 as usize) {
                let tenant = tenants.enter(Some(key), runtime.spec.kthreads, now);
                runtime.pay_as(tenant, tenants.get(tenant), prices);
            }
        }
    }

    /// Returns the number of slots, taken or not: ids are below this.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Runtime> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Runtime> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }
}
