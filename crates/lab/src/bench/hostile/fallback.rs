//! The IOKernel is killed and none takes its place for a while: how soon its programs go on by
//! themselves, and how fast.
//!
//! Owns the order of the processes and the figures. The programs are a latency-critical one that
//! sleeps a millisecond at a time, and so needs a core again and again, and a batch job. Each
//! measures the longest time between two rounds of its own. A window without an event precedes each
//! event and shows what the machine alone does.

use std::io::{BufRead, Write, stdin, stdout};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_shm::Clock;
use tailwater_shm::clock;
use tailwater_testbed::bed::START_TIMEOUT;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::core_list;
use tailwater_testbed::table::{Table, number};

use super::restart::{expect_ready, settings, start_iokernel};
use crate::bench::median;

// Outside the addresses that the IOKernel chooses.
const SLEEPER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 203);
const BATCH_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 204);
/// Length of each window.
const WINDOW: Duration = Duration::from_millis(500);
/// Sleep of the program that sleeps.
const NAP: Duration = Duration::from_millis(1);
/// Time between two looks whether the programs are attached again.
const LOOK: Duration = Duration::from_millis(5);
/// Bars: the median of the longest pauses beyond the sleep, and the least speed of the batch job
/// without an IOKernel, as a part of that before.
const PAUSE_P50_MS: f64 = 10.0;
const LEAST_SPEED: f64 = 0.9;

/// What the programs noticed of all events.
#[derive(Debug, Serialize)]
pub(super) struct Fallback {
    times: usize,
    sleeper: Pauses,
    batch: Pauses,
    /// Rounds per second of the batch job after the event, as a part of those before: the median.
    batch_speed: f64,
}

/// The longest time without a round in each window, in milliseconds.
#[derive(Debug, Serialize)]
struct Pauses {
    p50_ms: f64,
    max_ms: f64,
    undisturbed_p50_ms: f64,
    undisturbed_max_ms: f64,
}

/// One program's window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Window {
    longest_ns: u64,
    rounds: u64,
    ns: u64,
}

impl Window {
    /// Takes in the window after it. A time without a round that spans both is in the later one's.
    fn extend(&mut self, later: Self) {
        self.longest_ns = self.longest_ns.max(later.longest_ns);
        self.rounds += later.rounds;
        self.ns += later.ns;
    }

    fn rounds_per_second(&self) -> f64 {
        self.rounds as f64 * 1e9 / self.ns.max(1) as f64
    }
}

impl Pauses {
    fn of(windows: &[Window], undisturbed: &[Window]) -> Self {
        let sorted_ms = |windows: &[Window]| {
            let mut all: Vec<u64> = windows.iter().map(|window| window.longest_ns).collect();
            all.sort_unstable();
            let ms = |ns: Option<&u64>| ns.map_or(0.0, |&ns| ns as f64 / 1e6);
            (ms(all.get(all.len() / 2)), ms(all.last()))
        };
        let (p50_ms, max_ms) = sorted_ms(windows);
        let (undisturbed_p50_ms, undisturbed_max_ms) = sorted_ms(undisturbed);
        Self { p50_ms, max_ms, undisturbed_p50_ms, undisturbed_max_ms }
    }
}

/// Kills the IOKernel so many times under two programs.
pub(super) fn measure(times: u16, cores: &CorePlan, interrupt: &Interrupt) -> anyhow::Result<Fallback> {
    let mut bed = Bed::start(cores, interrupt)?;
    let (mut quiet, mut events) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..times {
        bed.window(interrupt)?;
        sleep(WINDOW, interrupt)?;
        let windows = bed.window(interrupt)?;
        bed.iokernel.kill();
        quiet.iter_mut().zip(windows).for_each(|(all, window)| all.push(window));
        sleep(WINDOW, interrupt)?;
        events.iter_mut().zip(bed.window(interrupt)?).for_each(|(all, window)| all.push(window));
        bed.restart(interrupt)?;
    }
    let speed = |(before, after): (&Window, &Window)| after.rounds_per_second() / before.rounds_per_second();
    Ok(Fallback {
        times: times.into(),
        sleeper: Pauses::of(&events[0], &quiet[0]),
        batch: Pauses::of(&events[1], &quiet[1]),
        batch_speed: median(quiet[1].iter().zip(&events[1]).map(speed)),
    })
}

fn sleep(time: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
    Ok(interrupt.sleep_until(Instant::now() + time)?)
}

/// The processes.
struct Bed {
    cores: [String; 2],
    socket: String,
    iokernel: ChildProcess,
    /// The one that sleeps, and the batch job.
    programs: [ChildProcess; 2],
}

impl Bed {
    fn start(cores: &CorePlan, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let cores = [cores.polling.to_string(), core_list(&cores.managed)];
        let socket = format!("@tailwater-fallback-{}", std::process::id());
        let mut iokernel = start_iokernel(&socket, &cores, false)?;
        expect_ready(&mut iokernel, interrupt)?;
        let start = |name, ip, nap: Duration, class: &str| {
            let mut settings = settings(&socket, name, ip);
            settings.retain(|(name, _)| *name != "TAILWATER_CLASS");
            settings.push(("TAILWATER_CLASS", class.to_owned()));
            let arguments = vec!["rounds".to_owned(), nap.as_micros().to_string()];
            ChildProcess::start(&Spec { app: "hostile", arguments, settings, ..Spec::default() })
        };
        let mut programs = [
            start("sleeper", SLEEPER_IP, NAP, "latency-critical")?,
            start("batch", BATCH_IP, Duration::ZERO, "best-effort")?,
        ];
        for program in &mut programs {
            expect_ready(program, interrupt)?;
        }
        Ok(Self { cores, socket, iokernel, programs })
    }

