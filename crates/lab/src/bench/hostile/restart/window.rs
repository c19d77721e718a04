//! What busy connections notice of one event.
//!
//! Owns the figures of a *window*, which lasts from the end of the one before until all connections
//! have long been busy again: the longest pause, and what was lost. A *lane* is a connection, or a
//! UDP socket, on which requests are exchanged for answers. All times are of the cycle clock, which
//! is the same in all processes. Pure: times are arguments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tailwater_shm::clock::Cycles;

/// An event within a window.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// An exchange that begins from here on and is completed proves that its lane goes on.
    pub after: Cycles,
    /// When the process that takes over was started.
    pub started: Cycles,
}

/// What all lanes together noticed.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Longest time in which a lane completed no exchange.
    pub pause: Cycles,
    /// The same, counted from [`Event::started`].
    pub from_start: Cycles,
    /// Lanes that failed.
    pub lost: u64,
    /// Requests without an answer.
    pub requests_lost: u64,
    /// Why one of the lanes failed.
    pub failure: Option<String>,
    /// The longest pause of each lane.
    pub lanes: Vec<Cycles>,
}

impl Window {
    /// Returns the longest pause of the median lane; 0 without lanes.
    pub fn median_lane(&self) -> Cycles {
        let mut lanes = self.lanes.clone();
        lanes.sort_unstable();
        lanes.get(lanes.len() / 2).copied().unwrap_or(0)
    }

    /// Returns how many lanes paused for longer than `limit`.
    pub fn slow_lanes(&self, limit: Cycles) -> u64 {
        self.lanes.iter().filter(|&&pause| pause > limit).count() as u64
    }
}

/// A time in which no exchange was completed.
#[derive(Debug, Clone, Copy)]
struct Gap {
    from: Cycles,
    to: Cycles,
}

impl Gap {
    /// Returns how much of it is after `start`.
    fn after(self, start: Cycles) -> Cycles {
        self.to.saturating_sub(self.from.max(start))
    }
}

/// The exchanges of a lane.
#[derive(Debug)]
pub struct Lane {
    /// Gaps shorter than this are not kept.
    shortest: Cycles,
    /// The end of the last exchange.
    last: Cycles,
    /// The latest beginning of a completed exchange.
    proved: Cycles,
    gaps: Vec<Gap>,
    /// When each request was sent that has no answer yet, by its number.
    unanswered: BTreeMap<u64, Cycles>,
    failure: Option<String>,
}

impl Lane {
    /// Returns a lane that begins `now` and keeps gaps of at least `shortest`.
    pub fn new(shortest: Cycles, now: Cycles) -> Self {
        let (gaps, unanswered) = (Vec::new(), BTreeMap::new());
        Self { shortest, last: now, proved: 0, gaps, unanswered, failure: None }
    }

    /// Enters a request.
    pub fn ask(&mut self, number: u64, now: Cycles) {
        self.unanswered.insert(number, now);
    }

    /// Enters the answer to a request; one to a request that counts as lost changes nothing.
    pub fn answer(&mut self, number: u64, now: Cycles) {
        let Some(sent) = self.unanswered.remove(&number) else { return };
        let gap = Gap { from: self.last, to: now };
        if gap.after(0) >= self.shortest {
            self.gaps.push(gap);
        }
        self.last = now;
        self.proved = self.proved.max(sent);
    }

    /// Enters the reason why there will be no more exchanges.
    pub fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Returns whether no exchange since this time has proved that the lane goes on, although it
    /// has not failed.
    pub fn waits(&self, after: Cycles) -> bool {
        self.failure.is_none() && self.proved < after
    }

