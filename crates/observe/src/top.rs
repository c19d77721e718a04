//! `tailwater top`: the screen, or lines for a pipe.
//!
//! Owns the terminal, the keys and the time of the looks; [`screen`] draws, [`lines`] writes, and
//! [`view`](crate::view) computes what both show. The terminal is as it was when the command ends,
//! also by a signal or a panic.

mod lines;
mod screen;

use std::io::{IsTerminal, Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tailwater_testbed::account::{Strangers, Tracepoints, takers};
use tailwater_testbed::interrupt::{Interrupt, Interrupted};
use tailwater_testbed::observe::TopArgs;
use tailwater_testbed::text::plain;

use crate::source::{Answer, Source};
use crate::view::{Sort, View};

/// Longest time without a look at signals.
const TICK: Duration = Duration::from_millis(200);

/// Shows the IOKernel until it is told to stop, or once.
///
/// # Errors
/// If lines are wanted and the IOKernel does not answer, or if the terminal cannot be used.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let source = Source::of(&args.iokernel);
    if args.once || !stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return write_lines(args, &source);
    }
    // Before the terminal changes: without an IOKernel there is one line, not a screen.
    let first = source.answer();
    first.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot catch signals")?;
    }
    let (mut state, mut names) = (State::new(args), Names::default());
    note(&mut state, &mut names, first);
    let mut terminal = ratatui::try_init().context("cannot use the terminal; `--once` prints lines")?;
    let shown = show(&mut terminal, &mut state, &mut names, &source, &ended);
    ratatui::restore();
    shown
}

fn write_lines(args: &TopArgs, source: &Source) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let look = |names: &mut Names| {
        let document = source.answer().map_err(anyhow::Error::msg)?;
        anyhow::Ok((Instant::now(), names.look(&document), document))
    };
    let mut names = Names::default();
    let mut from = look(&mut names)?;
    loop {
        match interrupt.sleep_until(from.0 + args.interval) {
            Err(Interrupted) if args.once => return Err(Interrupted.into()),
            Err(Interrupted) => return Ok(()),
            Ok(()) => {}
        }
        let to = look(&mut names)?;
        let seconds = (to.0 - from.0).as_secs_f64();
        let view = View::between(&from.2, &to.2, seconds).with_takers(&takers(&from.1, &to.1, None), seconds);
        let mut out = stdout();
        write!(out, "{}", lines::describe(&view, Sort::Used, &args.filter))?;
        out.flush()?;
        if args.once {
            return Ok(());
        }
        writeln!(out)?;
        from = to;
    }
}

/// The names of what runs on the cores, as long as the IOKernel answers.
#[derive(Default)]
struct Names(Option<Tracepoints>);

impl Names {
    /// Returns what has run since the first look. At that one the watch begins.
    fn look(&mut self, document: &Value) -> Strangers {
        self.0.get_or_insert_with(|| Tracepoints::watch(document)).strangers(document)
    }
}

/// What the screen is about.
pub struct State {
    interval: Duration,
    view: View,
    /// Why there is nothing new.
    problem: Option<String>,
    last: Option<(Instant, Answer, Strangers)>,
    sort: Sort,
    is_reversed: bool,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    has_help: bool,
    /// First program that is shown.
    scroll: usize,
}

impl State {
    fn new(args: &TopArgs) -> Self {
        Self {
            interval: args.interval,
            view: View::default(),
            problem: None,
            last: None,
            sort: Sort::Used,
            is_reversed: false,
            filter: args.filter.clone(),
            is_typing: false,
            is_paused: false,
            has_help: false,
            scroll: 0,
        }
    }

    /// Takes an answer, and what ran on the cores until then; the view is between these and those
    /// before.
    fn note(&mut self, answer: Answer, ran: Strangers, now: Instant) {
        match &answer {
            Ok(to) => {
                self.problem = None;
                match &self.last {
                    Some((before, Ok(from), ran_before)) => {
                        let seconds = (now - *before).as_secs_f64();
                        let takers = takers(ran_before, &ran, None);
                        self.view = View::between(from, to, seconds).with_takers(&takers, seconds);
                    }
                    // Rates need two looks: these are of a machine that stands still.
                    _ => self.view = View::between(to, to, 1.0),
                }
            }
            Err(why) => self.problem = Some(plain(why)),
        }
        self.last = Some((now, answer, ran));
    }

