//! The measurement: all systems in turn, in rounds.
//!
//! A virtual machine has slow phases of seconds. Each round goes through all operations and, for
//! each, through all systems, so that a slow phase hits all systems. Reported are the median over
//! the rounds, the distance between the quartiles, and the best round, which is that of a quiet
//! machine.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::operation::{Cores, Operation};
use super::protocol::{Answer, order};
use super::system::System;
use crate::bench::median_of_some;
use tailwater_testbed::child::ChildProcess;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::progress::Progress;

/// Maximum number of repetitions in one order.
const MAX_REPETITIONS: u64 = 1 << 20;

/// The amount of measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    /// How long one order should take.
    pub order: Duration,
    /// Number of idle threads at a time.
    pub idle: u64,
    /// Rounds of idle threads, each in a fresh process.
    pub idle_rounds: usize,
}

/// One figure of one system.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub op: String,
    pub system: &'static str,
    /// Median nanoseconds per operation.
    pub ns: f64,
    /// Nanoseconds per operation of the best round.
    pub min_ns: f64,
    /// Distance between the quartiles over the median.
    pub spread: f64,
    /// Median resident KiB per thread, page tables included; only for idle threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kib: Option<f64>,
    #[serde(skip)]
    pub operation: Option<Operation>,
}

/// The process of a system on a number of cores.
struct Seat {
    system: System,
    cores: usize,
    process: ChildProcess,
}

/// An operation on a seat, and its figures so far.
struct Course {
    op: Operation,
    seat: usize,
    /// Repetitions per order.
    n: u64,
    ns: Vec<f64>,
}

/// Returns the numbers of cores to measure on a machine with `usable` cores: 1, 2, 4 and so on.
fn scale(usable: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |k| Some(k * 2)).take_while(move |&k| k <= usable)
}

fn runs_on(op: Operation, cores: usize) -> bool {
    match op.cores() {
        Cores::One => cores == 1,
        Cores::Two => cores == 2,
        Cores::Scale => true,
    }
}

/// Returns the name of a row, with the number of cores where that varies.
fn row_name(op: Operation, cores: usize) -> String {
    match op.cores() {
        Cores::Scale => format!("{}_{cores}", op.name()),
        Cores::One | Cores::Two => op.name().to_owned(),
    }
}

/// Measures operations of `systems` in rounds.
pub fn measure(
    operations: &[Operation],
    systems: &[System],
    effort: Effort,
    machine: &Machine,
    go: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let mut seats = Vec::new();
    for cores in scale(machine.usable_cores.len()) {
        for &system in [System::Machine].iter().chain(systems) {
            let last = &machine.usable_cores[machine.usable_cores.len() - cores..];
            seats.push(Seat { system, cores, process: system.start(last, machine, go)? });
        }
    }
    let mut courses = Vec::new();
    for &op in operations {
        for (index, seat) in seats.iter_mut().enumerate() {
            if seat.system.has(op) && runs_on(op, seat.cores) {
                courses.extend(calibrate(op, index, seat, (effort.order, interrupt))?);
            }
        }
    }
    let progress = Progress::new("threads", (effort.rounds * courses.len()) as u64);
    for _ in 0..effort.rounds {
        for course in &mut courses {
            interrupt.check()?;
            let seat = &mut seats[course.seat];
            course.ns.extend(seat.order(course.op, course.n, interrupt)?.map(|answer| answer.ns));
            progress.advance();
        }
    }
    drop(progress);
    let rows = courses.into_iter().filter_map(|course| {
        let seat = &seats[course.seat];
        let name = row_name(course.op, seat.cores);
        Some(Row { operation: Some(course.op), ..summarise(name, seat.system, course.ns)? })
    });
    Ok(rows.collect())
}

impl Seat {
    fn order(&mut self, op: Operation, n: u64, interrupt: &Interrupt) -> Result<Option<Answer>> {
        order(&mut self.process, op, n, interrupt)
            .with_context(|| format!("{} cannot be measured", self.system.name()))
    }
}

