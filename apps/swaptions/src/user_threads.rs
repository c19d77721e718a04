//! The job on user threads: one per kthread, on the cores that the IOKernel lends.
//!
//! Owns the threads. [`tailwater::poll`] is their poll point, so that a core is ceded within a
//! fraction of a microsecond of a request.

use std::sync::Arc;

use crate::job::{Job, Tally};

/// Runs `job` on `threads` user threads (`None`: one per kthread) of a new runtime, which the
/// environment configures (`TAILWATER_*`), until the job ends; returns the sum of their results.
///
/// # Errors
/// If the runtime cannot start, with what is missing.
///
/// # Panics
/// If a worker panicked.
pub fn run_user_threads(job: &Arc<Job>, threads: Option<usize>) -> Result<Tally, tailwater::StartError> {
    let job = Arc::clone(job);
    tailwater::RuntimeBuilder::new().run(move || {
        let threads = threads
            .unwrap_or_else(|| tailwater::thread::available_parallelism().map_or(1, usize::from))
            .max(1);
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let job = Arc::clone(&job);
                tailwater::thread::spawn(move || job.work(&mut tailwater::poll))
            })
            .collect();
        let mut tally = Tally::default();
        for worker in workers {
            tally.add(&worker.join().expect("a worker panicked"));
        }
        tally
    })
}