    /// Returns whether the user wants to go on after a key.
    fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.filter, self.is_typing) = (String::new(), false),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.len() < 64 => self.filter.push(c),
                _ => {}
            }
            self.scroll = 0;
            return true;
        }
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Esc if self.filter.is_empty() => return false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = !self.has_help,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort = self.sort.step(1),
            KeyCode::Char('S') => self.sort = self.sort.step(-1),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        let shown = self.view.sorted(self.sort, self.is_reversed, &self.filter).len();
        self.scroll = self.scroll.min(shown.saturating_sub(1));
        true
    }
}

/// Has the state take an answer. After one that failed, another IOKernel may lend other cores.
fn note(state: &mut State, names: &mut Names, answer: Answer) {
    let now = Instant::now();
    let ran = match &answer {
        Ok(document) => names.look(document),
        Err(why) => {
            *names = Names::default();
            Err(Arc::clone(why))
        }
    };
    state.note(answer, ran, now);
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    names: &mut Names,
    source: &Source,
    ended: &AtomicBool,
) -> anyhow::Result<()> {
    let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut next = Instant::now() + state.interval.min(Duration::from_millis(500));
    loop {
        terminal.draw(|frame| screen::draw(frame, state, has_color))?;
        loop {
            // Relaxed: nothing else is written with it.
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() && !state.is_paused {
                note(state, names, source.answer());
                next = Instant::now() + state.interval;
                break;
            }
            let wait = if state.is_paused { TICK } else { left.min(TICK) };
            if !event::poll(wait)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if !state.press(key) {
                        return Ok(());
                    }
                    break;
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{document, taken};

    pub fn state(cores: u64) -> State {
        use clap::Parser;

        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            args: TopArgs,
        }
        let mut state = State::new(&Cli::parse_from(["top", "--iokernel", "@x"]).args);
        let now = Instant::now();
        let mut look = |seconds| {
            let document = document(cores, (1 + seconds) * 1_000_000_000);
            state.note(Ok(Arc::new(document)), Ok(vec![]), now + Duration::from_secs(seconds));
        };
        look(0);
        look(1);
        state.view = taken(std::mem::take(&mut state.view));
        state
    }

    fn press(state: &mut State, codes: &[KeyCode]) -> bool {
        codes.iter().all(|code| state.press(KeyEvent::new(*code, KeyModifiers::NONE)))
    }

    #[test]
    fn keys_sort_filter_pause_and_quit() {
        let mut state = state(2);
        assert!(press(&mut state, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('r')]));
        assert_eq!((state.sort, state.is_reversed), (Sort::P99, true));
        assert!(press(
            &mut state,
            &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('w'), KeyCode::Enter]
        ));
        assert_eq!((state.filter.as_str(), state.is_typing), ("qw", false));
        assert!(press(&mut state, &[KeyCode::Esc]), "clears the filter");
        assert!(press(&mut state, &[KeyCode::Char(' '), KeyCode::Char('?'), KeyCode::Esc]));
        assert!(state.is_paused && !state.has_help && state.filter.is_empty());
        assert!(press(&mut state, &[KeyCode::PageDown; 9]));
        assert_eq!(state.scroll, 3, "the last of four programs");
        assert!(!press(&mut state, &[KeyCode::Char('q')]));
        assert!(!state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn an_iokernel_that_is_gone_leaves_the_last_view_and_says_why() {
        let mut state = state(1);
        state.note(Err("nothing\x1b listens".into()), Err("".into()), Instant::now());
        assert_eq!((state.problem.as_deref(), state.view.cores.len()), (Some("nothing? listens"), 1));
    }
}
