//! Progress of a long run: a line of standard error that is drawn anew, while standard error is a
//! terminal; nothing otherwise.
//!
//! Owns the line. It is drawn between steps only, since drawing would disturb a measurement; where
//! steps only [advance](Progress::advance), at most ten times a second. [`note!`](crate::note)
//! erases it first, so that a message does not stand behind it; only one line at a time is shown.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Characters of the bar.
const BAR: usize = 24;

/// Characters of the whole line, so that no terminal wraps it.
const WIDTH: usize = 78;

/// Erases the line that the cursor is on (ECMA-48: CR, EL).
const ERASE: &str = "\r\x1b[2K";

/// Least time between two drawings by [`Progress::advance`], which simulations call very often.
const INTERVAL: Duration = Duration::from_millis(100);

/// True while a line is on the terminal. Relaxed: publishes nothing else.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// The steps of a run, and the line that shows how many are done. Erased when dropped.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    is_terminal: bool,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Steps that have ended.
    done: u64,
    /// The current step, if steps are named; else the run.
    what: String,
    drawn: Instant,
}

impl Progress {
    /// Progress of `what` over `total` steps.
    pub fn new(what: &str, total: u64) -> Self {
        let began = Instant::now();
        let state = Mutex::new(State { done: 0, what: what.to_owned(), drawn: began });
        let progress = Self { total, is_terminal: io::stderr().is_terminal(), began, state };
        progress.with(|state| progress.draw(state));
        progress
    }

    /// Names the step that begins; the one before, if any, has ended.
    pub fn begin(&self, what: &str) {
        self.with(|state| {
            state.done += u64::from(!state.what.is_empty());
            what.clone_into(&mut state.what);
            self.draw(state);
        });
    }

    /// A step has ended.
    pub fn advance(&self) {
        self.with(|state| {
            state.done += 1;
            if state.drawn.elapsed() >= INTERVAL {
                self.draw(state);
            }
        });
    }

    /// Prints a line of results above the progress.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn print(&self, result: &str) -> io::Result<()> {
        erase();
        let printed = writeln!(io::stdout(), "{result}");
        self.with(|state| self.draw(state));
        printed
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Draws the line; a closed standard error is no error.
    fn draw(&self, state: &mut State) {
        state.drawn = Instant::now();
        if self.is_terminal {
            SHOWN.store(true, Relaxed);
            let line = line(state.done, self.total, self.began.elapsed(), &state.what);
            let _ = write!(io::stderr(), "{ERASE}{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        erase();
    }
}

/// Erases the line that is shown, if there is one.
pub fn erase() {
    if SHOWN.swap(false, Relaxed) {
        let _ = write!(io::stderr(), "{ERASE}");
    }
}

/// Returns the rounds of a measurement, beside whose course a line is shown.
pub fn over<T>(what: &str, rounds: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let progress = Progress::new(what, rounds.size_hint().0 as u64);
    let mut is_first = true;
    rounds.inspect(move |_| {
        // The round before has ended.
        if !std::mem::take(&mut is_first) {
            progress.advance();
        }
    })
}

fn line(done: u64, total: u64, elapsed: Duration, what: &str) -> String {
    let full = (BAR as u64 * done).checked_div(total).unwrap_or(BAR as u64).min(BAR as u64);
    let bar = "#".repeat(full as usize);
    let seconds = elapsed.as_secs();
    // Steps take about the same time.
    let left = match (seconds * total.saturating_sub(done)).checked_div(done) {
        Some(left) if seconds > 0 => format!(", about {left} s left"),
        _ => String::new(),
    };
    let line = format!("[{bar:BAR$}] {done}/{total} {seconds} s{left}  {what}");
    line.chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_steps_the_time_that_is_left_and_fits_a_terminal() {
        let line = |done, total, seconds, what: &str| line(done, total, Duration::from_secs(seconds), what);
        assert_eq!(line(0, 12, 0, "Linux"), "[                        ] 0/12 0 s  Linux");
        assert_eq!(
            line(6, 12, 7, "Linux at 50 %"),
            "[############            ] 6/12 7 s, about 7 s left  Linux at 50 %"
        );
        assert_eq!(line(1, 1, 0, &"x".repeat(200)).chars().count(), WIDTH);
        assert!(line(13, 12, 0, "").starts_with("[########################]"));
    }

    #[test]
    fn steps_that_are_named_end_when_the_next_one_begins() {
        let progress = Progress::new("", 3);
        let done = || progress.state.lock().unwrap().done;
        progress.begin("one");
        assert_eq!(done(), 0);
        progress.begin("two");
        progress.advance();
        assert_eq!(done(), 2);
    }

    #[test]
    fn rounds_are_those_that_were_given() {
        assert_eq!(over("rounds", 0..3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
