//! Waits in the C library with and without `RuntimeBuilder::adopt_libc_waits`: four threads that
//! pass a turn by a mutex and a condition variable on one core, of `std` and of C, as OS threads
//! and as user threads; a wake that no thread waits for; a system call through a redirected site.
//!
//! Each figure is measured in processes of its own, which take turns: the C library's code cannot
//! be changed twice.

use std::cell::UnsafeCell;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tailwater::{RuntimeBuilder, thread};

tailwater::allocator!();

const THREADS: usize = 4;
/// What a child measures.
const CASE: &str = "TAILWATER_LIBC_WAITS_CASE";
/// Rounds of all cases.
const ROUNDS: usize = 7;

/// A figure: its name, and the two ways it is measured.
const FIGURES: [(&str, [&str; 2]); 4] = [
    ("hand-off, mutex and condvar of std", ["std os", "std user"]),
    ("hand-off, pthread mutex and condition", ["c os", "c user"]),
    ("FUTEX_WAKE that no thread waits for", ["wake plain", "wake adopted"]),
    ("getppid by the function syscall", ["call plain", "call adopted"]),
];

fn main() {
    let measures = std::env::args().any(|arg| arg == "--bench");
    if let Ok(case) = std::env::var(CASE) {
        println!("{}", measure(&case, if measures { 200_000 } else { 1_000 }));
        return;
    }
    let rounds = if measures { ROUNDS } else { 1 };
    println!("{:<40} {:>12} {:>12} {:>8}", "ns, median", "Linux", "adopted", "ratio");
    let mut samples = FIGURES.map(|_| [const { Vec::new() }; 2]);
    for _ in 0..rounds {
        for (figure, samples) in FIGURES.iter().zip(&mut samples) {
            for (case, samples) in figure.1.iter().zip(samples) {
                samples.push(child(case, measures));
            }
        }
    }
    for (figure, samples) in FIGURES.iter().zip(&mut samples) {
        let [linux, adopted] = samples.each_mut().map(|samples| {
            samples.sort_by(f64::total_cmp);
            samples[rounds / 2]
        });
        println!("{:<40} {linux:>12.1} {adopted:>12.1} {:>8.2}", figure.0, linux / adopted);
    }
}

/// Measures a case in a process of its own; returns the nanoseconds.
fn child(case: &str, measures: bool) -> f64 {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.env(CASE, case).args(measures.then_some("--bench"));
    let output = command.output().expect("this program can be started");
    assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

fn measure(case: &str, count: u32) -> f64 {
    // OS threads inherit it; a runtime of one kthread needs no more.
    bind_to_last_cpu();
    let count_of_calls = 10 * count;
    match case {
        "std os" => hand_offs(count, &std_turn(), false),
        "std user" => adopted(move || hand_offs(count, &std_turn(), true)),
        "c os" => hand_offs(count, &c_turn(), false),
        "c user" => adopted(move || hand_offs(count, &c_turn(), true)),
        "wake plain" => calls(count_of_calls, wake),
        "wake adopted" => adopted(move || calls(count_of_calls, wake)),
        "call plain" => calls(count_of_calls, getppid),
        "call adopted" => adopted(move || calls(count_of_calls, getppid)),
        other => panic!("{other} is no case"),
    }
}

fn adopted(main: impl FnOnce() -> f64 + Send + 'static) -> f64 {
    RuntimeBuilder::new()
        .kthreads(1)
        .stall_timeout(Duration::ZERO)
        .adopt_libc_waits()
        .run(main)
        .expect("it starts")
}

fn bind_to_last_cpu() {
    let all = rustix::thread::sched_getaffinity(None).expect("a process has CPUs");
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|&cpu| all.is_set(cpu));
    let mut one = rustix::thread::CpuSet::new();
    one.set(last.expect("at least one"));
    rustix::thread::sched_setaffinity(None, &one).expect("a CPU of the process");
}

/// Passes a turn: waits until it is the thread's, and gives it to the next.
type Turn = Arc<dyn Fn(usize) + Send + Sync>;

/// Runs four threads, user threads or OS threads; returns the nanoseconds of a hand-off.
fn hand_offs(count: u32, turn: &Turn, user: bool) -> f64 {
    let each = count / THREADS as u32;
    let start = Instant::now();
    let joins: Vec<_> = (0..THREADS)
        .map(|me| {
            let turn = Arc::clone(turn);
            spawn(user, move || (0..each).for_each(|_| turn(me)))
        })
        .collect();
    joins.into_iter().for_each(|join| join());
    start.elapsed().as_nanos() as f64 / f64::from(each * THREADS as u32)
}

/// Starts a thread; returns what waits for it.
fn spawn(user: bool, body: impl FnOnce() + Send + 'static) -> Box<dyn FnOnce()> {
    if user {
        let thread = thread::spawn(body);
        Box::new(move || thread.join().unwrap())
    } else {
        let thread = std::thread::spawn(body);
        Box::new(move || thread.join().unwrap())
    }
}

fn std_turn() -> Turn {
    let state = (Mutex::new(0usize), Condvar::new());
    Arc::new(move |me| {
        let mut turn = state.0.lock().unwrap();
        while *turn % THREADS != me {
            turn = state.1.wait(turn).unwrap();
        }
        *turn += 1;
        state.1.notify_all();
    })
}

/// A mutex and a condition variable of C, and whose turn it is.
struct CTurn {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    changed: UnsafeCell<libc::pthread_cond_t>,
    turn: UnsafeCell<usize>,
}

// SAFETY: the turn is used with the mutex held; the others are made for several threads.
unsafe impl Sync for CTurn {}
// SAFETY: as above; they stay in place behind an Arc.
unsafe impl Send for CTurn {}

impl CTurn {
    fn pass(&self, me: usize) {
        // SAFETY: initialised objects; the turn is used with the mutex held.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            while *self.turn.get() % THREADS != me {
                libc::pthread_cond_wait(self.changed.get(), self.mutex.get());
            }
            *self.turn.get() += 1;
            libc::pthread_cond_broadcast(self.changed.get());
            libc::pthread_mutex_unlock(self.mutex.get());
        }
    }
}

fn c_turn() -> Turn {
    let turn = Arc::new(CTurn {
        mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        changed: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        turn: UnsafeCell::new(0),
    });
    Arc::new(move |me| turn.pass(me))
}

/// Returns the nanoseconds of a call.
fn calls(count: u32, call: fn()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(count)
}

fn wake() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a wake of a word that lives.
    unsafe { libc::syscall(libc::SYS_futex, WORD.as_ptr(), operation, 1) };
}

fn getppid() {
    // SAFETY: it has no argument and no effect.
    unsafe { libc::syscall(libc::SYS_getppid) };
}
