//! Quanta: ends the turn of a user thread that has run for its program's quantum while something
//! else waits for its kthread (Shinjuku section 3.4, without its interrupts).
//!
//! Owns the [`TurnWatch`] of each core. The kthread numbers its turns in a line of its region; a
//! number that has changed is stamped, and one that stays for a quantum is written into the grant
//! word, whose byte poll points read anyway. The thread then yields to the next one of its kthread,
//! and keeps the core. Signals are the runtime's own affair: one from here costs 6 to 8 us of this
//! core.
//!
//! The line is read several times per quantum, at most every [`LEAST_SAMPLE_NS`]. Each read costs
//! the kthread one cache miss at its next switch, in the shadow of a plain store.
//!
//! # Crash and lie
//! The words only decide when the program's own threads take turns. Its quantum is bounded below,
//! so that looking at it takes a bounded share of the polling thread's time.

use core::sync::atomic::Ordering::Relaxed;
use tailwater_shm::{Clock, Cycles, KthreadShared};

use crate::runtime::Runtime;

/// Shortest quantum that is kept; a shorter one counts as this.
const LEAST_QUANTUM_NS: u64 = 1_000;
/// Number of reads per quantum, within the following bounds.
const SAMPLES: u64 = 16;
const LEAST_SAMPLE_NS: u64 = 250;
const MOST_SAMPLE_NS: u64 = 1_000;

/// The turn in progress on a core.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnWatch {
    quantum: Cycles,
    sample: Cycles,
    turn: u64,
    /// Time at which the turn was first seen.
    since: Cycles,
    /// Time of the next read.
    pub(super) next: Cycles,
    /// The grant word ends the turn.
    ended: bool,
}

/// The new value of the grant word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// End the turn with this number.
    End(u64),
    /// The turn has ended: a plain `Run` again.
    Plain,
}

impl TurnWatch {
    /// The watch of a core whose kthread has no quantum.
    pub(super) const NONE: Self =
        Self { quantum: 0, sample: 0, turn: 0, since: 0, next: Cycles::MAX, ended: false };

    /// Returns the watch of a core on which a kthread with these words begins a tenancy.
    pub(super) fn begin(words: &KthreadShared, clock: Clock, now: Cycles) -> Self {
        let quantum_ns = words.turn.quantum_ns.load(Relaxed);
        if quantum_ns == 0 {
            return Self::NONE;
        }
        let quantum_ns = quantum_ns.max(LEAST_QUANTUM_NS);
        let sample_ns = (quantum_ns / SAMPLES).clamp(LEAST_SAMPLE_NS, MOST_SAMPLE_NS);
        Self {
            quantum: clock.from_ns(quantum_ns),
            sample: clock.from_ns(sample_ns),
            turn: words.turn.turns.load(Relaxed),
            since: now,
            next: now,
            ended: false,
        }
    }

    /// Records a read of the number of the turn; returns what the grant word is to say.
    pub(super) fn look(&mut self, turn: u64, now: Cycles, waits: impl FnOnce() -> bool) -> Change {
        self.next = now.saturating_add(self.sample);
        if turn != self.turn {
            (self.turn, self.since) = (turn, now);
            return if core::mem::take(&mut self.ended) { Change::Plain } else { Change::Nothing };
        }
        let due = self.since.saturating_add(self.quantum);
        if now < due {
            self.next = self.next.min(due);
        } else if !self.ended && waits() {
            self.ended = true;
            return Change::End(turn);
        }
        Change::Nothing
    }
}

