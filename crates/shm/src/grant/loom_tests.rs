//! The grant protocol under every interleaving loom can make: `RUSTFLAGS="--cfg loom" cargo test -p
//! tailwater-shm --lib`.
//!
//! The words and parkers are those that ship. The two parties are the steps of the runtime's
//! `lease` module and of the IOKernel's `allocator`, without clocks: a watchdog may fire at any
//! moment after the condition it watches.
//!
//! [`Core`] is memory that only the owner of the core may touch. Loom reports an access that
//! another one does not happen before, so every model that touches it shows that the core never has
//! two owners **and** that the next one sees all the last one did; and it reports a kthread that
//! sleeps for ever, which is what a lost wake looks like.

use super::*;
use crate::park::Parker;
use crate::sync::{AtomicU32, fence, spin_hint};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const G0: Generation = Generation(0);
const G1: Generation = Generation(1);
const G2: Generation = Generation(2);
/// The tenancy at which a model's kthread stops.
const END: Generation = Generation(3);

/// Memory that only the owner of the core may touch: counts the tenancies that ran on it.
struct Core(UnsafeCell<u32>);

impl Core {
    fn run(&self) {
        // SAFETY: loom checks that no other thread is in here.
        self.0.with_mut(|runs| unsafe { *runs += 1 });
    }
}

/// One kthread's words and its parker.
struct Kthread {
    grant: GrantWord,
    state: StateWord,
    parker: Parker,
}

impl Kthread {
    fn parked() -> Self {
        Self { grant: GrantWord::new(), state: StateWord::new(), parker: Parker::new() }
    }

    /// Returns a kthread in the tenancy `G1`.
    fn running() -> Self {
        let this = Self::parked();
        this.grant.store(Grant::Run { core: 1 }, G1);
        this.state.set_running(G1);
        this
    }

    fn idle() -> Self {
        let this = Self::running();
        this.state.set_idle(G1);
        this
    }

    /// `lease::wait_for_core`, without a successor on the way.
    fn wait_for_core(&self, last: Generation) -> Generation {
        loop {
            let ticket = self.parker.ticket();
            let seen = self.grant.load();
            if let (Grant::Run { .. }, generation) = seen
                && generation != last
            {
                self.state.set_running(generation);
                fence(Ordering::SeqCst);
                if self.grant.load() == seen {
                    return generation;
                }
                self.state.set_parked(generation);
                continue;
            }
            self.parker.wait(ticket, None);
        }
    }
}

/// One core, the kthread that has it or had it, and the one it goes to.
struct Machine {
    core: Core,
    old: Kthread,
    new: Kthread,
}

impl Machine {
    fn new(old: Kthread) -> Arc<Self> {
        Arc::new(Self { core: Core(UnsafeCell::new(0)), old, new: Kthread::parked() })
    }

    /// `lease::cede` up to the sleep, once the grant asks for it.
    fn cede(&self, generation: Generation) {
        while !self.old.grant.asks_to_cede() {
            spin_hint();
        }
        let (grant, of) = self.old.grant.load();
        assert_eq!(of, generation, "asked to end a tenancy that is not the present one");
        assert!(matches!(grant, Grant::Cede { .. }), "asked to cede, then granted {grant:?}");
        self.old.state.set_parked(generation);
    }

    /// Starts the kthread that gets the core: it sleeps, or is about to; runs; and ends.
    fn successor(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let machine = Arc::clone(self);
        let ticket = machine.new.parker.ticket();
        thread::spawn(move || {
            machine.new.parker.wait(ticket, None);
            assert_eq!(machine.new.wait_for_core(G0), G1);
            machine.core.run();
        })
    }

    /// `allocator::apply::begin_move`: the successor's grant first, then the request.
    fn begin_move(&self) {
        self.new.grant.store(Grant::Run { core: 1 }, G1);
        self.old.grant.store(Grant::Cede { successor: NextOwner::Awake }, G1);
    }

    /// `allocator::progress`, up to the wake of the successor.
    fn hand_on(&self) {
        await_state(&self.old, KthreadState::Parked, G1);
        self.new.parker.wake();
    }

    /// `allocator::progress`: follows the hand-off to its end.
    fn follow(&self) {
        self.hand_on();
        await_state(&self.new, KthreadState::Running, G1);
    }
}

