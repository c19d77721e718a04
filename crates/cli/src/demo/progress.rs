//! The demo's progress: a line below the growing table while standard error is a terminal.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Characters of the bar.
const BAR: usize = 24;

/// Characters of the whole line, so that no terminal wraps it.
const WIDTH: usize = 78;

/// Erases the line that the cursor is on (ECMA-48: CR, EL).
const ERASE: &str = "\r\x1b[2K";

/// The steps of a run, and the line that shows the current one.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    shown: bool,
    begun: Instant,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    begun_steps: usize,
    line: String,
}

impl Progress {
    /// Progress over `total` steps.
    pub fn new(total: usize) -> Self {
        Self { total, shown: io::stderr().is_terminal(), begun: Instant::now(), state: RefCell::default() }
    }

    /// Starts the next step. Draws once: redrawing during a measurement would disturb it.
    pub fn begin(&self, what: &str) {
        let mut state = self.state.borrow_mut();
        state.begun_steps += 1;
        state.line = line(state.begun_steps, self.total, self.begun.elapsed().as_secs(), what);
        self.draw(&state.line);
    }

    /// Prints a line of results above the progress.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn print(&self, result: &str) -> io::Result<()> {
        self.draw("");
        let printed = writeln!(io::stdout(), "{result}");
        self.draw(&self.state.borrow().line);
        printed
    }

    /// Replaces the line; a closed standard error is no error.
    fn draw(&self, line: &str) {
        if self.shown {
            let _ = write!(io::stderr(), "{ERASE}{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.draw("");
    }
}

fn line(step: usize, total: usize, seconds: u64, what: &str) -> String {
    let full = (BAR * step).checked_div(total).unwrap_or(BAR).min(BAR);
    let line = format!("[{:BAR$}] {step}/{total} {seconds} s  {what}", "#".repeat(full));
    line.chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_steps_and_fits_a_terminal() {
        assert_eq!(line(6, 12, 7, "Linux at 50 %"), "[############            ] 6/12 7 s  Linux at 50 %");
        assert_eq!(line(1, 1, 0, &"x".repeat(200)).chars().count(), WIDTH);
        assert!(line(13, 12, 0, "").starts_with("[########################]"));
    }
}
