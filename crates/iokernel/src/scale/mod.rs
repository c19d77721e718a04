//! What an iteration of the polling loop costs on a machine of many cores: allocator and switch on
//! cores that do not exist, beside programs that are shared memory without threads.
//!
//! Owns such a machine, on which nothing is bound, signalled or woken, and its programs, whose side
//! of the protocol a second thread plays: it writes the words of all kthreads before each
//! measurement, as kthreads on other cores do, so that the allocator finds them in another core's
//! cache. Time is the program's argument, and durations are measured. `frames` counts what such a
//! machine does to frames. The interface is unstable.

mod frames;

pub use frames::{Delivery, deliver};

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use tailwater_ports::Port;
use tailwater_sched::RuntimeId;
use tailwater_sched::topology::Topology;
use tailwater_shm::control::ProgramClass;
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::{Consumer, Hint};
use tailwater_shm::{Clock, Cycles, Generation, KthreadState, clock};

use crate::allocator::{Allocator, AllocatorParts};
use crate::config::Config;
use crate::fixture::{Nowhere, admit, machine, obey};
use crate::stats::Stats;
use crate::switch::Switch;
use crate::tenant::Prices;
use crate::world::World;

/// Looks within which a program has its core: bounds a measurement that would not end.
const PATIENCE: usize = 10_000;
/// Looks that are measured while nothing changes, for each change that is.
const QUIET_LOOKS: usize = 4;

/// A machine to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of cores to lend, in pairs of hyperthreads.
    pub cores: u16,
    /// Number of programs: half of them services, half batch jobs. Each may have all cores.
    pub programs: u16,
}

/// Durations of parts of the polling loop, in nanoseconds, one of each measured.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// An iteration without a look: hand-offs, egress rings, ports.
    pub passes: Vec<u64>,
    /// A look at the queues that changes nothing.
    pub looks: Vec<u64>,
    /// A look that lends one core.
    pub decisions: Vec<u64>,
    /// Looks from a program's demand for a core to the one that lends it.
    pub looks_to_grant: Vec<u64>,
}

/// Measures `changes` cores that are given up and lent to another program.
///
/// # Panics
/// If the kernel has no memory or descriptors left, or the allocator does not lend a free core.
pub fn measure(shape: Shape, changes: usize) -> Costs {
    let (mut machine, programs) = Machine::new(shape, vec![], clock::now);
    let programs = Programs { all: programs, next: 0 };
    let (orders, done) = (channel(), channel());
    std::thread::scope(|scope| {
        scope.spawn(move || programs.serve(&orders.1, &done.0));
        machine.run(&Side { orders: orders.0, done: done.1 }, changes)
    })
}

/// What the programs are to do next.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// All demand cores.
    DemandAll,
    /// None demands one any more.
    Rest,
    /// One gives up a core, and the next one demands one.
    Change,
    /// All write their words anew, and take the steps that the protocol asks for.
    Go,
}

/// The measuring thread's way to the thread of the programs.
struct Side {
    orders: Sender<Order>,
    done: Receiver<()>,
}

impl Side {
    /// Has an order carried out. Polls, as the polling thread does: a sleep would cool the caches.
    fn order(&self, order: Order) {
        self.orders.send(order).expect("the programs' thread runs");
        loop {
            match self.done.try_recv() {
                Ok(()) => return,
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => panic!("the programs' thread has ended"),
            }
        }
    }
}

/// The IOKernel's side.
struct Machine {
    shape: Shape,
    clock: Clock,
    world: World,
    allocator: Allocator,
    switch: Switch,
    now: Cycles,
}

impl Machine {
    fn new(shape: Shape, ports: Vec<Box<dyn Port>>, stopwatch: fn() -> Cycles) -> (Self, Vec<Program>) {
        let config = Config::default();
        let clock = Clock::calibrate(10);
        let topology = Topology::uniform(shape.cores, 2, 1).expect("a possible number of cores");
        let parts = AllocatorParts { clock, topology, stopwatch, ..machine(1, Box::new(Nowhere), &config) };
        let names = ports.iter().map(|port| (port.name().to_owned(), None)).collect();
        let stats = Stats::new(names, &config.firewall, []);
        let world = World::new(Arc::new(stats), Prices::new(clock, config.offence_share));
        let switch = Switch::new(ports, &config, clock, stopwatch);
        let allocator = Allocator::new(&config, parts);
        let mut machine = Self { shape, clock, world, allocator, switch, now: clock::now() };
        let programs = (0..shape.programs).map(|number| machine.enter(&config, number)).collect();
        (machine, programs)
    }

    fn enter(&mut self, config: &Config, number: u16) -> Program {
        let class =
            if number.is_multiple_of(2) { ProgramClass::LatencyCritical } else { ProgramClass::BestEffort };
        let id = RuntimeId(number.into());
        let (runtime, file) = admit(config, id, self.shape.cores, 0, class);
        self.switch.attach(&runtime, &self.world);
        self.allocator.attach(&mut self.world, runtime, self.now);
        self.allocator.begin(&self.world, id);
        self.switch.begin(id);
        let mapping = Mapping::new(&file, "region").expect("a mapping");
        let (region, ends) = Region::attach(mapping).expect("just laid out");
        let rings = ends.into_iter().map(|ends| (Hint::new(&ends.ingress), ends.ingress));
        let rings = rings.map(|(hint, ring)| (ring, hint)).collect();
        Program { region, generations: vec![Generation::default(); usize::from(self.shape.cores)], rings }
    }

