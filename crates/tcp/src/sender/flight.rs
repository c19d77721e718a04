//! Counts the bytes in flight by their state, for statistics.

use super::Sender;
use super::scoreboard::Fate;

/// The unacknowledged data, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flight {
    /// Sent and not acknowledged.
    pub outstanding: u32,
    /// Of these, delivered out of order: reported by SACK, or what duplicates stand for.
    pub delivered: u32,
    /// Of these, taken for lost and not sent again yet.
    pub lost: u32,
    /// Of these, sent again and in flight.
    pub again: u32,
}

impl Sender {
    /// Returns what is in flight. Takes time in proportion to the number of ranges.
    pub fn flight(&self) -> Flight {
        let again = |sent: &&super::scoreboard::Sent| sent.again && sent.fate == Fate::InFlight;
        Flight {
            outstanding: self.board.outstanding(),
            delivered: self.board.delivered() + self.duplicated,
            lost: self.board.lost(),
            again: self.board.ranges().filter(again).map(|sent| sent.end - sent.start).sum(),
        }
    }
}
