//! A world for unit tests: allocator and switch on made-up cores, fake runtimes driven in the same thread, time by hand.
//!
//! One cycle is one nanosecond. Threads are not touched: what would have been done to them is recorded.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use tailwater_sched::alloc::CongestionDetection;
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::control::{Class, Register};
use tailwater_shm::layout::{Region, RegionSpec, VERSION};
use tailwater_shm::lot::LOT_BYTES;
use tailwater_shm::memory::{self, Mapping};
use tailwater_shm::ring::{Consumer, FrameBuffer, Producer};
use tailwater_shm::{Clock, Cycles, Generation, Grant, KthreadState, ParkingLot, SlotId, clock};

use crate::allocator::{Allocator, Parts};
use crate::config::Config;
use crate::control::directory::Place;
use crate::firewall::Guard;
use crate::frame::Mac;
use crate::machine::cpu_set;
use crate::port::Port;
use crate::runtime::{Admission, EndReason, Runtime};
use crate::stats::Stats;
use crate::switch::Switch;
use crate::switch::check::tests::udp;
use crate::sys::Threads;

/// The only unmanaged core of the made-up machine.
pub(crate) const UNMANAGED: CoreId = CoreId(900);

/// What was done to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Bound { tid: i32, core: CoreId },
    Preempted { tid: i32 },
}

#[derive(Default)]
struct Recorder {
    deeds: Arc<Mutex<Vec<Deed>>>,
    dead: Arc<Mutex<Vec<i32>>>,
}

impl Threads for Recorder {
    fn bind(&mut self, _tgid: i32, tid: i32, cores: &CpuSet) -> Result<(), Errno> {
        if self.dead.lock().unwrap().contains(&tid) {
            return Err(Errno::SRCH);
        }
        let core = (0..1024).find(|&core| cores.is_set(core)).expect("bound to no core");
        self.deeds.lock().unwrap().push(Deed::Bound { tid, core: CoreId(core as u16) });
        Ok(())
    }
    fn preempt(&mut self, _tgid: i32, tid: i32) -> Result<(), Errno> {
        self.deeds.lock().unwrap().push(Deed::Preempted { tid });
        Ok(())
    }
}

/// One kthread from the runtime's side.
pub(crate) struct PeerKthread {
    pub(crate) ingress: Consumer,
    pub(crate) egress: Producer,
    pub(crate) generation: Generation,
    buffer: FrameBuffer,
}

/// A fake runtime from the runtime's side.
pub(crate) struct Peer {
    pub(crate) region: Region,
    pub(crate) kthreads: Vec<PeerKthread>,
    pub(crate) ip: Ipv4Addr,
    pub(crate) slots: Vec<SlotId>,
}

impl Peer {
    pub(crate) fn state(&self, k: u16) -> KthreadState {
        self.region.kthread(k).state.0.load().0
    }

    pub(crate) fn grant(&self, k: u16) -> (Grant, Generation) {
        self.region.kthread(k).grant.0.load()
    }

