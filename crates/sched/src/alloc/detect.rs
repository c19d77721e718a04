//! Congestion detection: Shenango, algorithm 1.
//!
//! Owns the memory of the previous look. A runtime is congested if any item waited through two
//! looks. In rings with free-running ends that is one comparison, of the head now with the tail
//! then. The signal is how *long* something waits, not how much waits (Shenango section 4.1.1).
//! A kthread that a look [leaves out](KthreadLook::left_out) is compared at the next look that
//! reads it: words that were not read again say nothing of what waits.

use super::observe::{KthreadLook, RuntimeLook, queued};
use heap::vec;
use heap::vec::Vec;

/// The previous look at one kthread.
#[derive(Clone, Copy, Debug, Default)]
struct Then {
    /// True if anything was queued; if not, the other fields are stale.
    work: bool,
    runq_tail: u32,
    ingress_tail: u32,
    runq_queued: bool,
    ingress_queued: bool,
    overflow: bool,
    timer_due: bool,
    /// True if something had waited since the previous look.
    waited: bool,
}

impl Then {
    /// Remembers a look at a kthread with work, and whether any of that `waited`.
    fn of(look: &KthreadLook, waited: bool) -> Self {
        Self {
            work: true,
            waited,
            runq_tail: look.runq_tail,
            ingress_tail: look.ingress_tail,
            runq_queued: queued(look.runq_head, look.runq_tail),
            ingress_queued: queued(look.ingress_head, look.ingress_tail),
            overflow: look.overflow > 0,
            timer_due: look.timer_due,
        }
    }

    /// Returns how many things seen at the previous look still wait. User threads count one by one;
    /// a ring, an overflow list and a timer count as one each. The overflow list has no order, so a
    /// list in use at both looks counts as waiting. So does a timer that is due at both looks,
    /// although it may be another one.
    fn waiting_in(&self, look: &KthreadLook) -> u32 {
        let in_runq = self.runq_queued && queued(look.runq_head, self.runq_tail);
        let in_ingress = self.ingress_queued && queued(look.ingress_head, self.ingress_tail);
        let in_overflow = self.overflow && look.overflow > 0;
        let threads = if in_runq { self.runq_tail.wrapping_sub(look.runq_head) } else { 0 };
        let others = [in_ingress, in_overflow, self.timer_due && look.timer_due];
        threads.saturating_add(others.map(u32::from).iter().sum())
    }
}

/// The result of one look at a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// True if something is queued.
    pub(super) work: bool,
    /// Number of things that have been queued since the last look, a lower bound. Any at all is
    /// congestion.
    pub(super) waiting: u32,
    /// True if something waited at the last look at a kthread that this one leaves out.
    pub(super) unknown: bool,
}

/// The memory of one runtime's last look.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    then: Vec<Then>,
}

impl Detector {
    /// Creates the memory of a runtime never looked at, so that nothing has waited at the first
    /// look.
    pub(super) fn new(kthreads: u16) -> Self {
        Self { then: vec![Then::default(); usize::from(kthreads)] }
    }

