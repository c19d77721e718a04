//! The times at which this host announces its addresses.

use core::time::Duration;

/// Announcements of a new host (RFC 5227 section 1.1, ANNOUNCE_NUM) and the time between them
/// (ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// Announcements left. They correct neighbours that have this host's address at another station.
#[derive(Debug)]
pub struct Announcer {
    left: u8,
    at: Duration,
}

impl Announcer {
    /// Makes an announcer whose first announcement is due at once, if there is a link.
    pub fn new(attached: bool) -> Self {
        Self { left: if attached { ANNOUNCEMENTS } else { 0 }, at: Duration::ZERO }
    }

    /// Returns when the next announcement is due.
    pub fn deadline(&self) -> Option<Duration> {
        (self.left > 0).then_some(self.at)
    }

    /// Returns whether an announcement is due, which this counts as made.
    pub fn take(&mut self, now: Duration) -> bool {
        let due = self.deadline().is_some_and(|at| at <= now);
        if due {
            self.left -= 1;
            self.at = now + ANNOUNCE_INTERVAL;
        }
        due
    }
}