    /// Adds what the lane noticed to the window, and begins a new one. Requests that were sent
    /// before `resumed` and have no answer are lost. Returns false for a lane that has failed, as
    /// one has that still waits.
    pub fn end_window(&mut self, event: Event, resumed: Cycles, window: &mut Window) -> bool {
        let mut longest = 0;
        for gap in self.gaps.drain(..) {
            longest = longest.max(gap.after(0));
            window.from_start = window.from_start.max(gap.after(event.started));
        }
        window.pause = window.pause.max(longest);
        window.lanes.push(longest);
        let sent = self.unanswered.len();
        self.unanswered.retain(|_, sent| *sent >= resumed);
        window.requests_lost += (sent - self.unanswered.len()) as u64;
        if self.waits(event.after) {
            self.fail("no exchange was completed after the event".to_owned());
        }
        let Some(failure) = self.failure.take() else { return true };
        window.lost += 1;
        window.failure.get_or_insert(failure);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Event = Event { after: 1_000, started: 1_000 };
    const RESUMED: Cycles = 2_000;

    /// Returns a lane with exchanges of 10 cycles that begin at these times.
    fn lane(begins: &[Cycles]) -> Lane {
        let mut lane = Lane::new(50, 0);
        for (number, &begin) in begins.iter().enumerate() {
            lane.ask(number as u64, begin);
            lane.answer(number as u64, begin + 10);
        }
        lane
    }

    fn window(lane: &mut Lane) -> (Window, bool) {
        let mut window = Window::default();
        let goes_on = lane.end_window(EVENT, RESUMED, &mut window);
        (window, goes_on)
    }

    #[test]
    fn the_pause_is_the_longest_gap_and_counts_from_the_start_separately() {
        let (noticed, goes_on) = window(&mut lane(&[100, 900, 1_200, 1_900]));
        assert!(goes_on);
        assert_eq!((noticed.pause, noticed.from_start), (800, 700));
        assert_eq!((noticed.lost, noticed.requests_lost), (0, 0));
    }

    #[test]
    fn a_lane_waits_until_an_exchange_that_began_after_the_event_is_completed() {
        let mut lane = lane(&[100]);
        lane.ask(7, 990);
        lane.answer(7, 1_010);
        assert!(lane.waits(EVENT.after), "its request was sent before the event");
        lane.ask(8, 1_010);
        lane.answer(8, 1_020);
        assert!(!lane.waits(EVENT.after));
    }

    #[test]
    fn requests_without_an_answer_are_lost_once_and_late_answers_change_nothing() {
        let mut lane = lane(&[100, 1_100]);
        lane.ask(7, 950);
        lane.ask(8, 2_100);
        assert_eq!(window(&mut lane).0.requests_lost, 1);
        lane.answer(7, 9_000);
        lane.answer(8, 2_150);
        let expected = Window { pause: 1_040, from_start: 1_040, lanes: vec![1_040], ..Window::default() };
        assert_eq!(window(&mut lane).0, expected);
    }

    #[test]
    fn a_lane_that_fails_or_still_waits_is_lost() {
        let mut failed = lane(&[1_100]);
        failed.fail("reset".to_owned());
        let (noticed, goes_on) = window(&mut failed);
        assert_eq!((goes_on, noticed.lost, noticed.failure.as_deref()), (false, 1, Some("reset")));
        let (noticed, goes_on) = window(&mut lane(&[100]));
        assert_eq!((goes_on, noticed.lost), (false, 1));
    }

    #[test]
    fn the_pause_of_each_lane_is_kept_besides_the_longest() {
        let mut noticed = Window::default();
        for begins in [&[400, 1_100][..], &[800, 1_100], &[1_100]] {
            assert!(lane(begins).end_window(EVENT, RESUMED, &mut noticed));
        }
        assert_eq!(noticed.lanes, [700, 810, 1_110]);
        assert_eq!((noticed.pause, noticed.median_lane()), (1_110, 810));
        assert_eq!((noticed.slow_lanes(700), noticed.slow_lanes(2_000)), (2, 0));
        assert_eq!(Window::default().median_lane(), 0);
    }

    #[test]
    fn a_new_window_does_not_have_the_gaps_of_the_one_before() {
        let mut lane = lane(&[1_100]);
        assert_eq!(window(&mut lane).0.pause, 1_110);
        assert_eq!(window(&mut lane).0.pause, 0);
    }
}
