//! A service whose threads, timers and frames move between its kthreads.

use super::{compute, ready, say};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater::net::UdpSocket;
use tailwater::{debug, thread};

/// Rounds of [`compute`] before a visitor sleeps, and after.
const ROUNDS: u64 = 2000;

static DONE: AtomicU64 = AtomicU64::new(0);

/// Sends each datagram on port 7 back, in their order, and runs a thread for each that computes,
/// sleeps and computes. Prints every 50 ms how many of these have ended, and how many threads,
/// timers and frames kthreads have taken from each other.
pub fn run() {
    let socket = UdpSocket::bind("[::]:7").expect("port 7 is free");
    ready();
    thread::spawn(report);
    let mut buffer = [0; 2048];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).expect("receive");
        socket.send_to(&buffer[..len], from).expect("send");
        thread::spawn(visit);
    }
}

fn visit() {
    let work = |seed| {
        (0..ROUNDS).fold(seed, |x, _| {
            tailwater::poll();
            compute(x)
        })
    };
    let x = work(1);
    thread::sleep(Duration::from_millis(1));
    work(x);
    DONE.fetch_add(1, Ordering::Relaxed);
}

fn report() {
    loop {
        thread::sleep(Duration::from_millis(50));
        let (done, counters) = (DONE.load(Ordering::Relaxed), debug::counters());
        let (threads, timers, frames) =
            (counters.stolen_threads, counters.stolen_timers, counters.stolen_frames);
        say(&format!("done {done} threads {threads} timers {timers} frames {frames}"));
    }
}
