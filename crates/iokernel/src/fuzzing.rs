//! Allocator and switch without threads, sockets and clocks, for fuzzing: one runtime whose shared
//! memory the fuzzer overwrites, one that follows the protocol, and a port.
//!
//! Owns a simulated machine of two managed cores on which nothing is actually bound, signalled or
//! woken, and steps it with the polling thread's own code. The interface is unstable.

use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_ports::{Attachment, Port};
use tailwater_sched::RuntimeId;
use tailwater_shm::control::{ProgramClass, TraceRequest};
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::{Consumer, FrameBuffer};
use tailwater_shm::trace::{Played, Recording};
use tailwater_shm::{Clock, Cycles, Generation, KthreadState};
use tailwater_wire::MacAddr;

use crate::allocator::Allocator;
use crate::config::Config;
use crate::fixture::{self, Nowhere, admit, machine, obey};
use crate::stats::Stats;
use crate::switch::Switch;
use crate::tenant::Prices;
use crate::trace::{Trace, Tracer};
use crate::world::World;

/// Address of the runtime whose memory is fuzzed.
pub const HOSTILE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
/// Address of the runtime that follows the protocol.
pub const HONEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);
/// MAC address of the port.
pub const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Kthreads of the hostile runtime.
pub const KTHREADS: u16 = 2;
/// Size of each of its rings in bytes.
pub const RING_BYTES: u32 = fixture::RING_BYTES;

const HOSTILE_ID: RuntimeId = RuntimeId(0);
const HONEST_ID: RuntimeId = RuntimeId(1);

/// Returns the IPv6 address of a runtime of the arena beside its link-local one, if it has one.
pub fn ip6_of(ip: Ipv4Addr) -> Option<std::net::Ipv6Addr> {
    Config::default().ip6_of(ip)
}

/// See the module documentation.
pub struct Arena {
    world: World,
    allocator: Allocator,
    switch: Switch,
    station: MemoryPeer,
    honest: Region,
    inbox: Consumer,
    buffer: FrameBuffer,
    generation: Generation,
    now: Cycles,
    registered: bool,
    /// The tracer's end of the record: every frame with data is traced.
    events: Recording,
    /// The hostile runtime's own mapping of its region: all of it may be overwritten.
    pub region: Mapping,
}

impl Arena {
    /// Returns a machine on which both runtimes have registered and nothing else has happened.
    ///
    /// # Panics
    /// If the kernel has no memory files or descriptors left.
    pub fn new() -> Self {
        let (port, station) =
            pair("station", Attachment::Station { mac: STATION, ip: None }).expect("a descriptor");
        let config = Config::default();
        let parts = machine(2, Box::new(Nowhere), &config);
        let stats = Stats::new(vec![(port.name().to_owned(), None)], &config.firewall, []);
        let prices = Prices::new(parts.clock, config.offence_share);
        let mut world = World::new(Arc::new(stats), prices);
        let (trace, file) = Trace::start(1 << 10, Clock::from_hz(fixture::HZ)).expect("a memory file");
        world.trace = trace;
        let mut switch = Switch::new(vec![Box::new(port)], &config, parts.clock, parts.stopwatch);
        let mut allocator = Allocator::new(&config, parts);
        let now = tailwater_shm::clock::now();
        let mut enter = |id, kthreads| {
            let (runtime, file) = admit(&config, id, kthreads, 0, ProgramClass::LatencyCritical);
            switch.attach(&runtime, &world);
            allocator.attach(&mut world, runtime, now);
            allocator.begin(&world, id);
            Mapping::new(file, "region").expect("a mapping")
        };
        let region = enter(HOSTILE_ID, KTHREADS);
        let (honest, ends) = Region::attach(enter(HONEST_ID, 1)).expect("just laid out");
        let inbox = ends.into_iter().next().expect("one kthread").ingress;
        let tracer = Tracer::new(0, &TraceRequest { every: 1, runtime: None }).expect("one of one");
        allocator.begin_trace(&mut world, tracer, now);
        let events = Recording::attach(&file).expect("just laid out");
        Self {
            world,
            allocator,
            switch,
            station,
            honest,
            inbox,
            buffer: FrameBuffer::new(),
            generation: Generation::default(),
            now,
            registered: true,
            events,
            region,
        }
    }

    /// Runs one iteration of the polling thread's loop, `ns` after the last one, with a look at all
    /// queues if `look`.
    ///
    /// # Panics
    /// If the ledger refused a transition, or the honest runtime lost its registration.
    pub fn pass(&mut self, ns: u32, look: bool) {
        self.now += Cycles::from(ns);
        self.allocator.progress(&mut self.world, self.now);
        self.switch.poll_egress(&mut self.world, &mut self.allocator, self.now);
        self.switch.poll_ports(&mut self.world, &mut self.allocator, self.now);
        if look {
            self.allocator.tick(&mut self.world, self.now);
            self.world.collect_trace();
            self.read_trace();
        }
        while let Some((id, reason)) = self.world.take_ended() {
            assert_eq!(id, HOSTILE_ID, "the honest runtime lost its registration: {reason}");
            self.switch.detach(id, &mut self.world);
            assert!(self.allocator.detach(&mut self.world, id, self.now).is_some());
            self.registered = false;
        }
        self.obey();
        assert_eq!(self.world.stats.cores.ledger_refusals.get(), 0, "the ledger refused a transition");
    }

    /// Reads the record: whatever the hostile runtime writes, its events are valid.
    fn read_trace(&mut self) {
        loop {
            match self.events.next_event() {
                Played::Nothing => break,
                Played::Impossible => panic!("the record has an impossible event"),
                Played::Event(..) | Played::Lost(_) => {}
            }
        }
    }

    /// The honest runtime takes the step that the protocol asks for, and idles on a core.
    fn obey(&mut self) {
        obey(&self.honest, 0, &mut self.generation);
        let state = &self.honest.kthread(0).state.0;
        if state.load().0 == KthreadState::Running {
            state.set_idle(self.generation);
        }
    }

    /// Returns whether the hostile runtime is still registered.
    pub fn hostile_is_registered(&self) -> bool {
        self.registered
    }

    /// Sends a frame through the port; returns false if its queue is full.
    pub fn inject(&self, frame: &[u8]) -> bool {
        self.station.send(frame)
    }

    /// Returns the next frame that reached the port.
    pub fn at_station(&self) -> Option<Vec<u8>> {
        self.station.receive()
    }

    /// Returns the next frame that reached the honest runtime.
    ///
    /// # Panics
    /// If the switch broke the ring protocol.
    pub fn at_honest(&mut self) -> Option<Vec<u8>> {
        let record = self.inbox.peek().expect("the switch keeps the protocol")?;
        let frame = record.copy_frame(&mut self.buffer).to_vec();
        record.advance();
        self.inbox.publish();
        Some(frame)
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_moves_frames_between_its_port_and_its_honest_runtime() {
        let mut arena = Arena::new();
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&MacAddr::derived(HONEST).0);
        frame[6..12].copy_from_slice(&STATION.0);
        assert!(arena.inject(&frame));
        arena.pass(1_000, true);
        assert_eq!(arena.at_honest().as_deref(), Some(&frame[..]));
        assert!(arena.hostile_is_registered());
    }
}
