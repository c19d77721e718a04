//! What C code waits with, and the operations of futex(2) that the C library does not use itself.

use crate::{Case, run_adopted};
use core::cell::UnsafeCell;
use core::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater::thread;

pub const CASES: &[Case] = &[
    ("a_recursive_mutex_belongs_to_one_user_thread", recursive),
    ("mutexes_with_priority_inheritance_change_hands_among_threads_of_both_kinds", inheriting),
    ("a_lock_with_priority_inheritance_ends_in_time", inheriting_in_time),
    ("semaphores_and_barriers_of_c_work_on_one_kthread", semaphores),
    ("timeouts_on_both_clocks_end_in_time", clocks),
    ("a_wake_selects_by_bitset_and_counts", bitsets),
    ("a_requeue_and_a_wake_op_wake_user_threads", requeue),
    ("malformed_calls_get_the_kernels_errors", malformed),
    ("errno_is_the_waiting_threads_own", errno),
];

/// A C object that several threads use.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: objects of the C library that are made for several threads.
unsafe impl<T> Sync for Shared<T> {}
// SAFETY: as above; it stays in place behind an Arc.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    fn zeroed() -> Arc<Self> {
        // SAFETY: an all-zero object of the C library is valid, and initialised before its use.
        Arc::new(Self(UnsafeCell::new(unsafe { zeroed() })))
    }

    fn get(&self) -> *mut T {
        self.0.get()
    }
}

