//! User threads in a standalone runtime, through the public API. One runtime per process, so one
//! test function runs all.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::{Condvar, Mutex};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

thread_local! {
    static LOCAL: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_standalone_runtime_runs_ordinary_rust() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                assert!(thread::is_user_thread());
                results_and_panics_reach_the_joiner();
                thread_locals_belong_to_the_user_thread_and_are_destroyed();
                a_sleeping_thread_wakes_no_earlier_than_its_deadline();
                a_mutex_counts_right_under_contention();
                a_condvar_passes_a_ball();
                a_timed_wait_times_out_and_a_notified_one_does_not();
                ordinary_threads_wake_user_threads();
                many_threads_come_and_go();
                large_captures_and_results_survive();
            })
            .unwrap();
        assert!(matches!(
            tailwater::RuntimeBuilder::new().run(|| ()),
            Err(tailwater::StartError::AlreadyRunning)
        ));
    });
}

fn results_and_panics_reach_the_joiner() {
    assert_eq!(thread::spawn(|| 42).join().unwrap(), 42);
    let panic = thread::spawn(|| -> () { std::panic::resume_unwind(Box::new("boom")) }).join().unwrap_err();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "boom");
    let caught = std::panic::catch_unwind(|| {
        thread::yield_now();
        std::panic::resume_unwind(Box::new(1u8));
    });
    assert!(caught.is_err());
    assert!(!std::thread::panicking());
}

fn thread_locals_belong_to_the_user_thread_and_are_destroyed() {
    struct CountsDrops(Arc<AtomicUsize>);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static DROPPED: RefCell<Option<CountsDrops>> = const { RefCell::new(None) };
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..200)
        .map(|i| {
            let drops = Arc::clone(&drops);
            thread::spawn(move || {
                DROPPED.set(Some(CountsDrops(drops)));
                LOCAL.with_borrow_mut(|v| {
                    assert!(v.is_empty(), "thread {i} inherited thread-locals");
                    for round in 0..20 {
                        v.push(i);
                        // A borrow held over a switch: any mix-up of blocks panics here or corrupts
                        // the vector.
                        thread::yield_now();
                        assert_eq!(v.len(), round + 1);
                    }
                    assert!(v.iter().all(|&x| x == i));
                });
                let map: HashMap<usize, usize> = (0..50).map(|k| (k, i)).collect();
                assert_eq!(map.values().sum::<usize>(), 50 * i);
                std::thread::current().id()
            })
        })
        .collect();
    let ids: std::collections::HashSet<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(ids.len(), 200, "two user threads shared a std::thread identity");
    assert_eq!(drops.load(Ordering::SeqCst), 200, "join returned before the destructors had run");
}

fn a_sleeping_thread_wakes_no_earlier_than_its_deadline() {
    let start = Instant::now();
    let threads = [30u64, 10, 20].map(|ms| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(ms));
            assert!(start.elapsed() >= Duration::from_millis(ms));
        })
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn a_mutex_counts_right_under_contention() {
    let counter = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..50)
        .map(|_| {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                for i in 0..200 {
                    let mut guard = counter.lock().unwrap();
                    let seen = *guard;
                    if i % 10 == 0 {
                        thread::yield_now();
                    }
                    *guard = seen + 1;
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*counter.lock().unwrap(), 10_000);
    let poisoner = Arc::clone(&counter);
    let panicked = thread::spawn(move || {
        let _guard = poisoner.lock().unwrap();
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.join().is_err());
    // resume_unwind skips the panic count at its start but the guard is dropped while unwinding.
    assert!(counter.is_poisoned());
}

fn a_condvar_passes_a_ball() {
    let table = Arc::new((Mutex::new(0u32), Condvar::new()));
    let play = |me: u32| {
        let table = Arc::clone(&table);
        move || {
            for _ in 0..1000 {
                let mut turn = table.1.wait_while(table.0.lock().unwrap(), |turn| *turn % 2 != me).unwrap();
                *turn += 1;
                table.1.notify_one();
            }
        }
    };
    let (ping, pong) = (thread::spawn(play(0)), thread::spawn(play(1)));
    ping.join().unwrap();
    pong.join().unwrap();
    assert_eq!(*table.0.lock().unwrap(), 2000);
}

fn a_timed_wait_times_out_and_a_notified_one_does_not() {
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let start = Instant::now();
    let (guard, result) = pair.1.wait_timeout(pair.0.lock().unwrap(), Duration::from_millis(5)).unwrap();
    assert!(result.timed_out() && start.elapsed() >= Duration::from_millis(5));
    drop(guard);
    let waiter = thread::spawn({
        let pair = Arc::clone(&pair);
        move || {
            let mut guard = pair.0.lock().unwrap();
            while !*guard {
                let (next, result) = pair.1.wait_timeout(guard, PATIENCE).unwrap();
                assert!(!result.timed_out(), "a notified waiter slept on");
                guard = next;
            }
        }
    });
    thread::yield_now();
    *pair.0.lock().unwrap() = true;
    pair.1.notify_one();
    waiter.join().unwrap();
}

fn ordinary_threads_wake_user_threads() {
    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    let os: Vec<_> = (0..4)
        .map(|_| {
            let pair = Arc::clone(&pair);
            std::thread::spawn(move || {
                assert!(!thread::is_user_thread());
                for _ in 0..100 {
                    *pair.0.lock().unwrap() += 1;
                    pair.1.notify_all();
                }
                // The other direction: an OS thread waits for a user thread that it starts.
                thread::spawn(|| 7).join().unwrap()
            })
        })
        .collect();
    drop(pair.1.wait_while(pair.0.lock().unwrap(), |n| *n < 400).unwrap());
    let all = thread::spawn(move || os.into_iter().map(|t| t.join().unwrap()).sum::<i32>());
    assert_eq!(all.join().unwrap(), 28);
}

fn many_threads_come_and_go() {
    for _ in 0..20 {
        let threads: Vec<_> = (0..1000u64).map(|i| thread::spawn(move || i)).collect();
        assert_eq!(threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>(), 499_500);
    }
}

fn large_captures_and_results_survive() {
    let big = [7u8; 10_000];
    let back = thread::spawn(move || big).join().unwrap();
    assert!(back.iter().all(|&b| b == 7));
}
