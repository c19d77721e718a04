//! The batch job: independent blocks of trials that any number of workers compute.
//!
//! Owns the assignment of blocks to workers, the progress of the job, and its end. Independent of
//! threads: [`Job::work`] runs on its caller, an OS thread or a user thread, and polls through the
//! caller's closure.
//!
//! Shared fields, all relaxed: no field publishes other data, workers return their sums by value,
//! and the join that collects them orders everything else.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `next_block` | workers, fetch-add | workers |
//! | `trials_done` | workers, once per block | threads that measure the rate |
//! | `stop` | the thread that ends the job | workers, once per block |

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::portfolio::Portfolio;
use crate::price::{BLOCK_TRIALS, Estimate, Pricer, Scratch, Sums, block_prng};

/// A word on two cache lines of its own, since Intel's prefetcher fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// A job in progress. Share it by reference or `Arc` among the workers.
#[derive(Debug)]
pub struct Job {
    pricers: Vec<Pricer>,
    seed: u64,
    /// Blocks of all swaptions together, after which workers return; `u64::MAX` for an endless job.
    blocks: u64,
    next_block: Padded<AtomicU64>,
    trials_done: Padded<AtomicU64>,
    stop: Padded<AtomicBool>,
}

impl Job {
    /// Returns a job that prices every swaption with `trials` paths, rounded up to whole blocks of
    /// [`BLOCK_TRIALS`]; `None` refines all prices until [`Job::stop`]. Builds all tables; the
    /// workers allocate only when they start.
    #[must_use]
    pub fn new(portfolio: &Portfolio, trials: Option<u64>, seed: u64) -> Self {
        let pricers: Vec<Pricer> = portfolio
            .swaptions()
            .iter()
            .map(|s| Pricer::new(s).expect("a portfolio holds usable swaptions"))
            .collect();
        let blocks =
            trials.map_or(u64::MAX, |t| t.div_ceil(BLOCK_TRIALS).saturating_mul(pricers.len() as u64));
        Self {
            pricers,
            seed,
            blocks,
            next_block: Padded::default(),
            trials_done: Padded::default(),
            stop: Padded::default(),
        }
    }

    /// Takes blocks until none are left or the job is stopped; returns what this worker computed.
    /// Calls `poll` after each half microsecond of computing.
    ///
    /// Blocks go round the swaptions, so that all prices gain precision together.
    pub fn work(&self, poll: &mut impl FnMut()) -> Tally {
        let mut scratch = Scratch::new(&self.pricers);
        let mut tally = Tally { sums: vec![Sums::default(); self.pricers.len()] };
        while !self.stop.0.load(Relaxed) {
            let block = self.next_block.0.fetch_add(1, Relaxed);
            if block >= self.blocks {
                break;
            }
            let swaption = (block % self.pricers.len() as u64) as usize;
            let mut prng = block_prng(self.seed, swaption as u64, block / self.pricers.len() as u64);
            let sums = self.pricers[swaption].run(BLOCK_TRIALS, &mut prng, &mut scratch, poll);
            tally.sums[swaption].add(&sums);
            self.trials_done.0.fetch_add(BLOCK_TRIALS, Relaxed);
        }
        tally
    }

    /// Returns the trials finished so far by all workers, in steps of [`BLOCK_TRIALS`]: the exact
    /// amount of work done.
    pub fn trials_done(&self) -> u64 {
        self.trials_done.0.load(Relaxed)
    }

    /// Ends the job: each worker returns after the block it is in.
    pub fn stop(&self) {
        self.stop.0.store(true, Relaxed);
    }

    /// Returns whether [`Job::stop`] was called or every block has been taken.
    pub fn is_ending(&self) -> bool {
        self.stop.0.load(Relaxed) || self.next_block.0.load(Relaxed) >= self.blocks
    }
}

/// Results of one worker, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Per swaption; empty means all zeros.
    sums: Vec<Sums>,
}

impl Tally {
    /// Adds another worker's part of the same job. The result does not depend on the order.
    pub fn add(&mut self, other: &Tally) {
        if self.sums.len() < other.sums.len() {
            self.sums.resize(other.sums.len(), Sums::default());
        }
        for (sum, other) in self.sums.iter_mut().zip(&other.sums) {
            sum.add(other);
        }
    }

    /// Returns the price of each swaption so far.
    #[must_use]
    pub fn estimates(&self) -> Vec<Estimate> {
        self.sums.iter().map(Sums::estimate).collect()
    }

    /// Returns what the job achieved in `seconds`, if pricing one swaption means
    /// `trials_per_swaption` trials.
    #[must_use]
    pub fn report(&self, seconds: f64, trials_per_swaption: u64) -> Report {
        let estimates = self.estimates();
        let trials: u64 = estimates.iter().map(|e| e.trials).sum();
        let trials_per_s = if seconds > 0.0 { trials as f64 / seconds } else { 0.0 };
        Report {
            seconds,
            trials,
            trials_per_s,
            trials_per_swaption,
            swaptions_per_s: trials_per_s / trials_per_swaption.max(1) as f64,
            portfolio_value: estimates.iter().map(|e| e.price).sum(),
            portfolio_std_error: estimates.iter().map(|e| e.std_error.powi(2)).sum::<f64>().sqrt(),
        }
    }
}

/// Results of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Time it ran.
    pub seconds: f64,
    /// Paths simulated.
    pub trials: u64,
    /// Paths per second.
    pub trials_per_s: f64,
    /// Paths that count as one swaption priced.
    pub trials_per_swaption: u64,
    /// Swaptions priced per second.
    pub swaptions_per_s: f64,
    /// Sum of all prices, each on a notional of 1.
    pub portfolio_value: f64,
    /// Its standard error.
    pub portfolio_std_error: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::price_swaption;

    fn portfolio(count: usize) -> Portfolio {
        Portfolio::generate(count, 3).unwrap()
    }

    #[test]
    fn the_split_among_workers_does_not_change_a_bit() {
        let portfolio = portfolio(5);
        let alone = Job::new(&portfolio, Some(200), 9).work(&mut || {});
        let job = Job::new(&portfolio, Some(200), 9);
        let mut together = Tally::default();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3).map(|_| scope.spawn(|| job.work(&mut || {}))).collect();
            for worker in workers {
                together.add(&worker.join().unwrap());
            }
        });
        assert_eq!(together, alone);
        assert_eq!(job.trials_done(), 5 * 208, "200 trials are 13 blocks of 16");
        assert!(job.is_ending());
    }

    #[test]
    fn a_job_of_one_swaption_gives_the_price_of_that_swaption() {
        let portfolio = portfolio(1);
        let estimates = Job::new(&portfolio, Some(320), 4).work(&mut || {}).estimates();
        assert_eq!(estimates, [price_swaption(&portfolio.swaptions()[0], 320, 4, &mut || {}).unwrap()]);
    }

    #[test]
    fn an_endless_job_stops_when_told() {
        let job = Job::new(&portfolio(2), None, 1);
        let mut polls = 0u64;
        let tally = job.work(&mut || {
            polls += 1;
            if polls == 10_000 {
                job.stop();
            }
        });
        let report = tally.report(2.0, 64);
        assert_eq!(report.trials, job.trials_done());
        assert!(report.trials > 0 && report.trials < 10_000);
        assert!((report.swaptions_per_s - report.trials as f64 / 128.0).abs() < 1e-9);
    }
}
