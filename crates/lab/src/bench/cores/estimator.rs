//! How soon the estimate of cores follows a step of load, and what its measurement costs.
//!
//! Owns the steps and the figures. A program with two kthreads and one core has the default
//! estimate. Three threads that compute are two cores too few from their first moment: the estimate
//! requests a second core at the first decision whose interval has enough of them, and one again
//! when they have ended. An ordinary thread looks at what is requested.
//!
//! The cost is that of one switch between two threads that yield to each other, with and without a
//! meter, in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater::cores::{self, Estimation, LoadMeter};
use tailwater::thread;
use tailwater_testbed::bed::START_TIMEOUT;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

use super::request::Setup;
use crate::bench::median;

/// Steps up, and down, of a round.
const STEPS: u32 = 10;
/// Kthreads of the program: as many cores can be requested.
const KTHREADS: u16 = 2;
/// Threads that compute after a step up.
const THREADS: usize = 3;
/// Time between two looks at what is requested.
const LOOK: Duration = Duration::from_millis(1);
/// Steps come at all phases of the interval of 50 ms between decisions: a tenth of it, times this
/// number and the step's own, modulo ten.
const PHASE: Duration = Duration::from_millis(5);
const STRIDE: u32 = 7;
/// Switches that are timed together, and how often.
const SWITCHES: u32 = 20_000;
const REPETITIONS: usize = 15;

/// The figures.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// From a step up until a second core is requested, at the median.
    raise_ms: f64,
    /// From a step down until one core is requested, at the median.
    lower_ms: f64,
    /// What a meter adds to a switch between two threads, at the median.
    switch_more_ns: f64,
    /// Steps in each direction.
    count: usize,
}

/// What the measured process prints.
#[derive(Debug, Serialize, Deserialize)]
struct Samples {
    raise_ms: Vec<f64>,
    lower_ms: Vec<f64>,
    switch_more_ns: f64,
}

/// Measures so many rounds.
pub fn measure(machine: &Machine, interrupt: &Interrupt, rounds: u16) -> anyhow::Result<Figures> {
    let (mut raises, mut lowers, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in progress::over("estimates of cores", 0..rounds) {
        let setup = Setup::new(machine)?;
        let _iokernel = setup.start_iokernel(machine)?;
        let words = ["steps".to_owned(), "--count".to_owned(), STEPS.to_string()];
        let line = setup.start_child(words.to_vec(), KTHREADS)?.read_line(interrupt)?;
        let samples: Samples =
            serde_json::from_str(&line).with_context(|| format!("the child printed {line:?}, no figures"))?;
        raises.extend(samples.raise_ms);
        lowers.extend(samples.lower_ms);
        costs.push(samples.switch_more_ns);
    }
    let count = raises.len();
    let [raise_ms, lower_ms, switch_more_ns] = [raises, lowers, costs].map(median);
    Ok(Figures { raise_ms, lower_ms, switch_more_ns, count })
}

/// Prints how the estimate follows `count` steps in each direction, and what a meter costs.
///
/// # Errors
/// If the runtime does not start, or the IOKernel grants no requests.
pub fn run_child(count: u32) -> anyhow::Result<()> {
    let samples = tailwater::RuntimeBuilder::new().run(move || {
        let switch_more_ns = switch_more_ns();
        cores::estimate(Estimation::default())?;
        let (mut raise_ms, mut lower_ms) = (Vec::new(), Vec::new());
        await_requested(1)?;
        for step in 0..count {
            // The decision that is waited for before a step is just over.
            let wait = || thread::sleep(PHASE * (STRIDE * step % 10));
            wait();
            let ended = Arc::new(AtomicBool::new(false));
            let compute = || {
                let ended = Arc::clone(&ended);
                thread::spawn(move || {
                    // Relaxed: the end of the threads orders everything else.
                    while !ended.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                })
            };
            let threads: Vec<_> = (0..THREADS).map(|_| compute()).collect();
            raise_ms.push(await_requested(KTHREADS.into())?);
            wait();
            ended.store(true, Ordering::Relaxed);
            lower_ms.push(await_requested(1)?);
            threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        }
        cores::clear_policy();
        anyhow::Ok(Samples { raise_ms, lower_ms, switch_more_ns })
    })??;
    println!("{}", serde_json::to_string(&samples)?);
    Ok(())
}

/// Waits, on an ordinary thread, until so many cores are requested; returns after how many
/// milliseconds.
fn await_requested(cores: usize) -> anyhow::Result<f64> {
    let wait = move || {
        let begin = Instant::now();
        while cores::requested().total() != cores {
            let waited = begin.elapsed();
            anyhow::ensure!(waited < START_TIMEOUT, "the estimate does not request {cores} core(s)");
            std::thread::sleep(LOOK);
        }
        Ok(1e3 * begin.elapsed().as_secs_f64())
    };
    tailwater::blocking(wait)
}

/// Returns what a meter adds to a switch, at the median.
fn switch_more_ns() -> f64 {
    let differences = (0..REPETITIONS).map(|_| {
        let without = switch_ns();
        let meter = LoadMeter::new();
        let with = switch_ns();
        drop(meter);
        with - without
    });
    median(differences)
}

/// Returns the time of one switch between two threads that yield to each other.
fn switch_ns() -> f64 {
    let begin = Instant::now();
    let yields = || thread::spawn(|| (0..SWITCHES / 2).for_each(|_| thread::yield_now()));
    [yields(), yields()].into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    begin.elapsed().as_nanos() as f64 / f64::from(SWITCHES)
}

/// Returns the figures as a table.
pub fn describe(figures: &Figures) -> String {
    let Figures { raise_ms, lower_ms, switch_more_ns, count } = *figures;
    let mut table = Table::new(
        "estimate | a second core requested after, ms | one again after, ms | \
         a switch costs more, ns",
    );
    let cells = [raise_ms, lower_ms, switch_more_ns].map(number);
    table.row([format!("{count} steps")].into_iter().chain(cells));
    format!("{table}\n")
}
