//! The windows offered to peers on this machine, from the room of one ring.
//!
//! Owns the number of connections that such peers send much on, and the period of the latest gap.
//! What they send lies in one ring while this program has no core, so each is offered its part of
//! what the ring holds, at least [`LEAST`]: with the whole of it for each, one connection would
//! fill the ring for good, and the others' segments would be dropped there again and again.
//!
//! Time is divided into periods of 8.4 ms ([`PERIOD_BITS`]). A connection counts in a period once
//! [`BUSY_BYTES`] bytes have arrived on it; the number in use is the larger one of this period and
//! the one before, so a part shrinks within one period and grows within two. After a pause of up to
//! [`PAUSE`] periods, in which a program without a core cannot have seen its connections, the old
//! number holds for one period more. The count is one word, written at most once per connection and
//! period, and once more when a period begins.
//!
//! Parts that add up to the whole are right for senders without end. Messages of many connections
//! seldom lie in the ring at once, and a message that does not fit its window takes a round trip
//! more. So while no gap is seen, each is offered [`MOST`] parts, up to the whole. A connection
//! with a gap is taken for a sign that the ring has overflowed: for [`ONE_PART_PERIODS`] after the
//! latest one each has one part, then two until [`TWO_PARTS_PERIODS`] after it.
//!
//! | word | written | ordering |
//! |---|---|---|
//! | count, gap | by the kthread that holds a connection's lock | Relaxed: a number that lags changes a window, which may be of any size |
//!
//! # Failures
//! A rate limit, the sender's share of the ring, reordering or the peer itself can leave a gap, and
//! a peer can open many busy connections: then the windows of others on this machine are smaller
//! than need be, never below [`LEAST`]. The count saturates at 65,535. A clock that is more than
//! [`BEHIND`] periods behind begins it anew.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tailwater_tcp::Instant;

/// Binary logarithm of a period's length in nanoseconds: 8.4 ms, in which a connection that shares
/// a core has its turn.
const PERIOD_BITS: u32 = 23;
/// Bytes with which a connection counts in a period.
const BUSY_BYTES: u32 = 8 << 10;
/// Least window: room for two segments of an ordinary link, which a sender does not cut further,
/// and a multiple of the units in which receive buffers of up to 32 MiB state it.
const LEAST: u32 = 3 << 10;
/// Most parts of the whole that a connection is offered, when no gap was seen lately.
const MOST: u32 = 4;
/// Periods after a gap in which each connection is offered one part: 1.0 s.
const ONE_PART_PERIODS: u32 = 120;
/// Periods after a gap in which each is offered two parts, from [`ONE_PART_PERIODS`] on: 8.1 s.
const TWO_PARTS_PERIODS: u32 = 960;
/// Periods after which nothing is known of the connections: 0.54 s.
const PAUSE: u32 = 64;
/// From so many periods since a gap on, it lies in the future of a thread whose clock is behind.
const AHEAD: u32 = u32::MAX - BEHIND;
/// Periods that a thread's clock may be behind, as it took the time and lost its core: 8.4 s.
const BEHIND: u32 = 1000;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct MachineWindow {
    /// Bytes that one ring takes: the most for one connection, and after a gap for all of them
    /// together.
    total: u32,
    /// Number of the period in bits 32-63, connections of the previous one in bits 16-31, of this
    /// one in bits 0-15.
    count: AtomicU64,
    /// One more than the period in which a gap was last seen; 0: none was.
    gap: AtomicU32,
}

/// What has arrived on one connection.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    period: u32,
    bytes: u32,
}

impl MachineWindow {
    pub(crate) fn new(total: u32) -> Self {
        Self { total, count: AtomicU64::new(0), gap: AtomicU32::new(0) }
    }

    /// Notes that `bytes` have arrived on a connection; returns the window to offer its peer.
    #[inline]
    pub(crate) fn note(&self, arrivals: &mut Arrivals, bytes: usize, now: Instant) -> u32 {
        let period = period_of(now);
        if arrivals.period != period {
            *arrivals = Arrivals { period, bytes: 0 };
        }
        let before = arrivals.bytes;
        arrivals.bytes = before.saturating_add(bytes as u32);
        let counts = before < BUSY_BYTES && arrivals.bytes >= BUSY_BYTES;
        let count = self.count.load(Relaxed);
        let count = if counts || (count >> 32) as u32 != period { self.turn(period, counts) } else { count };
        let active = u32::from((count as u16).max((count >> 16) as u16).max(1));
        let parts = self.parts(period).min(active);
        (self.total / active * parts).max(LEAST.min(self.total))
    }

    /// Notes that a connection waits for bytes before those that have arrived.
    #[inline]
    pub(crate) fn note_gap(&self, now: Instant) {
        let seen = period_of(now).wrapping_add(1).max(1);
        if self.gap.load(Relaxed) != seen {
            self.gap.store(seen, Relaxed);
        }
    }