    fn run(&mut self, side: &Side, changes: usize) -> Costs {
        side.order(Order::DemandAll);
        let mut looks = 0;
        while self.allocator.has_free_core() {
            self.measure(side);
            looks += 1;
            assert!(looks < PATIENCE, "not all cores are lent after {looks} looks");
        }
        side.order(Order::Rest);
        self.measure(side);
        let mut costs = Costs::default();
        for _ in 0..changes {
            for _ in 0..QUIET_LOOKS {
                let (pass, look) = self.measure(side);
                costs.passes.push(pass);
                costs.looks.push(look);
            }
            side.order(Order::Change);
            let before = self.grants();
            let mut looks = 0;
            loop {
                let (_, look) = self.measure(side);
                looks += 1;
                if self.grants() > before {
                    costs.decisions.push(look);
                    costs.looks_to_grant.push(looks);
                    break;
                }
                assert!((looks as usize) < PATIENCE, "no core was lent in {looks} looks");
            }
            side.order(Order::Rest);
            self.measure(side);
        }
        costs
    }

    fn grants(&self) -> u64 {
        self.world.stats.cores.grants.get()
    }

    /// As [`iterate`](Self::iterate), of words that the programs have just written.
    fn measure(&mut self, side: &Side) -> (u64, u64) {
        side.order(Order::Go);
        self.iterate()
    }

    /// Runs an iteration with a look, an interval after the one before; returns what it took
    /// without the look, and what the look took.
    fn iterate(&mut self) -> (u64, u64) {
        self.now += self.allocator.interval();
        let (world, allocator, now) = (&mut self.world, &mut self.allocator, self.now);
        let began = clock::now();
        allocator.progress(world, now);
        self.switch.poll_egress(world, allocator, now);
        self.switch.poll_ports(world, allocator, now);
        let passed = clock::now();
        allocator.tick(world, now);
        let looked = clock::now();
        (self.clock.to_ns(passed - began), self.clock.to_ns(looked - passed))
    }
}

/// The other side of the protocol.
struct Programs {
    all: Vec<Program>,
    /// The one that gives up a core next.
    next: usize,
}

struct Program {
    region: Region,
    generations: Vec<Generation>,
    /// Frames to each kthread, and how far they are read.
    rings: Vec<(Consumer, Hint)>,
}

impl Programs {
    fn serve(mut self, orders: &Receiver<Order>, done: &Sender<()>) {
        loop {
            match orders.try_recv() {
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Empty) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
            }
            if done.send(()).is_err() {
                return;
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::DemandAll => self.all.iter().for_each(|program| program.demand(1)),
            Order::Rest => self.all.iter().for_each(|program| program.demand(0)),
            Order::Change => self.change(),
            Order::Go => self.all.iter_mut().for_each(Program::go),
        }
    }

    /// The next program that has a core gives one up, and the one after it demands one.
    fn change(&mut self) {
        let count = self.all.len();
        let giver = (0..count).map(|step| (self.next + step) % count);
        let (giver, kthread) =
            giver.filter_map(|at| Some((at, self.all[at].running()?))).next().expect("all cores are lent");
        let program = &self.all[giver];
        program.region.kthread(kthread).state.0.set_parked(program.generations[usize::from(kthread)]);
        self.next = (giver + 1) % count;
        self.all[self.next].demand(1);
    }
}

impl Program {
    /// Lets so many user threads wait at the first kthread that runs, or at the first one.
    fn demand(&self, threads: u32) {
        let rest = |k| self.queue(k, 0);
        (0..self.generations.len() as u16).for_each(rest);
        self.queue(self.running().unwrap_or(0), threads);
    }

    fn queue(&self, k: u16, threads: u32) {
        let status = &self.region.kthread(k).status;
        status.runq_tail.store(status.runq_head.load(Relaxed).wrapping_add(threads), Relaxed);
    }

    /// Returns a kthread that runs.
    fn running(&self) -> Option<u16> {
        (0..self.generations.len() as u16)
            .find(|&k| self.region.kthread(k).state.0.load().0 == KthreadState::Running)
    }

    fn go(&mut self) {
        for (k, generation) in (0u16..).zip(&mut self.generations) {
            while obey(&self.region, k, generation) {}
            // The same value: what counts is whose cache has the line.
            let tail = &self.region.kthread(k).status.runq_tail;
            tail.store(tail.load(Relaxed), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_a_decision_whatever_the_numbers_of_cores_and_programs() {
        for (cores, programs) in [(8, 4), (8, 16), (64, 4)] {
            let costs = measure(Shape { cores, programs }, 10);
            assert_eq!(costs.decisions.len(), 10);
            assert_eq!(costs.looks.len(), 10 * QUIET_LOOKS);
            assert!(costs.looks_to_grant.iter().all(|&looks| looks >= 1));
        }
    }
}
