//! The clock of a server, which expiry times are compared with.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::store::Now;

/// Clock of whole seconds. Cheap to copy; all threads of a server use the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: i64,
}

impl Clock {
    /// Returns a clock whose first second is now.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { start: Instant::now(), start_unix: unix as i64 - i64::from(Now::FIRST) }
    }

    /// Returns the present second.
    #[must_use]
    pub fn now(&self) -> Now {
        let seconds = u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX);
        Now { seconds: seconds.saturating_add(Now::FIRST), start_unix: self.start_unix }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_begins_at_the_first_second_and_knows_the_date() {
        let begin = Instant::now();
        let now = Clock::start().now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        // The machine may stand still between any two of these lines.
        let late = begin.elapsed().as_secs() + 1;
        assert!((Now::FIRST..Now::FIRST + late as u32).contains(&now.seconds));
        assert!((0..=late as i64).contains(&(unix - now.unix())));
    }
}
