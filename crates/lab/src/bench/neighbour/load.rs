//! The machine's other programs, as this benchmark has them: a process of 100 ms of processor time
//! every 200 ms, a thread that wakes every 10 ms, and one that does so on a lent core only.
//!
//! Owns both ends: the child, which leads a session of its own as a login does, and its figures,
//! each with the time of the clock that all processes share (`CLOCK_MONOTONIC`).
//! Both start by the clock, however late those before are: a tick that passes before the thread has
//! recorded the last one counts as a wake of its own, with its delay.

use std::collections::HashMap;
use std::io::{Write, stdin, stdout};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
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
/// Samples in a line: it stays below the longest that a testbed reads (4 KiB).
const SAMPLES_PER_LINE: usize = 128;
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
    /// Start processes and wake threads until a line is read, then print figures
    Others {
        /// The core that one of the threads is bound to
        pinned: usize,
        /// The cores that all others are confined to; none: no confinement
        cores: Vec<usize>,
    },
    /// Use this much processor time
    Burn {
        /// In milliseconds
        ms: u64,
    },
}

/// What the other programs got, in microseconds, each with the time at which it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Times from the start of a process to its end.
    process_us: Vec<(u64, u64)>,
    /// Delays of the thread's wakes.
    wake_us: Vec<(u64, u64)>,
    /// The same of the thread that is bound to a core.
    pinned_us: Vec<(u64, u64)>,
}

/// Where the other programs run.
#[derive(Debug)]
pub struct Where {
    /// `None`: anywhere.
    pub cores: Option<Vec<usize>>,
    /// The core of one of the threads.
    pub pinned: usize,
}

impl Samples {
    /// Adds those of another round.
    pub fn add(&mut self, other: Self) {
        self.process_us.extend(other.process_us);
        self.wake_us.extend(other.wake_us);
        self.pinned_us.extend(other.pinned_us);
    }

    /// Returns those that began in this part of the time.
    pub fn within(mut self, part: &Range<Instant>) -> Self {
        // An `Instant` has no number: both are of now.
        let (now, now_us) = (Instant::now(), now_us());
        let us = |time: Duration| time.as_micros() as u64;
        let at = |time: Instant| {
            let later = now_us.saturating_add(us(time.saturating_duration_since(now)));
            later.saturating_sub(us(now.saturating_duration_since(time)))
        };
        let part = at(part.start)..at(part.end);
        for samples in [&mut self.process_us, &mut self.wake_us, &mut self.pinned_us] {
            samples.retain(|(began, _)| part.contains(began));
        }
        self
    }

    /// Median time from the start of a process to its end, in milliseconds.
    pub fn process_ms(&self) -> f64 {
        quantile(&self.process_us, 0.5) as f64 / 1e3
    }

    /// 99th percentile of the delay of the thread's wakes, in milliseconds.
    pub fn shell_p99_ms(&self) -> f64 {
        quantile(&self.wake_us, 0.99) as f64 / 1e3
    }

    /// The same of the thread that is bound to a core.
    pub fn pinned_p99_ms(&self) -> f64 {
        quantile(&self.pinned_us, 0.99) as f64 / 1e3
    }

    fn is_empty(&self) -> bool {
        self.process_us.is_empty() && self.wake_us.is_empty() && self.pinned_us.is_empty()
    }

    /// Prints them in lines that a testbed reads, the last of them empty samples.
    fn print(&self) -> anyhow::Result<()> {
        let processes = self.process_us.chunks(SAMPLES_PER_LINE);
        let processes = processes.map(|chunk| Self { process_us: chunk.to_vec(), ..Self::default() });
        let wakes = self.wake_us.chunks(SAMPLES_PER_LINE);
        let wakes = wakes.map(|chunk| Self { wake_us: chunk.to_vec(), ..Self::default() });
        let pinned = self.pinned_us.chunks(SAMPLES_PER_LINE);
        let pinned = pinned.map(|chunk| Self { pinned_us: chunk.to_vec(), ..Self::default() });
        for line in processes.chain(wakes).chain(pinned).chain([Self::default()]) {
            writeln!(stdout(), "{}", serde_json::to_string(&line)?)?;
        }
        Ok(())
    }
}

/// The other programs while they run; dropping this ends them.
#[derive(Debug)]
pub struct Others(ChildProcess);

impl Others {
    /// Starts them.
    pub fn start(place: &Where) -> anyhow::Result<Self> {
        let cores = place.cores.iter().flatten();
        let mut arguments = vec!["others".to_owned()];
        arguments.extend([&place.pinned].into_iter().chain(cores).map(usize::to_string));
        let spec = Spec { app: "neighbour", arguments, own_session: true, ..Spec::default() };
        Ok(Self(ChildProcess::start(&spec)?))
    }