fn recursive() {
    run_adopted(1, || {
        let mutex = Shared::<libc::pthread_mutex_t>::zeroed();
        // SAFETY: initialised here, once.
        unsafe {
            let mut attributes = zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_settype(&raw mut attributes, libc::PTHREAD_MUTEX_RECURSIVE);
            assert_eq!(libc::pthread_mutex_init(mutex.get(), &raw const attributes), 0);
        }
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (mutex, inside) = (Arc::clone(&mutex), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..100 {
                        // SAFETY: an initialised mutex; unlocked as often as it is locked.
                        unsafe {
                            assert_eq!(libc::pthread_mutex_lock(mutex.get()), 0);
                            assert_eq!(libc::pthread_mutex_lock(mutex.get()), 0);
                            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::Relaxed);
                            assert_eq!(libc::pthread_mutex_unlock(mutex.get()), 0);
                            assert_eq!(libc::pthread_mutex_unlock(mutex.get()), 0);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Returns a new mutex with priority inheritance.
fn inheriting_mutex() -> Arc<Shared<libc::pthread_mutex_t>> {
    let mutex = Shared::<libc::pthread_mutex_t>::zeroed();
    // SAFETY: initialised here, once.
    unsafe {
        let mut attributes = zeroed();
        libc::pthread_mutexattr_init(&raw mut attributes);
        assert_eq!(libc::pthread_mutexattr_setprotocol(&raw mut attributes, libc::PTHREAD_PRIO_INHERIT), 0);
        assert_eq!(libc::pthread_mutex_init(mutex.get(), &raw const attributes), 0);
    }
    mutex
}

fn inheriting() {
    const ROUNDS: u32 = 300;
    run_adopted(1, || {
        let mutex = inheriting_mutex();
        let (inside, all) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let work = |yields: fn()| {
            let (mutex, inside, all) = (Arc::clone(&mutex), Arc::clone(&inside), Arc::clone(&all));
            move || {
                for _ in 0..ROUNDS {
                    // SAFETY: an initialised mutex, locked and unlocked in turn.
                    unsafe {
                        assert_eq!(libc::pthread_mutex_lock(mutex.get()), 0);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        yields();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        assert_eq!(libc::pthread_mutex_unlock(mutex.get()), 0);
                    }
                    all.fetch_add(1, Ordering::Relaxed);
                    yields();
                }
            }
        };
        let users: Vec<_> = (0..4).map(|_| thread::spawn(work(thread::yield_now))).collect();
        let ordinary: Vec<_> = tailwater::blocking(|| {
            (0..2).map(|_| std::thread::spawn(work(std::thread::yield_now))).collect()
        });
        users.into_iter().for_each(|thread| thread.join().unwrap());
        ordinary.into_iter().for_each(|thread| tailwater::blocking(|| thread.join()).unwrap());
        assert_eq!(all.load(Ordering::Relaxed), 6 * ROUNDS);
    });
}

fn inheriting_in_time() {
    run_adopted(1, || {
        let mutex = inheriting_mutex();
        // SAFETY: an initialised mutex, which this thread unlocks.
        assert_eq!(unsafe { libc::pthread_mutex_lock(mutex.get()) }, 0);
        let held = Arc::clone(&mutex);
        let too_late = move || {
            let until = at(libc::CLOCK_REALTIME, Duration::from_millis(20));
            // SAFETY: an initialised mutex.
            unsafe { libc::pthread_mutex_timedlock(held.get(), &raw const until) }
        };
        assert_eq!(thread::spawn(too_late.clone()).join().unwrap(), libc::ETIMEDOUT);
        assert_eq!(tailwater::blocking(|| std::thread::spawn(too_late).join()).unwrap(), libc::ETIMEDOUT);
        // SAFETY: as above.
        unsafe {
            assert_eq!(libc::pthread_mutex_unlock(mutex.get()), 0);
            assert_eq!(libc::pthread_mutex_trylock(mutex.get()), 0);
            assert_eq!(libc::pthread_mutex_unlock(mutex.get()), 0);
        }
    });
}

fn semaphores() {
    run_adopted(1, || {
        let (first, second) = (Shared::<libc::sem_t>::zeroed(), Shared::<libc::sem_t>::zeroed());
        let barrier = Shared::<libc::pthread_barrier_t>::zeroed();
        // SAFETY: initialised here, once.
        unsafe {
            assert_eq!(libc::sem_init(first.get(), 0, 0), 0);
            assert_eq!(libc::sem_init(second.get(), 0, 0), 0);
            assert_eq!(libc::pthread_barrier_init(barrier.get(), core::ptr::null(), 2), 0);
        }
        let other = {
            let (first, second, barrier) = (Arc::clone(&first), Arc::clone(&second), Arc::clone(&barrier));
            thread::spawn(move || {
                for _ in 0..200 {
                    // SAFETY: initialised objects.
                    unsafe {
                        assert_eq!(libc::sem_wait(first.get()), 0);
                        assert_eq!(libc::sem_post(second.get()), 0);
                        libc::pthread_barrier_wait(barrier.get());
                    }
                }
            })
        };
        for _ in 0..200 {
            // SAFETY: as above.
            unsafe {
                assert_eq!(libc::sem_post(first.get()), 0);
                assert_eq!(libc::sem_wait(second.get()), 0);
                libc::pthread_barrier_wait(barrier.get());
            }
        }
        other.join().unwrap();
    });
}

unsafe extern "C" {
    fn pthread_cond_clockwait(
        cond: *mut libc::pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

/// Returns the time of `clock` in `time`.
fn at(clock: libc::clockid_t, time: Duration) -> libc::timespec {
    // SAFETY: a time is written.
    let mut now = unsafe {
        let mut now = zeroed::<libc::timespec>();
        libc::clock_gettime(clock, &raw mut now);
        now
    };
    let nanoseconds = now.tv_nsec + i64::from(time.subsec_nanos());
    now.tv_sec += time.as_secs() as i64 + nanoseconds / 1_000_000_000;
    now.tv_nsec = nanoseconds % 1_000_000_000;
    now
}

fn clocks() {
    const TIME: Duration = Duration::from_millis(20);
    /// Smallest step of the clock that a wait may end early by.
    const STEP: Duration = Duration::from_micros(100);
    run_adopted(1, || {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME] {
            let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
            let mut cond = libc::PTHREAD_COND_INITIALIZER;
            let start = Instant::now();
            let until = at(clock, TIME);
            // SAFETY: initialised objects of this frame, which no other thread uses.
            let result = unsafe {
                libc::pthread_mutex_lock(&raw mut mutex);
                let result = pthread_cond_clockwait(&raw mut cond, &raw mut mutex, clock, &raw const until);
                libc::pthread_mutex_unlock(&raw mut mutex);
                result
            };
            assert_eq!(result, libc::ETIMEDOUT);
            assert!(start.elapsed() + STEP >= TIME, "{:?}", start.elapsed());
        }
    });
}

/// Calls futex(2) by the C library.
fn futex(
    word: &AtomicU32,
    operation: i32,
    value: u32,
    timeout: usize,
    other: Option<&AtomicU32>,
    value3: u32,
) -> i64 {
    let other = other.map_or(core::ptr::null_mut(), AtomicU32::as_ptr);
    // SAFETY: words that live, and a time or a number.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            timeout,
            other,
            value3,
        )
    }
}

/// Starts user threads that wait for the word, each with a bitset, and lets them wait.
fn waiting(word: &'static AtomicU32, bitsets: &[u32]) -> Vec<thread::JoinHandle<i64>> {
    let wait = |&bits: &u32| thread::spawn(move || futex(word, libc::FUTEX_WAIT_BITSET, 0, 0, None, bits));
    let threads = bitsets.iter().map(wait).collect();
    // One kthread: each runs until it waits.
    thread::yield_now();
    threads
}

fn bitsets() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    run_adopted(1, || {
        let threads = waiting(&WORD, &[1, 2, 3, 4]);
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE_BITSET, 10, 0, None, 8), 0);
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE_BITSET, 10, 0, None, 2), 2);
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE, 1, 0, None, 0), 1);
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE, 10, 0, None, 0), 1);
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE, 10, 0, None, 0), 0);
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
        assert_eq!(futex(&WORD, libc::FUTEX_WAIT, 1, 0, None, 0), -1, "the word has another value");
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    });
}

