//! The job on a standalone runtime.

use std::sync::Arc;

use tailwater_swaptions::user_threads::run_user_threads;
use tailwater_swaptions::{Job, Portfolio};

tailwater::allocator!();

#[test]
fn user_threads_compute_what_one_worker_computes() {
    let portfolio = Portfolio::generate(3, 1).unwrap();
    let job = || Job::new(&portfolio, Some(320), 2);
    let tally = run_user_threads(&Arc::new(job()), Some(4)).unwrap();
    assert_eq!(tally, job().work(&mut || {}));
}