/// Returns whether something waits that the kthread would turn to before it looked at others'
/// queues.
pub(super) fn something_waits(runtime: &Runtime, index: u16, now: Cycles) -> bool {
    // Relaxed, except for the ends of the run queue: hints; a stale value is read again at the next
    // look.
    let status = &runtime.shared(index).status;
    let ingress = &runtime.kthreads[usize::from(index)].ingress;
    status.runq_len() > 0
        || status.overflow.load(Relaxed) > 0
        || runtime.shared(0).status.injected.load(Relaxed) > 0
        || status.next_timer.load(Relaxed) <= now
        || ingress.unchecked_tail() != ingress.head()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Sandbox;
    use crate::world::Lender;
    use tailwater_sched::RuntimeId;
    use tailwater_shm::Grant;
    use tailwater_shm::control::ProgramClass::LatencyCritical;

    const SERVICE: u32 = 1;
    const QUANTUM_NS: u64 = 8_000;

    /// A service with a quantum runs its first thread.
    fn service(quantum_ns: u64) -> Sandbox {
        let mut sandbox = Sandbox::new(1, Vec::new());
        sandbox.add(SERVICE, 1, 0, LatencyCritical);
        sandbox.peer(SERVICE).region.kthread(0).turn.quantum_ns.store(quantum_ns, Relaxed);
        let now = sandbox.now;
        sandbox.alloc.wakeup(&mut sandbox.world, RuntimeId(SERVICE), now);
        sandbox.obey();
        sandbox.pass(100);
        begin_turn(&mut sandbox, 1);
        sandbox
    }

    fn begin_turn(sandbox: &mut Sandbox, turn: u64) {
        sandbox.peer(SERVICE).region.kthread(0).turn.turns.store(turn, Relaxed);
        sandbox.pass(1_000);
    }

    fn is_over(sandbox: &mut Sandbox, turn: u64) -> bool {
        let peer = sandbox.peer(SERVICE);
        assert!(matches!(peer.grant(0).0, Grant::Run { .. }));
        peer.region.kthread(0).grant.0.ends_turn(turn)
    }

    #[test]
    fn a_turn_is_over_after_its_quantum_if_another_thread_waits() {
        let mut sandbox = service(QUANTUM_NS);
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.pass(QUANTUM_NS - 100);
        assert!(!is_over(&mut sandbox, 1), "before its quantum");
        sandbox.pass(100);
        assert!(is_over(&mut sandbox, 1));
        begin_turn(&mut sandbox, 2);
        assert!(!is_over(&mut sandbox, 1) && !is_over(&mut sandbox, 2), "a plain grant again");
        sandbox.pass(QUANTUM_NS - 100);
        assert!(!is_over(&mut sandbox, 2), "stamped when it was seen");
        sandbox.pass(100);
        assert!(is_over(&mut sandbox, 2));
        assert_eq!(sandbox.deeds().len(), 1, "bound once, and never signalled");
    }

    #[test]
    fn a_lone_thread_runs_on_until_something_waits() {
        let mut sandbox = service(QUANTUM_NS);
        for _ in 0..10 {
            sandbox.pass(QUANTUM_NS);
            assert!(!is_over(&mut sandbox, 1));
        }
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.pass(1_000);
        assert!(is_over(&mut sandbox, 1), "at the first look after the arrival");
    }

    #[test]
    fn a_run_queue_whose_head_has_passed_the_tail_that_was_read_holds_nothing() {
        let mut sandbox = service(QUANTUM_NS);
        // As seen by a reader between whose two reads a thread was queued and taken.
        sandbox.peer(SERVICE).region.kthread(0).status.runq_head.store(1, Relaxed);
        sandbox.pass(2 * QUANTUM_NS);
        assert!(!is_over(&mut sandbox, 1), "nothing waits");
    }

    #[test]
    fn without_a_quantum_no_turn_ends_and_the_shortest_is_bounded() {
        let mut sandbox = service(0);
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.pass(1_000_000);
        assert!(!is_over(&mut sandbox, 1));
        let mut sandbox = service(1);
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.pass(LEAST_QUANTUM_NS - 1);
        assert!(!is_over(&mut sandbox, 1), "a hostile quantum");
        sandbox.pass(1);
        assert!(is_over(&mut sandbox, 1));
    }

    #[test]
    fn the_next_tenancy_begins_with_a_plain_grant_and_a_new_stamp() {
        let mut sandbox = service(QUANTUM_NS);
        sandbox.peer(SERVICE).queue(0, 1);
        sandbox.pass(QUANTUM_NS);
        assert!(is_over(&mut sandbox, 1));
        sandbox.peer(SERVICE).park(0);
        sandbox.settle();
        assert_eq!(sandbox.peer(SERVICE).state(0), tailwater_shm::KthreadState::Running);
        sandbox.pass(QUANTUM_NS / 2);
        begin_turn(&mut sandbox, 2);
        sandbox.pass(QUANTUM_NS - 100);
        assert!(!is_over(&mut sandbox, 2));
    }
}
