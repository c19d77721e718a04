//! Bounds the polling thread's time that a program's offences may cost.
//!
//! Owns [`Budget`], an account of cycles for each program, and its [`Terms`]. Pure: times are
//! arguments. The [`World`](crate::world::World) charges, and acts on the [`Sentence`].
//!
//! | offence | charged |
//! |---|---|
//! | a frame that no program may send: foreign source, malformed, refused kind | the time it took |
//! | a frame to a group beyond `broadcast-copies` | the same |
//! | a doorbell that ends a sleep, and none of the program's words has changed since the sleep was announced | the sleep without the waiting |
//! | the program's only core given up although its words ask for one, and none of them has changed since the core was lent | the look and the decision that follow |
//! | a core to which none of its threads can be bound, because its cpuset lacks it, or a thread that is gone | the attempts |
//!
//! An honest program commits none of them, however busy it is: the network stack sends from its own
//! addresses, a doorbell is rung after a word was changed, and a kthread that was lent a core does
//! something before it parks. A race can make single ones; thousands a second are needed to reach
//! the bound. A core to which a thread cannot be bound is tried seldom
//! ([`unbound`](crate::allocator::unbound)).
//!
//! The account is a leaky bucket. Charges fill it, and it leaks with the program's share of the
//! polling thread's time. Over [`DEPTH_US`] the program is *throttled*: its egress rings are not
//! read, its doorbell is not heard and no core is lent to it until the excess has leaked, for
//! [`PAUSE_US`] at least. A program that was throttled [`STRIKES`] times and has never let its
//! bucket run empty in between is expelled. So an offender costs the others its share and
//! `DEPTH_US`, and is gone after 50 to 100 ms if it goes on at full speed.

use tailwater_shm::{Clock, Cycles};

/// Depth of the bucket in microseconds of the polling thread's time.
const DEPTH_US: u64 = 2_000;
/// Shortest time for which a program is throttled, in microseconds.
const PAUSE_US: u64 = 1_000;
/// Largest single charge, in microseconds: what takes longer is the machine's or Linux's doing.
const LONGEST_US: u64 = 100;
/// For how many of these times a program that was charged is suspect.
const SUSPECT_PAUSES: Cycles = 1_000;
/// Number of times in a row that a program may be throttled before it is expelled.
pub(crate) const STRIKES: u32 = 50;

/// What all programs are granted alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) clock: Clock,
    /// Percentage of the polling thread's time that one program's offences may cost.
    pub(crate) share: u8,
    depth: Cycles,
    pause: Cycles,
    longest: Cycles,
}

impl Terms {
    /// Returns terms for a share of at least 1 percent.
    pub(crate) fn new(clock: Clock, share: u8) -> Self {
        let us = |us: u64| clock.from_ns(us * 1_000);
        Self { clock, share: share.max(1), depth: us(DEPTH_US), pause: us(PAUSE_US), longest: us(LONGEST_US) }
    }
}

/// What follows from a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sentence {
    None,
    Throttle,
    Expel,
}

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Budget {
    /// Charged and not leaked yet, as of `at`.
    filled: Cycles,
    at: Cycles,
    throttled_until: Cycles,
    /// Times throttled since the bucket was last empty.
    strikes: u32,
    suspect_until: Cycles,
}

impl Budget {
    /// Charges an offence.
    pub(crate) fn charge(&mut self, cost: Cycles, now: Cycles, terms: &Terms) -> Sentence {
        let leaked = now.saturating_sub(self.at).saturating_mul(terms.share.into()) / 100;
        self.at = self.at.max(now);
        self.suspect_until = now.saturating_add(terms.pause.saturating_mul(SUSPECT_PAUSES));
        self.filled = self.filled.saturating_sub(leaked);
        if self.filled == 0 {
            self.strikes = 0;
        }
        self.filled = self.filled.saturating_add(cost.min(terms.longest));
        if self.filled <= terms.depth || self.is_throttled(now) {
            return Sentence::None;
        }
        self.strikes += 1;
        let excess = (self.filled - terms.depth).saturating_mul(100) / Cycles::from(terms.share);
        self.throttled_until = now.saturating_add(excess.max(terms.pause));
        if self.strikes > STRIKES { Sentence::Expel } else { Sentence::Throttle }
    }

    /// Returns the time until all that was charged has leaked.
    pub(crate) fn time_left(&self, now: Cycles, terms: &Terms) -> Cycles {
        let needed = self.filled.saturating_mul(100) / Cycles::from(terms.share);
        needed.saturating_sub(now.saturating_sub(self.at))
    }

    /// Returns whether the program is throttled.
    #[inline(always)]
    pub(crate) fn is_throttled(&self, now: Cycles) -> bool {
        now < self.throttled_until
    }

    /// Returns when the program is no longer throttled.
    pub(crate) fn throttled_until(&self) -> Cycles {
        self.throttled_until
    }

    /// Returns whether the program was charged lately: what its frames cost is measured one by one.
    #[inline(always)]
    pub(crate) fn is_suspect(&self, now: Cycles) -> bool {
        now < self.suspect_until
    }
}

#[cfg(test)]
mod tests;
