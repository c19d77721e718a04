//! Control of a run from outside, for all transports.
//!
//! Owns stopping, the common start of generators that run side by side, the report of that start,
//! and the delivery of intervals as they close. It never knows what is sent or how.
//!
//! A transport prepares everything (contact, sockets, connections), calls [`Control::start_ns`] for
//! the start of its schedule, creates its generator with it, and loops while [`Control::turn`]
//! returns true.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use tailwater_workload::Interval;

use crate::clock::Clock;
use crate::generator::Generator;

/// Time between the start of the loop and the start of the schedule, so that the first request
/// finds it warm.
pub const LEAD_NS: u64 = 1_000_000;

/// Called when all is prepared; returns when the schedule starts, or why it never will.
pub type Gate<'a> = &'a (dyn Fn() -> io::Result<Instant> + Sync);

/// Called with the start of the schedule once it is settled.
pub type StartObserver<'a> = &'a (dyn Fn(Instant) + Sync);

/// Called with an interval that closed, by the generator's own thread between two requests. It must
/// not block, and every microsecond it takes makes requests late.
pub type Observer<'a> = &'a (dyn Fn(&Interval) + Sync);

/// See the [module](self).
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Ends the run when set.
    pub stop: &'a AtomicBool,
    gate: Option<Gate<'a>>,
    start_observer: Option<StartObserver<'a>>,
    observer: Option<Observer<'a>>,
}

impl<'a> Control<'a> {
    /// Creates the control of a run that starts when it is ready, and ends early only if `stop` is
    /// set.
    #[must_use]
    pub fn new(stop: &'a AtomicBool) -> Self {
        Self { stop, gate: None, start_observer: None, observer: None }
    }

