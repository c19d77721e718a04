//! The sleep of a kthread without a core: on a futex word in its own program's region, and on its
//! place at the [board](crate::board).
//!
//! The region is mapped by the program and the IOKernel only, which wakes its kthreads there.
//! `FUTEX_WAKE` and `FUTEX_REQUEUE` act on whatever sleeps at a word, for any process that maps it;
//! so what another program does at the board may cost a kthread a wake there, but none here.
//!
//! # Awake or asleep
//! A kthread that has just ceded its core either sleeps, or first yields to its successor
//! ([`Parker::let_successor_run`]), at most as often as [`yields`](crate::priority::yields) returns
//! for its class, the ranks, its last wait and whether the successor sleeps. If it gets the core
//! back soon, it needs no wake. On three kinds of 2-vCPU VM a switch between two processes takes
//! 0.6 to 2 us by `sched_yield`; a wake by the IOKernel, from another core, is an interrupt, which
//! takes 7-40 us to a busy core and longer to a halted one. A kthread that Linux resumes without a
//! grant (a timer tick, a third kthread on the core, a yield that did not switch) yields again;
//! after the last yield it sleeps, and the next hand-off to it pays for a real wake. `asleep` tells
//! the IOKernel which of the two it is, and whether it can be woken at the board.
//!
//! # Crash and lie
//! A program that resets its own words, moves its own sleepers or wakes them keeps its own kthreads
//! from starting, or starts them without need. The IOKernel repeats the wake of a kthread that does
//! not start ([`Parker::wake_always`]), which wakes one thread at most and never waits.
//!
//! A kthread sleeps for [`BACKSTOP`] at most and then reads its grant again. If the IOKernel had
//! repeated a wake for milliseconds by then, it is a *lost wake*: none is known to be possible, and
//! each is counted. A word that was counted up a few times proves nothing: a wake can come between
//! the end of the time and the kthread's look at the word.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `word` | the waker: add 1, Release | its kthread: Acquire, then its grant word, then `FUTEX_WAIT` on the value read |
//! | `asleep` | its kthread: 1 before `FUTEX_WAIT`, 2 before a wait at the board as well, 0 after | the waker, after the addition and a fence |
//!
//! No wake is lost: the waker publishes the grant before it adds; the sleeper reads the word before
//! the grant. Reading the new word implies seeing the grant; reading the old one makes `FUTEX_WAIT`
//! return at once or be woken. Of the waker's addition and the sleeper's `asleep`, each followed by
//! a fence, at least one is seen by the other side.
//!
//! Nor is one at the board. The IOKernel writes the grant and adds to the word
//! ([`Parker::announce`]) before it asks for the core that the kthread is to get; the kthread that
//! cedes wakes it after that. The sleeper's wait begins at the board and then compares its word, in
//! this order: a wait that finds the old word was at the board before the addition, and so before
//! the wake.
//!
//! Without an IOKernel the same words, in private memory, are woken by other kthreads of the
//! program.

use crate::board::{WakeBoard, WakePlace};
use crate::sync::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// Longest sleep of a kthread that waits for a core.
pub const BACKSTOP: Duration = Duration::from_secs(1);
/// Number of wakes during a sleep of which the first was lost. The IOKernel repeats a wake after
/// 20 us, another 40 us and so on, so this many take 2.5 ms, or 1.3 if it was announced before.
const REPEATED: u32 = 8;
/// Maximum time from the end of a kthread's sleep to its look at the word at which that many wakes
/// mean a lost one. A timer fires some 50 us late; on a busy machine a look can be much later.
const PROMPT: Duration = Duration::from_millis(1);

/// Values of the word that says whether the kthread sleeps.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const ASLEEP_AT_BOARD: u32 = 2;

/// One kthread's parking place, on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Parker {
    word: AtomicU32,
    asleep: AtomicU32,
    #[cfg(loom)]
    sleepers: crate::sync::Sleepers,
}

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// By a wake, because the ticket was stale, or for no reason; or a wake came as its time
    /// passed.
    Ended,
    /// Its time passed.
    TimedOut,
    /// Its time passed although it had been woken well before.
    WakeLost,
}

