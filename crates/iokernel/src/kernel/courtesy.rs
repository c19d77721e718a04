//! When the polling thread lets ordinary threads of its core run before it polls on: while frames
//! go to and come from programs of this very machine.
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

use tailwater_shm::Cycles;

/// Time without a frame of a local peer after which none is waited for, in microseconds.
pub(super) const RECENT_US: u64 = 10_000;
/// Absence that a thread causes that computes, in microseconds: clients of 64 connections take
/// 0.3 ms to read all answers and to send as many requests.
pub(super) const LONG_US: u64 = 1_000;
/// Longest absence in which no other thread has run, in microseconds: two switches take longer.
pub(super) const ALONE_US: u64 = 1;
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
}

/// [`RECENT_US`], [`LONG_US`] and [`ALONE_US`] in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    pub(super) recent: Cycles,
    pub(super) long: Cycles,
    pub(super) alone: Cycles,
}

impl Courtesy {
    pub(super) fn new(durations: Durations) -> Self {
        Self { durations, frames: 0, recent_until: 0, not_before: 0, pause: SHORTEST_PAUSE }
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

    /// Takes in that the thread yielded at `left` and runs again at `back`. `shared`: cores may
    /// have to change hands between programs.
    #[inline(always)]
    pub(super) fn returned(&mut self, left: Cycles, back: Cycles, shared: bool) {
        let away = back.saturating_sub(left);
        let mut times = u64::from(shared);
        if away > self.durations.long {
            times = self.pause;
            self.pause = (2 * times).min(LONGEST_PAUSE);
        } else if away > self.durations.alone {
            self.pause = SHORTEST_PAUSE;
        }
        self.not_before = back.saturating_add(away.saturating_mul(times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECENT: Cycles = 10_000;
    const LONG: Cycles = 1_000;
    const ALONE: Cycles = 1;
    /// A tick of Linux's clock.
    const TICK: Cycles = 4_000;

    fn courtesy() -> Courtesy {
        Courtesy::new(Durations { recent: RECENT, long: LONG, alone: ALONE })
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
        courtesy.returned(0, LONG, false);
        assert!(courtesy.may_yield(1, LONG));
    }

    #[test]
    fn beside_other_programs_half_of_the_time_is_the_polling_threads() {
        let mut courtesy = courtesy();
        assert!(courtesy.may_yield(1, 0));
        courtesy.returned(0, 300, true);
        assert!(!courtesy.may_yield(2, 599));
        assert!(courtesy.may_yield(3, 600));
    }

    /// Returns the pause after another absence of a tick.
    fn pause_after_tick(courtesy: &mut Courtesy, shared: bool) -> Cycles {
        courtesy.returned(0, TICK, shared);
        (0..).step_by(TICK as usize).find(|pause| courtesy.may_yield(*pause, TICK + pause)).unwrap()
    }

    #[test]
    fn a_thread_that_computes_gets_a_ninth_and_then_ever_less() {
        for shared in [false, true] {
            let mut courtesy = courtesy();
            let pauses: Vec<Cycles> =
                (0..8).map(|_| pause_after_tick(&mut courtesy, shared) / TICK).collect();
            assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 256, 256]);
            // A yield that finds no thread proves nothing, one that ends with a thread asleep does.
            courtesy.returned(0, ALONE, shared);
            assert_eq!(pause_after_tick(&mut courtesy, shared), 256 * TICK);
            courtesy.returned(0, 30, shared);
            assert_eq!(pause_after_tick(&mut courtesy, shared), 8 * TICK);
        }
    }
}
