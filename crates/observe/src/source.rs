//! The statistics, asked for as often as they may be.
//!
//! Owns the last answer. Any number of readers costs the IOKernel a few questions a second: one
//! that comes soon after another gets the same answer, and so the same error.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tailwater_testbed::query;

/// Age up to which an answer serves another reader.
const FRESH: Duration = Duration::from_millis(200);
/// Longest wait for an IOKernel, which answers within a millisecond unless it is stopped.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What the IOKernel answered, or why it did not.
pub type Answer = Result<Arc<Value>, Arc<str>>;

/// See the module documentation.
pub struct Source {
    ask: Box<dyn Fn() -> anyhow::Result<Value> + Send + Sync>,
    last: Mutex<Option<(Instant, Answer)>>,
}

impl Source {
    /// Returns the statistics of the IOKernel at `socket`.
    pub fn of(socket: &str) -> Self {
        let socket = socket.to_owned();
        Self::new(move || query::statistics_and_jobs(&socket, PATIENCE))
    }

    /// Returns what `ask` answers.
    pub fn new(ask: impl Fn() -> anyhow::Result<Value> + Send + Sync + 'static) -> Self {
        Self { ask: Box::new(ask), last: Mutex::new(None) }
    }

    /// Returns the statistics, [`FRESH`] at least.
    pub fn answer(&self) -> Answer {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = (self.ask)().map(Arc::new).map_err(|error| format!("{error:#}").into());
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn many_readers_are_one_question() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let source = Source::new(move || {
            // Relaxed: the lock orders.
            count.fetch_add(1, Ordering::Relaxed);
            anyhow::bail!("not there")
        });
        let began = Instant::now();
        let answers: Vec<Answer> = (0..10).map(|_| source.answer()).collect();
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap_err().contains("not there")));
        // A machine that is busy may take long for ten readers.
        let most = 1 + began.elapsed().as_millis() / FRESH.as_millis();
        assert!(u128::from(asked.load(Ordering::Relaxed)) <= most);
    }
}
