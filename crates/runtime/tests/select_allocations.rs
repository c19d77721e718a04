//! A select of few operations, one of which can be completed at once, allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tailwater::sync::channel::{self, Select};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system allocator's blocks.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOC: Counting = Counting;

/// Returns how often `f` allocates.
fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

#[test]
fn a_select_that_need_not_wait_allocates_nothing() {
    let (sender, receiver) = channel::bounded(1);
    let (other_sender, other_receiver) = channel::bounded::<[u64; 20]>(1);
    let (mut number, mut received) = (None, Cell::new(0));
    sender.send(1).unwrap();
    let receive_and_send = || {
        let mut other = Some([0; 20]);
        Select::new()
            .recv(&receiver, |n| received.set(n.unwrap()))
            .send(&sender, &mut number, |_| unreachable!("left out"))
            .recv(&other_receiver, |_| unreachable!("no thread sends"))
            .wait();
        Select::new().send(&other_sender, &mut other, |sent| sent.unwrap()).wait();
    };
    assert_eq!(allocations(receive_and_send), 0);
    assert_eq!((received.get_mut(), other_receiver.len()), (&mut 1, 1));
    // One that waits does.
    assert!(allocations(|| assert!(Select::new().recv(&receiver, |_| ()).try_wait().is_none())) > 0);
}
