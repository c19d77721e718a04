//! Decides when the polling thread yields to ordinary threads of its core: while it exchanges
//! frames with programs of this machine.
//!
//! Owns [`LocalPeerYield`], a pure decision: times are arguments. A program that Linux runs on the
//! polling thread's core cannot send its next request, or read its answer, before it has that core;
//! polling meanwhile delays the very frames that are polled for. So an iteration that has moved
//! nothing ends with sched_yield(2), as long as a port to a local peer has carried frames lately.
//! If another thread is runnable on this core, it runs until it sleeps, without a timer or a wake;
//! if none is, the call returns after 0.3 us.
//!
//! A thread that computes keeps the core until a tick of Linux's clock (1 to 10 ms). Nothing here
//! can end that earlier. So there are no yields while such threads compete for the cores and
//! services have other clients than local peers: then this thread has real-time rank, and they get
//! slices that a timer ends ([`neighbours`](super::neighbours)). Otherwise absences of more than [a
//! millisecond](Bounds::long) have an [`Account`]: they take one part in [`PARTS`] of the time, and
//! [20 ms](Bounds::allowance) at once, and this thread polls on meanwhile. With more than one
//! program registered, cores may have to change hands meanwhile, and it stays for the length of
//! every absence.
//!
//! An absence is as long if the host of a virtual machine takes the core away for a while, which
//! happens several times a second on some hosts, and nothing distinguishes the two. Pauses of 3 %
//! of the time decide the p99 of a client that does not compute, so stalls must not use the account
//! up.

use tailwater_shm::Cycles;
use tailwater_shm::account::Account;

use crate::bounds::bounds;

/// Part of the time that long absences may take: a stall of 4 ms comes about once a second.
const PARTS: u64 = 32;

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct LocalPeerYield {
    bounds: Bounds,
    /// Frames of local peers when last looked at.
    frames: u64,
    recent_until: Cycles,
    not_before: Cycles,
    long: Account,
}

bounds! {
    /// Times of local peers and of absences.
    pub(super) struct Bounds {
        /// Time without a frame of a local peer after which none is waited for.
        recent = 10 ms,
        /// Absence that a thread causes that computes: clients of 64 connections take 0.3 ms to
        /// read all answers and to send as many requests.
        long = 1 ms,
        /// Longest tick of Linux's clock; a longer absence counts as one tick.
        tick = 10 ms,
        /// Total length of long absences without a pause after them.
        allowance = 20 ms,
    }
}

impl LocalPeerYield {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, frames: 0, recent_until: 0, not_before: 0, long: Account::default() }
    }

    /// Returns whether to yield at `now`, in an iteration that has moved nothing; `frames` is how
    /// many local peers have sent and received since the start.
    #[inline(always)]
    pub(super) fn may_yield(&mut self, frames: u64, now: Cycles) -> bool {
        if frames != self.frames {
            self.frames = frames;
            self.recent_until = now.saturating_add(self.bounds.recent);
        }
        now < self.recent_until && now >= self.not_before
    }

    /// Records that the thread yielded at `left` and runs again at `back`; returns the pause after
    /// a long absence. `shared` is true if cores may have to change hands between programs.
    #[inline(always)]
    pub(super) fn returned(&mut self, left: Cycles, back: Cycles, shared: bool) -> Option<Cycles> {
        let away = back.saturating_sub(left).min(self.bounds.tick);
        if shared {
            self.not_before = back.saturating_add(away);
        }
        (away > self.bounds.long).then(|| {
            self.long.charge(away, PARTS, left);
            let pays_at = self.long.pays_at(self.bounds.allowance.saturating_mul(PARTS));
            self.not_before = self.not_before.max(pays_at);
            self.not_before.saturating_sub(back)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECENT: Cycles = 10_000;
    const LONG: Cycles = 1_000;
    const LONGEST_TICK: Cycles = 10_000;
    const ALLOWANCE: Cycles = 20_000;
    /// A tick of Linux's clock.
    const TICK: Cycles = 4_000;

    fn local_peer() -> LocalPeerYield {
        LocalPeerYield::new(Bounds { recent: RECENT, long: LONG, tick: LONGEST_TICK, allowance: ALLOWANCE })
    }

    #[test]
    fn it_yields_while_frames_of_local_peers_are_recent() {
        let mut local_peer = local_peer();
        assert!(!local_peer.may_yield(0, 5), "none has come");
        assert!(local_peer.may_yield(1, 10));
        assert!(local_peer.may_yield(1, 10 + RECENT - 1));
        assert!(!local_peer.may_yield(1, 10 + RECENT));
        assert!(local_peer.may_yield(2, 50_000));
    }

    #[test]
    fn a_peer_that_sleeps_when_it_is_done_may_have_the_core_again_at_once() {
        let mut local_peer = local_peer();
        assert!(local_peer.may_yield(1, 0));
        assert_eq!(local_peer.returned(0, LONG, false), None);
        assert!(local_peer.may_yield(1, LONG));
    }

    #[test]
    fn beside_other_programs_half_of_the_time_is_the_polling_threads() {
        let mut local_peer = local_peer();
        assert!(local_peer.may_yield(1, 0));
        assert_eq!(local_peer.returned(0, 300, true), None);
        assert!(!local_peer.may_yield(2, 599));
        assert!(local_peer.may_yield(3, 600));
    }

    /// Records an absence that ends at `back`; returns the pause after it, in multiples of it.
    fn pause_after(local_peer: &mut LocalPeerYield, back: Cycles, away: Cycles) -> u64 {
        let pause = local_peer.returned(back - away, back, false).expect("a long absence");
        assert!(local_peer.may_yield(back, back + pause));
        assert!(pause == 0 || !local_peer.may_yield(back, back + pause - 1));
        pause / away
    }

    #[test]
    fn a_thread_that_computes_gets_its_allowance_and_then_a_part_of_the_time() {
        let (mut local_peer, mut now) = (local_peer(), 0);
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                now += TICK;
                let times = pause_after(&mut local_peer, now, TICK);
                now += times * TICK;
                times
            })
            .collect();
        // It has paid for what it had at once meanwhile, but for the present one.
        assert_eq!(pauses, [0, 0, 0, 0, 0, 26, 31, 31, 31]);
    }

    #[test]
    fn stalls_of_the_host_cause_no_pause() {
        let mut local_peer = local_peer();
        for stall in 1..1000 {
            let back = stall * PARTS * TICK;
            assert_eq!(pause_after(&mut local_peer, back, TICK), 0, "stall {stall}");
            let _ = local_peer.returned(back, back + 30, false);
        }
        // Nor does a single one of a second.
        let (left, back) = (1000 * PARTS * TICK, 1000 * PARTS * TICK + 1_000_000);
        assert_eq!(local_peer.returned(left, back, false), Some(0));
    }

    #[test]
    fn long_absences_for_a_sixteenth_of_the_time_are_no_stalls() {
        let mut local_peer = local_peer();
        let pauses = (1..100).map(|absence| {
            let back = absence * PARTS * TICK / 2;
            pause_after(&mut local_peer, back, TICK)
        });
        assert!(pauses.sum::<u64>() > 0);
    }
}
