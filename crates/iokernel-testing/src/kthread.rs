//! One raw kthread: the protocol of `tailwater_shm::grant` from the kthread's side.
//!
//! | state | leaves it when |
//! |---|---|
//! | parked | its grant is `Run` of a new generation |
//! | running | a poll point sees `Cede`: parks and lets the successor run; or there is no work for a while: idle |
//! | idle | work appears and it wins the swap: running; the core was taken: parks; no work for long: parks |

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::control::ProgramClass;
use tailwater_shm::layout::RuntimeEnds;
use tailwater_shm::park::Sleep;
use tailwater_shm::priority;
use tailwater_shm::ring::{Consumer, FrameBuffer, Producer};
use tailwater_shm::{Clock, Cycles, Generation, Grant, KthreadShared, NextOwner, clock};
use tailwater_wire::MacAddr;

use crate::shared::Shared;
use crate::wire::Endpoint;
#[cfg(test)]
use {
    rustix::event::{EventfdFlags, eventfd},
    std::net::Ipv4Addr,
    std::sync::atomic::AtomicBool,
    tailwater_shm::control::Welcome,
    tailwater_shm::layout::{IoKernelEnds, Region, RegionSpec},
    tailwater_shm::memory::Mapping,
};

/// Result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Some work was done.
    Busy,
    /// There was nothing to do.
    Nothing,
}

/// What a raw kthread does while it has a core.
pub trait Behaviour: Send {
    /// Does a bounded piece of work. The kthread reads its grant after each.
    fn step(&mut self, kthread: &mut RawKthread) -> Step;

    /// Returns whether [`step`](Self::step) would find work. Must have no effect: it is called
    /// without a claim to the core.
    fn has_work(&self, kthread: &RawKthread) -> bool;

    /// A tenancy began at `now`, or an idle kthread took its core back.
    fn started(&mut self, _kthread: &mut RawKthread, _now: Cycles) {}

    /// The kthread was asked to cede and is about to park.
    fn ceding(&mut self, _kthread: &mut RawKthread) {}
}

/// A kthread's ends of everything it shares with the IOKernel.
#[derive(Debug)]
pub struct RawKthread {
    /// What all kthreads of the runtime share.
    pub shared: Arc<Shared>,
    /// Its number.
    pub index: u16,
    /// Frames to it.
    pub ingress: Consumer,
    /// Frames from it.
    pub egress: Producer,
    /// Room for one frame.
    pub buffer: FrameBuffer,
    /// The clock of the time stamps.
    pub clock: Clock,
    generation: Generation,
    /// How long it waited for the core that it has, or had last.
    waited: Cycles,
}

/// Maximum sleep of a parked kthread before it checks whether its runtime ends.
const NAP: Duration = Duration::from_millis(50);

