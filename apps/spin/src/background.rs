//! A batch job in the server's own process: swaptions, priced by background threads.
//!
//! Owns the job and its threads, one per kthread. They run wherever no request does. The program
//! requests a core for each kthread: an own core is not lent to other programs while a background
//! thread runs on it. The same job as a program of its own is `tailwater-swaptions`.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use tailwater::cores;
use tailwater::thread::{Builder, ThreadClass, available_parallelism};
use tailwater_swaptions::cli::report_on_input;
use tailwater_swaptions::{Job, Portfolio};

/// Swaptions in the portfolio, and the seed of its prices: as the batch job's own command has them.
const SWAPTIONS: usize = 32;
const SEED: u64 = 1;

/// A job without end, whose threads run.
#[derive(Debug)]
pub struct Background {
    job: Arc<Job>,
    start: Instant,
}

impl Background {
    /// Starts the threads and requests the cores. Call it on a user thread.
    ///
    /// # Errors
    /// If a thread cannot be made.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start() -> anyhow::Result<Self> {
        let portfolio = Portfolio::generate(SWAPTIONS, SEED)?;
        let job = Arc::new(Job::new(&portfolio, None, SEED));
        let kthreads = available_parallelism().map_or(1, usize::from);
        cores::request(kthreads);
        for _ in 0..kthreads {
            let job = Arc::clone(&job);
            let thread = Builder::new().class(ThreadClass::Background);
            let started = thread.spawn(move || job.work(&mut tailwater::poll));
            drop(started.context("cannot make a background thread")?);
        }
        Ok(Self { job, start: Instant::now() })
    }

    /// Returns the trials done so far.
    #[must_use]
    pub fn trials_done(&self) -> u64 {
        self.job.trials_done()
    }

    /// Prints the trials done for each line on standard input, until its end. On an ordinary
    /// thread.
    ///
    /// # Errors
    /// If standard input cannot be read, or nothing can be printed.
    pub fn report(&self) -> anyhow::Result<()> {
        report_on_input(io::stdin().lock(), &self.job, self.start)
    }
}