    /// Makes the run call `gate` for the start of its schedule.
    #[must_use]
    pub fn with_gate(self, gate: Gate<'a>) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Makes the run call `start_observer` with the start of its schedule.
    #[must_use]
    pub fn with_start_observer(self, start_observer: StartObserver<'a>) -> Self {
        Self { start_observer: Some(start_observer), ..self }
    }

    /// Makes the run pass its intervals to `observer`, if its plan has any.
    #[must_use]
    pub fn with_observer(self, observer: Observer<'a>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Returns the reading of `clock` at which the schedule starts. Waits for other generators, if
    /// there are any.
    ///
    /// # Errors
    /// The gate's, if the run is not to start at all.
    pub fn start_ns(&self, clock: &Clock) -> io::Result<u64> {
        let start_ns = match self.gate {
            None => clock.now_ns() + LEAD_NS,
            Some(gate) => clock.reading_at(gate()?),
        };
        // Any reading of the clock is an instant.
        if let Some(at) = clock.instant_at(start_ns) {
            self.tell_start(at);
        }
        Ok(start_ns)
    }

    /// Reports the start of the schedule, for a run that does not call [`Control::start_ns`].
    pub fn tell_start(&self, at: Instant) {
        if let Some(start_observer) = self.start_observer {
            start_observer(at);
        }
    }

    /// Performs one turn of a spinning transport's loop at clock reading `now_ns`; returns false
    /// when the run is over.
    #[inline]
    #[must_use]
    pub fn turn(&self, generator: &mut Generator, now_ns: u64) -> bool {
        generator.observe_spin(now_ns);
        self.go_on(generator, now_ns)
    }

    /// Performs one turn as [`Control::turn`] does, for a transport that sleeps between turns.
    #[inline]
    #[must_use]
    pub fn turn_after_sleep(&self, generator: &mut Generator, now_ns: u64) -> bool {
        generator.skip_sleep(now_ns);
        self.go_on(generator, now_ns)
    }

    /// Passes an interval to the observer, if there is one.
    pub fn hand_out(&self, interval: &Interval) {
        if let Some(observer) = self.observer {
            observer(interval);
        }
    }

    #[inline]
    fn go_on(&self, generator: &mut Generator, now_ns: u64) -> bool {
        if self.observer.is_some()
            && let Some(interval) = generator.poll_interval(now_ns)
        {
            self.hand_out(interval);
        }
        !generator.is_done() && !self.stop.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn a_run_starts_when_its_gate_says_and_not_at_all_if_it_refuses() {
        let stop = AtomicBool::new(false);
        let before = Instant::now();
        let clock = Clock::start();
        let at = Instant::now() + Duration::from_secs(1);
        let gate = || Ok(at);
        let told = Mutex::new(None);
        let tell = |at: Instant| *told.lock().unwrap() = Some(at);
        let start_ns =
            Control::new(&stop).with_gate(&gate).with_start_observer(&tell).start_ns(&clock).unwrap();
        assert_eq!(*told.lock().unwrap(), Some(at));
        // The clock began between the two readings.
        let latest = (at - before).as_nanos() as u64;
        assert!((1_000_000_000..=latest).contains(&start_ns), "{start_ns}, {latest} at most");
        let closed = || Err(io::Error::other("no"));
        assert!(Control::new(&stop).with_gate(&closed).start_ns(&clock).is_err());
        // A start that lies before the clock's own is now.
        let past = || Ok(before);
        assert_eq!(Control::new(&stop).with_gate(&past).start_ns(&clock).unwrap(), 0);
    }

    /// Returns the intervals of a run whose server answers nothing from 300 to 600 ms.
    fn intervals_of_a_frozen_server(watched: bool) -> Vec<Interval> {
        const MS: u64 = 1_000_000;
        let mut plan = Plan::new("1s@1k".parse().unwrap(), "const:0ns".parse().unwrap());
        plan.intervals = true;
        plan.timeout_ns = 50 * MS;
        let mut generator = Generator::new(plan, 1, 0).unwrap();
        let stop = AtomicBool::new(false);
        let observer = |_: &Interval| {};
        let control = Control::new(&stop);
        let control = if watched { control.with_observer(&observer) } else { control };
        let mut now_ns = 0;
        while control.turn(&mut generator, now_ns) {
            while let Some(outgoing) = generator.poll_due(now_ns) {
                let request =
                    tailwater_workload::spin::Request { id: outgoing.request.id, work_ns: 0, sent_ns: 0 };
                let reply = tailwater_workload::spin::Reply { request, served_ns: 0 }.encode();
                if !(300 * MS..600 * MS).contains(&now_ns) {
                    generator.handle_reply(now_ns, 0, &reply);
                }
            }
            now_ns += MS / 4;
        }
        generator.finish(now_ns).summary.intervals().list.clone()
    }

    #[test]
    fn intervals_are_the_same_whether_somebody_watches_or_not() {
        let unwatched = intervals_of_a_frozen_server(false);
        assert!(unwatched.iter().any(|i| i.counts.completed == 0 && i.counts.lost > 0), "{unwatched:?}");
        assert_eq!(unwatched, intervals_of_a_frozen_server(true));
    }

    #[test]
    fn intervals_are_handed_out_as_they_close_and_a_stopped_run_ends() {
        let mut plan = Plan::new("1s@100".parse().unwrap(), "const:0ns".parse().unwrap());
        plan.arrivals = "const".parse().unwrap();
        plan.intervals = true;
        let mut generator = Generator::new(plan, 1, 0).unwrap();
        let (stop, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let observer = |interval: &Interval| seen.lock().unwrap().push(interval.clone());
        let control = Control::new(&stop).with_observer(&observer);
        for ms in 0..250 {
            while generator.poll_due(ms * 1_000_000).is_some() {}
            assert!(control.turn(&mut generator, ms * 1_000_000));
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.iter().map(|i| (i.index, i.counts.offered)).collect::<Vec<_>>(), [(0, 10), (1, 10)]);
        stop.store(true, Relaxed);
        assert!(!control.turn(&mut generator, 250_000_000));
    }
}