impl RawKthread {
    /// Returns port 7 of its program.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let welcome = &self.shared.welcome;
        Endpoint { mac: MacAddr(welcome.mac), ip: welcome.ip, port: 7 }
    }

    pub(crate) fn new(shared: Arc<Shared>, index: u16, ends: RuntimeEnds) -> Self {
        Self {
            ingress: ends.ingress,
            egress: ends.egress,
            clock: Clock::from_hz(shared.region.tsc_hz()),
            buffer: FrameBuffer::new(),
            generation: Generation::default(),
            waited: 0,
            shared,
            index,
        }
    }

    /// Returns its shared words.
    pub fn words(&self) -> &KthreadShared {
        self.shared.region.kthread(self.index)
    }

    /// Publishes the length of its run queue, for congestion detection.
    pub fn set_queued(&self, items: u32) {
        let status = &self.words().status;
        let head = status.runq_head.load(Ordering::Relaxed);
        status.runq_tail.store(head.wrapping_add(items), Ordering::Relaxed);
    }

    /// Returns the count of work submitted from outside and not taken yet.
    pub fn submitted(&self) -> &AtomicU32 {
        &self.words().status.overflow
    }

    /// Wakes the IOKernel if it sleeps, after frames were sent: it may while only best-effort
    /// runtimes have cores.
    pub fn ring_from_core(&self) {
        if self.shared.class == ProgramClass::BestEffort {
            self.shared.ring_if_asleep();
        }
    }

    /// Runs `behaviour` until the runtime stops.
    pub(crate) fn run(mut self, mut behaviour: Box<dyn Behaviour>) {
        let mut successor = NextOwner::None;
        while !self.shared.stopping() {
            self.park(successor);
            if self.shared.stopping() {
                break;
            }
            behaviour.started(&mut self, clock::now());
            successor = self.tenancy(&mut *behaviour);
        }
    }

    /// Waits until a core is lent; asleep, after it has let its successor on the last one run.
    fn park(&mut self, successor: NextOwner) {
        let shared = Arc::clone(&self.shared);
        let parker = &shared.region.kthread(self.index).parker;
        let ranks_differ = shared.region.ranks_differ();
        let began = clock::now();
        let waited_ns = self.clock.to_ns(self.waited);
        let mut yields = priority::yields(shared.class, ranks_differ, successor, waited_ns);
        while !self.shared.stopping() {
            // The ticket before the grant: see `tailwater_shm::park`.
            let ticket = parker.ticket();
            let (grant, generation) = self.words().grant.0.load();
            if matches!(grant, Grant::Run { .. }) && generation != self.generation {
                self.generation = generation;
                self.words().state.0.set_running(generation);
                self.waited = clock::now().saturating_sub(began);
                return;
            }
            if yields > 0 {
                yields -= 1;
                parker.let_successor_run();
            } else if self.sleep(ticket) == Sleep::WakeLost {
                self.words().status.lost_wakes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn sleep(&self, ticket: u32) -> Sleep {
        let parker = &self.words().parker;
        match self.shared.wake_place(self.index) {
            Some((board, place)) => parker.wait_at_board(ticket, board, place, NAP),
            None => parker.wait(ticket, Some(NAP)),
        }
    }

    /// Runs from grant to parking. Returns who gets the core.
    fn tenancy(&mut self, behaviour: &mut dyn Behaviour) -> NextOwner {
        let spin = self.clock.from_ns(self.shared.spin_us * 1_000);
        let mut idle_since = clock::now();
        while !self.shared.stopping() {
            if self.words().grant.0.asks_to_cede() {
                behaviour.ceding(self);
                return self.cede();
            }
            if behaviour.step(self) == Step::Busy {
                idle_since = clock::now();
            } else if clock::now().saturating_sub(idle_since) > spin {
                match self.idle(behaviour) {
                    Ok(now) => {
                        idle_since = now;
                        behaviour.started(self, now);
                    }
                    Err(successor) => return successor,
                }
            } else {
                spin_loop();
            }
        }
        // Leaving: the registration is over or about to end.
        self.words().state.0.set_parked(self.generation);
        NextOwner::None
    }

    /// Polls without a claim to the core until it is running again.
    ///
    /// # Errors
    /// It has parked instead; the value as of [`tenancy`](Self::tenancy).
    fn idle(&mut self, behaviour: &mut dyn Behaviour) -> Result<Cycles, NextOwner> {
        let end = clock::now().saturating_add(self.clock.from_ns(self.shared.idle_us * 1_000));
        self.words().state.0.set_idle(self.generation);
        loop {
            if self.words().grant.0.asks_to_cede() {
                return Err(self.cede());
            }
            let work = behaviour.has_work(self);
            if work || clock::now() > end || self.shared.stopping() {
                if !self.words().state.0.try_resume(self.generation) {
                    // Taken: the request to cede follows at once.
                    while !self.words().grant.0.asks_to_cede() && !self.shared.stopping() {
                        spin_loop();
                    }
                    return Err(self.cede());
                }
                if work {
                    return Ok(clock::now());
                }
                return Err(self.park_idle());
            }
            spin_loop();
        }
    }

    /// Parks without being asked; a request to cede that arrives at the same time is obeyed.
    fn park_idle(&mut self) -> NextOwner {
        self.words().state.0.set_parked(self.generation);
        // SeqCst: the IOKernel writes the grant and reads the state, we write the state and read
        // the grant. A request it made without seeing us park is seen here.
        fence(Ordering::SeqCst);
        self.successor().unpromised()
    }

    /// Gives the core up; returns who gets it.
    fn cede(&mut self) -> NextOwner {
        // Relaxed: published by `Parked`.
        self.words().status.ceded.store(clock::now(), Ordering::Relaxed);
        let successor = self.successor();
        match (successor.place(), self.shared.wake_place(self.index)) {
            (Some(place), Some((board, _))) => {
                self.words().state.0.set_passed(self.generation);
                board.wake(place);
                successor
            }
            _ => {
                self.words().state.0.set_parked(self.generation);
                successor.unpromised()
            }
        }
    }

    fn successor(&self) -> NextOwner {
        match self.words().grant.0.load() {
            (Grant::Cede { successor }, generation) if generation == self.generation => successor,
            _ => NextOwner::None,
        }
    }
}

/// Sleeps until the runtime stops, ignoring grants.
pub(crate) fn sleep_through(shared: &Shared, index: u16) {
    let parker = &shared.region.kthread(index).parker;
    while !shared.stopping() {
        parker.wait(parker.ticket(), Some(NAP));
    }
}

/// Returns the only kthread of a runtime that is registered nowhere, with rings of this number of
/// bytes, and the IOKernel's side of it.
#[cfg(test)]
pub(crate) fn raw_kthread(ring_bytes: u32) -> (RawKthread, IoKernelEnds) {
    let spec = RegionSpec::new(1, ring_bytes).unwrap();
    let (_, mut iokernel, file) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
    let (region, mut ends) = Region::attach(Mapping::new(&file, "region").unwrap()).unwrap();
    let welcome = Welcome {
        ip: Ipv4Addr::LOCALHOST,
        prefix_len: 24,
        gateway: None,
        ipv6: None,
        mac: [2; 6],
        mtu: 1_500,
        managed_cores: Vec::new(),
        raise: false,
        place: None,
        outgoing: None,
    };
    let shared = Arc::new(Shared {
        region,
        welcome,
        class: ProgramClass::LatencyCritical,
        doorbell: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        wake_places: None,
        stop: AtomicBool::new(false),
        spin_us: 0,
        idle_us: 0,
    });
    (RawKthread::new(shared, 0, ends.remove(0)), iokernel.remove(0))
}
