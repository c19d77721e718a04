//! Limits the frames of best-effort programs while services receive frames from others.
//!
//! Owns [`Rests`]. Each iteration of the polling loop serves one batch of each program, so a frame
//! of a service waits for all other batches. A write to a TAP device takes as long as twenty copies
//! in memory. Without a limit, a best-effort program that always sends would double the latency of
//! each service within its share of every iteration. A service is *served* for [`SERVED_US`] after
//! a frame from any sender but a best-effort program has come for it. Meanwhile the batches of all
//! best-effort programs together take 1 / [`PARTS`] of the polling thread's time: after a batch,
//! the egress rings of best-effort programs are not read for a while (they *rest*). A frame to a
//! service is charged [`TO_SERVICE_NS`] more, because it also takes time on the service's core, for
//! which the frames behind it wait. It also takes [`TO_SERVICE_UNITS`] more places of its batch,
//! which keeps the rests of other programs short. Frames in an egress ring are not lost, unless
//! their program ends. All rings rest at the same time, so each program has a batch whenever one
//! has. At most [`LONGEST_US`] of a batch are charged: a longer time is not the program's fault.
//!
//! Pure: times are arguments.

use tailwater_shm::{Clock, Cycles};

/// For how long after a frame for a service it is still being served, in microseconds.
const SERVED_US: u64 = 1_000;
/// Divisor of the polling thread's time: batches of best-effort programs take 1 / `PARTS` of it.
const PARTS: Cycles = 4;
/// Charge for a frame to a service beyond the time that moves it, in nanoseconds. A service reads
/// and drops a frame in 125 ns. With this charge it gets fewer than 500,000 in a second, which take
/// a sixteenth of its core.
const TO_SERVICE_NS: u64 = 500;
/// Number of further places that a frame to a service takes in its program's batch.
pub(super) const TO_SERVICE_UNITS: usize = 7;
/// Maximum charge for one batch, in microseconds.
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
    /// Time of their batches in this iteration.
    taken: Cycles,
}

impl Rests {
    pub(super) fn new(clock: Clock) -> Self {
        let us = |us: u64| clock.from_ns(us * 1_000);
        let (served_for, longest) = (us(SERVED_US), us(LONGEST_US));
        let to_service = clock.from_ns(TO_SERVICE_NS);
        Self { served_for, to_service, longest, served_until: 0, until: 0, taken: 0 }
    }

    /// Records a frame for a service from a sender that is not a best-effort program.
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

    /// Charges a frame that a best-effort program sent to a service.
    #[inline(always)]
    pub(super) fn note_sent_to_service(&mut self) {
        self.taken = self.taken.saturating_add(self.to_service);
    }

    /// Charges the time `taken` by a batch of a best-effort program.
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