fn requeue() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static OTHER: AtomicU32 = AtomicU32::new(0);
    run_adopted(1, || {
        let threads = waiting(&WORD, &[1, 1, 1]);
        let refused = futex(&WORD, libc::FUTEX_CMP_REQUEUE, 1, 1, Some(&OTHER), 9);
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EAGAIN)));
        assert_eq!(futex(&WORD, libc::FUTEX_CMP_REQUEUE, 1, 1, Some(&OTHER), 0), 2);
        assert_eq!(futex(&WORD, libc::FUTEX_REQUEUE, 1, 1, Some(&OTHER), 0), 1);
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
        let mut threads = waiting(&WORD, &[1]);
        threads.extend(waiting(&OTHER, &[1]));
        // FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0): the other word becomes 5.
        assert_eq!(futex(&WORD, libc::FUTEX_WAKE_OP, 1, 1, Some(&OTHER), 5 << 12), 2);
        assert_eq!(OTHER.load(Ordering::Relaxed), 5);
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
    });
}

fn malformed() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    run_adopted(1, || {
        let error = |result: i64| (result, std::io::Error::last_os_error().raw_os_error());
        let time = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000_000 };
        let invalid = (-1, Some(libc::EINVAL));
        let timeout = core::ptr::from_ref(&time) as usize;
        assert_eq!(error(futex(&WORD, libc::FUTEX_WAIT, 0, timeout, None, 0)), invalid);
        assert_eq!(error(futex(&WORD, libc::FUTEX_WAIT_BITSET, 0, 0, None, 0)), invalid);
        // SAFETY: the kernel refuses the addresses.
        let at = |address: usize| unsafe {
            libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0, 0, 0, 0)
        };
        assert_eq!(error(at(0)), (-1, Some(libc::EFAULT)));
        assert_eq!(error(at(WORD.as_ptr() as usize + 1)), invalid);
    });
}

fn errno() {
    run_adopted(1, || {
        let lock = Arc::new(std::sync::Mutex::new(()));
        let threads: Vec<_> = (1..=4)
            .map(|n| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..200 {
                        // SAFETY: the calling thread's errno.
                        unsafe { *libc::__errno_location() = n };
                        let held = lock.lock().unwrap();
                        let seen = std::io::Error::last_os_error().raw_os_error();
                        // A wait that finds the lock free after all says EAGAIN.
                        assert!(seen == Some(n) || seen == Some(libc::EAGAIN), "{seen:?}");
                        thread::yield_now();
                        drop(held);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
