//! Decides when the polling thread yields to ordinary threads of its core: while it exchanges
//! frames with programs of this machine.
//!
//! Owns [`Courtesy`], a pure decision: times are arguments. A program that Linux runs on the
//! polling thread's core cannot send its next request, or read its answer, before it has that core;
//! polling meanwhile delays the very frames that are polled for. So an iteration that has moved
//! nothing ends with sched_yield(2), as long as a port to a local peer has carried frames lately.
//! If another thread is runnable on this core, it runs until it sleeps, without a timer or a wake;
//! if none is, the call returns after 0.3 us.
//!
//! A thread that computes keeps the core until a tick of Linux's clock (1 to 10 ms). Nothing here
//! can end that earlier, so its repetition is bounded: after an absence of more than [`LONG_US`]
//! the polling thread stays for [`SHORTEST_PAUSE`] times its length, and for twice as many times
//! after each further one, up to [`LONGEST_PAUSE`], until a thread has slept in time again. With
//! more than one program registered, cores may have to change hands meanwhile, and the polling
//! thread stays for the length of every absence.
//!
//! An absence is as long if the host of a virtual machine takes the core away for a while, which
//! happens several times a second on some hosts, and nothing distinguishes the two. A pause would
//! then delay the requests of a client that does not compute: pauses of 3 % of the time decide its
//! p99. So long absences have an allowance of [`ALLOWANCE_US`]; time restores it, at an eighth of
//! its pace ([`RESTORED_IN`]). Pauses follow absences beyond it, and then all further long ones
//! until a thread has slept in time.

use tailwater_shm::Cycles;

/// Time without a frame of a local peer after which none is waited for, in microseconds.
pub(super) const RECENT_US: u64 = 10_000;
/// Absence that a thread causes that computes, in microseconds: clients of 64 connections take
/// 0.3 ms to read all answers and to send as many requests.
pub(super) const LONG_US: u64 = 1_000;
/// Longest absence in which no other thread has run, in microseconds: two switches take longer.
pub(super) const ALONE_US: u64 = 1;
/// Longest tick of Linux's clock, in microseconds; a longer absence counts as one tick.
pub(super) const TICK_US: u64 = 10_000;
/// Total length of long absences without a pause after them, in microseconds.
pub(super) const ALLOWANCE_US: u64 = 20_000;
/// Time in which a part of the allowance is restored, as a multiple of the part.
const RESTORED_IN: u64 = 8;
/// Pause after a long absence, as a multiple of it: such threads get a ninth of the core at first.
const SHORTEST_PAUSE: u64 = 8;
/// The same after several: 0.4 %.
const LONGEST_PAUSE: u64 = 256;

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Courtesy {
    durations: Durations,
    /// Frames of local peers when last looked at.
    frames: u64,
    recent_until: Cycles,
    not_before: Cycles,
    /// The next pause after a long absence, as a multiple of it.
    pause: u64,
    /// Time at which the whole allowance is restored.
    restored_at: Cycles,
}

/// [`RECENT_US`], [`LONG_US`], [`ALONE_US`], [`TICK_US`] and [`ALLOWANCE_US`] in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    pub(super) recent: Cycles,
    pub(super) long: Cycles,
    pub(super) alone: Cycles,
    pub(super) tick: Cycles,
    pub(super) allowance: Cycles,
}

impl Courtesy {
    pub(super) fn new(durations: Durations) -> Self {
        Self { durations, frames: 0, recent_until: 0, not_before: 0, pause: SHORTEST_PAUSE, restored_at: 0 }
    }

    /// Returns whether to yield at `now`, in an iteration that has moved nothing; `frames` is how
    /// many local peers have sent and received since the start.
    #[inline(always)]
    pub(super) fn may_yield(&mut self, frames: u64, now: Cycles) -> bool {
        if frames != self.frames {
            self.frames = frames;
            self.recent_until = now.saturating_add(self.durations.recent);
        }
        now < self.recent_until && now >= self.not_before
    }