    /// Ends them and returns what they got.
    pub fn end(mut self, interrupt: &Interrupt) -> anyhow::Result<Samples> {
        self.0.ask()?;
        let mut samples = Samples::default();
        loop {
            let line = self.0.read_line(interrupt)?;
            let more: Samples =
                serde_json::from_str(&line).with_context(|| format!("the other programs printed: {line}"))?;
            if more.is_empty() {
                return Ok(samples);
            }
            samples.add(more);
        }
    }
}

/// Plays a child's role.
pub fn run_child(args: &ChildArgs) -> anyhow::Result<()> {
    match &args.role {
        Role::Others { pinned, cores } => {
            if !cores.is_empty() {
                // Threads and processes inherit it.
                confine(cores)?;
            }
            others(*pinned)
        }
        Role::Burn { ms } => {
            burn(Duration::from_millis(*ms));
            Ok(())
        }
    }
}

/// Uses this much processor time.
pub(super) fn burn(time: Duration) {
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    while used() < time {
        for _ in 0..1_000 {
            std::hint::spin_loop();
        }
    }
}

/// Confines the calling thread to these cores.
fn confine(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).with_context(|| format!("confine a thread to cores {cores:?}"))
}

fn others(pinned: usize) -> anyhow::Result<()> {
    let stop = AtomicBool::new(false);
    let running = Mutex::new(HashMap::new());
    let (times, delays) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let pinned_delays = Mutex::new(Vec::new());
    scope(|scope| {
        scope.spawn(|| wakes(&stop, &delays));
        scope.spawn(|| {
            // A cpuset may refuse it; then there are no samples.
            if confine(&[pinned]).is_ok() {
                wakes(&stop, &pinned_delays);
            }
        });
        scope.spawn(|| {
            let mut due = Instant::now();
            for number in 0.. {
                // One at least, however late this process was started.
                if number > 0 && stop.load(Ordering::Relaxed) {
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
    let (process_us, wake_us) = (times.into_inner()?, delays.into_inner()?);
    Samples { process_us, wake_us, pinned_us: pinned_delays.into_inner()? }.print()
}

/// Runs a process, which is among the `running` ones until its end; returns when it began
/// and how long it took in microseconds, or ran until it was killed, if it could be started.
fn process(number: u64, running: &Mutex<HashMap<u64, OwnedFd>>) -> Option<(u64, u64)> {
    let (began, started) = (now_us(), Instant::now());
    let mut command = app::command(&[]);
    command.args(["neighbour", "burn", &PROCESS_MS.to_string()]);
    let mut process = command.spawn().ok()?;
    // Not yet waited for, so its number is its own.
    if let Ok(fd) = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
        running.lock().expect("no thread panics").insert(number, fd);
    }
    let ended = process.wait();
    running.lock().expect("no thread panics").remove(&number);
    ended.is_ok().then(|| (began, started.elapsed().as_micros() as u64))
}

/// Records how late a thread is at each tick of the clock, until which it sleeps if there is time.
fn wakes(stop: &AtomicBool, delays: &Mutex<Vec<(u64, u64)>>) {
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due += WAKE_PERIOD;
        sleep(due.saturating_duration_since(Instant::now()));
        let late = Instant::now().saturating_duration_since(due).as_micros() as u64;
        delays.lock().expect("no thread panics").push((now_us().saturating_sub(late), late));
    }
}

/// Returns the clock of all processes in microseconds.
fn now_us() -> u64 {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default().as_micros() as u64
}

/// Returns the value below which this part of the samples lies; 0 without samples.
fn quantile(samples: &[(u64, u64)], part: f64) -> u64 {
    let mut sorted: Vec<u64> = samples.iter().map(|&(_, value)| value).collect();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        assert_eq!(quantile(&[], 0.5), 0);
        assert_eq!(quantile(&[(0, 3), (5, 1), (9, 2)], 0.5), 2);
        assert_eq!(quantile(&[(0, 3), (5, 1), (9, 2)], 0.99), 3);
    }

    #[test]
    fn samples_within_a_part_of_the_time_began_in_it() {
        let (began, began_us) = (Instant::now(), now_us());
        let wakes = [0, 2_000_000, 5_000_000].map(|later| (began_us + later, later));
        let samples = Samples { wake_us: wakes.to_vec(), ..Samples::default() };
        let second = |n| began + Duration::from_secs(n);
        let within = |from, to| samples.clone().within(&(second(from)..second(to))).wake_us;
        assert_eq!(within(1, 3), [wakes[1]]);
        assert_eq!(within(3, 4), []);
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
