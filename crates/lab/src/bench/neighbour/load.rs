//! The machine's other programs, as this benchmark has them: a process of 100 ms of processor time
//! every 200 ms, and a thread that wakes every 10 ms.
//!
//! Owns both ends: the child, which leads a session of its own as a login does, and its figures.
//! Both start by the clock, however late those before are: a tick that passes before the thread has
//! recorded the last one counts as a wake of its own, with its delay.

use std::collections::HashMap;
use std::io::{Write, stdin, stdout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tailwater_testbed::app;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::interrupt::Interrupt;

/// Time between the starts of two processes.
const PROCESS_PERIOD: Duration = Duration::from_millis(200);
/// Processor time of each.
const PROCESS_MS: u64 = 100;
/// Time between two wakes of the interactive thread.
const WAKE_PERIOD: Duration = Duration::from_millis(10);
/// How long the last processes may take to end; then they are killed, and their time so far counts.
const LAST_PROCESSES: Duration = Duration::from_secs(5);

/// The roles of children.
#[derive(Debug, Args)]
pub struct ChildArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Start processes and wake a thread until a line is read, then print figures
    Others,
    /// Use this much processor time
    Burn {
        /// In milliseconds
        ms: u64,
    },
}

/// What the other programs got.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Figures {
    /// Median time from the start of a process to its end, in milliseconds.
    pub process_ms: f64,
    /// 90th percentile.
    pub process_p90_ms: f64,
    /// Processes that ended.
    pub processes: usize,
    /// Median delay of the thread's wakes, in milliseconds.
    pub shell_p50_ms: f64,
    /// 99th percentile.
    pub shell_p99_ms: f64,
}

/// The other programs while they run; dropping this ends them.
#[derive(Debug)]
pub struct Others(ChildProcess);

impl Others {
    /// Starts them.
    ///
    /// # Errors
    /// When the kernel refuses a process.
    pub fn start() -> anyhow::Result<Self> {
        let arguments = vec!["others".to_owned()];
        let spec = Spec { app: "neighbour", arguments, own_session: true, ..Spec::default() };
        Ok(Self(ChildProcess::start(&spec)?))
    }

    /// Ends them and returns their figures.
    ///
    /// # Errors
    /// When they have ended, or on a signal.
    pub fn end(mut self, interrupt: &Interrupt) -> anyhow::Result<Figures> {
        self.0.ask()?;
        let line = self.0.read_line(interrupt)?;
        serde_json::from_str(&line).with_context(|| format!("the other programs printed: {line}"))
    }
}

/// Plays a child's role.
///
/// # Errors
/// When a process cannot be started.
pub fn run_child(args: &ChildArgs) -> anyhow::Result<()> {
    match args.role {
        Role::Others => others(),
        Role::Burn { ms } => {
            burn(Duration::from_millis(ms));
            Ok(())
        }
    }
}

fn burn(time: Duration) {
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    while used() < time {
        for _ in 0..1_000 {
            std::hint::spin_loop();
        }
    }
}

fn others() -> anyhow::Result<()> {
    let stop = AtomicBool::new(false);
    let running = Mutex::new(HashMap::new());
    let (times, delays) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    scope(|scope| {
        scope.spawn(|| wakes(&stop, &delays));
        scope.spawn(|| {
            let mut due = Instant::now();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (times, running) = (&times, &running);
                scope.spawn(move || times.lock().expect("no thread panics").extend(process(number, running)));
                due += PROCESS_PERIOD;
                sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        // An end of file ends them as well.
        let _ = stdin().read_line(&mut String::new());
        stop.store(true, Ordering::Relaxed);
        let give_up = Instant::now() + LAST_PROCESSES;
        while Instant::now() < give_up && !running.lock().expect("no thread panics").is_empty() {
            sleep(WAKE_PERIOD);
        }
        for process in running.lock().expect("no thread panics").values() {
            // Fails if it has just ended.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    });
    let (times, delays) = (times.into_inner()?, delays.into_inner()?);
    let figures = Figures {
        process_ms: quantile(&times, 0.5),
        process_p90_ms: quantile(&times, 0.9),
        processes: times.len(),
        shell_p50_ms: quantile(&delays, 0.5),
        shell_p99_ms: quantile(&delays, 0.99),
    };
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&figures)?)?)
}

/// Runs a process, which is among the `running` ones until its end; returns how long it took in
/// milliseconds, or ran until it was killed, if it could be started.
fn process(number: u64, running: &Mutex<HashMap<u64, OwnedFd>>) -> Option<f64> {
    let started = Instant::now();
    let mut command = app::command(&[]);
    command.args(["neighbour", "burn", &PROCESS_MS.to_string()]);
    let mut process = command.spawn().ok()?;
    // Not yet waited for, so its number is its own.
    if let Ok(fd) = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
        running.lock().expect("no thread panics").insert(number, fd);
    }
    let ended = process.wait();
    running.lock().expect("no thread panics").remove(&number);
    ended.is_ok().then(|| started.elapsed().as_secs_f64() * 1e3)
}

/// Records how late a thread is at each tick of the clock, until which it sleeps if there is time.
fn wakes(stop: &AtomicBool, delays: &Mutex<Vec<f64>>) {
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due += WAKE_PERIOD;
        sleep(due.saturating_duration_since(Instant::now()));
        let late = Instant::now().saturating_duration_since(due);
        delays.lock().expect("no thread panics").push(late.as_secs_f64() * 1e3);
    }
}

/// Returns the value below which this part of the values lies; 0 without values.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.99), 3.0);
    }

    #[test]
    fn burning_uses_that_much_processor_time() {
        std::thread::spawn(|| {
            burn(Duration::from_millis(3));
            let used = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
            assert!(used >= Duration::from_millis(3), "{used:?}");
        })
        .join()
        .unwrap();
    }
}
