//! The statistics, asked for as often as they may be.
//!
//! Owns the last answer. Any number of readers costs the IOKernel a few questions a second: one
//! that comes soon after another gets the same answer, and so the same error. Only the first
//! readers wait for an IOKernel that is slow: later ones get the last answer meanwhile.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tailwater_testbed::query;

/// Age up to which an answer serves another reader.
const FRESH: Duration = Duration::from_millis(200);
/// Age up to which an answer serves another reader while the next one is awaited.
const MEANWHILE: Duration = Duration::from_secs(5);
/// Longest wait for an IOKernel, which answers within a millisecond unless it is stopped.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What the IOKernel answered, or why it did not.
pub type Answer = Result<Arc<Value>, Arc<str>>;

/// See the module documentation.
pub struct Source {
    ask: Box<dyn Fn() -> anyhow::Result<Value> + Send + Sync>,
    last: Mutex<Option<(Instant, Answer)>>,
    /// Locked by the thread that asks.
    asking: Mutex<()>,
}

impl Source {
    /// Returns the statistics of the IOKernel at `socket`.
    pub fn of(socket: &str) -> Self {
        let socket = socket.to_owned();
        Self::new(move || query::statistics_and_jobs(&socket, PATIENCE))
    }

    /// Returns what `ask` answers.
    pub fn new(ask: impl Fn() -> anyhow::Result<Value> + Send + Sync + 'static) -> Self {
        Self { ask: Box::new(ask), last: Mutex::new(None), asking: Mutex::new(()) }
    }

    /// Returns the statistics: an answer of the last [`FRESH`], or, while another thread asks, one
    /// of the last [`MEANWHILE`].
    pub fn answer(&self) -> Answer {
        if let Some(answer) = self.not_older(FRESH) {
            return answer;
        }
        let _asking = match self.asking.try_lock() {
            Ok(asking) => asking,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if let Some(answer) = self.not_older(MEANWHILE) {
                    return answer;
                }
                self.asking.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        // Another thread may have asked since.
        if let Some(answer) = self.not_older(FRESH) {
            return answer;
        }
        let answer: Answer = (self.ask)().map(Arc::new).map_err(|error| format!("{error:#}").into());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), answer.clone()));
        answer
    }

    fn not_older(&self, age: Duration) -> Option<Answer> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < age).map(|(_, answer)| answer.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread::scope;
    use tailwater_testkit::until;

    #[test]
    fn a_reader_gets_the_last_answer_while_another_waits() {
        let (asked, go) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(true)));
        let (count, goes) = (Arc::clone(&asked), Arc::clone(&go));
        // Relaxed: nothing else is written with these.
        let source = Source::new(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            until("the answer may be given", || goes.load(Ordering::Relaxed));
            Ok(number.into())
        });
        assert_eq!(*source.answer().unwrap(), 0);
        scope(|scope| {
            go.store(false, Ordering::Relaxed);
            // Which the first reader's answer is too old for.
            scope.spawn(|| until("a second question", || *source.answer().unwrap() == 1));
            until("another thread asks", || asked.load(Ordering::Relaxed) == 2);
            let other = scope.spawn(|| source.answer());
            until("it has the last answer", || other.is_finished() || source.not_older(MEANWHILE).is_none());
            let was_served = other.is_finished();
            go.store(true, Ordering::Relaxed);
            let answer = other.join().unwrap().unwrap();
            if was_served {
                assert_eq!(*answer, 0);
            } else {
                println!("skipped: the machine is so busy that the last answer was too old");
            }
        });
    }

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
