//! The run queue, with an owner and a thief.

use crate::ground::runq::{self, CAPACITY, Owner, Token};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use tailwater_shm::layout::KthreadShared;

/// A queue's entry. Loom watches the mark: a thread that takes an entry must see what its producer
/// wrote, and be the only one.
#[derive(Debug)]
struct Entry(&'static UnsafeCell<u32>);

// SAFETY: a reference as a pointer. Loom checks what the entry points to.
unsafe impl Token for Entry {
    type Target = UnsafeCell<u32>;

    fn into_raw(self) -> *mut UnsafeCell<u32> {
        core::ptr::from_ref(self.0).cast_mut()
    }

    unsafe fn from_raw(raw: *mut UnsafeCell<u32>) -> Self {
        // SAFETY: `into_raw` made it of a reference.
        Self(unsafe { &*raw })
    }
}

impl Entry {
    /// Returns the number written by the producer; loom reports a second taker.
    fn take(self) -> u32 {
        // SAFETY: loom checks that the producer is done and no other thread took the entry.
        self.0.with_mut(|number| unsafe { core::mem::take(&mut *number) })
    }
}

fn drain(owner: &Owner<Entry>) -> Vec<u32> {
    core::iter::from_fn(|| owner.pop()).map(Entry::take).collect()
}

/// The owner queues more entries than the queue has slots, and pops in between; a thief steals
/// twice.
#[test]
fn every_entry_is_taken_once_while_slots_are_reused() {
    let mut builder = loom::model::Builder::new();
    // Known bugs of such queues show with two preemptions (CHESS, PLDI 2007); three is a margin.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let queue = || {
            let words: &'static KthreadShared = Box::leak(Box::new(KthreadShared::new()));
            runq::new::<Entry>(&words.status, false)
        };
        let (owner, stealer) = queue();
        let stealer = Arc::new(stealer);
        let thief = {
            let stealer = Arc::clone(&stealer);
            let (mine, _) = queue();
            thread::spawn(move || {
                let mut taken = Vec::new();
                for _ in 0..2 {
                    taken.extend(stealer.steal_into(&mine).map(|(first, _)| first.take()));
                    taken.extend(drain(&mine));
                }
                taken
            })
        };
        let mut taken = Vec::new();
        let entries = CAPACITY as u32 + 2;
        for number in 1..=entries {
            let cell: &'static UnsafeCell<u32> = Box::leak(Box::new(UnsafeCell::new(0)));
            // SAFETY: the entry is not queued yet.
            cell.with_mut(|mark| unsafe { *mark = number });
            if let Err(entry) = owner.push(Entry(cell)) {
                // Full: the overflow list's part, played by running it at once.
                taken.push(entry.take());
            }
            if number % 3 == 0 {
                taken.extend(owner.pop().map(Entry::take));
            }
        }
        taken.extend(drain(&owner));
        taken.extend(thief.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, (1..=entries).collect::<Vec<_>>());
    });
}
