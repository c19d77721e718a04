//! The grant word and the state word: how a core is lent, taken back and given up without an
//! interrupt.
//!
//! Each kthread has one of each in its runtime's region.
//!
//! | word | written by | read by | content |
//! |---|---|---|---|
//! | [`GrantWord`] | IOKernel; `Park` by the runtime once it has lost the IOKernel | its kthread, at every poll point | the order to the kthread: run on a core, or cede it; in a `Run`, also which turn of a user thread is over |
//! | [`StateWord`] | its kthread; the IOKernel may only swap `Idle` for `Taken` | IOKernel, every loop | the state of the kthread |
//!
//! Both carry the **generation** of their tenancy. A tenancy begins with a `Run` grant of a new
//! generation and ends when the state is `Parked` with that generation; words of another generation
//! are stale and ignored. (Without it a first prototype saw 25 % spurious hand-offs: a flag cleared
//! before the owner was written.)
//!
//! A turn is what a user thread runs between two switches of its kthread, which numbers them. The
//! request to end one carries the low byte of its number, so that it ends no later turn, and
//! changes nothing about the tenancy. The IOKernel replaces it by a plain `Run` once the turn has
//! ended.
//!
//! # Transitions of the state word
//!
//! | from | to | who | when |
//! |---|---|---|---|
//! | Parked(g) | Running(g+1) | kthread | it saw `Run` of a new generation |
//! | Running(g) | Idle(g) | kthread | nothing to run after stealing for a while; it keeps polling |
//! | Idle(g) | Running(g) | kthread, compare-and-swap | work appeared and the core is still its own |
//! | Idle(g) | Taken(g) | IOKernel, compare-and-swap | the core goes to another kthread; `Cede` follows at once |
//! | Running, Idle, Taken (g) | Parked(g) | kthread | it saw `Cede(g)`, or idled past `idle_timeout`; with the promise to wake its successor it is another value of the word |
//!
//! # Crash and lie
//!
//! | step | peer dies here | peer lies here |
//! |---|---|---|
//! | after `Run`, before Running | control socket closes; ledger frees the core | never stores Running: the hand-off times out, core is reclaimed |
//! | Running | socket closes | stores Parked but keeps running: Linux time-slices it against the next owner; the IOKernel evicts a thread whose `Run` was not honoured |
//! | Idle, stores Running without the swap | - | the IOKernel's swap still wins or loses on one word; a lie only loses the liar's own core |
//! | Taken | socket closes | never parks: signal, bypass, then eviction by affinity |
//! | Parked | nothing to do | wrong generation: ignored; says that it sleeps, or that it does not: its own wake costs a system call more, or comes late; the kthread that cedes to it makes a useless wake, or yields up to 32 times |
//! | Parked, with the promise to wake the successor | the successor is woken by the IOKernel, late | the same; see [`crate::board`] |

use crate::board::WakePlace;
use crate::sync::{AtomicU64, Ordering};

/// Signal by which the IOKernel preempts a kthread that has not seen its `Cede` within the grace
/// time: `SIGURG`, number 23 on x86-64 Linux. Its default action is to ignore it, so a process that
/// installed no handler, or that got one meant for a thread whose number it inherited, takes no
/// harm; and programs hardly use it (out-of-band TCP data only).
pub const PREEMPT_SIGNAL: i32 = 23;

/// Number of a tenancy of one kthread; wraps, compared for equality only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation(pub u32);

impl Generation {
    /// Returns the tenancy after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The IOKernel's order to a kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// No core is lent.
    Park,
    /// Core `core` is lent; run.
    Run {
        /// Number of the core, for information: the IOKernel has bound the thread already.
        core: u16,
    },
    /// Give the core up at the next poll point: park.
    Cede {
        /// Who gets this core.
        successor: NextOwner,
    },
}

/// Information about the next owner for the kthread that is to cede its core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextOwner {
    /// No kthread yet.
    None,
    /// A kthread that slept when the request was written; the IOKernel wakes it.
    Asleep,
    /// A kthread that says that it is awake on this core.
    Awake,
    /// A kthread that the one that cedes is not to yield to, awake or asleep: Linux would not
    /// switch, or it is not worth staying awake for. If it sleeps, the IOKernel wakes it.
    Apart,
    /// A kthread that slept at the board; the kthread that cedes wakes it there.
    AtBoard {
        /// Where.
        place: WakePlace,
        /// As [`Apart`](Self::Apart), once it is awake.
        apart: bool,
    },
}

const NEXT_MASK: u16 = 7;
const NEXT_AT_BOARD: u16 = 4;
const NEXT_AT_BOARD_APART: u16 = 5;
const PLACE_SHIFT: u32 = 3;