    #[inline]
    fn parts(&self, period: u32) -> u32 {
        match self.gap.load(Relaxed) {
            0 => MOST,
            seen => match period.wrapping_add(1).wrapping_sub(seen) {
                ONE_PART_PERIODS..TWO_PARTS_PERIODS => 2,
                TWO_PARTS_PERIODS..AHEAD => MOST,
                _ => 1,
            },
        }
    }

    /// Begins the period if it has not begun, and counts a connection in it if one `counts`.
    #[cold]
    fn turn(&self, period: u32, counts: bool) -> u64 {
        let next = |count: u64| {
            let (counted, this) = ((count >> 32) as u32, count as u16);
            let before = (count >> 16) as u16;
            let (before, this) = match period.wrapping_sub(counted) {
                0 => (before, this),
                1 => (this, 0),
                2..=PAUSE => (before.max(this), 0),
                _ if counted.wrapping_sub(period) <= BEHIND => return count,
                _ => (0, 0),
            };
            let this = this.saturating_add(u16::from(counts));
            u64::from(period) << 32 | u64::from(before) << 16 | u64::from(this)
        };
        let old = self.count.fetch_update(Relaxed, Relaxed, |count| Some(next(count)));
        old.map_or(0, next)
    }
}

fn period_of(now: Instant) -> u32 {
    (now.0 >> PERIOD_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const PERIOD: Duration = Duration::from_nanos(1 << PERIOD_BITS);

    fn at(period: u32) -> Instant {
        Instant(0) + PERIOD * (1000 + period)
    }

    #[test]
    fn connections_that_much_arrives_on_share_the_window() {
        let window = MachineWindow::new(100_000);
        window.note_gap(at(0));
        let mut connections = [const { Arrivals { period: 0, bytes: 0 } }; 4];
        for connection in &mut connections {
            assert_eq!(window.note(connection, 8_000, at(0)), 100_000, "not yet");
        }
        for (connection, share) in connections.iter_mut().zip([100_000, 50_000, 33_333, 25_000]) {
            assert_eq!(window.note(connection, 8_000, at(0)), share);
        }
        assert_eq!(window.note(&mut connections[0], 100_000, at(0)), 25_000, "it counts once");
        assert_eq!(window.note(&mut connections[0], 10_000, at(1)), 25_000, "those of the period before");
        assert_eq!(window.note(&mut connections[1], 0, at(2)), 100_000);
        assert_eq!(window.note(&mut connections[0], 10_000, at(2)), 100_000);
        assert_eq!(window.note(&mut connections[1], 0, at(1)), 100_000, "a thread whose clock is behind");
        assert_eq!(window.note(&mut connections[2], 0, at(0)), 100_000, "by more than a period");
        for connection in &mut connections {
            window.note(connection, 10_000, at(3));
        }
        assert_eq!(window.note(&mut connections[0], 10_000, at(3 + PAUSE)), 25_000, "after a pause");
        assert_eq!(window.note(&mut connections[0], 10_000, at(4 + PAUSE)), 100_000);
        for connection in &mut connections {
            window.note(connection, 10_000, at(100));
        }
        assert_eq!(window.note(&mut connections[0], 10_000, at(101 + PAUSE)), 100_000, "a longer one");
    }

    #[test]
    fn parts_add_up_to_the_whole_after_a_gap_only() {
        let window = MachineWindow::new(100_000);
        let mut connections = [const { Arrivals { period: 0, bytes: 0 } }; 10];
        let mut share = |window: &MachineWindow, period| {
            connections.iter_mut().map(|it| window.note(it, 10_000, at(period))).last().unwrap()
        };
        assert_eq!(share(&window, 0), 40_000);
        window.note_gap(at(5));
        for (period, expected) in [
            (4, 10_000),
            (5, 10_000),
            (4 + ONE_PART_PERIODS, 10_000),
            (5 + ONE_PART_PERIODS, 20_000),
            (4 + TWO_PARTS_PERIODS, 20_000),
            (5 + TWO_PARTS_PERIODS, 40_000),
        ] {
            assert_eq!(share(&window, period), expected, "{period}");
        }
        let one = window.note(&mut Arrivals::default(), 10_000, at(2 * TWO_PARTS_PERIODS));
        assert_eq!(one, 100_000, "no more than the whole");
    }

    #[test]
    fn a_share_has_room_for_two_segments_of_a_link() {
        let window = MachineWindow::new(100_000);
        window.note_gap(at(0));
        let mut last = 0;
        for _ in 0..70_000 {
            last = window.note(&mut Arrivals::default(), 10_000, at(0));
        }
        assert_eq!(last, LEAST);
        assert_eq!(MachineWindow::new(1000).note(&mut Arrivals::default(), 1, at(0)), 1000);
    }
}
