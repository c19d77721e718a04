//! Another allocator beneath `tailwater::Alloc`: it is called as the guard promises.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tailwater::{RuntimeBuilder, thread};
use tailwater_testkit::Storm;

/// Writes each block's layout before it, and finds it there again when the block comes back.
struct Labelling;

/// Calls of all kinds that gave out a block.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Calls while another one of the same OS thread had not returned, and blocks that came back with
/// another layout.
static BROKEN: AtomicU64 = AtomicU64::new(0);

/// Addresses at which calls found `INSIDE`: one for each OS thread.
static STORAGES: [AtomicUsize; 2 * MAX_OS_THREADS] = [const { AtomicUsize::new(0) }; 2 * MAX_OS_THREADS];
/// The test's threads, two kthreads, and the runtime's other threads; user threads are four times
/// as many.
const MAX_OS_THREADS: usize = 16;

thread_local! {
    /// True within a call.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call; counts it as broken if another is in progress.
fn call<R>(f: impl FnOnce() -> R) -> R {
    let here = INSIDE.with(|inside| core::ptr::from_ref(inside).addr());
    let place = |cell: &AtomicUsize| {
        cell.compare_exchange(0, here, Relaxed, Relaxed).is_ok() || cell.load(Relaxed) == here
    };
    if INSIDE.replace(true) || !STORAGES.iter().any(place) {
        BROKEN.fetch_add(1, Relaxed);
    }
    let result = f();
    INSIDE.set(false);
    result
}

/// Returns the layout with room for a label, and the block's offset in it.
fn labelled(layout: Layout) -> (Layout, usize) {
    Layout::new::<Layout>().extend(layout).unwrap()
}

// SAFETY: blocks of the system's allocator, at an offset that depends on the layout alone.
unsafe impl GlobalAlloc for Labelling {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        call(|| {
            GIVEN.fetch_add(1, Relaxed);
            let (whole, at) = labelled(layout);
            // SAFETY: the layout is not empty; the label lies right before the block, within it.
            unsafe {
                let block = System.alloc(whole).add(at);
                block.cast::<Layout>().sub(1).write_unaligned(layout);
                block
            }
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        call(|| {
            let (whole, at) = labelled(layout);
            // SAFETY: a block of `alloc`, by the caller's contract with this layout.
            unsafe {
                if block.cast::<Layout>().sub(1).read_unaligned() != layout {
                    BROKEN.fetch_add(1, Relaxed);
                }
                System.dealloc(block.sub(at), whole);
            }
        });
    }
}

// SAFETY: it calls nothing of Tailwater; INSIDE belongs to the OS thread.
#[global_allocator]
static ALLOC: tailwater::Alloc<Labelling> = unsafe { tailwater::Alloc::over(Labelling) };

/// Allocates, grows, shrinks and frees blocks of all size classes and larger ones.
fn churn(seed: usize) {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..200 {
        let len = (seed * 37 + round * 61) % 5000 + 1;
        let mut block = vec![0u8; len];
        assert!(black_box(&block).iter().all(|byte| *byte == 0), "zeroed");
        block.resize(len * 2, 1);
        block.truncate(len / 3);
        block.shrink_to_fit();
        kept.push(block);
        if round % 3 == 0 {
            drop(kept.swap_remove(round % kept.len()));
        }
    }
}

#[test]
fn blocks_come_back_as_they_were_given_out_and_calls_do_not_nest() {
    let before = GIVEN.load(Relaxed);
    let quantum = Duration::from_micros(50);
    let _storm = Storm::start(quantum);
    let runtime = RuntimeBuilder::new().kthreads(2).quantum(quantum);
    let run = runtime.run(|| {
        let threads: Vec<_> = (0..64).map(|seed| thread::spawn(move || churn(seed))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    run.unwrap();
    assert!(GIVEN.load(Relaxed) > before + 64, "large blocks come from the allocator beneath");
    assert_eq!(BROKEN.load(Relaxed), 0);
    let storages = STORAGES.iter().filter(|storage| storage.load(Relaxed) != 0).count();
    assert!(storages <= MAX_OS_THREADS, "called with the thread-locals of {storages} threads");
}