fn await_state(kthread: &Kthread, state: KthreadState, generation: Generation) {
    while kthread.state.load() != (state, generation) {
        spin_hint();
    }
}

/// Bounded so that all models together take well under a minute; `LOOM_MAX_PREEMPTIONS` overrides.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(body);
}

#[test]
fn an_idle_core_is_either_resumed_or_taken_and_then_ceded_to_the_successor() {
    model(4, || {
        let machine = Machine::new(Kthread::idle());
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                let resumed = machine.old.state.try_resume(G1);
                if resumed {
                    machine.core.run();
                } else {
                    machine.cede(G1);
                }
                resumed
            }
        });
        let taken = machine.old.state.load() == (KthreadState::Idle, G1) && machine.old.state.try_take(G1);
        if taken {
            machine.begin_move();
            machine.hand_on();
            machine.core.run();
        }
        let resumed = kthread.join().unwrap();
        assert_ne!(taken, resumed, "both or neither won the core");
    });
}

#[test]
fn a_busy_core_goes_to_its_successor_and_no_wake_is_lost() {
    model(3, || {
        let machine = Machine::new(Kthread::running());
        let successor = machine.successor();
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                machine.core.run();
                machine.cede(G1);
            }
        });
        machine.begin_move();
        machine.follow();
        assert_eq!(machine.old.state.load(), (KthreadState::Parked, G1), "the core has two owners");
        kthread.join().unwrap();
        successor.join().unwrap();
    });
}

/// The kthread that cedes wakes its successor, at the board; the IOKernel only announces it. In
/// this model a sleeper comes to both its words at once, not to the board first.
#[test]
fn a_successor_that_is_announced_is_woken_by_the_kthread_that_cedes() {
    model(3, || {
        let machine = Machine::new(Kthread::running());
        let successor = machine.successor();
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                while !machine.old.grant.asks_to_cede() {
                    spin_hint();
                }
                // With Acquire, so that the announcement comes before the wake.
                let (Grant::Cede { successor }, _) = machine.old.grant.load() else { unreachable!() };
                assert!(successor.place().is_some());
                machine.old.state.set_passed(G1);
                machine.new.parker.wake_at_board();
            }
        });
        // `allocator::board::next_owner`, in `begin_move`: the grant, the announcement, the
        // request.
        machine.new.grant.store(Grant::Run { core: 1 }, G1);
        machine.new.parker.announce();
        let place = WakePlace::new(0).unwrap();
        machine.old.grant.store(Grant::Cede { successor: NextOwner::AtBoard { place, apart: false } }, G1);
        await_state(&machine.old, KthreadState::Parked, G1);
        assert!(machine.old.state.is_passed(G1), "a promise that is not seen");
        await_state(&machine.new, KthreadState::Running, G1);
        kthread.join().unwrap();
        successor.join().unwrap();
    });
}

/// The kthread idles past its timeout while the IOKernel decides to take the core. It may park
/// without having seen the request; the IOKernel sees it parked and wakes the successor.
#[test]
fn a_voluntary_park_that_crosses_a_request_to_cede_still_starts_the_successor() {
    model(3, || {
        let machine = Machine::new(Kthread::idle());
        let successor = machine.successor();
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                if machine.old.state.try_resume(G1) {
                    machine.core.run();
                    machine.old.state.set_parked(G1);
                } else {
                    machine.cede(G1);
                }
            }
        });
        // A request that does not depend on the kthread being idle.
        let _ = machine.old.state.load() == (KthreadState::Idle, G1) && machine.old.state.try_take(G1);
        machine.begin_move();
        machine.follow();
        kthread.join().unwrap();
        successor.join().unwrap();
    });
}