impl NextOwner {
    fn from_arg(arg: u16) -> Self {
        let place = || WakePlace::new(arg >> PLACE_SHIFT);
        match arg & NEXT_MASK {
            1 => Self::Asleep,
            2 => Self::Awake,
            3 => Self::Apart,
            kind @ (NEXT_AT_BOARD | NEXT_AT_BOARD_APART) => place()
                .map_or(Self::Asleep, |place| Self::AtBoard { place, apart: kind == NEXT_AT_BOARD_APART }),
            _ => Self::None,
        }
    }

    fn to_arg(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Asleep => 1,
            Self::Awake => 2,
            Self::Apart => 3,
            Self::AtBoard { place, apart } => {
                let kind = if apart { NEXT_AT_BOARD_APART } else { NEXT_AT_BOARD };
                place.number() << PLACE_SHIFT | kind
            }
        }
    }

    /// Returns the value for a program of minor version 0.
    #[must_use]
    pub fn for_minor_0(self) -> Self {
        match self {
            Self::None | Self::Asleep | Self::Awake => self,
            Self::Apart | Self::AtBoard { .. } => Self::Asleep,
        }
    }

    /// Returns what it is to a kthread that has parked without the promise to wake it: the IOKernel
    /// does.
    #[must_use]
    pub fn unpromised(self) -> Self {
        match self {
            Self::AtBoard { apart: false, .. } => Self::Asleep,
            Self::AtBoard { apart: true, .. } => Self::Apart,
            Self::None | Self::Asleep | Self::Awake | Self::Apart => self,
        }
    }

    /// Returns the place at which the kthread that cedes is to wake this one, if it is.
    #[must_use]
    pub fn place(self) -> Option<WakePlace> {
        match self {
            Self::AtBoard { place, .. } => Some(place),
            Self::None | Self::Asleep | Self::Awake | Self::Apart => None,
        }
    }
}

const KIND_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;
const KIND_PARK: u64 = 0;
const KIND_RUN: u64 = 1;
const KIND_CEDE: u64 = 2;
/// Beside [`KIND_RUN`]: the turn whose number is at [`TURN_SHIFT`] is over.
const KIND_YIELD: u64 = 4;
const KIND_MASK: u64 = 3;
/// The upper byte of the kind field.
const TURN_SHIFT: u32 = KIND_SHIFT + 8;

/// Byte offset of the kind field inside a grant word, for poll points written in assembly: `testb
/// $POLL_BITS, 2(word)`.
pub const GRANT_KIND_BYTE: usize = (KIND_SHIFT / 8) as usize;
/// The bits of that byte that a poll point tests: the core, or the turn, is to be given up.
pub const POLL_BITS: u8 = (KIND_CEDE | KIND_YIELD) as u8;

/// The grant of one kthread, written by the IOKernel. See the module documentation.
#[repr(transparent)]
#[derive(Debug)]
pub struct GrantWord(AtomicU64);

impl GrantWord {
    /// Returns a word of `Park`, generation 0.
    #[cfg_attr(loom, allow(clippy::new_without_default))]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Publishes a grant. IOKernel only, and the runtime that has lost it.
    #[inline]
    pub fn store(&self, grant: Grant, generation: Generation) {
        let (kind, arg) = match grant {
            Grant::Park => (KIND_PARK, 0),
            Grant::Run { core } => (KIND_RUN, core),
            Grant::Cede { successor } => (KIND_CEDE, successor.to_arg()),
        };
        let word = u64::from(generation.0) << GENERATION_SHIFT | kind << KIND_SHIFT | u64::from(arg);
        // Release: pairs with the Acquire in `load`; what the IOKernel did before (bound the
        // thread, delivered frames, granted the successor) is visible to the kthread that acts on
        // the grant.
        self.0.store(word, Ordering::Release);
    }

    /// Publishes that turn `turn` of the kthread, which has core `core`, is over. IOKernel only.
    #[inline]
    pub fn end_turn(&self, core: u16, generation: Generation, turn: u64) {
        let kind = (KIND_RUN | KIND_YIELD) << KIND_SHIFT | u64::from(turn as u8) << TURN_SHIFT;
        // Release: as in `store`, for a kthread that reads this word as its grant.
        self.0.store(u64::from(generation.0) << GENERATION_SHIFT | kind | u64::from(core), Ordering::Release);
    }

    /// Returns whether turn `turn` is over: one relaxed load and two tests.
    #[inline(always)]
    pub fn ends_turn(&self, turn: u64) -> bool {
        // Relaxed: a hint.
        let word = self.0.load(Ordering::Relaxed);
        word >> KIND_SHIFT & KIND_YIELD != 0 && (word >> TURN_SHIFT) as u8 == turn as u8
    }

