use crate::support::{in_both_worlds, mixed};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::Semaphore;
use tailwater::thread;
use tailwater_testkit::PATIENCE;

#[test]
fn never_more_holders_than_permits_and_all_come_back() {
    const PERMITS: usize = 4;
    let semaphore = Arc::new(Semaphore::new(PERMITS));
    let inside = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&semaphore);
    mixed(20, move |number| {
        for round in 0..200 {
            let want = (number + round) % PERMITS + 1;
            let permit = if round.is_multiple_of(7) {
                match shared.acquire_many_timeout(want, Duration::from_micros(50)) {
                    Some(permit) => permit,
                    None => continue,
                }
            } else {
                shared.acquire_many(want)
            };
            assert_eq!(permit.permits(), want);
            assert!(
                inside.fetch_add(want, Ordering::SeqCst) + want <= PERMITS,
                "more permits out than exist"
            );
            thread::yield_now();
            inside.fetch_sub(want, Ordering::SeqCst);
        }
    });
    assert_eq!(semaphore.available_permits(), PERMITS);
}

#[test]
fn a_timed_acquire_gives_up_and_leaves_no_trace() {
    in_both_worlds(|| {
        let semaphore = Semaphore::new(1);
        let permit = semaphore.acquire();
        let start = Instant::now();
        assert!(semaphore.acquire_timeout(Duration::from_millis(5)).is_none());
        assert!(start.elapsed() >= Duration::from_millis(5));
        drop(permit);
        assert!(semaphore.acquire_timeout(PATIENCE).is_some());
        assert_eq!(semaphore.available_permits(), 1);
    });
}

#[test]
fn permits_can_be_owned_forgotten_and_added() {
    in_both_worlds(|| {
        let semaphore = Arc::new(Semaphore::new(3));
        let owned = semaphore.acquire_many_owned(2);
        let other = semaphore.try_acquire_owned().unwrap();
        assert!(semaphore.try_acquire_owned().is_none() && semaphore.try_acquire_many(1).is_none());
        other.forget();
        drop(owned);
        assert_eq!(semaphore.available_permits(), 2);
        semaphore.add_permits(1);
        assert_eq!(semaphore.try_acquire_many(3).unwrap().permits(), 3);
        assert!(semaphore.try_acquire_many(4).is_none());
        semaphore.acquire_many(0).forget();
    });
}

#[test]
#[should_panic(expected = "usize::MAX permits")]
fn too_many_permits_are_refused() {
    Semaphore::new(1).add_permits(usize::MAX);
}
