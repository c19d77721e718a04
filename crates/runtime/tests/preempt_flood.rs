//! A flood of preempt signals from outside leaves the smallest stacks and all registers whole.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tailwater::{debug, thread};

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

const SIGURG: i32 = 23;
const THREADS: u64 = 8;
/// Steps of each thread between two looks for the end.
const STEPS: u64 = 10_000;
/// Signals after which threads end.
const SIGNALS: u64 = 20_000;
const SMALLEST_STACK: usize = 16 * 1024;

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
    static SENT: AtomicU64 = AtomicU64::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    static TIDS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

    let runtime = tailwater::Builder::new().kthreads(2).quantum(Duration::from_micros(50));
    let run = runtime.run(|| {
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
                // SAFETY: gettid has no precondition.
                let tid = unsafe { libc::gettid() };
                if TIDS.iter().all(|known| known.load(Relaxed) != tid) {
                    let free = |known: &&AtomicI32| known.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
                    TIDS.iter().find(free);
                }
                let expected = compute(seed);
                while SENT.load(Relaxed) < SIGNALS {
                    assert_eq!(compute(seed), expected, "registers came back changed");
                }
            });
            worker.unwrap()
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        DONE.store(true, Relaxed);
        flood.join().unwrap();
        println!("{} preemptions", debug::counters().preemptions);
    });
    run.unwrap();
}
