//! The rate at which a client has to read its replies: a pure state machine.
//!
//! The time-out of a write begins anew with each byte that the client reads. This limit does not.

use std::time::{Duration, Instant};

/// Bytes for which the client has the whole limit.
pub const PIECE: usize = 64 << 10;

/// The limit for one batch of replies: [`PIECE`] bytes of it in each idle time.
#[derive(Debug)]
pub struct Pace {
    limit: Duration,
    /// Beginning of the piece.
    since: Instant,
    /// Bytes of the piece that are written.
    written: usize,
}

impl Pace {
    /// Returns the limit of a batch that begins at `now`.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, since: now, written: 0 }
    }

    /// Records that TCP has taken `bytes`, and that more are to follow. Returns whether the client
    /// reads fast enough.
    pub fn follows(&mut self, bytes: usize, now: Instant) -> bool {
        let is_in_time = now.duration_since(self.since) <= self.limit;
        self.written += bytes;
        if self.written >= PIECE {
            (self.since, self.written) = (now, 0);
        }
        is_in_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_client_that_reads_a_piece_in_each_limit_may_go_on() {
        let mut now = Instant::now();
        let mut pace = Pace::new(LIMIT, now);
        for _ in 0..100 {
            for _ in 0..16 {
                now += LIMIT / 16;
                assert!(pace.follows(PIECE / 16, now));
            }
        }
    }

    #[test]
    fn a_client_that_reads_a_byte_now_and_then_may_not() {
        let start = Instant::now();
        let mut pace = Pace::new(LIMIT, start);
        let allowed = (1..).find(|&i| !pace.follows(1, start + i * (LIMIT / 2))).unwrap();
        assert_eq!(allowed, 3, "60 s have passed");
    }
}