    /// Reads the grant.
    #[inline]
    pub fn load(&self) -> (Grant, Generation) {
        // Acquire: pairs with the Release in `store`.
        Self::decode(self.0.load(Ordering::Acquire))
    }

    /// Returns whether the grant asks to cede: one relaxed load and a test, for poll points.
    #[inline(always)]
    pub fn asks_to_cede(&self) -> bool {
        // Relaxed: a hint; the code that acts on it loads again with Acquire.
        self.0.load(Ordering::Relaxed) >> KIND_SHIFT & KIND_CEDE != 0
    }

    fn decode(word: u64) -> (Grant, Generation) {
        let arg = word as u16;
        let grant = match word >> KIND_SHIFT & KIND_MASK {
            KIND_RUN => Grant::Run { core: arg },
            KIND_CEDE => Grant::Cede { successor: NextOwner::from_arg(arg) },
            _ => Grant::Park,
        };
        (grant, Generation((word >> GENERATION_SHIFT) as u32))
    }
}

impl Default for GrantWord {
    fn default() -> Self {
        Self::new()
    }
}

/// The state that a kthread reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KthreadState {
    /// Asleep on its parker, or about to be: it will not touch the core again in this
    /// tenancy.
    Parked,
    /// Running user threads.
    Running,
    /// Polling without work: the IOKernel may take the core.
    Idle,
    /// Was idle and the IOKernel took the core: about to park.
    Taken,
}

const STATE_PARKED: u64 = 0;
const STATE_RUNNING: u64 = 1;
const STATE_IDLE: u64 = 2;
const STATE_TAKEN: u64 = 3;
/// Parked, and the kthread wakes the next owner.
const STATE_PASSED: u64 = 4;

/// The state of one kthread, written by the kthread. See the module documentation.
#[repr(transparent)]
#[derive(Debug)]
pub struct StateWord(AtomicU64);

impl StateWord {
    /// Returns a word of `Parked`, generation 0.
    #[cfg_attr(loom, allow(clippy::new_without_default))]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn encode(state: u64, generation: Generation) -> u64 {
        u64::from(generation.0) << GENERATION_SHIFT | state
    }

    /// Reads the kthread's report; an unknown state reads as `Running`, which gains a hostile
    /// kthread nothing.
    #[inline]
    pub fn load(&self) -> (KthreadState, Generation) {
        // Acquire: pairs with the Release stores below. Seeing Parked means all the kthread did
        // before is visible.
        let word = self.0.load(Ordering::Acquire);
        let state = match word & 0xffff_ffff {
            STATE_PARKED | STATE_PASSED => KthreadState::Parked,
            STATE_IDLE => KthreadState::Idle,
            STATE_TAKEN => KthreadState::Taken,
            _ => KthreadState::Running,
        };
        (state, Generation((word >> GENERATION_SHIFT) as u32))
    }

    /// Stores that the tenancy `generation` has started.
    #[inline]
    pub fn set_running(&self, generation: Generation) {
        // Release: pairs with `load`.
        self.0.store(Self::encode(STATE_RUNNING, generation), Ordering::Release);
    }

    /// Stores that the kthread found no work but keeps polling. A plain store: only an `Idle` word
    /// has a second writer.
    #[inline]
    pub fn set_idle(&self, generation: Generation) {
        // Release: pairs with `load` and with the IOKernel's `try_take`.
        self.0.store(Self::encode(STATE_IDLE, generation), Ordering::Release);
    }

    /// Gives the core up. After this store the kthread only yields to its successor and sleeps.
    #[inline]
    pub fn set_parked(&self, generation: Generation) {
        // Release: pairs with `load`: queues and rings are as the kthread left them.
        self.0.store(Self::encode(STATE_PARKED, generation), Ordering::Release);
    }

    /// As [`set_parked`](Self::set_parked); the kthread wakes its successor next, at the place that
    /// the request to cede has named.
    #[inline]
    pub fn set_passed(&self, generation: Generation) {
        // Release: as in `set_parked`.
        self.0.store(Self::encode(STATE_PASSED, generation), Ordering::Release);
    }

    /// Returns whether the kthread has given up the core of this tenancy and wakes its successor.
    #[inline]
    pub fn is_passed(&self, generation: Generation) -> bool {
        // Relaxed: after `load` has seen `Parked`.
        self.0.load(Ordering::Relaxed) == Self::encode(STATE_PASSED, generation)
    }

    /// Makes the idle kthread, which found work, run; returns false if the IOKernel took the core
    /// first.
    #[inline]
    #[must_use]
    pub fn try_resume(&self, generation: Generation) -> bool {
        self.swap(STATE_IDLE, STATE_RUNNING, generation)
    }

    /// Takes the core of an idle kthread; returns whether that succeeded, after which the IOKernel
    /// stores `Cede` at once.
    #[inline]
    #[must_use]
    pub fn try_take(&self, generation: Generation) -> bool {
        self.swap(STATE_IDLE, STATE_TAKEN, generation)
    }

    #[inline]
    fn swap(&self, from: u64, to: u64, generation: Generation) -> bool {
        // AcqRel: `try_resume` and `try_take` pair with each other and with `set_idle`: exactly one
        // wins an Idle word.
        self.0
            .compare_exchange(
                Self::encode(from, generation),
                Self::encode(to, generation),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }
}

