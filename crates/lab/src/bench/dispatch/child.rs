//! The measured process: one kthread on a lent core, which prints its figures as one line of JSON.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use tailwater::dispatch::{Dispatcher, Policy, Request, Requeue, Settings};
use tailwater::sync::mpsc;
use tailwater_shm::{Clock, clock};

use super::programs::{COPIES, Input, Program, Run};
use crate::bench::median;

/// Shortest time of one timed run of all copies.
const RUN: Duration = Duration::from_millis(12);

/// Measure one part of `bench dispatch`
#[derive(Debug, Args)]
pub struct ChildArgs {
    part: Part,
    /// Frequency of the time-stamp counter
    tsc_hz: u64,
    /// Pairs of runs of each program, or thousands of turns
    count: u32,
    /// The quantum that is set, in nanoseconds
    quantum_ns: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    Programs,
    Turns,
    /// Turns of two requests of a dispatcher instead of two threads.
    Requests,
}

/// Measures and prints.
pub fn run(args: &ChildArgs) -> anyhow::Result<()> {
    let (part, clock, count, quantum_ns) =
        (args.part, Clock::from_hz(args.tsc_hz), args.count, args.quantum_ns);
    let figures = tailwater::RuntimeBuilder::new().run(move || match part {
        Part::Programs => programs(count),
        Part::Turns => {
            let turns = Turns::of(1_000 * u64::from(count));
            let threads = [1, 2].map(|me| tailwater::thread::spawn(move || turns.take(me)));
            let noted = threads.map(|thread| thread.join().expect("it does not panic"));
            describe(&noted, clock, quantum_ns)
        }
        Part::Requests => {
            let noted = requests(Turns::of(1_000 * u64::from(count)), quantum_ns);
            describe(&noted, clock, quantum_ns)
        }
    })?;
    println!("{figures}");
    Ok(())
}

/// Returns by how much longer each program takes with poll points, in percent: the median over
/// pairs of runs, of all copies each.
fn programs(pairs: u32) -> serde_json::Value {
    let input = Input::new();
    let percent = |program: &Program| {
        let repeats = repeats(program.copies[0].0, &input);
        let ratios = (0..pairs.max(1)).map(|pair| ratio(program, &input, repeats, pair));
        100.0 * (median(ratios) - 1.0)
    };
    super::programs::programs()
        .iter()
        .map(|program| (program.name.to_owned(), serde_json::Value::from(percent(program))))
        .collect()
}

/// Returns how long the copies with poll points take, all together, for one of the time of those
/// without.
fn ratio(program: &Program, input: &Input, repeats: u32, pair: u32) -> f64 {
    let (mut all_plain, mut all_polled) = (0.0, 0.0);
    for (plain, polled) in program.copies {
        // Each is first every other time.
        let polled_first = pair.is_multiple_of(2).then(|| time(polled, input, repeats));
        all_plain += time(plain, input, repeats);
        all_polled += polled_first.unwrap_or_else(|| time(polled, input, repeats));
    }
    all_polled / all_plain
}

/// Returns the number of calls that take [`RUN`] in all copies.
fn repeats(program: Run, input: &Input) -> u32 {
    let mut repeats = 1;
    while time(program, input, repeats) * (COPIES as f64) < RUN.as_secs_f64() {
        repeats *= 2;
    }
    repeats
}

fn time(program: Run, input: &Input, repeats: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..repeats {
        black_box(program(black_box(input)));
    }
    start.elapsed().as_secs_f64()
}

/// What two threads or requests that take turns on one kthread note.
#[derive(Default)]
struct Turns {
    owner: AtomicU64,
    began: AtomicU64,
    /// When the one that runs was last seen running.
    seen: AtomicU64,
    ended: AtomicBool,
    count: u64,
}

/// How long a turn lasted before the next one, and the time between the last sign of one and the
/// first of the other.
type Noted = (u64, u64);

impl Turns {
    /// Returns those of a process that measures once.
    fn of(count: u64) -> &'static Self {
        Box::leak(Box::new(Self { count, ..Self::default() }))
    }

    /// Computes until there have been enough turns; returns what it noted at the start of each.
    fn take(&self, me: u64) -> Vec<Noted> {
        let mut noted = Vec::with_capacity(self.count as usize);
        while !self.ended.load(Relaxed) {
            tailwater::poll();
            let now = clock::now();
            if self.owner.swap(me, Relaxed) != me {
                let (began, seen) = (self.began.load(Relaxed), self.seen.load(Relaxed));
                noted.push((now.saturating_sub(began), now.saturating_sub(seen)));
                self.began.store(now, Relaxed);
                if noted.len() as u64 == self.count {
                    self.ended.store(true, Relaxed);
                }
            }
            self.seen.store(now, Relaxed);
        }
        noted
    }
}

/// Lets two requests of a preemptive dispatcher take turns; returns what they noted.
fn requests(turns: &'static Turns, quantum_ns: u64) -> [Vec<Noted>; 2] {
    let policy = Policy::single_queue(Duration::from_nanos(quantum_ns), Requeue::Tail);
    let (sender, noted) = mpsc::channel();
    let handle = move |me| drop(sender.send(turns.take(me)));
    let dispatcher = Dispatcher::start(Settings::new(policy), |_| (), handle).expect("it starts");
    for me in [1, 2] {
        dispatcher.submit(Request::new(0), me).expect("the queue has room");
    }
    [(); 2].map(|()| noted.recv().expect("both end"))
}

/// Returns percentiles of how long after the end of the quantum the next one runs, and of the time
/// between the last sign of one and the first of the next.
fn describe(noted: &[Vec<Noted>; 2], clock: Clock, quantum_ns: u64) -> serde_json::Value {
    let noted: Vec<&Noted> = noted.iter().flat_map(|own| own.iter().skip(1)).collect();
    let sorted = |of: fn(&Noted) -> u64| {
        let mut all: Vec<u64> = noted.iter().map(|turn| clock.to_ns(of(turn))).collect();
        all.sort_unstable();
        all
    };
    let (lengths, gaps) = (sorted(|turn| turn.0), sorted(|turn| turn.1));
    let at = |all: &[u64], percent: usize| all.get(all.len() * percent / 100).copied().unwrap_or(0) as f64;
    let beyond_us = |percent| (at(&lengths, percent) - quantum_ns as f64) / 1e3;
    json!({ "p50": beyond_us(50), "p99": beyond_us(99), "switch_ns": at(&gaps, 50), "turns": noted.len() })
}
