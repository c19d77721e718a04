//! Allocator and switch without threads, sockets and clocks, for fuzzing: one runtime whose shared memory the fuzzer
//! scribbles over, one that behaves, and a port.
//!
//! Owns a made-up machine of two managed cores on which nothing is ever bound, signalled or woken for real, and steps it
//! with the polling thread's own code. No promise of stability.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_sched::alloc::CongestionDetection;
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::control::{Class, Register};
use tailwater_shm::layout::{Region, RegionSpec, VERSION};
use tailwater_shm::lot::LOT_BYTES;
use tailwater_shm::memory::{self, Mapping};
use tailwater_shm::ring::{Consumer, FrameBuffer};
use tailwater_shm::{Clock, Cycles, Generation, Grant, ParkingLot, SlotId};

use crate::allocator::{Allocator, Parts};
use crate::config::Config;
use crate::control::directory::Place;
use crate::firewall::{FirewallConfig, Guard};
use crate::frame::Mac;
use crate::machine::cpu_set;
use crate::port::memory::{MemoryPeer, pair};
use crate::port::{Attachment, Port};
use crate::runtime::{Admission, Runtime};
use crate::stats::Stats;
use crate::switch::Switch;
use crate::sys::Threads;

/// Address of the runtime whose memory is fuzzed.
pub const HOSTILE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
/// Address of the runtime that behaves.
pub const HONEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);
/// MAC address of the port.
pub const STATION: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Kthreads of the hostile runtime.
pub const KTHREADS: u16 = 2;
/// Bytes of each of its rings.
pub const RING_BYTES: u32 = 1 << 15;

const HOSTILE_ID: RuntimeId = RuntimeId(0);
const HONEST_ID: RuntimeId = RuntimeId(1);

/// IPv6 address of a runtime of the arena beside its link-local one, if it has one.
pub fn ip6_of(ip: Ipv4Addr) -> Option<std::net::Ipv6Addr> {
    Config::default().ip6_of(ip)
}

/// Compiled firewall rules beside a naive evaluator.
///
/// # Panics
/// If they disagree.
pub fn firewall(data: &[u8]) {
    crate::firewall::model::run(data);
}

/// Threads that do not exist.
struct Nowhere;

impl Threads for Nowhere {
    fn bind(&mut self, _tgid: i32, _tid: i32, _cores: &CpuSet) -> Result<(), Errno> {
        Ok(())
    }
    fn preempt(&mut self, _tgid: i32, _tid: i32) -> Result<(), Errno> {
        Ok(())
    }
}

/// See the module documentation.
pub struct Arena {
    allocator: Allocator,
    switch: Switch,
    station: MemoryPeer,
    honest: Region,
    inbox: Consumer,
    buffer: FrameBuffer,
    generation: Generation,
    now: Cycles,
    registered: bool,
    /// What the hostile runtime may write: its own mapping of its region.
    pub region: Mapping,
}

impl Arena {
    /// A machine on which both runtimes have registered and nothing has happened.
    ///
    /// # Panics
    /// When the kernel has no memory files or descriptors left.
    pub fn new() -> Self {
        let lot = memory::create("tailwater-fuzz-lot", LOT_BYTES).expect("a memory file");
        let lot = Mapping::new(&lot, "parking lot").and_then(ParkingLot::new).expect("a mapping");
        let (port, station) =
            pair("station", Attachment::Station { mac: STATION, ip: None }).expect("a descriptor");
        let config = Config { max_evictions: 2, ..Config::default() };
        let parts = Parts {
            clock: Clock::from_hz(1_000_000_000),
            topology: Topology::uniform(2, 1, 1).expect("two cores"),
            unmanaged: cpu_set([&CoreId(900)]),
            policy: Box::new(CongestionDetection::new(Default::default())),
            lot,
            threads: Box::new(Nowhere),
            stats: Arc::new(Stats::new(vec![(port.name().to_owned(), None)], &config.firewall)),
        };
        let mut allocator = Allocator::new(&config, parts);
        let mut switch = Switch::new(vec![Box::new(port)], &config);
        let now = tailwater_shm::clock::now();
        let mut admit =
            |id, ip, kthreads| admit(&mut allocator, &mut switch, &config.firewall, now, id, ip, kthreads);
        let region = admit(HOSTILE_ID, HOSTILE, KTHREADS);
        let honest = Region::attach(admit(HONEST_ID, HONEST, 1)).expect("just laid out");
        let inbox = Consumer::new(honest.ingress(0));
        Self {
            allocator,
            switch,
            station,
            honest,
            inbox,
            buffer: FrameBuffer::new(),
            generation: Generation::default(),
            now,
            registered: true,
            region,
        }
    }

