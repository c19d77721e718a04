//! A watch over the polling thread.
//!
//! Owns the verdict on whether the polling thread makes progress, which [`Progress`] publishes: one
//! count of iterations and one word that says where in an iteration the thread is. The control
//! thread looks every [`LOOK`]. A thread that has not ended an iteration between two looks stalls
//! if it has had processor time, or if it waits in the kernel outside of its sleep; it starves if
//! it could run and Linux does not let it. Each stall is counted, and at a limited rate ([`LINES`])
//! logged with its stage, followed by the stack of the thread. A service manager gets a sign of
//! life only while iterations end.
//!
//! The verdict is pure: what was seen is an argument.

use core::fmt;
use rustix::process::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tailwater_shm::account::Account;

use crate::stats::Stats;
use crate::sys::stack;

/// Time between two looks: ten wakes a second cost under 0.1 % of a core.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// Lines of the log about stalls at once, and seconds after which there may be one more.
const LINES: u64 = 3;
const LINE_S: u64 = 60;
/// A thread has run if it had this fraction of the time since the last look.
const RAN: u32 = 4;

/// What the polling thread does in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Before the first iteration, or after the last.
    Outside,
    /// Follows hand-offs.
    Handoffs,
    /// Takes frames out of egress rings.
    Egress,
    /// Polls ports.
    Ports,
    /// Looks at all queues, and decides who gets which core.
    Decisions,
    /// Takes messages of the control thread, and looks for programs that have ended.
    Registrations,
    /// Sleeps until an event.
    Asleep,
    /// Leaves its core to ordinary threads for a slice.
    Slice,
}

impl Stage {
    /// All, each at its own number.
    const ALL: [Self; 8] = [
        Self::Outside,
        Self::Handoffs,
        Self::Egress,
        Self::Ports,
        Self::Decisions,
        Self::Registrations,
        Self::Asleep,
        Self::Slice,
    ];

    /// Returns whether no iteration is expected to end soon.
    fn is_rest(self) -> bool {
        matches!(self, Self::Outside | Self::Asleep | Self::Slice)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "outside of the loop",
            Self::Handoffs => "following hand-offs",
            Self::Egress => "taking frames out of egress rings",
            Self::Ports => "polling ports",
            Self::Decisions => "deciding about cores",
            Self::Registrations => "attaching or ending programs",
            Self::Asleep => "asleep",
            Self::Slice => "leaving its core to others",
        })
    }
}

/// The stage of the polling thread, which that thread writes and the control thread reads.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

impl Progress {
    /// Publishes the stage: one plain store.
    #[inline(always)]
    pub(crate) fn set(&self, stage: Stage) {
        // Relaxed: a hint for people, which publishes nothing else.
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Stage {
        let number = usize::from(self.0.load(Ordering::Relaxed));
        Stage::ALL.get(number).copied().unwrap_or(Stage::Outside)
    }
}

/// The state of the polling thread at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) at: Instant,
    /// Iterations ended so far.
    pub(crate) iterations: u64,
    pub(crate) stage: Stage,
    /// Processor time it has had, if Linux keeps that account.
    pub(crate) ran: Option<Duration>,
    /// Its state, by the letter of proc_pid_stat(5).
    pub(crate) state: char,
}

/// The conclusion from two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It makes progress, or rests.
    Fine,
    /// It has run, or waits in the kernel, and has not ended an iteration.
    Stalled,
    /// Linux has not let it run.
    Starved,
}

/// Judges what was seen now by what was seen before.
fn judge(before: &Sight, now: &Sight) -> Health {
    let time = now.at.saturating_duration_since(before.at);
    if now.iterations != before.iterations || now.stage.is_rest() || time < LOOK {
        return Health::Fine;
    }
    let ran = before.ran.zip(now.ran).is_some_and(|(before, now)| now.saturating_sub(before) > time / RAN);
    match now.state {
        _ if ran => Health::Stalled,
        // Sleeping, interruptibly or not.
        'S' | 'D' => Health::Stalled,
        _ => Health::Starved,
    }
}

/// A sign of life for a service manager, and how often it is due.
pub(crate) struct Heartbeat {
    pub(crate) interval: Duration,
    pub(crate) beat: Box<dyn FnMut() + Send>,
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeat").field("interval", &self.interval).finish_non_exhaustive()
    }
}

/// The state that the control thread keeps between its looks.
#[derive(Debug)]
pub(crate) struct StallWatch {
    /// The polling thread.
    thread: Pid,
    /// Linux's account of its time, kept open: the look takes its time from the core on which that
    /// thread may be polling. `None` where Linux keeps none.
    schedstat: Option<File>,
    before: Option<Sight>,
    /// Time of the last look.
    looked: Option<Instant>,
    /// Since when no iteration has ended, and as what that is counted.
    unmoved: Option<(Instant, Health)>,
    began: Instant,
    /// Lines of the log, in seconds since it began.
    lines: Account,
    /// The thread was asked for its stack.
    asked: bool,
    heartbeat: Option<Heartbeat>,
    /// When the last sign of life was due, and the iterations by then.
    beaten: Option<(Instant, u64)>,
}

/// A stall that was not counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) health: Health,
    /// Time without an iteration so far.
    pub(crate) time: Duration,
    /// It may cause a line of the log.
    pub(crate) logged: bool,
}