    /// Ends the present windows of the programs and begins the next ones. They last until each
    /// program has done a round: longer on a machine that stands still.
    ///
    /// # Errors
    /// If a program does none for [`START_TIMEOUT`], or ends; on a signal.
    fn window(&mut self, interrupt: &Interrupt) -> anyhow::Result<[Window; 2]> {
        let mut windows = self.look(interrupt)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while windows.iter().any(|window| window.rounds == 0) {
            anyhow::ensure!(Instant::now() < deadline, "a program does not go on: {windows:?}");
            sleep(LOOK, interrupt)?;
            let later = self.look(interrupt)?;
            windows.iter_mut().zip(later).for_each(|(window, later)| window.extend(later));
        }
        Ok(windows)
    }

    fn look(&mut self, interrupt: &Interrupt) -> anyhow::Result<[Window; 2]> {
        for program in &mut self.programs {
            program.ask()?;
        }
        let mut read = |at: usize| {
            let line = self.programs[at].read_line(interrupt)?;
            serde_json::from_str(&line).with_context(|| format!("a program printed {line:?}, no window"))
        };
        Ok([read(0)?, read(1)?])
    }

    /// Starts the next IOKernel and waits until both programs are attached to it.
    fn restart(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.iokernel = start_iokernel(&self.socket, &self.cores, false)?;
        expect_ready(&mut self.iokernel, interrupt)?;
        let deadline = Instant::now() + START_TIMEOUT;
        let attached = || {
            let document = tailwater_iokernel_testing::stats(&self.socket).ok()?;
            Some(document["runtimes"].as_array()?.len())
        };
        while attached() != Some(self.programs.len()) {
            anyhow::ensure!(Instant::now() < deadline, "the programs do not attach to the next IOKernel");
            sleep(LOOK, interrupt)?;
        }
        Ok(())
    }
}

static LONGEST: AtomicU64 = AtomicU64::new(0);
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Runs rounds of this sleep, or without one, for ever. For each line of input it prints the
/// [`Window`] that ends then. The end of input ends it.
pub(super) fn run_rounds(nap: Duration, clock: Clock) -> anyhow::Result<()> {
    // An OS thread: it needs no kthread, of which there is one.
    std::thread::spawn(move || {
        // Fails when the measuring process has ended, which also ends the input.
        let _ = report(clock);
        std::process::exit(0);
    });
    let mut last = clock::now();
    loop {
        if nap.is_zero() {
            tailwater::poll();
        } else {
            tailwater::thread::sleep(nap);
        }
        let now = clock::now();
        // Relaxed: statistics; a round at the border of two windows counts in either.
        LONGEST.fetch_max(now.saturating_sub(last), Ordering::Relaxed);
        ROUNDS.fetch_add(1, Ordering::Relaxed);
        last = now;
    }
}

fn report(clock: Clock) -> anyhow::Result<()> {
    let mut out = stdout();
    writeln!(out, "ready").and_then(|()| out.flush())?;
    let mut began = clock::now();
    for line in stdin().lock().lines() {
        line?;
        let now = clock::now();
        let longest_ns = clock.to_ns(LONGEST.swap(0, Ordering::Relaxed));
        let rounds = ROUNDS.swap(0, Ordering::Relaxed);
        let window = Window { longest_ns, rounds, ns: clock.to_ns(now - began) };
        began = now;
        writeln!(out, "{}", serde_json::to_string(&window)?).and_then(|()| out.flush())?;
    }
    Ok(())
}

impl Fallback {
    /// Returns whether the programs noticed no more than they may.
    fn is_harmless(&self) -> bool {
        let nap_ms = NAP.as_secs_f64() * 1e3;
        self.sleeper.p50_ms - nap_ms <= PAUSE_P50_MS
            && self.batch.p50_ms <= PAUSE_P50_MS
            && self.batch_speed >= LEAST_SPEED
    }
}

/// Returns a table of the programs.
pub(super) fn describe(fallback: &Fallback) -> String {
    let mut table = Table::new(
        "IOKernel killed, none for 500 ms | times | longest pause p50, ms | max | \
         undisturbed p50 | max",
    );
    for (name, pauses) in [("sleeps 1 ms at a time", &fallback.sleeper), ("batch job", &fallback.batch)] {
        let lengths =
            [pauses.p50_ms, pauses.max_ms, pauses.undisturbed_p50_ms, pauses.undisturbed_max_ms].map(number);
        table.row([name.to_owned(), fallback.times.to_string()].into_iter().chain(lengths));
    }
    format!(
        "{table}\nThe batch job goes on at {:.2} times its speed. Harmless: the median pause at most {PAUSE_P50_MS} ms \
         beyond the sleep,\nand at least {LEAST_SPEED} times the speed: {}.\n",
        fallback.batch_speed,
        if fallback.is_harmless() { "yes" } else { "no" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_the_median_of_the_longest_ones_and_a_slow_job_is_noticed() {
        let window = |ms: u64| Window { longest_ns: ms * 1_000_000, rounds: 10, ns: 1_000_000_000 };
        let of = |pauses: &[u64]| {
            Pauses::of(&pauses.iter().map(|&ms| window(ms)).collect::<Vec<_>>(), &[window(2)])
        };
        let fallback = |pauses: &[u64], batch_speed| Fallback {
            times: pauses.len(),
            sleeper: of(pauses),
            batch: of(&[1]),
            batch_speed,
        };
        assert_eq!(of(&[9, 11, 300]).p50_ms, 11.0);
        assert!(fallback(&[9, 11, 300], 0.9).is_harmless());
        assert!(!fallback(&[9, 12, 300], 1.0).is_harmless());
        assert!(!fallback(&[9, 11, 300], 0.33).is_harmless());
        assert_eq!(window(1).rounds_per_second(), 10.0);
    }
}
