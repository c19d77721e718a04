//! Everything at once, on three kthreads, preempted by signal: whatever waits in the C library,
//! with checks that what belongs to a thread stays with it.

use crate::{Case, adopting};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, RwLock, mpsc};
use std::time::{Duration, Instant};
use tailwater::{debug, thread};
use tailwater_testkit::{PATIENCE, Storm};

pub const CASES: &[Case] = &[("threads_wait_in_the_c_library_under_preemption_and_migration", waits)];

const THREADS: usize = 12;
const QUANTUM: Duration = Duration::from_micros(25);
/// How long the threads work; `TAILWATER_SOUNDNESS_SECONDS` says otherwise.
const TIME: Duration = Duration::from_secs(3);

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    static TRAIL: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Number of preemptions after which threads were preempted with each lock held.
const ENOUGH: u64 = 200;

/// What the threads share.
struct Shared {
    counter: Mutex<(u64, u64)>,
    changed: Condvar,
    table: RwLock<[u64; 8]>,
    barrier: Barrier,
    over: AtomicBool,
    rounds: AtomicU64,
}

fn waits() {
    let builder = adopting(3).quantum(QUANTUM);
    let rounds = builder.run(|| {
        let storm = tailwater::blocking(|| Storm::start(QUANTUM));
        let shared = Arc::new(Shared {
            counter: Mutex::default(),
            changed: Condvar::new(),
            table: RwLock::default(),
            barrier: Barrier::new(2),
            over: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work(number, &shared))
            })
            .collect();
        let time = std::env::var("TAILWATER_SOUNDNESS_SECONDS")
            .map_or(TIME, |text| Duration::from_secs_f64(text.parse().expect("a number of seconds")));
        let start = Instant::now();
        // On a busy machine until something was tested, but not for ever.
        let untested = || debug::counters().preemptions < ENOUGH && start.elapsed() < PATIENCE / 2;
        while start.elapsed() < time || untested() {
            tailwater::time::sleep(Duration::from_millis(10));
        }
        shared.over.store(true, Ordering::Relaxed);
        let ended = threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>();
        let counter = *shared.counter.lock().unwrap();
        assert_eq!(counter.0, counter.1);
        assert_eq!(ended, shared.rounds.load(Ordering::Relaxed));
        tailwater::blocking(move || drop(storm));
        (ended, debug::counters().preemptions)
    });
    let (rounds, preemptions) = rounds.unwrap();
    println!("{rounds} rounds, {preemptions} preemptions");
    assert!(rounds > 0 && preemptions > 0);
}

/// Waits in all ways until it is over. Returns the number of rounds.
fn work(number: usize, shared: &Shared) -> u64 {
    NUMBER.set(number);
    let start = Instant::now();
    let mut rounds = 0;
    // Pairs meet at the barrier a fixed number of times, then each goes on alone.
    if number < 2 {
        for _ in 0..50 {
            shared.barrier.wait();
        }
    }
    while !shared.over.load(Ordering::Relaxed) {
        rounds += 1;
        shared.rounds.fetch_add(1, Ordering::Relaxed);
        TRAIL.with_borrow_mut(|trail| {
            trail.clear();
            count(shared);
            trail.push(rounds);
            exchange(rounds);
            read_and_write(number, rounds, shared);
            assert_eq!(trail.as_slice(), [rounds], "another thread's trail");
        });
        match rounds % 8 {
            0 => print_to_null(number),
            1 => park_for_a_moment(),
            2 => load_a_library(),
            _ => {}
        }
        assert_eq!(NUMBER.get(), number, "another thread's number, after {:?}", start.elapsed());
    }
    rounds
}

fn count(shared: &Shared) {
    let mut counter = shared.counter.lock().unwrap();
    counter.0 += 1;
    compute();
    shared.changed.notify_one();
    let (guard, _) = shared.changed.wait_timeout(counter, Duration::from_micros(50)).unwrap();
    counter = guard;
    counter.1 += 1;
}

/// Takes some microseconds without a poll point.
fn compute() {
    std::hint::black_box((0..2_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
}

fn exchange(value: u64) {
    let (sender, receiver) = mpsc::sync_channel(0);
    let other = thread::spawn(move || sender.send(value).unwrap());
    assert_eq!(receiver.recv(), Ok(value));
    other.join().unwrap();
}

fn read_and_write(number: usize, rounds: u64, shared: &Shared) {
    if rounds.is_multiple_of(3) {
        let mut table = shared.table.write().unwrap();
        let value = table[0] + 1;
        for slot in table.iter_mut() {
            *slot = value;
            if number == 0 {
                tailwater::poll();
            } else {
                compute();
            }
        }
    } else {
        let table = shared.table.read().unwrap();
        assert!(table.iter().all(|&slot| slot == table[0]), "{table:?}");
    }
}

/// Takes the lock of a stream of C.
fn print_to_null(number: usize) {
    static STREAM: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: a stream that is never closed, used by functions that lock it.
    unsafe {
        let stream = STREAM.get_or_init(|| libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr()) as usize);
        let text = CString::new(format!("thread {number}\n")).unwrap();
        assert!(libc::fputs(text.as_ptr(), *stream as *mut libc::FILE) >= 0);
    }
}

fn park_for_a_moment() {
    let me = std::thread::current();
    let other = thread::spawn(move || me.unpark());
    std::thread::park_timeout(Duration::from_millis(1));
    other.join().unwrap();
}

/// Takes the dynamic linker's lock.
fn load_a_library() {
    // SAFETY: a library that is loaded already, and stays so.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        assert!(!libc::dlsym(library, c"strlen".as_ptr()).is_null());
        libc::dlclose(library);
    }
}
