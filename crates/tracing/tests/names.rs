//! Each line has the name of the thread that its event comes from, while threads are preempted and
//! migrate.

use std::collections::HashMap;
use std::hint::black_box;
use std::io;
use std::time::Duration;
use tailwater::sync::Mutex;
use tailwater::{debug, thread};
use tailwater_testkit::Storm;
use tailwater_tracing::with_thread_names;

tailwater::allocator!();

const THREADS: u64 = 12;
const EVENTS: u64 = 200;
/// Maximum number of rounds until a thread has been preempted; more would mean that none ever is.
const MAX_ROUNDS: usize = 2_000;

static OUTPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Appends to [`OUTPUT`].
struct Output;

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        OUTPUT.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Computes for long enough to be preempted.
fn compute(seed: u64) -> u64 {
    (0..5000).fold(seed, |hash, i| (hash ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17))
}

fn a_round() {
    let start = |n: u64| {
        let main = move || {
            for _ in 0..EVENTS {
                black_box(compute(n));
                tracing::info!("worker-{n}");
            }
        };
        thread::Builder::new().name(format!("worker-{n}")).spawn(main).unwrap()
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_event_carries_the_name_of_its_thread_under_preemption() {
    let format = tracing_subscriber::fmt::format().without_time().with_target(false).with_level(false);
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(|| Output)
        .event_format(with_thread_names(format))
        .init();
    let quantum = Duration::from_micros(25);
    let _storm = Storm::start(quantum);
    let rounds = tailwater::RuntimeBuilder::new().kthreads(3).quantum(quantum).run(|| {
        let id = thread::spawn(|| {
            tracing::info!("nameless");
            thread::current().id()
        });
        let nameless = format!("{:?} nameless\n", id.join().unwrap());
        assert_eq!(String::from_utf8(std::mem::take(&mut *OUTPUT.lock().unwrap())).unwrap(), nameless);
        let rounds = (1..=MAX_ROUNDS).find(|_| {
            a_round();
            debug::counters().preemptions > 100
        });
        rounds.expect("no thread is ever preempted")
    });
    let rounds = rounds.unwrap() as u64;
    let ordinary = std::thread::Builder::new().name("ordinary".into()).spawn(|| tracing::info!("ordinary"));
    ordinary.unwrap().join().unwrap();

    let text = String::from_utf8(std::mem::take(&mut *OUTPUT.lock().unwrap())).unwrap();
    let mut counts = HashMap::new();
    for line in text.lines() {
        let (name, message) = line.split_once(' ').expect(line);
        assert_eq!(name, message, "an event with another thread's name");
        *counts.entry(name).or_insert(0) += 1;
    }
    assert_eq!(counts.remove("ordinary"), Some(1));
    assert_eq!(counts.len() as u64, THREADS);
    assert!(counts.values().all(|&count| count == rounds * EVENTS), "{counts:?}");
}
