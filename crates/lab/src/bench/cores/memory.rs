//! The memory of a program: with one kthread, of each further kthread, of each parked user thread.
//!
//! Owns the programs, one with few and one with more kthreads, and the differences. Resident memory
//! and page tables count, the pages that a program shares with the IOKernel included. Programs run
//! beside an IOKernel, whose rings and statistics are a part of what a kthread takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater::thread;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::table::{Table, number};

use super::request::Setup;
use crate::bench::threads::resident_kib;

/// Kthreads of the two programs.
const KTHREADS: [u16; 2] = [1, 9];
/// User threads that are parked at a time.
const THREADS: u32 = 10_000;

/// The figures in KiB.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// A program with one kthread.
    program_kib: f64,
    /// Each further kthread.
    kthread_kib: f64,
    /// Each parked user thread.
    thread_kib: f64,
}

/// What the measured process prints.
#[derive(Debug, Serialize, Deserialize)]
struct Resident {
    begun_kib: f64,
    parked_kib: f64,
}

/// Measures.
pub fn measure(machine: &Machine, interrupt: &Interrupt) -> anyhow::Result<Figures> {
    let resident = |kthreads| {
        let setup = Setup::new(machine)?;
        let _iokernel = setup.start_iokernel(machine)?;
        let words = ["memory".to_owned(), "--count".to_owned(), THREADS.to_string()];
        let line = setup.start_child(words.to_vec(), kthreads)?.read_line(interrupt)?;
        serde_json::from_str(&line).with_context(|| format!("the child printed {line:?}, no figures"))
    };
    let [few, many]: [Resident; 2] = [resident(KTHREADS[0])?, resident(KTHREADS[1])?];
    Ok(figures(&few, &many))
}

fn figures(few: &Resident, many: &Resident) -> Figures {
    let kthreads = f64::from(KTHREADS[1] - KTHREADS[0]);
    Figures {
        program_kib: few.begun_kib,
        kthread_kib: (many.begun_kib - few.begun_kib) / kthreads,
        thread_kib: (few.parked_kib - few.begun_kib) / f64::from(THREADS),
    }
}

/// Prints what is resident when the runtime has begun, and when `count` threads are parked.
pub fn run_child(count: u32) -> anyhow::Result<()> {
    let resident = tailwater::RuntimeBuilder::new().run(move || {
        let begun_kib = tailwater::blocking(resident_kib);
        let (parked, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..count)
            .map(|_| {
                let (parked, ended) = (Arc::clone(&parked), Arc::clone(&ended));
                thread::spawn(move || {
                    // Relaxed: a counter.
                    parked.fetch_add(1, Ordering::Relaxed);
                    while !ended.load(Ordering::Acquire) {
                        thread::park();
                    }
                })
            })
            .collect();
        while parked.load(Ordering::Relaxed) < count {
            thread::yield_now();
        }
        let parked_kib = tailwater::blocking(resident_kib);
        // Release: pairs with the Acquire of those that are woken.
        ended.store(true, Ordering::Release);
        threads.iter().for_each(|thread| thread.thread().unpark());
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        Resident { begun_kib, parked_kib }
    })?;
    println!("{}", serde_json::to_string(&resident)?);
    Ok(())
}

/// Returns the figures as a table.
pub fn describe(figures: &Figures) -> String {
    let Figures { program_kib, kthread_kib, thread_kib } = *figures;
    let mut table = Table::new("resident, KiB | program, one kthread | further kthread | parked thread");
    let cells = [program_kib, kthread_kib, thread_kib].map(number);
    table.row([String::new()].into_iter().chain(cells));
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kthread_and_a_thread_are_differences() {
        let few = Resident { begun_kib: 5_000.0, parked_kib: 105_000.0 };
        let many = Resident { begun_kib: 5_800.0, parked_kib: 0.0 };
        let Figures { program_kib, kthread_kib, thread_kib } = figures(&few, &many);
        assert_eq!((program_kib, kthread_kib, thread_kib), (5_000.0, 100.0, 10.0));
    }
}