    /// One iteration of the polling thread's loop, `ns` after the last one, with a look at all queues if `look`.
    ///
    /// # Panics
    /// If the ledger refused a transition, or the honest runtime lost its registration.
    pub fn pass(&mut self, ns: u32, look: bool) {
        self.now += Cycles::from(ns);
        self.allocator.progress(self.now);
        self.switch.poll_egress(&mut self.allocator, self.now);
        self.switch.poll_ports(&mut self.allocator, self.now);
        if look {
            self.allocator.tick(self.now);
        }
        while let Some((id, reason)) = self.allocator.next_doomed() {
            assert_eq!(id, HOSTILE_ID, "the honest runtime was punished: {reason}");
            self.switch.detach(id, Some(HOSTILE));
            assert!(self.allocator.detach(id, self.now).is_some());
            self.registered = false;
        }
        self.obey();
        assert_eq!(self.allocator.stats.cores.ledger_refusals.get(), 0, "the ledger refused a transition");
    }

    /// The honest runtime does what the protocol asks of it.
    fn obey(&mut self) {
        let words = self.honest.kthread(0);
        match words.grant.0.load() {
            (Grant::Run { .. }, generation) if generation != self.generation => {
                self.generation = generation;
                words.state.0.set_running(generation);
                words.state.0.set_idle(generation);
            }
            (Grant::Cede { .. }, generation) if generation == self.generation => {
                words.state.0.set_parked(generation);
            }
            _ => {}
        }
    }

    /// Whether the hostile runtime still has its registration.
    pub fn hostile_is_registered(&self) -> bool {
        self.registered
    }

    /// Sends a frame through the port. False if its queue is full.
    pub fn inject(&self, frame: &[u8]) -> bool {
        self.station.send(frame)
    }

    /// The next frame that reached the port.
    pub fn at_station(&self) -> Option<Vec<u8>> {
        self.station.receive()
    }

    /// The next frame that reached the honest runtime.
    ///
    /// # Panics
    /// If the switch broke the ring protocol.
    pub fn at_honest(&mut self) -> Option<Vec<u8>> {
        let record = self.inbox.peek().expect("the switch keeps the protocol")?;
        let frame = self.inbox.copy_frame(&record, &mut self.buffer).to_vec();
        self.inbox.advance(&record);
        self.inbox.publish();
        Some(frame)
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

/// Registers a runtime and returns its side's mapping of its region.
fn admit(
    allocator: &mut Allocator,
    switch: &mut Switch,
    firewall: &FirewallConfig,
    now: Cycles,
    id: RuntimeId,
    ip: Ipv4Addr,
    kthreads: u16,
) -> Mapping {
    let spec = RegionSpec::new(kthreads, RING_BYTES).expect("a possible shape");
    let file = memory::create("tailwater-fuzz", spec.region_len()).expect("a memory file");
    let map = || Mapping::new(&file, "region").expect("a mapping");
    let region = Region::create(map(), spec, 1_000_000_000).expect("the right length");
    let slots = (0..kthreads).map(|k| SlotId(id.0 as u16 * 16 + k)).collect();
    let wish = Register {
        version: VERSION,
        name: format!("r{}", id.0),
        kthreads,
        guaranteed: 0,
        class: Class::LatencyCritical,
        ring_bytes: RING_BYTES,
        ip: None,
        mac: None,
    };
    let descriptor = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("a descriptor");
    let admission = Admission {
        place: Place { id, ip, ip6: ip6_of(ip), mac: Mac::derived(ip), slots, region: spec },
        wish,
        region,
        doorbell: descriptor(),
        pid: 1,
        socket: Arc::new(descriptor()),
        process: None,
        guard: Guard::compile(firewall, &format!("r{}", id.0), 1_000_000_000),
    };
    let tids: Vec<i32> = (1..=i32::from(kthreads)).collect();
    let runtime = Runtime::new(admission, &tids);
    switch.attach(&runtime);
    allocator.attach(runtime, now);
    allocator.begin(id);
    map()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_moves_frames_between_its_port_and_its_honest_runtime() {
        let mut arena = Arena::new();
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&Mac::derived(HONEST).0);
        frame[6..12].copy_from_slice(&STATION.0);
        assert!(arena.inject(&frame));
        arena.pass(1_000, true);
        assert_eq!(arena.at_honest().as_deref(), Some(&frame[..]));
        assert!(arena.hostile_is_registered());
    }
}
