//! Blocks that bypass the global allocator: C code's, and those that `std` takes from
//! `std::alloc::System` directly.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater::{debug, thread};
use tailwater_testkit::{PATIENCE, Storm, own_process};

const QUANTUM: Duration = Duration::from_micros(25);
/// The test goes on for this long, in which tens of thousands of signals arrive in `malloc`, where
/// the threads are most of the time, and until so many others have preempted a thread.
const LEAST: Duration = Duration::from_secs(3);
const ENOUGH: u64 = 200;
/// Too large for the per-kthread caches, and for those of glibc, so that the heap's lock is taken.
const LARGE: usize = 3000;

/// Writes and reads a block's ends.
///
/// # Safety
/// `block` is null, or a block of `size` bytes.
unsafe fn use_block(block: *mut u8, size: usize) {
    assert!(!block.is_null());
    // SAFETY: by the caller's contract.
    unsafe {
        block.write(1);
        block.add(size - 1).write(2);
        assert_eq!((black_box(block).read(), block.add(size - 1).read()), (1, 2));
    }
}

/// Calls each function once.
fn allocate_behind_the_allocators_back() {
    let layout = Layout::from_size_align(LARGE, 64).unwrap();
    // SAFETY: each block has the size that is used, and is freed once, by its own allocator.
    unsafe {
        let block = System.alloc(layout);
        use_block(block, LARGE);
        System.dealloc(block, layout);
        let block = libc::realloc(libc::malloc(LARGE), 2 * LARGE);
        use_block(block.cast(), 2 * LARGE);
        libc::free(block);
        let block: *mut u8 = libc::calloc(2, LARGE).cast();
        assert_eq!(block.add(LARGE).read(), 0);
        use_block(block, 2 * LARGE);
        libc::free(block.cast());
        let block = libc::aligned_alloc(4096, 4096);
        assert_eq!(block as usize % 4096, 0);
        use_block(block.cast(), 4096);
        libc::free(block);
    }
    drop(black_box(vec![0u8; LARGE]));
}

#[test]
fn a_thread_preempted_in_malloc_stops_nobody() {
    own_process(|| {
        let (rounds, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        // From outside: a stop of all kthreads stops every user thread.
        let (watched, ended) = (Arc::clone(&rounds), Arc::clone(&over));
        std::thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                let now = watched.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > PATIENCE {
                    eprintln!("no thread has allocated for {PATIENCE:?}, after {now} rounds");
                    std::process::abort();
                }
            }
        });
        let _storm = Storm::start(QUANTUM);
        let run =
            tailwater::RuntimeBuilder::new().kthreads(3).quantum(QUANTUM).stall_timeout(Duration::ZERO).run(
                move || {
                    let start = Instant::now();
                    let goes_on = move || {
                        let is_enough = || debug::counters().preemptions >= ENOUGH;
                        start.elapsed() < LEAST || (!is_enough() && start.elapsed() < PATIENCE)
                    };
                    let threads: Vec<_> = (0..6)
                        .map(|_| {
                            let rounds = Arc::clone(&rounds);
                            thread::spawn(move || {
                                while goes_on() {
                                    (0..20).for_each(|_| allocate_behind_the_allocators_back());
                                    // A new thread's handle, which `std` allocates by itself.
                                    thread::spawn(|| std::thread::current().id()).join().unwrap();
                                    rounds.fetch_add(1, Ordering::Relaxed);
                                }
                            })
                        })
                        .collect();
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                    debug::counters().preemptions
                },
            );
        over.store(true, Ordering::Relaxed);
        assert!(run.unwrap() > 0, "nothing was tested");
    });
}

#[test]
fn c_code_finds_the_guarded_functions() {
    for name in [c"malloc", c"calloc", c"realloc", c"free", c"memalign", c"aligned_alloc", c"posix_memalign"]
    {
        // SAFETY: plain look-ups.
        let found =
            unsafe { [libc::RTLD_DEFAULT, libc::RTLD_NEXT].map(|from| libc::dlsym(from, name.as_ptr())) };
        assert!(!found[0].is_null() && found[0] != found[1], "{name:?} is glibc's own: {found:?}");
    }
}