impl Parker {
    /// Returns a parker without a wake.
    #[cfg_attr(loom, allow(clippy::new_without_default))]
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            #[cfg(loom)]
            sleepers: crate::sync::Sleepers::new(),
        }
    }

    /// Returns the value to sleep on. Read it **before** the condition for sleeping.
    #[inline]
    pub fn ticket(&self) -> u32 {
        // Acquire: pairs with the Release in `wake`; a new ticket implies the grant that came with
        // it.
        self.word.load(Ordering::Acquire)
    }

    /// Returns whether its kthread seems to sleep.
    pub fn is_asleep(&self) -> bool {
        // Relaxed: a hint.
        self.asleep.load(Ordering::Relaxed) != AWAKE
    }

    /// Returns whether its kthread seems to sleep at its place of the board as well.
    pub fn is_at_board(&self) -> bool {
        // Relaxed: a hint.
        self.asleep.load(Ordering::Relaxed) == ASLEEP_AT_BOARD
    }

    /// Lets other runnable threads on this core run, in particular the kthread that gets it.
    pub fn let_successor_run(&self) {
        #[cfg(not(loom))]
        rustix::thread::sched_yield();
        #[cfg(loom)]
        loom::thread::yield_now();
    }

    /// Sleeps until a wake that came after `ticket` was read, `timeout` passes, or spuriously.
    pub fn wait(&self, ticket: u32, timeout: Option<Duration>) -> Sleep {
        self.sleep(ASLEEP, ticket, timeout, || self.futex_wait(ticket, timeout))
    }

    /// As [`wait`](Self::wait), also until a wake at this place of the board.
    pub fn wait_at_board(
        &self,
        ticket: u32,
        board: &WakeBoard,
        place: WakePlace,
        timeout: Duration,
    ) -> Sleep {
        self.sleep(ASLEEP_AT_BOARD, ticket, Some(timeout), || self.futex_waitv(ticket, board, place, timeout))
    }

    fn sleep(&self, how: u32, ticket: u32, timeout: Option<Duration>, wait: impl FnOnce() -> bool) -> Sleep {
        let began = Instant::now();
        self.asleep.store(how, Ordering::Relaxed);
        // Store-load: `asleep` before the kernel's look at the word. Pairs with the fence in
        // `wake`.
        fence(Ordering::SeqCst);
        let timed_out = wait();
        self.asleep.store(AWAKE, Ordering::Relaxed);
        if !timed_out {
            return Sleep::Ended;
        }
        let wakes = self.ticket().wrapping_sub(ticket);
        // After the look at the word: how late that was at most.
        let late = began.elapsed().saturating_sub(timeout.unwrap_or_default());
        Self::judge(wakes, late)
    }

    /// Returns how a sleep ended whose time had passed for `late` when `wakes` were seen.
    fn judge(wakes: u32, late: Duration) -> Sleep {
        match wakes {
            0 => Sleep::TimedOut,
            REPEATED.. if late < PROMPT => Sleep::WakeLost,
            _ => Sleep::Ended,
        }
    }

    /// Returns whether the time has passed.
    #[cfg(loom)]
    fn futex_wait(&self, ticket: u32, _timeout: Option<Duration>) -> bool {
        self.sleepers.wait(&self.word, ticket);
        false
    }

    /// Returns whether the time has passed.
    #[cfg(not(loom))]
    fn futex_wait(&self, ticket: u32, timeout: Option<Duration>) -> bool {
        use rustix::thread::futex;
        let timeout = timeout.map(|d| futex::Timespec {
            tv_sec: d.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: d.subsec_nanos().into(),
        });
        // Every error is a reason to look again: EAGAIN (woken meanwhile), EINTR, ETIMEDOUT.
        let ended = futex::wait(&self.word, futex::Flags::empty(), ticket, timeout.as_ref());
        ended == Err(rustix::io::Errno::TIMEDOUT)
    }

    /// Returns whether the time has passed.
    #[cfg(loom)]
    fn futex_waitv(&self, ticket: u32, _board: &WakeBoard, _place: WakePlace, timeout: Duration) -> bool {
        self.futex_wait(ticket, Some(timeout))
    }

    /// Returns whether the time has passed.
    #[cfg(not(loom))]
    fn futex_waitv(&self, ticket: u32, board: &WakeBoard, place: WakePlace, timeout: Duration) -> bool {
        use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr};
        use rustix::time::{ClockId, clock_gettime};
        let at = |word: *const AtomicU32, value: u32| {
            let mut wait = Wait::new();
            (wait.val, wait.uaddr, wait.flags) =
                (value.into(), WaitPtr::new(word.cast_mut().cast()), WaitFlags::SIZE_U32);
            wait
        };
        // In this order: see the module documentation.
        let words = [at(board.word(place).as_ptr(), 0), at(&raw const self.word, ticket)];
        let now = clock_gettime(ClockId::Monotonic);
        let ns = now.tv_nsec + i64::from(timeout.subsec_nanos());
        let end = futex::Timespec {
            tv_sec: now.tv_sec + timeout.as_secs().min(1 << 32) as i64 + ns / 1_000_000_000,
            tv_nsec: ns % 1_000_000_000,
        };
        // Every error is a reason to look again, as in `futex_wait`.
        let ended = futex::waitv(&words, futex::WaitvFlags::empty(), Some(&end), ClockId::Monotonic);
        ended == Err(rustix::io::Errno::TIMEDOUT)
    }

    /// Makes every earlier ticket stale, before another thread wakes the kthread at the board.
    #[inline]
    pub fn announce(&self) {
        // Release: pairs with `ticket`.
        self.word.fetch_add(1, Ordering::Release);
    }

    /// Wakes a sleeper at the board, as the kthread that cedes to it does.
    #[cfg(loom)]
    pub fn wake_at_board(&self) {
        self.sleepers.wake_one();
    }

    /// Makes every earlier ticket stale, and wakes the kthread if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Release: pairs with `ticket`.
        self.word.fetch_add(1, Ordering::Release);
        // Store-load: the addition before the look at `asleep`. Pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != AWAKE {
            self.futex_wake();
        }
    }

    /// As [`wake`](Self::wake), whatever `asleep` says: for a parker that its program may have
    /// tampered with. Always a system call.
    pub fn wake_always(&self) {
        // Release: pairs with `ticket`.
        self.word.fetch_add(1, Ordering::Release);
        self.futex_wake();
    }

    fn futex_wake(&self) {
        #[cfg(loom)]
        self.sleepers.wake_one();
        // Cannot fail on a mapped, aligned word; a wake without a sleeper is not an error.
        #[cfg(not(loom))]
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::empty(), 1);
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use tailwater_testkit::PATIENCE;

    #[test]
    fn a_wake_between_ticket_and_wait_is_not_lost() {
        let parker = Parker::new();
        let ticket = parker.ticket();
        parker.wake();
        assert_eq!(parker.wait(ticket, Some(PATIENCE)), Sleep::Ended);
    }

    /// Returns how a sleep ends whose word is counted up by `wakes`, without a wake.
    fn sleep_through(wakes: u32) -> Sleep {
        let parker = Parker::new();
        let sleep = std::thread::scope(|s| {
            let sleeper = s.spawn(|| {
                let ticket = parker.ticket();
                loop {
                    let sleep = parker.wait(ticket, Some(Duration::from_millis(50)));
                    if sleep != Sleep::TimedOut {
                        return sleep;
                    }
                }
            });
            while !parker.is_asleep() {
                std::thread::yield_now();
            }
            // Again where it fell between two sleeps: longer apart than one lasts.
            while !sleeper.is_finished() {
                if parker.is_asleep() {
                    parker.word.fetch_add(wakes, SeqCst);
                }
                std::thread::sleep(Duration::from_millis(120));
            }
            sleeper.join().unwrap()
        });
        assert!(!parker.is_asleep());
        sleep
    }

    #[test]
    fn a_time_that_passes_although_its_wake_was_repeated_is_a_lost_wake() {
        let parker = Parker::new();
        assert_eq!(parker.wait(parker.ticket(), Some(Duration::from_millis(1))), Sleep::TimedOut);
        let late = Duration::from_micros(60);
        assert_eq!(Parker::judge(REPEATED, late), Sleep::WakeLost);
        assert_eq!(Parker::judge(REPEATED - 1, late), Sleep::Ended);
        assert_eq!(Parker::judge(REPEATED, PROMPT), Sleep::Ended, "they may all have come since");
    }

    #[test]
    fn a_wake_that_crosses_the_time_out_is_not_lost() {
        assert_eq!(sleep_through(1), Sleep::Ended);
    }

    /// Returns a board; none where this kernel has none.
    fn board() -> Option<WakeBoard> {
        let board = crate::board::create().unwrap().and_then(|file| WakeBoard::map(file).unwrap());
        if board.is_none() {
            eprintln!("skipped: this kernel has no board (Linux 5.16)");
        }
        board
    }

    #[test]
    fn a_kthread_at_the_board_is_woken_there_and_at_its_word() {
        let Some(board) = board() else { return };
        let place = WakePlace::new(7).unwrap();
        let wakes: [fn(&Parker, &WakeBoard, WakePlace); 3] = [
            |_, board, place| board.wake(place),
            |parker, _, _| parker.wake(),
            |parker, _, _| parker.wake_always(),
        ];
        for wake in wakes {
            let parker = Parker::new();
            std::thread::scope(|s| {
                let sleeper = s.spawn(|| parker.wait_at_board(parker.ticket(), &board, place, PATIENCE));
                // Again where it came before the sleep.
                while !sleeper.is_finished() {
                    if parker.is_at_board() {
                        wake(&parker, &board, place);
                    }
                    std::thread::yield_now();
                }
                assert_eq!(sleeper.join().unwrap(), Sleep::Ended);
            });
            assert!(!parker.is_asleep());
        }
    }

    #[test]
    fn an_announcement_between_ticket_and_wait_ends_the_wait_at_the_board() {
        let Some(board) = board() else { return };
        let (parker, place) = (Parker::new(), WakePlace::new(0).unwrap());
        let ticket = parker.ticket();
        parker.announce();
        assert_eq!(parker.wait_at_board(ticket, &board, place, PATIENCE), Sleep::Ended);
        let sleep = parker.wait_at_board(parker.ticket(), &board, place, Duration::from_millis(1));
        assert_eq!(sleep, Sleep::TimedOut);
    }

    #[test]
    fn sleepers_that_are_moved_off_the_board_are_woken_at_their_word() {
        use rustix::thread::futex;
        let Some(board) = board() else { return };
        let (parker, place, elsewhere) = (Parker::new(), WakePlace::new(1).unwrap(), AtomicU32::new(0));
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| parker.wait_at_board(parker.ticket(), &board, place, PATIENCE));
            // SAFETY: the word lives as long as the board.
            let word = unsafe { board.word(place).as_ref() };
            let moved = || futex::requeue(word, futex::Flags::empty(), 0, 1, &elsewhere) == Ok(1);
            while !moved() {
                assert!(!sleeper.is_finished(), "it did not sleep");
                std::thread::yield_now();
            }
            parker.wake();
            assert_eq!(sleeper.join().unwrap(), Sleep::Ended);
        });
    }

    #[test]
    fn a_sleeper_is_woken_after_the_condition_is_published() {
        let shared = Arc::new((Parker::new(), AtomicBool::new(false)));
        let sleeper = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || loop {
                let ticket = shared.0.ticket();
                if shared.1.load(SeqCst) {
                    break;
                }
                shared.0.wait(ticket, None);
            }
        });
        shared.1.store(true, SeqCst);
        shared.0.wake();
        sleeper.join().unwrap();
    }
}