    /// Takes the one step the protocol asks of kthread `k` now, if any: starts a new tenancy, or cedes.
    pub(crate) fn obey(&mut self, k: u16) -> bool {
        let words = self.region.kthread(k);
        let (grant, generation) = words.grant.0.load();
        let own = &mut self.kthreads[usize::from(k)];
        match (grant, words.state.0.load().0) {
            (Grant::Run { .. }, KthreadState::Parked) if generation != own.generation => {
                own.generation = generation;
                words.state.0.set_running(generation);
                true
            }
            (Grant::Cede { .. }, KthreadState::Running | KthreadState::Idle | KthreadState::Taken)
                if generation == own.generation =>
            {
                words.state.0.set_parked(generation);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn go_idle(&self, k: u16) {
        self.region.kthread(k).state.0.set_idle(self.kthreads[usize::from(k)].generation);
    }

    pub(crate) fn resume(&self, k: u16) -> bool {
        self.region.kthread(k).state.0.try_resume(self.kthreads[usize::from(k)].generation)
    }

    pub(crate) fn park(&self, k: u16) {
        self.region.kthread(k).state.0.set_parked(self.kthreads[usize::from(k)].generation);
    }

    /// Shows `items` user threads in the run queue of kthread `k`.
    pub(crate) fn queue(&self, k: u16, items: u32) {
        use core::sync::atomic::Ordering::Relaxed;
        let status = &self.region.kthread(k).status;
        status.runq_tail.store(status.runq_head.load(Relaxed).wrapping_add(items), Relaxed);
    }

    pub(crate) fn send(&mut self, k: u16, frame: &[u8]) {
        self.send_flagged(k, frame, 0);
    }

    pub(crate) fn send_flagged(&mut self, k: u16, frame: &[u8], flags: u8) {
        let mut slot =
            self.kthreads[usize::from(k)].egress.reserve(frame.len()).expect("room in the egress ring");
        slot.write(0, frame);
        slot.commit(0, flags, 0);
    }

    /// A UDP frame of 60 bytes to `to` with this source port.
    pub(crate) fn send_udp(&mut self, k: u16, to: Ipv4Addr, port: u16) {
        let frame = udp(self.ip, to, (port, 7), 60);
        self.send(k, &frame);
    }

    /// The next frame of kthread `k`.
    pub(crate) fn receive(&mut self, k: u16) -> Option<Vec<u8>> {
        self.receive_flagged(k).map(|(frame, _)| frame)
    }

    /// The same with its record's flags.
    pub(crate) fn receive_flagged(&mut self, k: u16) -> Option<(Vec<u8>, u8)> {
        let own = &mut self.kthreads[usize::from(k)];
        let record = own.ingress.peek().expect("the switch keeps the protocol")?;
        let frame = own.ingress.copy_frame(&record, &mut own.buffer).to_vec();
        own.ingress.advance(&record);
        own.ingress.publish();
        Some((frame, record.flags))
    }
}

/// See the module documentation.
pub(crate) struct World {
    pub(crate) alloc: Allocator,
    pub(crate) switch: Switch,
    pub(crate) peers: BTreeMap<u32, Peer>,
    pub(crate) now: Cycles,
    pub(crate) ended: Vec<(RuntimeId, EndReason)>,
    pub(crate) lot: ParkingLot,
    config: Config,
    deeds: Arc<Mutex<Vec<Deed>>>,
    dead: Arc<Mutex<Vec<i32>>>,
}

impl World {
    /// `cores` managed cores and these ports.
    pub(crate) fn new(cores: u16, ports: Vec<Box<dyn Port>>) -> Self {
        Self::with_config(cores, ports, &Config { max_evictions: 3, ..Config::default() })
    }

    pub(crate) fn with_config(cores: u16, ports: Vec<Box<dyn Port>>, config: &Config) -> Self {
        let lot_file = memory::create("tailwater-test-lot", LOT_BYTES).unwrap();
        let lot = || ParkingLot::new(Mapping::new(&lot_file, "parking lot").unwrap()).unwrap();
        let recorder = Recorder::default();
        let (deeds, dead) = (Arc::clone(&recorder.deeds), Arc::clone(&recorder.dead));
        let named = ports.iter().map(|port| (port.name().to_owned(), None)).collect();
        let stats = Arc::new(Stats::new(named, &config.firewall));
        let parts = Parts {
            clock: Clock::from_hz(1_000_000_000),
            topology: Topology::uniform(cores, 1, 1).unwrap(),
            unmanaged: cpu_set([&UNMANAGED]),
            policy: Box::new(CongestionDetection::new(Default::default())),
            lot: lot(),
            threads: Box::new(recorder),
            stats,
        };
        let alloc = Allocator::new(config, parts);
        let switch = Switch::new(ports, config);
        let now = clock::now() + 1_000_000;
        Self {
            alloc,
            switch,
            peers: BTreeMap::new(),
            now,
            ended: Vec::new(),
            lot: lot(),
            config: config.clone(),
            deeds,
            dead,
        }
    }

    /// Registers a runtime `id` with address 10.77.0.(`id` + 10) and small rings.
    pub(crate) fn add(&mut self, id: u32, kthreads: u16, guaranteed: u16, class: Class) {
        let spec = RegionSpec::new(kthreads, 1 << 15).unwrap();
        let file = memory::create("tailwater-test", spec.region_len()).unwrap();
        let ip = Ipv4Addr::new(10, 77, 0, id as u8 + 10);
        let mac = Mac::derived(ip);
        let slots: Vec<SlotId> = (0..kthreads).map(|k| SlotId(id as u16 * 16 + k)).collect();
        let wish = Register {
            version: VERSION,
            name: format!("r{id}"),
            kthreads,
            guaranteed,
            class,
            ring_bytes: 1 << 15,
            ip: None,
            mac: None,
        };
        let tids: Vec<i32> = (0..i32::from(kthreads)).map(|k| id as i32 * 100 + k + 1).collect();
        let region = Region::create(Mapping::new(&file, "region").unwrap(), spec, 1_000_000_000).unwrap();
        let fd = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let ip6 = self.config.ip6_of(ip);
        let place = Place { id: RuntimeId(id), ip, ip6, mac, slots: slots.clone(), region: spec };
        let guard = Guard::compile(&self.config.firewall, &wish.name, 1_000_000_000);
        let socket = Arc::new(fd());
        let admission =
            Admission { place, wish, region, doorbell: fd(), pid: 1, socket, process: None, guard };
        let runtime = Runtime::new(admission, &tids);
        self.switch.attach(&runtime);
        self.alloc.attach(runtime, self.now);
        self.alloc.begin(RuntimeId(id));
        let region = Region::attach(Mapping::new(&file, "region").unwrap()).unwrap();
        let kthread = |k: u16| PeerKthread {
            ingress: Consumer::new(region.ingress(k)),
            egress: Producer::new(region.egress(k)),
            generation: Generation::default(),
            buffer: FrameBuffer::new(),
        };
        let kthreads = (0..kthreads).map(kthread).collect();
        self.peers.insert(id, Peer { region, kthreads, ip, slots });
        self.check();
    }

    pub(crate) fn peer(&mut self, id: u32) -> &mut Peer {
        self.peers.get_mut(&id).expect("a registered peer")
    }

    /// Hand-offs, frames and ends of registrations, as one iteration of the loop has them, `ns` later.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.alloc.progress(self.now);
        self.switch.poll_egress(&mut self.alloc, self.now);
        self.switch.poll_ports(&mut self.alloc, self.now);
        while let Some((id, reason)) = self.alloc.next_doomed() {
            self.ended.push((id, reason));
            self.end(id);
        }
        self.check();
    }

    /// A look at all queues, after one iteration.
    pub(crate) fn tick(&mut self) {
        self.pass(5_000);
        self.alloc.tick(self.now);
        self.check();
    }

    /// The runtime is gone.
    pub(crate) fn end(&mut self, id: RuntimeId) {
        let ip = self.peers.get(&id.0).map(|peer| peer.ip);
        self.switch.detach(id, ip);
        assert!(self.alloc.detach(id, self.now).is_some());
        self.peers.remove(&id.0);
        self.check();
    }

    /// Everybody takes the steps the protocol asks for.
    pub(crate) fn obey(&mut self) {
        for peer in self.peers.values_mut() {
            for k in 0..peer.kthreads.len() as u16 {
                while peer.obey(k) {}
            }
        }
    }

    /// Ticks and obedience until nothing changes.
    pub(crate) fn settle(&mut self) {
        for _ in 0..8 {
            self.tick();
            self.obey();
            self.pass(500);
        }
    }

    pub(crate) fn deeds(&self) -> Vec<Deed> {
        std::mem::take(&mut *self.deeds.lock().unwrap())
    }

    pub(crate) fn kill_thread(&self, tid: i32) {
        self.dead.lock().unwrap().push(tid);
    }

    pub(crate) fn check(&self) {
        if let Err(why) = self.alloc.check() {
            panic!("{why}");
        }
        assert_eq!(self.alloc.stats.cores.ledger_refusals.get(), 0, "the ledger refused a transition");
    }
}
