//! The word of a reader of an `Rcu`.

use crate::ground::words::section::Section;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;
use std::sync::Arc;

/// `Rcu` with two values and one kthread that reads. Loom has no `membarrier`: both sides fence, as
/// on a kernel without it.
struct Cell {
    values: [UnsafeCell<u32>; 2],
    current: AtomicUsize,
    section: Section,
}

impl Cell {
    fn new() -> Arc<Self> {
        let values = [UnsafeCell::new(1), UnsafeCell::new(0)];
        Arc::new(Self { values, current: AtomicUsize::new(0), section: Section::default() })
    }

    fn read(&self) -> u32 {
        // SAFETY: one thread of the model reads, and it leaves below.
        unsafe { self.section.enter(|| fence(Ordering::SeqCst)) };
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: loom checks that the writer has not taken the value back.
        let value = self.values[current].with(|value| unsafe { *value });
        // SAFETY: entered above.
        unsafe { self.section.leave() };
        value
    }

    /// Makes the second value current, waits for readers, and takes the first one back.
    fn replace(&self) {
        // SAFETY: loom checks that the new value is not read yet.
        self.values[1].with_mut(|value| unsafe { *value = 2 });
        self.current.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let seen = self.section.look();
        while !seen.is_over(self.section.look()) {
            thread::yield_now();
        }
        // SAFETY: loom checks that the old value is not read any more.
        self.values[0].with_mut(|value| unsafe { *value = 0 });
    }
}

#[test]
fn a_replaced_value_is_not_taken_back_while_it_is_read() {
    loom::model(|| {
        let cell = Cell::new();
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                let (first, second) = (cell.read(), cell.read());
                assert!(matches!((first, second), (1 | 2, 2) | (1, 1)), "{first} then {second}");
            })
        };
        cell.replace();
        reader.join().unwrap();
        assert!(!cell.section.look().is_reading());
    });
}

#[test]
fn sections_nest() {
    loom::model(|| {
        let cell = Cell::new();
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                // SAFETY: as in `Cell::read`.
                unsafe { cell.section.enter(|| fence(Ordering::SeqCst)) };
                let current = cell.current.load(Ordering::Acquire);
                let inner = cell.read();
                // SAFETY: as in `Cell::read`; the inner section's end must not count as the outer
                // one's.
                let outer = cell.values[current].with(|value| unsafe { *value });
                // SAFETY: entered above.
                unsafe { cell.section.leave() };
                assert!(matches!((outer, inner), (1, 1 | 2) | (2, 2)));
            })
        };
        cell.replace();
        reader.join().unwrap();
    });
}
