//! A flood of preempt signals from outside leaves the smallest stacks, all registers and the
//! alternate stack of each kthread whole; kthreads take the signal although their program began
//! with it blocked.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::{debug, thread};
use tailwater_testkit::{PATIENCE, own_process};

const SIGURG: i32 = 23;
const THREADS: u64 = 8;
/// Steps of each thread between two looks for the end.
const STEPS: u64 = 10_000;
/// Signals after which threads end.
const SIGNALS: u64 = 20_000;
const SMALLEST_STACK: usize = 16 * 1024;

/// The OS threads of the kthreads, and where their alternate stacks are.
static TIDS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
static STACKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Blocks the preempt signal for the calling OS thread and those that it starts.
fn block_signal() {
    // SAFETY: an all-zero set is valid; the functions write and read it.
    unsafe {
        let mut signals: libc::sigset_t = core::mem::zeroed();
        libc::sigaddset(&raw mut signals, SIGURG);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, core::ptr::null_mut()), 0);
    }
}

/// Notes the OS thread that runs this, and its alternate stack; returns whether that is the one
/// that it had before.
fn has_own_alternate_stack() -> bool {
    let (tid, stack) = tailwater::no_preempt(|| {
        // SAFETY: gettid has no precondition; sigaltstack writes the present stack.
        unsafe {
            let mut stack: libc::stack_t = core::mem::zeroed();
            libc::sigaltstack(core::ptr::null(), &raw mut stack);
            (libc::gettid(), stack.ss_sp as usize)
        }
    });
    let is_own = |known: &AtomicI32| {
        known.load(Relaxed) == tid || known.compare_exchange(0, tid, Relaxed, Relaxed).is_ok()
    };
    let at = TIDS.iter().position(is_own).expect("two kthreads");
    match STACKS[at].compare_exchange(0, stack, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(before) => before == stack,
    }
}

/// A computation in integer and vector registers, without poll points.
#[inline(never)]
fn compute(seed: u64) -> (u64, [u32; 4]) {
    let (mut sum, mut numbers) = (seed, [seed as f32; 4]);
    for i in 0..black_box(STEPS) {
        sum = sum.rotate_left(5).wrapping_add(i).wrapping_mul(0x9e37_79b9);
        numbers = numbers.map(|x| x * 0.75 + i as f32);
    }
    (sum, numbers.map(f32::to_bits))
}

#[test]
fn a_flood_of_signals_overflows_no_stack() {
    own_process(|| {
        static SENT: AtomicU64 = AtomicU64::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);

        block_signal();
        let begun = Instant::now();
        let runtime = tailwater::RuntimeBuilder::new().kthreads(2).quantum(Duration::from_micros(50));
        let run = runtime.run(move || {
            let flood = std::thread::spawn(|| {
                while !DONE.load(Relaxed) {
                    for tid in &TIDS {
                        let tid = tid.load(Relaxed);
                        if tid != 0 {
                            // SAFETY: tgkill has no memory operands.
                            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, SIGURG) };
                            SENT.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
            let workers = (0..THREADS).map(|seed| {
                let small = thread::Builder::new().stack_size(SMALLEST_STACK);
                let worker = small.spawn(move || {
                    let expected = compute(seed);
                    let is_over = || SENT.load(Relaxed) >= SIGNALS && debug::counters().preemptions > 0;
                    while !is_over() && begun.elapsed() < PATIENCE {
                        assert!(has_own_alternate_stack(), "that of another kthread");
                        assert_eq!(compute(seed), expected, "registers came back changed");
                    }
                });
                worker.unwrap()
            });
            let workers: Vec<_> = workers.collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            DONE.store(true, Relaxed);
            flood.join().unwrap();
            let preemptions = debug::counters().preemptions;
            assert!(preemptions > 0, "the signal is blocked");
            println!("{preemptions} preemptions");
        });
        run.unwrap();
    });
}