    /// Compares every kthread, parked ones too, with its previous look and remembers this one.
    /// Ignores kthreads beyond those registered.
    pub(super) fn look(&mut self, look: &RuntimeLook) -> Found {
        let mut found = Found::default();
        for (then, now) in self.then.iter_mut().zip(&look.kthreads) {
            let work = now.has_work();
            found.work |= work;
            if now.left_out {
                found.unknown |= then.work && then.waited;
            } else if work {
                let waiting = if then.work { then.waiting_in(now) } else { 0 };
                found.waiting = found.waiting.saturating_add(waiting);
                *then = Then::of(now, waiting > 0);
            } else {
                then.work = false;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(kthread: [KthreadLook; 2]) -> [Found; 2] {
        let mut detector = Detector::new(1);
        kthread.map(|look| detector.look(&RuntimeLook { kthreads: vec![look], ..Default::default() }))
    }

    fn runq(head: u32, tail: u32) -> KthreadLook {
        KthreadLook { runq_head: head, runq_tail: tail, ..Default::default() }
    }

    fn ingress(head: u32, tail: u32) -> KthreadLook {
        KthreadLook { ingress_head: head, ingress_tail: tail, ..Default::default() }
    }

    #[test]
    fn an_item_is_congestion_only_when_it_waited_through_two_looks() {
        for queue in [runq, ingress] {
            // One item, still there.
            assert_eq!(looks([queue(0, 1), queue(0, 1)]).map(|found| found.waiting), [0, 1]);
            // All of the old items gone, new ones in their place.
            assert_eq!(looks([queue(0, 3), queue(3, 9)])[1].waiting, 0);
            // The last of the old items remains.
            assert_eq!(looks([queue(0, 3), queue(2, 9)])[1].waiting, 1);
            // Empty before, so nothing can have waited.
            assert_eq!(looks([queue(5, 5), queue(5, 9)])[1].waiting, 0);
            // The head passed the old tail.
            assert_eq!(looks([queue(0, 3), queue(7, 9)])[1].waiting, 0);
        }
    }

    #[test]
    fn waiting_user_threads_are_counted_one_by_one_and_a_ring_as_one() {
        assert_eq!(looks([runq(0, 9), runq(4, 20)])[1].waiting, 5);
        assert_eq!(looks([ingress(0, 9), ingress(4, 20)])[1].waiting, 1);
    }

    #[test]
    fn ends_are_compared_across_the_wrap() {
        let last = u32::MAX;
        assert_eq!(looks([runq(last - 1, 1), runq(0, 2)])[1].waiting, 1);
        assert_eq!(looks([runq(last - 1, 1), runq(1, 2)])[1].waiting, 0);
        assert_eq!(looks([runq(last - 1, last), runq(3, 4)])[1].waiting, 0);
    }

    #[test]
    fn counters_that_run_backwards_are_no_panic_and_at_most_a_false_alarm() {
        let [_, found] = looks([runq(9, 3), runq(2, 1)]);
        assert_eq!(found, Found::default());
        // Old items reported again raise an alarm, at this runtime's expense.
        assert_eq!(looks([runq(5, 8), runq(1, 8)])[1].waiting, 7);
        let garbage = RuntimeLook { kthreads: vec![runq(0, u32::MAX / 2); 8], ..Default::default() };
        let mut detector = Detector::new(8);
        detector.look(&garbage);
        assert_eq!(detector.look(&garbage).waiting, u32::MAX, "sums saturate");
    }

    #[test]
    fn overflow_and_due_timers_are_load() {
        let overflow = KthreadLook { overflow: 2, ..Default::default() };
        let timer = KthreadLook { timer_due: true, ..Default::default() };
        for load in [overflow, timer] {
            assert_eq!(
                looks([load, load]),
                [0, 1].map(|waiting| Found { work: true, waiting, unknown: false })
            );
            assert_eq!(looks([load, KthreadLook::default()])[1].waiting, 0);
        }
    }

    #[test]
    fn words_that_were_not_read_again_are_no_congestion_and_what_waited_there_is_unknown() {
        let mut detector = Detector::new(1);
        let mut found = |look: KthreadLook| {
            let Found { work, waiting, unknown } =
                detector.look(&RuntimeLook { kthreads: vec![look], ..Default::default() });
            (work, waiting, unknown)
        };
        let left_out = |look| KthreadLook { left_out: true, ..look };
        assert_eq!(found(runq(0, 2)), (true, 0, false));
        for _ in 0..3 {
            assert_eq!(found(left_out(runq(0, 2))), (true, 0, false));
        }
        // Read again: one is still there.
        assert_eq!(found(runq(1, 5)), (true, 1, false));
        assert_eq!(found(left_out(runq(1, 5))), (true, 0, true));
        assert_eq!(found(runq(5, 6)), (true, 0, false), "all of the old ones are gone");
        assert_eq!(found(left_out(runq(5, 6))), (true, 0, false));
        assert_eq!(found(runq(6, 6)), (false, 0, false));
        assert_eq!(found(left_out(runq(6, 6))), (false, 0, false));
    }

    #[test]
    fn kthreads_beyond_the_registered_ones_are_ignored() {
        let mut detector = Detector::new(1);
        let look = RuntimeLook { kthreads: vec![KthreadLook::default(), runq(0, 5)], ..Default::default() };
        detector.look(&look);
        assert_eq!(detector.look(&look), Found::default());
        assert_eq!(detector.look(&RuntimeLook::default()), Found::default());
    }
}
