//! The spin lock.

use crate::ground::spin::SpinLock;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A value that loom watches, in place of the lock's own.
struct Value(UnsafeCell<u32>);

impl Value {
    fn increment(&self) {
        // SAFETY: loom checks that no other thread is in here.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

#[test]
fn holders_of_a_spin_lock_exclude_one_another() {
    loom::model(|| {
        let lock = Arc::new(SpinLock::new(Value(UnsafeCell::new(0))));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                lock.lock().increment();
                if let Some(value) = lock.try_lock() {
                    value.increment();
                    return 2;
                }
                1
            })
        };
        lock.lock().increment();
        let increments = other.join().unwrap() + 1;
        let value = lock.lock();
        // SAFETY: as in `increment`.
        assert_eq!(value.0.with(|value| unsafe { *value }), increments);
    });
}
