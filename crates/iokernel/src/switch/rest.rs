//! Rests of best-effort programs between their frames, while frames of others come for services.
//!
//! Owns [`Rests`]. A frame of a service waits for the batches of an iteration of the polling loop,
//! and a frame to a TAP device takes as long as twenty between programs. A best-effort program that
//! sends without end would double the latency of each service, within its share of every iteration.
//! So while services are *served*, that is a frame that no best-effort program sent has come for
//! one within [`SERVED_US`], the batches of all best-effort programs together take one part in
//! [`PARTS`] of the polling thread's time: after them, their egress rings rest. A frame to a service
//! counts [`TO_SERVICE_NS`] beyond that, because it takes the service's core a time, too, in which
//! the frames behind it wait. What waits in an egress ring is not lost. All rest at once, so that
//! each of them has a batch whenever one has.
//!
//! Pure: times are arguments.

use tailwater_shm::{Clock, Cycles};

/// For how long after a frame for a service it is still being served, in microseconds.
const SERVED_US: u64 = 100;
/// Batches of best-effort programs take one part in so many of the time.
const PARTS: Cycles = 4;
/// What a frame to a service counts beyond the time that it takes to move it, in nanoseconds. The
/// service reads and drops one in 125. With this, there are at most 400,000 in a second, which take
/// a twentieth of its core, or carry 4.6 Gbit/s.
const TO_SERVICE_NS: u64 = 500;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Rests {
    served_for: Cycles,
    /// As [`TO_SERVICE_NS`].
    to_service: Cycles,
    /// Services are served until then.
    served_until: Cycles,
    /// The egress rings of best-effort programs rest until then.
    until: Cycles,
    /// What their batches have taken in this iteration.
    taken: Cycles,
}

impl Rests {
    pub(super) fn new(clock: Clock) -> Self {
        let (served_for, to_service) = (clock.from_ns(SERVED_US * 1_000), clock.from_ns(TO_SERVICE_NS));
        Self { served_for, to_service, served_until: 0, until: 0, taken: 0 }
    }

    /// Takes into account that a frame came for a service, and not from a best-effort program.
    #[inline(always)]
    pub(super) fn note_served(&mut self, now: Cycles) {
        self.served_until = now.saturating_add(self.served_for);
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
        self.taken = self.taken.saturating_add(taken);
    }

    /// Ends an iteration that began at `now`.
    #[inline(always)]
    pub(super) fn end_iteration(&mut self, now: Cycles) {
        let taken = core::mem::take(&mut self.taken);
        if taken > 0 && now < self.served_until {
            self.until = now.saturating_add(taken.saturating_mul(PARTS));
        }
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
        for (now, rest) in [(1_000, true), (100_900, true), (101_000, false), (200_000, false)] {
            rests.add(10);
            rests.end_iteration(now);
            assert_eq!(rests.are_on(now + 10), rest, "at {now}");
        }
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