/// Warms the system up and returns the number of repetitions that take as long as an order should;
/// `None` if the system cannot perform the operation.
fn calibrate(
    op: Operation,
    index: usize,
    seat: &mut Seat,
    (order, interrupt): (Duration, &Interrupt),
) -> Result<Option<Course>> {
    let least = op.least();
    let mut n = least;
    loop {
        let start = Instant::now();
        let Some(answer) = seat.order(op, n, interrupt)? else { return Ok(None) };
        // Some systems take milliseconds to wake up for an order; the repetitions have to outweigh
        // that.
        let took = match op.is_sampled() {
            true => start.elapsed(),
            false => Duration::from_nanos((answer.ns * n as f64) as u64),
        };
        if took * 4 >= order || n == MAX_REPETITIONS {
            let wanted = n as f64 * order.as_secs_f64() / took.as_secs_f64().max(1e-9);
            return Ok(Some(Course {
                op,
                seat: index,
                n: (wanted as u64).clamp(least, MAX_REPETITIONS),
                ns: Vec::new(),
            }));
        }
        n = (n * 4).min(MAX_REPETITIONS);
    }
}

/// Measures idle threads in fresh processes: first on new stacks, then again on the same stacks.
pub fn measure_idle(
    systems: &[System],
    effort: Effort,
    machine: &Machine,
    go: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let last = &machine.usable_cores[machine.usable_cores.len().saturating_sub(1)..];
    let mut answers: Vec<[Vec<Answer>; 2]> = systems.iter().map(|_| Default::default()).collect();
    for _ in 0..effort.idle_rounds {
        for (system, waves) in systems.iter().zip(&mut answers) {
            let mut process = system.start(last, machine, go)?;
            for wave in waves {
                interrupt.check()?;
                let count = effort.idle.min(system.max_idle());
                let answer = order(&mut process, Operation::Idle, count, interrupt)
                    .with_context(|| format!("{} cannot be measured", system.name()))?;
                wave.extend(answer);
            }
        }
    }
    let mut rows = Vec::new();
    for (wave, name) in ["idle_fresh", "idle_recycled"].into_iter().enumerate() {
        for (&system, waves) in systems.iter().zip(&answers) {
            let ns = waves[wave].iter().map(|answer| answer.ns).collect();
            let kib = median_of_some(waves[wave].iter().map(|answer| answer.kib));
            rows.extend(summarise(name.to_owned(), system, ns).map(|row| Row { kib, ..row }));
        }
    }
    Ok(rows)
}

/// Returns the row of one operation of one system; `None` without a round.
fn summarise(op: String, system: System, mut ns: Vec<f64>) -> Option<Row> {
    ns.sort_by(f64::total_cmp);
    let quantile = |q: usize| ns[(ns.len() - 1) * q / 4];
    let &min_ns = ns.first()?;
    let median = quantile(2);
    let spread = (quantile(3) - quantile(1)) / median.max(f64::MIN_POSITIVE);
    Some(Row { op, system: system.name(), ns: median, min_ns, spread, kib: None, operation: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_the_quartiles_and_the_best_are_those_of_the_sorted_rounds() {
        let row = summarise("mutex".to_owned(), System::Std, vec![5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((row.ns, row.min_ns), (3.0, 1.0));
        assert!((row.spread - 2.0 / 3.0).abs() < 1e-9, "{row:?}");
        assert!(summarise("mutex".to_owned(), System::Std, Vec::new()).is_none());
    }

    #[test]
    fn cores_double_up_to_what_the_machine_has() {
        assert_eq!(scale(6).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(scale(1).collect::<Vec<_>>(), [1]);
        assert_eq!(row_name(Operation::Throughput, 4), "throughput_4");
        assert_eq!(row_name(Operation::CreateRemote, 2), "create_remote");
    }

    #[test]
    fn what_crosses_cores_runs_on_two_and_nowhere_else() {
        assert_eq!([1, 2, 4].map(|k| runs_on(Operation::NotifyRemote, k)), [false, true, false]);
        assert_eq!([1, 2, 4].map(|k| runs_on(Operation::Mutex, k)), [true, false, false]);
        assert_eq!([1, 2, 4].map(|k| runs_on(Operation::Throughput, k)), [true; 3]);
    }
}
