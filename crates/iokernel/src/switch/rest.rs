//! Rests of best-effort programs between their frames, while frames of others come for services.
//!
//! Owns [`Rests`]. A frame of a service waits for the batches of an iteration of the polling loop,
//! and a frame to a TAP device takes as long as twenty between programs. A best-effort program that
//! sends without end would double the latency of each service, within its share of every iteration.
//! So while services are *served*, that is a frame that no best-effort program sent has come for
//! one within [`SERVED_US`], the batches of all best-effort programs together take one part in
//! [`PARTS`] of the polling thread's time: after them, their egress rings rest. A frame to a
//! service counts [`TO_SERVICE_NS`] beyond that, because it takes the service's core a time, too,
//! in which the frames behind it wait; and it has [`TO_SERVICE_UNITS`] more places of its batch, so
//! that others' rests stay short. What waits in an egress ring is not lost, unless its program
//! ends. All rest at once, so that each of them has a batch whenever one has. Of a batch,
//! [`LONGEST_US`] count at most: what takes longer is the machine's doing.
//!
//! Pure: times are arguments.

use tailwater_shm::{Clock, Cycles};

/// For how long after a frame for a service it is still being served, in microseconds.
const SERVED_US: u64 = 1_000;
/// Batches of best-effort programs take one part in so many of the time.
const PARTS: Cycles = 4;
/// What a frame to a service counts beyond the time that it takes to move it, in nanoseconds. The
/// service reads and drops one in 125. With this, there are fewer than 500,000 in a second, which
/// take a sixteenth of its core.
const TO_SERVICE_NS: u64 = 500;
/// As how many frames it counts in its program's batch, beyond one.
pub(super) const TO_SERVICE_UNITS: usize = 7;
/// Most of a batch's time that counts, in microseconds.
const LONGEST_US: u64 = 50;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Rests {
    served_for: Cycles,
    /// As [`TO_SERVICE_NS`].
    to_service: Cycles,
    longest: Cycles,
    /// Services are served until then.
    served_until: Cycles,
    /// The egress rings of best-effort programs rest until then.
    until: Cycles,
    /// What their batches have taken in this iteration.
    taken: Cycles,
}

impl Rests {
    pub(super) fn new(clock: Clock) -> Self {
        let us = |us: u64| clock.from_ns(us * 1_000);
        let (served_for, longest) = (us(SERVED_US), us(LONGEST_US));
        let to_service = clock.from_ns(TO_SERVICE_NS);
        Self { served_for, to_service, longest, served_until: 0, until: 0, taken: 0 }
    }

    /// Takes into account that a frame came for a service, and not from a best-effort program.
    #[inline(always)]
    pub(super) fn note_served(&mut self, now: Cycles) {
        self.served_until = now.saturating_add(self.served_for);
    }

    /// Returns whether a service is being served.
    #[inline(always)]
    pub(super) fn is_served(&self, now: Cycles) -> bool {
        now < self.served_until
    }

    /// Returns whether the egress rings of best-effort programs rest.
    #[inline(always)]
    pub(super) fn are_on(&self, now: Cycles) -> bool {
        now < self.until
    }

    /// Takes into account that a best-effort program sent a frame to a service.
    #[inline(always)]
    pub(super) fn note_sent_to_service(&mut self) {
        self.taken = self.taken.saturating_add(self.to_service);
    }

    /// Takes into account that a batch of a best-effort program took so long.
    #[inline(always)]
    pub(super) fn add(&mut self, taken: Cycles) {
        self.taken = self.taken.saturating_add(taken.min(self.longest));
    }

    /// Returns whether a batch of a best-effort program was added in this iteration.
    #[inline(always)]
    pub(super) fn has_taken(&self) -> bool {
        self.taken > 0
    }

    /// Ends an iteration that began at `now`; returns whether a rest begins.
    #[inline(always)]
    pub(super) fn end_iteration(&mut self, now: Cycles) -> bool {
        let taken = core::mem::take(&mut self.taken);
        let rests = taken > 0 && self.is_served(now);
        if rests {
            self.until = now.saturating_add(taken.saturating_mul(PARTS));
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_take_a_part_of_the_time_while_services_are_served() {
        let mut rests = Rests::new(Clock::from_hz(1_000_000_000));
        let (mut now, mut taken): (Cycles, Cycles) = (0, 0);
        while now < 10_000_000 {
            rests.note_served(now);
            let began = now;
            if !rests.are_on(now) {
                rests.add(500);
                (now, taken) = (now + 500, taken + 500);
            }
            rests.end_iteration(began);
            now += 100;
        }
        assert!(taken.abs_diff(10_000_000 / PARTS) < 100_000, "{taken}");
    }

    #[test]
    fn nobody_rests_once_no_service_is_served() {
        let mut rests = Rests::new(Clock::from_hz(1_000_000_000));
        rests.note_served(1_000);
        for (now, rest) in [(1_000, true), (1_000_900, true), (1_001_000, false), (2_000_000, false)] {
            rests.add(10);
            rests.end_iteration(now);
            assert_eq!(rests.are_on(now + 10), rest, "at {now}");
        }
    }

    #[test]
    fn a_batch_in_which_the_machine_stood_still_is_no_reason_for_a_long_rest() {
        let mut rests = Rests::new(Clock::from_hz(1_000_000_000));
        rests.note_served(0);
        rests.add(10_000_000_000);
        assert!(rests.end_iteration(0));
        assert!(!rests.are_on(50_000 * PARTS));
    }

    #[test]
    fn a_frame_to_a_service_counts_for_what_it_takes_there() {
        let mut rests = Rests::new(Clock::from_hz(1_000_000_000));
        rests.note_served(0);
        rests.add(100);
        rests.note_sent_to_service();
        rests.end_iteration(0);
        assert!(rests.are_on(600 * PARTS - 1) && !rests.are_on(600 * PARTS));
    }
}
