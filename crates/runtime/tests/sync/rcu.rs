use crate::support::{in_both_worlds, mixed, panic_message, spawn, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tailwater::sync::{Event, Rcu};
use tailwater::thread;

/// A value that detects use after drop, and counts live values.
struct Watched {
    alive: Arc<AtomicUsize>,
    numbers: [usize; 4],
}

impl Watched {
    fn new(alive: &Arc<AtomicUsize>, number: usize) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self { alive: Arc::clone(alive), numbers: [number; 4] }
    }

    fn number(&self) -> usize {
        assert!(self.numbers.iter().all(|&n| n == self.numbers[0]), "a reader saw a dropped value");
        self.numbers[0]
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.numbers = [1, 2, 3, 4];
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn readers_see_the_latest_value_and_keep_what_they_took() {
    in_both_worlds(|| {
        let mut cell = Rcu::new(String::from("a"));
        let kept = cell.get();
        assert_eq!(*cell.replace("b".into()), "a");
        assert_eq!(*cell.update(|old| format!("{old}c")), "b");
        assert_eq!((kept.as_str(), cell.with(String::len)), ("a", 2));
        cell.get_mut().unwrap().push('d');
        let shared = cell.get();
        assert_eq!(cell.get_mut(), None);
        assert_eq!((shared.as_str(), format!("{cell:?}").as_str()), ("bcd", "Rcu(\"bcd\")"));
    });
}

#[test]
fn nobody_reads_a_value_that_was_dropped_and_no_update_is_lost() {
    const THREADS: usize = 9;
    const ROUNDS: usize = 300;
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = Arc::new(Rcu::new(Watched::new(&alive, 0)));
    let (shared, live) = (Arc::clone(&cell), Arc::clone(&alive));
    mixed(THREADS, move |number| {
        let mut last = 0;
        for round in 0..ROUNDS {
            if (round + number).is_multiple_of(10) {
                drop(shared.update(|old| Watched::new(&live, old.number() + 1)));
            }
            let seen = shared.with(|value| {
                let before = value.number();
                // Another cell may be read in between.
                shared.with(|inner| assert!(inner.number() >= before));
                (0..50).for_each(|_| std::hint::spin_loop());
                assert_eq!(value.number(), before);
                before
            });
            assert!(seen >= last, "a reader went back in time");
            last = seen;
            let kept = shared.get();
            if round.is_multiple_of(7) {
                thread::yield_now();
            }
            assert!(kept.number() >= last);
        }
    });
    assert_eq!(cell.with(Watched::number), THREADS * ROUNDS / 10);
    assert_eq!(alive.load(Ordering::SeqCst), 1, "old values were not dropped");
    drop(cell);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_writer_waits_for_a_reader_that_has_the_old_value() {
    let cell = Arc::new(Rcu::new(1));
    let (reading, go_on, replaced) = (AtomicBool::new(false), AtomicBool::new(false), Event::new());
    let flags = Arc::new((reading, go_on, replaced));
    let reader = {
        let (cell, flags) = (Arc::clone(&cell), Arc::clone(&flags));
        spawn(0, move || {
            cell.with(|&value| {
                flags.0.store(true, Ordering::SeqCst);
                while !flags.1.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert!(!flags.2.is_set(), "the value was given back while it was read");
                value
            })
        })
    };
    until(|| flags.0.load(Ordering::SeqCst));
    let writer = {
        let (cell, flags) = (Arc::clone(&cell), Arc::clone(&flags));
        std::thread::spawn(move || {
            assert_eq!(*cell.replace(2), 1);
            flags.2.set();
        })
    };
    // The new value is visible at once; the old one is not returned before its reader has ended.
    until(|| *cell.get() == 2);
    assert!(!flags.2.is_set());
    flags.1.store(true, Ordering::SeqCst);
    assert_eq!(reader.join().unwrap(), 1);
    writer.join().unwrap();
}

#[test]
fn replacing_or_waiting_in_a_reader_is_refused_and_a_panic_ends_the_section() {
    let test = || {
        let cell = Rcu::new(1);
        assert!(panic_message(|| cell.with(|_| cell.replace(2))).contains("Rcu"));
        assert!(panic_message(|| cell.with(|_| Event::new().wait())).contains("Rcu"));
        assert_eq!(panic_message(|| cell.with(|_| -> i32 { panic!("reader") })), "reader");
        assert_eq!(panic_message(|| cell.update(|_| panic!("writer"))), "writer");
        assert_eq!(*cell.replace(3), 1);
        thread::yield_now();
        assert_eq!(cell.with(|&value| value), 3);
    };
    spawn(0, test).join().unwrap();
}
