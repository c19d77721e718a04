//! The measured process of [`super`]: a program that requests a core and has it run a user thread.
//!
//! Owns the rounds in the child and the line that it prints for each. The request comes from an
//! ordinary thread of the program, off the managed cores: with one managed core no kthread of the
//! program can run before the request is granted. Each round is a rest, in which the program gives
//! its core up; then the request; then the user thread is made runnable. Between rounds nothing is
//! requested. A thread that does not run for [`PATIENCE`] ends the child with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater::cores;
use tailwater::thread::{self, Thread};
use tailwater_shm::clock;
use tailwater_testbed::bed::START_TIMEOUT;

use super::{Sample, WARM_UP};

/// Time between two looks at whether the user thread has run, at most.
const LOOK: Duration = Duration::from_millis(1);
/// Shortest sleep: shorter times are waited for by yielding, because Linux adds up to 50 us.
const SHORTEST_SLEEP: Duration = Duration::from_micros(500);
pub const PATIENCE: Duration = START_TIMEOUT;

/// What both threads see.
#[derive(Default)]
struct Shared {
    /// When the user thread ran; 0: not since the request. Written by the user thread, whose
    /// Release pairs with the Acquire of the ordinary thread.
    ran: AtomicU64,
    /// Whether the user thread is to end. Written by the ordinary thread; a Release and Acquire
    /// pair.
    ended: AtomicBool,
}

/// Measures `count` rounds and prints each, with this rest before each; without `requests` the user
/// thread is only made runnable.
///
/// # Errors
/// If the runtime does not start, or the user thread does not run.
pub fn run(count: u32, rest: Duration, requests: bool) -> anyhow::Result<()> {
    let shared = Arc::new(Shared::default());
    let (sender, receiver) = channel();
    let requester = {
        let shared = Arc::clone(&shared);
        let body = move || measure((count, rest), requests, &receiver, &shared);
        std::thread::Builder::new().name("requester".to_owned()).spawn(body)?
    };
    tailwater::RuntimeBuilder::new().run(move || {
        // The receiver is gone only if the requester has ended.
        let _ = sender.send(thread::current());
        while !shared.ended.load(Ordering::Acquire) {
            thread::park();
            shared.ran.store(clock::now(), Ordering::Release);
        }
    })?;
    let samples = requester.join().expect("it does not panic")?;
    for sample in samples {
        println!("{}", serde_json::to_string(&sample)?);
    }
    Ok(())
}

/// Runs the rounds, on an ordinary thread; ends the user thread also after an error.
fn measure(
    (count, rest): (u32, Duration),
    requests: bool,
    user: &Receiver<Thread>,
    shared: &Shared,
) -> anyhow::Result<Vec<Sample>> {
    let user = user.recv().context("the runtime did not start")?;
    let request = |number: usize| requests.then(|| cores::request(number));
    let rounds = (0..WARM_UP + count).map(|_| {
        pause(rest);
        shared.ran.store(0, Ordering::Release);
        let requested = clock::now();
        request(1);
        user.unpark();
        let runnable = clock::now();
        let ran = await_run(&shared.ran, rest.min(LOOK))?;
        request(0);
        Ok(Sample { requested, runnable, ran })
    });
    let samples = rounds.collect();
    shared.ended.store(true, Ordering::Release);
    user.unpark();
    samples
}

/// Waits, off the core for as long as something else wants it.
fn pause(time: Duration) {
    if time >= SHORTEST_SLEEP {
        return std::thread::sleep(time);
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Returns when the user thread ran, looking once in a while.
fn await_run(ran: &AtomicU64, look: Duration) -> anyhow::Result<u64> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        pause(look);
        match ran.load(Ordering::Acquire) {
            0 => anyhow::ensure!(Instant::now() < give_up, "a core was requested and none came"),
            at => return Ok(at),
        }
    }
}
