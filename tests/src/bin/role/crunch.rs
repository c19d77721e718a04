//! Many user threads that compute, on as many kthreads as the program has.

use super::{compute, ready, say};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater::cores::{self, Priorities};
use tailwater::net::UdpSocket;
use tailwater::thread;

/// Computes in this many threads for ever; prints how many rounds the slowest of them has made, and
/// the cores of the program, every 50 ms. Requests cores before, if a number of them and a priority
/// are given.
pub fn run(threads: usize, request: Option<(usize, usize)>) {
    let _socket = UdpSocket::bind((super::own_ip(), 7)).expect("port 7 is free");
    let rounds: &'static [AtomicU64] = (0..threads).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    if let Some((cores, priority)) = request {
        cores::request(Priorities::default().with(priority, cores));
    }
    for rounds in rounds {
        drop(thread::spawn(|| count(rounds)));
    }
    ready();
    loop {
        thread::sleep(Duration::from_millis(50));
        let least = rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).min();
        say(&format!("rounds {} held {:?}", least.expect("there are threads"), cores::held()));
    }
}

/// Counts rounds for ever.
fn count(rounds: &AtomicU64) {
    let mut x = 1;
    loop {
        x = compute(x);
        rounds.fetch_add(1, Ordering::Relaxed);
        tailwater::poll();
    }
}
