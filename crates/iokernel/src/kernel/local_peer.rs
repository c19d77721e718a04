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
//! can end that earlier. So absences of more than [a millisecond](Bounds::long) have an
//! [`Account`]: they take one part in [`PARTS`] of the time, and [20 ms](Bounds::allowance) at
//! once, and this thread does not yield until they have paid. With more than one program
//! registered, cores may have to change hands meanwhile, and it stays for the length of every
//! absence.
//!
//! While services have other clients than local peers, these wait during each absence. Then the
//! account is charged for every one of more than [2 us](Bounds::switch), and those of up to a
//! millisecond take one part in [`PARTS_BESIDE_CLIENTS`]. This bounds how much of the time local
//! peers get by yields, whether or not they compete, and whatever ranks Linux permits. It does
//! not bound the length of a single absence: real-time rank does, in a contest and where Linux
//! permits that rank ([`neighbours`](super::neighbours)). A thread with that rank does not yield.
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
/// Part of the time that other absences may take while services have other clients: that of
/// `neighbour-share` by default.
const PARTS_BESIDE_CLIENTS: u64 = 10;

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct LocalPeerYield {
    bounds: Bounds,
    /// Frames of local peers when last looked at.
    frames: u64,
    recent_until: Cycles,
    not_before: Cycles,
    absences: Account,
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
        /// Total length of absences that are charged without a pause after them.
        allowance = 20 ms,
        /// Absence of a call that has found no other thread, at most: it takes 0.3 us.
        switch = 2 us,
    }
}

/// Whom absences of the polling thread hold up.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldUp {
    /// Cores may have to change hands between programs.
    pub(super) programs: bool,
    /// Services have been sent frames by others than local peers lately.
    pub(super) clients: bool,
}

impl LocalPeerYield {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, frames: 0, recent_until: 0, not_before: 0, absences: Account::default() }
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
    /// a long absence.
    #[inline(always)]
    pub(super) fn returned(&mut self, left: Cycles, back: Cycles, held_up: HeldUp) -> Option<Cycles> {
        let away = back.saturating_sub(left).min(self.bounds.tick);
        if held_up.programs {
            self.not_before = back.saturating_add(away);
        }
        let is_long = away > self.bounds.long;
        if is_long || (held_up.clients && away > self.bounds.switch) {
            let parts = if is_long { PARTS } else { PARTS_BESIDE_CLIENTS };
            self.absences.charge(away, parts, left);
            let pays_at = self.absences.pays_at(self.bounds.allowance.saturating_mul(parts));
            self.not_before = self.not_before.max(pays_at);
        }
        is_long.then(|| self.not_before.saturating_sub(back))
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
    const SWITCH: Cycles = 2;

    const NOBODY: HeldUp = HeldUp { programs: false, clients: false };
    const PROGRAMS: HeldUp = HeldUp { programs: true, clients: false };
    const CLIENTS: HeldUp = HeldUp { programs: false, clients: true };
    const BOTH: HeldUp = HeldUp { programs: true, clients: true };

    fn local_peer() -> LocalPeerYield {
        LocalPeerYield::new(Bounds {
            recent: RECENT,
            long: LONG,
            tick: LONGEST_TICK,
            allowance: ALLOWANCE,
            switch: SWITCH,
        })
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
        assert_eq!(local_peer.returned(0, LONG, NOBODY), None);
        assert!(local_peer.may_yield(1, LONG));
    }

    #[test]
    fn beside_other_programs_half_of_the_time_is_the_polling_threads() {
        let mut local_peer = local_peer();
        assert!(local_peer.may_yield(1, 0));
        assert_eq!(local_peer.returned(0, 300, PROGRAMS), None);
        assert!(!local_peer.may_yield(2, 599));
        assert!(local_peer.may_yield(3, 600));
    }

    /// Returns for how much of the first `time` the thread is away, if each yield lasts `away` and
    /// it yields as soon as it may, with polls of 1 us between.
    fn time_away(held_up: HeldUp, away: Cycles, time: Cycles) -> Cycles {
        let (mut local_peer, mut now, mut total) = (local_peer(), 0, 0);
        while now < time {
            if local_peer.may_yield(now + 1, now) {
                let _ = local_peer.returned(now, now + away, held_up);
                (now, total) = (now + away, total + away);
            }
            now += 1;
        }
        total
    }

    #[test]
    fn while_services_have_other_clients_a_peer_that_sleeps_before_a_tick_gets_a_part_of_the_time() {
        let (away, time) = (900, 2_000_000);
        assert!(time_away(NOBODY, away, time) > time / 100 * 99);
        assert!(time_away(PROGRAMS, away, time) > time / 100 * 49);
        for held_up in [CLIENTS, BOTH] {
            let total = time_away(held_up, away, time);
            let part = time / PARTS_BESIDE_CLIENTS;
            assert!((part..=part + ALLOWANCE + away).contains(&total), "{held_up:?}: {total}");
        }
    }

    #[test]
    fn while_services_have_other_clients_a_peer_that_wants_less_than_its_part_waits_for_nothing() {
        let mut local_peer = local_peer();
        for request in 1..10_000 {
            let now = request * 11 * PARTS_BESIDE_CLIENTS;
            assert!(local_peer.may_yield(request, now), "request {request}");
            assert_eq!(local_peer.returned(now, now + 10, CLIENTS), None);
            // Calls that find no thread are no absences.
            for call in 1..20 {
                let now = now + 10 + call * SWITCH;
                assert!(local_peer.may_yield(request, now), "request {request}, call {call}");
                assert_eq!(local_peer.returned(now, now + SWITCH, CLIENTS), None);
            }
        }
    }

    /// Records an absence that ends at `back`; returns the pause after it, in multiples of it.
    fn pause_after(local_peer: &mut LocalPeerYield, back: Cycles, away: Cycles) -> u64 {
        let pause = local_peer.returned(back - away, back, NOBODY).expect("a long absence");
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
            let _ = local_peer.returned(back, back + 30, NOBODY);
        }
        // Nor does a single one of a second.
        let (left, back) = (1000 * PARTS * TICK, 1000 * PARTS * TICK + 1_000_000);
        assert_eq!(local_peer.returned(left, back, NOBODY), Some(0));
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