/// A kthread may wake at any time: its program wakes it, or its sleep has lasted as long as it may;
/// and a kthread whose word is `Parked` may not have read its grant for the last time. Without a
/// grant neither starts a kthread. Between the grant and the cede both let the successor run early,
/// beside the old owner, until that reaches its poll point: both are bound to the core and Linux
/// shares it between them. So this model does not touch the core itself.
#[test]
fn stray_wakes_start_no_kthread_without_a_grant_and_cost_none_a_wake() {
    model(2, || {
        let machine = Machine::new(Kthread::running());
        let granted = Arc::new(AtomicU32::new(0));
        let stranger = thread::spawn({
            let machine = Arc::clone(&machine);
            move || machine.new.parker.wake()
        });
        let successor = thread::spawn({
            let (machine, granted) = (Arc::clone(&machine), Arc::clone(&granted));
            move || {
                assert_eq!(machine.new.wait_for_core(G0), G1);
                // Relaxed: ordered by the grant's Release and Acquire.
                assert_eq!(granted.load(Ordering::Relaxed), 1, "started without a grant");
            }
        });
        granted.store(1, Ordering::Relaxed);
        machine.begin_move();
        machine.cede(G1);
        machine.follow();
        stranger.join().unwrap();
        successor.join().unwrap();
    });
}

/// Words of one tenancy do not end the next, nor the other way round.
#[test]
fn words_of_another_generation_neither_take_nor_end_a_tenancy() {
    model(3, || {
        let machine = Machine::new(Kthread::idle());
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                if machine.old.state.try_resume(G1) {
                    machine.old.state.set_parked(G1);
                } else {
                    machine.cede(G1);
                }
                assert_eq!(machine.old.wait_for_core(G1), G2);
                machine.core.run();
                machine.old.state.set_idle(G2);
                machine.cede(G2);
            }
        });
        let old = &machine.old;
        let _ = old.state.try_take(G1);
        old.grant.store(Grant::Cede { successor: NextOwner::None }, G1);
        await_state(old, KthreadState::Parked, G1);
        old.grant.store(Grant::Run { core: 1 }, G2);
        old.parker.wake();
        await_state(old, KthreadState::Idle, G2);
        assert!(!old.state.try_take(G1), "a stale decision took the core of a later tenancy");
        assert!(old.state.try_take(G2));
        old.grant.store(Grant::Cede { successor: NextOwner::None }, G2);
        await_state(old, KthreadState::Parked, G2);
        machine.core.run();
        kthread.join().unwrap();
    });
}

/// A kthread reads its grant and is descheduled before it stores `Running`. The IOKernel gives up
/// waiting (`take_back`), finds the kthread still parked in its last tenancy, and lends it a core
/// again. The kthread must not run on in the tenancy that was taken back: it would ignore every
/// word of the new one.
#[test]
fn a_kthread_that_starts_too_late_ends_in_the_tenancy_the_iokernel_means() {
    model(2, || {
        let machine = Machine::new(Kthread::parked());
        let kthread = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                let mut tenancy = machine.old.wait_for_core(G0);
                while tenancy != END {
                    machine.cede(tenancy);
                    tenancy = machine.old.wait_for_core(tenancy);
                }
            }
        });
        let old = &machine.old;
        old.grant.store(Grant::Run { core: 1 }, G1);
        old.parker.wake();
        old.grant.store(Grant::Cede { successor: NextOwner::None }, G1);
        // The pause before the next attempt (10 ms) has the effect of this fence.
        fence(Ordering::SeqCst);
        while old.state.load().0 != KthreadState::Parked {
            spin_hint();
        }
        old.grant.store(Grant::Run { core: 1 }, G2);
        old.parker.wake();
        await_state(old, KthreadState::Running, G2);
        old.grant.store(Grant::Cede { successor: NextOwner::None }, G2);
        await_state(old, KthreadState::Parked, G2);
        old.grant.store(Grant::Run { core: 1 }, END);
        old.parker.wake();
        kthread.join().unwrap();
    });
}

/// The doorbell (`Region::asleep`): the runtime publishes work and then reads whether the IOKernel
/// sleeps; the IOKernel stores that it sleeps and then looks for work. With a fence between the two
/// steps on both sides one of them sees the other.
#[test]
fn a_sleeping_iokernel_hears_of_work_or_has_seen_it() {
    model(4, || {
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let runtime = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (work, asleep) = (&shared.0, &shared.1);
                work.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                asleep.load(Ordering::Relaxed) != 0
            }
        });
        let (work, asleep) = (&shared.0, &shared.1);
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = work.load(Ordering::Relaxed) != 0;
        let rung = runtime.join().unwrap();
        assert!(seen || rung, "the IOKernel sleeps beside work");
    });
}