impl StallWatch {
    pub(crate) fn new(thread: Pid, heartbeat: Option<Heartbeat>, now: Instant) -> Self {
        let schedstat = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
        Self {
            thread,
            schedstat: File::open(schedstat).ok(),
            before: None,
            looked: None,
            unmoved: None,
            began: now,
            lines: Account::default(),
            asked: false,
            heartbeat,
            beaten: None,
        }
    }

    /// Returns the time between two looks: at most [`LOOK`], and a part of the heartbeat's
    /// interval. Signs of life are given at looks, so any other time would make them late by up to
    /// a look.
    pub(crate) fn interval(&self) -> Duration {
        let Some(Heartbeat { interval, .. }) = self.heartbeat else { return LOOK };
        let looks = interval.as_nanos().div_ceil(LOOK.as_nanos()).max(1);
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        // Rounded up: the last of these looks must not come before the end of the interval.
        (interval + Duration::from_nanos(u64::from(looks) - 1)) / looks
    }

    /// Looks at the polling thread if that is due, and counts and logs a stall.
    pub(super) fn keep(&mut self, stats: &Stats) {
        let now = Instant::now();
        if self.looked.is_some_and(|at| now.saturating_duration_since(at) < self.interval()) {
            return;
        }
        self.looked = Some(now);
        self.log_stack();
        let sight = self.see(now, stats);
        let Some(Finding { health, time, logged }) = self.look(sight) else { return };
        let (stage, ms) = (sight.stage, time.as_millis() as u64);
        if health == Health::Stalled {
            stats.polling.stalls.add(1);
            let system_call =
                self.proc("syscall").and_then(|text| text.split(' ').next()?.parse::<u32>().ok());
            if logged {
                tracing::error!(ms, place = %stage, state = %sight.state, system_call, "the polling thread makes no progress");
                self.asked = stack::ask(self.thread.as_raw_nonzero().get());
            }
        } else {
            stats.polling.starvations.add(1);
            if logged {
                tracing::warn!(ms, place = %stage, "Linux has not let the polling thread run");
            }
        }
    }

    /// Logs the stack that the thread was asked for at the last look.
    fn log_stack(&mut self) {
        if !core::mem::take(&mut self.asked) {
            return;
        }
        match stack::take() {
            frames if frames.is_empty() => {
                tracing::error!("the polling thread does not answer a signal: it waits in the kernel");
            }
            frames => tracing::error!(stack = stack::names(&frames), "where the polling thread was then"),
        }
    }

    fn see(&self, at: Instant, stats: &Stats) -> Sight {
        // The stage before the iterations, which the thread counts before it leaves a rest.
        let stage = stats.progress.get();
        let iterations = stats.polling.iterations.get();
        let moved = self.before.is_none_or(|before| before.iterations != iterations);
        // proc_pid_stat(5): the name before it is in parentheses and may have some.
        let state = || self.proc("stat")?.rsplit_once(") ")?.1.chars().next();
        let state = if moved { None } else { state() };
        Sight { at, iterations, stage, ran: self.ran(), state: state.unwrap_or('R') }
    }

    /// Returns the processor time of the polling thread.
    fn ran(&self) -> Option<Duration> {
        // Three numbers of at most 20 digits; the first is nanoseconds (proc_pid_schedstat(5)).
        let mut text = [0; 64];
        let len = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let ran = std::str::from_utf8(&text[..len]).ok()?.split(' ').next()?;
        ran.parse().ok().map(Duration::from_nanos)
    }

    /// Reads what Linux says about the polling thread.
    fn proc(&self, file: &str) -> Option<String> {
        let thread = self.thread.as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok()
    }

    /// Judges a look; gives the sign of life if it is due and the thread made progress. Returns a
    /// stall when it is first seen.
    pub(crate) fn look(&mut self, sight: Sight) -> Option<Finding> {
        self.beat(&sight);
        let Some(before) = self.before else {
            self.before = Some(sight);
            return None;
        };
        if sight.iterations != before.iterations {
            self.unmoved = None;
        }
        let health = judge(&before, &sight);
        // Sights between two of these are too close for a verdict.
        if sight.iterations != before.iterations || sight.at.saturating_duration_since(before.at) >= LOOK {
            self.before = Some(sight);
        }
        if health == Health::Fine {
            return None;
        }
        let (since, counted) = self.unmoved.get_or_insert((before.at, Health::Fine));
        // A thread that had to wait at first may turn out to stall.
        if *counted == health || *counted == Health::Stalled {
            return None;
        }
        *counted = health;
        let time = sight.at.saturating_duration_since(*since);
        let second = sight.at.saturating_duration_since(self.began).as_secs();
        let logged = self.lines.take(LINE_S, LINE_S * LINES, second);
        Some(Finding { health, time, logged })
    }

    fn beat(&mut self, sight: &Sight) {
        let Some(heartbeat) = &mut self.heartbeat else { return };
        let is_due = self.beaten.is_none_or(|(at, iterations)| {
            sight.at.saturating_duration_since(at) >= heartbeat.interval && sight.iterations != iterations
        });
        if is_due {
            self.beaten = Some((sight.at, sight.iterations));
            (heartbeat.beat)();
        }
    }
}

#[cfg(test)]
mod tests;
