use crate::support::{in_both_worlds, mixed, panic_message, spawn, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater::sync::{LazyLock, Once, OnceLock};
use tailwater::thread;

#[test]
fn of_many_callers_one_initialises_and_the_others_see_the_result() {
    for _ in 0..50 {
        let once = Arc::new((Once::new(), AtomicUsize::new(0)));
        let shared = Arc::clone(&once);
        mixed(12, move |number| {
            let run = || {
                for _ in 0..5 {
                    thread::yield_now();
                }
                shared.1.fetch_add(1, Ordering::Relaxed);
            };
            match number % 4 {
                0 => shared.0.wait(),
                1 => shared.0.call_once_force(|state| {
                    assert!(!state.is_poisoned());
                    run();
                }),
                _ => shared.0.call_once(run),
            }
            assert!(shared.0.is_completed());
            assert_eq!(shared.1.load(Ordering::Relaxed), 1);
        });
    }
}

#[test]
fn a_panic_poisons_a_once_until_it_is_forced() {
    in_both_worlds(|| {
        let once = Once::new();
        assert_eq!(panic_message(|| once.call_once(|| panic!("first"))), "first");
        assert!(!once.is_completed());
        assert!(panic_message(|| once.call_once(|| ())).contains("poisoned"));
        assert!(panic_message(|| once.wait()).contains("poisoned"));
        once.call_once_force(|state| assert!(state.is_poisoned()));
        once.call_once(|| unreachable!());
        once.wait();
        once.wait_force();
    });
}

#[test]
fn a_thread_that_waited_for_an_initialiser_that_panics_panics_or_takes_over() {
    let once = Arc::new(Once::new());
    let (running, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let first = {
        let (once, running, go_on) = (Arc::clone(&once), Arc::clone(&running), Arc::clone(&go_on));
        spawn(0, move || {
            once.call_once(|| {
                running.store(1, Ordering::SeqCst);
                until(|| go_on.load(Ordering::SeqCst) == 1);
                panic!("first");
            });
        })
    };
    until(|| running.load(Ordering::SeqCst) == 1);
    let second = {
        let once = Arc::clone(&once);
        spawn(1, move || once.wait_force())
    };
    go_on.store(1, Ordering::SeqCst);
    assert!(first.join().is_err());
    assert!(panic_message(|| once.call_once(|| ())).contains("poisoned"));
    once.call_once_force(|_| ());
    second.join().unwrap();
}

#[test]
fn a_once_lock_is_set_once_and_by_one() {
    in_both_worlds(|| {
        let mut cell = OnceLock::new();
        assert_eq!(cell.get(), None);
        assert_eq!(cell.get_mut(), None);
        assert_eq!(format!("{cell:?}"), "OnceLock(<uninit>)");
        assert_eq!(cell.set(Box::new(1)), Ok(()));
        assert_eq!(cell.set(Box::new(2)), Err(Box::new(2)));
        **cell.get_mut().unwrap() += 10;
        assert_eq!(cell, cell.clone());
        assert_eq!(cell.take(), Some(Box::new(11)));
        assert_eq!(**cell.get_or_init(|| Box::new(3)), 3);
        assert_eq!(cell.into_inner(), Some(Box::new(3)));
    });
    let cell = Arc::new(OnceLock::new());
    let shared = Arc::clone(&cell);
    let seen = mixed(20, move |number| match number % 3 {
        0 => *shared.get_or_init(|| {
            thread::yield_now();
            number
        }),
        1 => {
            let _ = shared.set(number);
            *shared.get().unwrap()
        }
        _ => *shared.wait(),
    });
    assert!(seen.iter().all(|n| Some(n) == cell.get()));
}

#[test]
fn a_once_lock_drops_its_value_and_survives_a_panic() {
    in_both_worlds(|| {
        let value = Arc::new(());
        let cell = OnceLock::from(Arc::clone(&value));
        drop(cell);
        assert_eq!(Arc::strong_count(&value), 1);
        let cell = OnceLock::new();
        assert_eq!(panic_message(|| *cell.get_or_init(|| -> i32 { panic!("no") })), "no");
        assert_eq!(*cell.get_or_init(|| 5), 5);
    });
}

#[test]
fn a_lazy_lock_is_computed_once_and_poisoned_for_good() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static LAZY: LazyLock<usize> = LazyLock::new(|| {
        thread::yield_now();
        CALLS.fetch_add(1, Ordering::SeqCst) + 41
    });
    assert!(mixed(12, |_| *LAZY).iter().all(|&n| n == 41));
    assert_eq!(format!("{:?}", *LAZY), "41");
    in_both_worlds(|| {
        let broken: LazyLock<i32> = LazyLock::new(|| panic!("broken"));
        assert_eq!(format!("{broken:?}"), "LazyLock(<uninit>)");
        assert_eq!(panic_message(|| *broken), "broken");
        assert!(panic_message(|| *broken).contains("poisoned"));
    });
}
