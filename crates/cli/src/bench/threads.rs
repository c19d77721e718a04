//! `tailwater bench threads`: what user threads cost, beside OS threads, in one interleaved run.
//!
//! The operations are those of Shenango's table 2, on one core: an uncontended mutex, a yield between two threads, a condition
//! variable passed back and forth, a thread spawned and joined. Each is timed in rounds that alternate between the systems,
//! so that a slow phase of the machine hits both; the median round is reported, and the quartiles as spread.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::table::Table;

/// Compare user threads with OS threads: mutex, yield, condvar, spawn and join
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tailwater bench threads
  tailwater bench threads --rounds 31 --json threads.json")]
pub struct ThreadsArgs {
    /// Rounds of each operation and system
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One operation of one system: runs it `n` times.
type Operation = fn(u64);

/// (operation, repetitions per round for user threads and for OS threads, user threads, OS threads)
const OPERATIONS: [(&str, u64, u64, Operation, Operation); 4] = [
    ("mutex", 400_000, 400_000, user::mutex, os::mutex),
    ("yield", 200_000, 20_000, user::yields, os::yields),
    ("condvar", 100_000, 4_000, user::condvar, os::condvar),
    ("spawn_join", 100_000, 1_000, user::spawn_join, os::spawn_join),
];

#[derive(Debug, Serialize)]
struct Row {
    op: &'static str,
    system: &'static str,
    /// Median nanoseconds per operation.
    ns: f64,
    /// Distance between the quartiles over the median.
    spread: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
}

/// Runs the benchmark on one kthread and prints the table.
pub fn run(args: &ThreadsArgs) -> Result<()> {
    let rounds = args.rounds;
    let report = tailwater::Builder::new().kthreads(1).run(move || measure(rounds))?;
    let mut table = Table::new(["operation", "system", "ns", "spread"]);
    for row in &report.rows {
        table.row([
            row.op.to_owned(),
            row.system.to_owned(),
            format!("{:.1}", row.ns),
            format!("{:.0} %", row.spread * 100.0),
        ]);
    }
    println!("{table}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn measure(rounds: u32) -> Report {
    let mut rows = Vec::new();
    for (op, user_n, os_n, user, os) in OPERATIONS {
        let (mut user_ns, mut os_ns) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            user_ns.push(time(user_n, user));
            // OS threads are measured on OS threads, all on one core, while this kthread has nothing else to run.
            let measured = std::thread::spawn(move || {
                let core = crate::machine::usable_cores().pop().unwrap_or(0);
                // Without the right to pin, the threads use more than one core, which favours them.
                let _ = rustix::thread::sched_setaffinity(None, &crate::machine::cpu_set(&[core]));
                time(os_n, os)
            });
            os_ns.push(measured.join().expect("the operations do not panic"));
        }
        rows.push(summarise(op, "tailwater", user_ns));
        rows.push(summarise(op, "std", os_ns));
    }
    Report { rows }
}

fn time(n: u64, operation: Operation) -> f64 {
    let start = Instant::now();
    operation(n);
    start.elapsed().as_nanos() as f64 / n as f64
}

fn summarise(op: &'static str, system: &'static str, mut ns: Vec<f64>) -> Row {
    ns.sort_by(f64::total_cmp);
    let quantile = |q: usize| ns[(ns.len() - 1) * q / 4];
    Row { op, system, ns: quantile(2), spread: (quantile(3) - quantile(1)) / quantile(2) }
}

/// The four operations over one threading library; both have the interface of `std`.
macro_rules! operations {
    ($name:ident, $thread:path, $sync:path) => {
        mod $name {
            use super::{Arc, black_box};
            use $sync::{Condvar, Mutex};
            use $thread as thread;

            pub fn mutex(n: u64) {
                let counter = Mutex::new(0u64);
                for _ in 0..n {
                    *black_box(&counter).lock().expect("nobody panics") += 1;
                }
            }

            pub fn yields(n: u64) {
                let threads = [(); 2].map(|()| {
                    thread::spawn(move || {
                        for _ in 0..n / 2 {
                            thread::yield_now();
                        }
                    })
                });
                threads.into_iter().for_each(|t| t.join().expect("nobody panics"));
            }

            pub fn condvar(n: u64) {
                let table = Arc::new((Mutex::new(0u64), Condvar::new()));
                let threads = [0, 1].map(|me| {
                    let table = Arc::clone(&table);
                    thread::spawn(move || {
                        for _ in 0..n / 2 {
                            let mut turn = table.0.lock().expect("nobody panics");
                            while *turn % 2 != me {
                                turn = table.1.wait(turn).expect("nobody panics");
                            }
                            *turn += 1;
                            table.1.notify_one();
                        }
                    })
                });
                threads.into_iter().for_each(|t| t.join().expect("nobody panics"));
            }

            pub fn spawn_join(n: u64) {
                for i in 0..n {
                    black_box(thread::spawn(move || black_box(i)).join().expect("nobody panics"));
                }
            }
        }
    };
}

operations!(user, tailwater::thread, tailwater::sync);
operations!(os, std::thread, std::sync);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_quartiles_are_those_of_the_sorted_rounds() {
        let row = summarise("mutex", "std", vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert!((row.ns - 3.0).abs() < 1e-9 && (row.spread - 2.0 / 3.0).abs() < 1e-9, "{row:?}");
    }
}
