use crate::support::{in_both_worlds, mixed, panic_message, spawn};
use std::sync::Arc;
use tailwater::sync::{RwLock, RwLockWriteGuard, TryLockError};
use tailwater::thread;

#[test]
fn readers_share_and_a_writer_is_alone() {
    in_both_worlds(|| {
        let lock = RwLock::new(5);
        let (a, b) = (lock.read().unwrap(), lock.try_read().unwrap());
        assert_eq!(*a + *b, 10);
        assert!(matches!(lock.try_write(), Err(TryLockError::WouldBlock)));
        drop((a, b));
        let mut writer = lock.try_write().unwrap();
        *writer += 1;
        assert!(matches!(lock.try_read(), Err(TryLockError::WouldBlock)));
        assert!(format!("{lock:?}").contains("<locked>"));
        let reader = RwLockWriteGuard::downgrade(writer);
        assert_eq!((*reader, *lock.read().unwrap()), (6, 6));
        drop(reader);
        assert!(format!("{lock:?}").contains("data: 6"));
        assert_eq!(lock.into_inner().unwrap(), 6);
    });
}

#[test]
fn no_reader_sees_half_a_write_and_no_write_is_lost() {
    const THREADS: usize = 30;
    const ROUNDS: usize = 300;
    let lock = Arc::new(RwLock::new((0usize, 0usize)));
    let shared = Arc::clone(&lock);
    let writes: Vec<usize> = mixed(THREADS, move |number| {
        let mut writes = 0;
        for round in 0..ROUNDS {
            if (round + number).is_multiple_of(4) {
                let mut pair = shared.write().unwrap();
                pair.0 += 1;
                if round.is_multiple_of(3) {
                    thread::yield_now();
                }
                pair.1 += 1;
                writes += 1;
                if round.is_multiple_of(2) {
                    let seen = pair.0;
                    let pair = RwLockWriteGuard::downgrade(pair);
                    thread::yield_now();
                    assert_eq!(*pair, (seen, seen), "a writer came between write and downgraded read");
                }
            } else {
                let pair = shared.read().unwrap();
                let first = pair.0;
                if round.is_multiple_of(5) {
                    thread::yield_now();
                }
                assert_eq!((first, first), *pair);
            }
        }
        writes
    });
    let total = writes.iter().sum();
    assert_eq!(*lock.read().unwrap(), (total, total));
    assert!(lock.try_write().is_ok());
}

#[test]
fn a_panicking_writer_poisons_and_a_panicking_reader_does_not() {
    in_both_worlds(|| {
        let lock = Arc::new(RwLock::new(1));
        let shared = Arc::clone(&lock);
        panic_message(|| {
            let _guard = shared.read().unwrap();
            panic!("reader");
        });
        assert!(!lock.is_poisoned());
        panic_message(|| {
            let mut guard = shared.write().unwrap();
            *guard = 2;
            panic!("writer");
        });
        assert!(lock.is_poisoned());
        assert_eq!(**lock.read().unwrap_err().get_ref(), 2);
        assert_eq!(**lock.write().unwrap_err().get_ref(), 2);
        assert!(matches!(lock.try_read(), Err(TryLockError::Poisoned(_))));
        assert!(matches!(lock.try_write(), Err(TryLockError::Poisoned(_))));
        lock.clear_poison();
        assert_eq!(*lock.read().unwrap(), 2);
    });
}

#[test]
fn a_value_that_is_not_sized_can_be_locked() {
    let lock: Arc<RwLock<[u8]>> = Arc::new(RwLock::new([1, 2, 3]));
    let shared = Arc::clone(&lock);
    spawn(0, move || shared.write().unwrap()[1] = 7).join().unwrap();
    assert_eq!(*lock.read().unwrap(), [1, 7, 3]);
}