impl Default for StateWord {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::board::PLACES;

    fn sleeper(place: u16, apart: bool) -> Grant {
        Grant::Cede { successor: NextOwner::AtBoard { place: WakePlace::new(place).unwrap(), apart } }
    }

    #[test]
    fn a_program_of_the_first_minor_version_is_told_what_it_knows() {
        let Grant::Cede { successor } = sleeper(9, true) else { unreachable!() };
        for (told, known) in [(NextOwner::None, 0), (NextOwner::Asleep, 1), (NextOwner::Awake, 2)] {
            assert_eq!(told.for_minor_0().to_arg(), known);
        }
        for told in [NextOwner::Apart, successor] {
            assert_eq!((told.for_minor_0(), told.unpromised()), (NextOwner::Asleep, NextOwner::Apart));
        }
    }

    #[test]
    fn a_kthread_that_wakes_its_successor_is_parked_in_its_own_tenancy_only() {
        let word = StateWord::new();
        word.set_passed(Generation(4));
        assert_eq!(word.load(), (KthreadState::Parked, Generation(4)));
        assert!(word.is_passed(Generation(4)) && !word.is_passed(Generation(3)));
        word.set_parked(Generation(4));
        assert!(!word.is_passed(Generation(4)));
    }

    #[test]
    fn grants_survive_the_word() {
        let word = GrantWord::new();
        assert_eq!(word.load(), (Grant::Park, Generation(0)));
        for grant in [
            Grant::Park,
            Grant::Run { core: 511 },
            Grant::Cede { successor: NextOwner::None },
            Grant::Cede { successor: NextOwner::Asleep },
            Grant::Cede { successor: NextOwner::Awake },
            Grant::Cede { successor: NextOwner::Apart },
            sleeper(0, false),
            sleeper(PLACES - 1, true),
        ] {
            word.store(grant, Generation(u32::MAX));
            assert_eq!(word.load(), (grant, Generation(u32::MAX)));
            assert_eq!(word.asks_to_cede(), matches!(grant, Grant::Cede { .. }));
        }
    }

    #[test]
    fn the_end_of_a_turn_is_no_other_turns_and_changes_no_grant() {
        let (word, run) = (GrantWord::new(), (Grant::Run { core: 7 }, Generation(9)));
        word.end_turn(7, Generation(9), 0x1234);
        assert_eq!(word.load(), run);
        assert!(!word.asks_to_cede() && word.ends_turn(0x1234) && !word.ends_turn(0x1235));
        assert_ne!((word.0.load(Ordering::Relaxed) >> (8 * GRANT_KIND_BYTE)) as u8 & POLL_BITS, 0);
        word.store(run.0, run.1);
        assert!(!word.ends_turn(0x1234) && !word.ends_turn(0));
    }

    #[test]
    fn an_idle_core_is_won_by_one_side_only() {
        let word = StateWord::new();
        let g = Generation(7);
        word.set_idle(g);
        assert!(word.try_take(g));
        assert!(!word.try_resume(g), "the kthread resumed on a core that was taken");
        word.set_idle(g);
        assert!(word.try_resume(g));
        assert!(!word.try_take(g), "the IOKernel took the core of a kthread that had resumed");
    }

    #[test]
    fn a_stale_generation_neither_takes_nor_resumes() {
        let word = StateWord::new();
        word.set_idle(Generation(8));
        assert!(!word.try_take(Generation(7)));
        assert!(!word.try_resume(Generation(9)));
        assert_eq!(word.load(), (KthreadState::Idle, Generation(8)));
    }

    #[test]
    fn garbage_in_a_state_word_reads_as_running() {
        let word = StateWord(AtomicU64::new(0xdead_beef_1234_5678));
        assert_eq!(word.load().0, KthreadState::Running);
    }
}