    /// Records that the thread yielded at `left` and runs again at `back`; returns the pause after
    /// a long absence. `shared` is true if cores may have to change hands between programs.
    #[inline(always)]
    pub(super) fn returned(&mut self, left: Cycles, back: Cycles, shared: bool) -> Option<Cycles> {
        let away = back.saturating_sub(left).min(self.durations.tick);
        let long = away > self.durations.long;
        let mut times = u64::from(shared);
        if long {
            self.restored_at = self.restored_at.max(left).saturating_add(away.saturating_mul(RESTORED_IN));
            let used = self.restored_at.saturating_sub(left) / RESTORED_IN;
            if used > self.durations.allowance || self.pause > SHORTEST_PAUSE {
                times = self.pause;
                self.pause = (2 * times).min(LONGEST_PAUSE);
            }
        } else if away > self.durations.alone {
            self.pause = SHORTEST_PAUSE;
        }
        let pause = away.saturating_mul(times);
        self.not_before = back.saturating_add(pause);
        long.then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECENT: Cycles = 10_000;
    const LONG: Cycles = 1_000;
    const ALONE: Cycles = 1;
    const LONGEST_TICK: Cycles = 10_000;
    const ALLOWANCE: Cycles = 20_000;
    /// A tick of Linux's clock.
    const TICK: Cycles = 4_000;

    fn courtesy() -> Courtesy {
        Courtesy::new(Durations {
            recent: RECENT,
            long: LONG,
            alone: ALONE,
            tick: LONGEST_TICK,
            allowance: ALLOWANCE,
        })
    }

    #[test]
    fn it_yields_while_frames_of_local_peers_are_recent() {
        let mut courtesy = courtesy();
        assert!(!courtesy.may_yield(0, 5), "none has come");
        assert!(courtesy.may_yield(1, 10));
        assert!(courtesy.may_yield(1, 10 + RECENT - 1));
        assert!(!courtesy.may_yield(1, 10 + RECENT));
        assert!(courtesy.may_yield(2, 50_000));
    }

    #[test]
    fn a_peer_that_sleeps_when_it_is_done_may_have_the_core_again_at_once() {
        let mut courtesy = courtesy();
        assert!(courtesy.may_yield(1, 0));
        assert_eq!(courtesy.returned(0, LONG, false), None);
        assert!(courtesy.may_yield(1, LONG));
    }

    #[test]
    fn beside_other_programs_half_of_the_time_is_the_polling_threads() {
        let mut courtesy = courtesy();
        assert!(courtesy.may_yield(1, 0));
        assert_eq!(courtesy.returned(0, 300, true), None);
        assert!(!courtesy.may_yield(2, 599));
        assert!(courtesy.may_yield(3, 600));
    }

    /// Records an absence that ends at `back`; returns the pause after it, in multiples of it.
    fn pause_after(courtesy: &mut Courtesy, back: Cycles, away: Cycles) -> u64 {
        let pause = courtesy.returned(back - away, back, false).expect("a long absence");
        assert!(courtesy.may_yield(back, back + pause));
        assert!(pause == 0 || !courtesy.may_yield(back, back + pause - 1));
        pause / away
    }

    #[test]
    fn a_thread_that_computes_gets_its_allowance_a_ninth_and_then_ever_less() {
        let (mut courtesy, mut now) = (courtesy(), 0);
        let mut pause = |courtesy: &mut Courtesy| {
            now += TICK;
            let times = pause_after(courtesy, now, TICK);
            now += times * TICK;
            times
        };
        let pauses: Vec<u64> = (0..13).map(|_| pause(&mut courtesy)).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 8, 16, 32, 64, 128, 256, 256, 256]);
        // A yield that finds no thread proves nothing, one that ends with a thread asleep does.
        let _ = courtesy.returned(0, ALONE, false);
        assert_eq!(pause(&mut courtesy), 256);
        let _ = courtesy.returned(0, 30, false);
        let pauses: Vec<u64> = (0..6).map(|_| pause(&mut courtesy)).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 8], "the pauses have restored the allowance");
    }

    #[test]
    fn stalls_of_the_host_cause_no_pause() {
        let mut courtesy = courtesy();
        for stall in 1..1000 {
            let back = stall * RESTORED_IN * TICK;
            assert_eq!(pause_after(&mut courtesy, back, TICK), 0, "stall {stall}");
            let _ = courtesy.returned(back, back + 30, false);
        }
        // Nor does a single one of a second.
        let (left, back) = (1000 * RESTORED_IN * TICK, 1000 * RESTORED_IN * TICK + 1_000_000);
        assert_eq!(courtesy.returned(left, back, false), Some(0));
    }

    #[test]
    fn long_absences_for_a_quarter_of_the_time_are_no_stalls() {
        let mut courtesy = courtesy();
        let pauses = (1..100).map(|absence| {
            let back = absence * RESTORED_IN * TICK / 2;
            pause_after(&mut courtesy, back, TICK)
        });
        assert!(pauses.sum::<u64>() > 0);
    }
}
