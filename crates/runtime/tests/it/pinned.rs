//! Threads that a binding policy pins to a core, against thieves. One runtime per process, so one
//! test function runs all. Kthreads pretend to be lent cores: a machine with two CPUs lends one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tailwater::cores::{Held, Pinned, PlacementPolicy, set_placement};
use tailwater::testing::pretend_cores;
use tailwater::thread::{self, Builder, JoinHandle, Placement};
use tailwater_testkit::{PATIENCE, own_process};

/// The cores that the kthreads pretend to have, by their index.
const CORES: [Option<u16>; 3] = [Some(0), Some(1), Some(2)];
/// Threads of each class: more than a run queue holds.
const EACH: usize = 300;

#[test]
fn pinned_threads_stay_on_their_core() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                pretend_cores(&CORES);
                set_placement(Pinned::new(3));
                each_class_runs_on_one_kthread_however_it_waits();
                no_idle_kthread_takes_threads_that_wait_behind_a_busy_one();
                threads_of_a_lost_core_run_elsewhere_and_return_with_it();
                a_policy_that_does_not_bind_leaves_threads_to_thieves();
            })
            .unwrap();
    });
}

/// Linux's id of the kthread that the caller runs on at this moment.
fn kthread() -> i32 {
    tailwater::no_preempt(|| rustix::thread::gettid().as_raw_nonzero().get())
}

fn spawn_in<T: Send + 'static>(class: u8, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().placement(Placement::Class(class)).spawn(body).unwrap()
}

fn wait_until(condition: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Yields, sleeps, and is woken by threads of other classes and by ordinary ones.
fn each_class_runs_on_one_kthread_however_it_waits() {
    let seen: Arc<[Mutex<HashSet<i32>>; 3]> = Arc::default();
    let woken = Arc::new(AtomicUsize::new(0));
    let threads: Vec<JoinHandle<()>> = (0..3 * EACH)
        .map(|n| {
            let (class, seen, woken) = (n % 3, Arc::clone(&seen), Arc::clone(&woken));
            spawn_in(class as u8, move || {
                let look = || {
                    let at = kthread();
                    seen[class].lock().unwrap_or_else(PoisonError::into_inner).insert(at);
                };
                look();
                thread::yield_now();
                look();
                thread::sleep(Duration::from_micros(n as u64 % 500));
                look();
                while woken.load(Ordering::Acquire) < 2 {
                    thread::park();
                    look();
                }
            })
        })
        .collect();
    let handles: Vec<_> = threads.iter().map(|thread| thread.thread().clone()).collect();
    let others = handles.clone();
    let rounds = Arc::clone(&woken);
    // An ordinary thread, off the kthreads.
    let ordinary = std::thread::spawn(move || {
        rounds.fetch_add(1, Ordering::Release);
        others.iter().for_each(thread::Thread::unpark);
    });
    tailwater::blocking(|| ordinary.join().unwrap());
    woken.fetch_add(1, Ordering::Release);
    handles.iter().for_each(thread::Thread::unpark);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seen = seen.each_ref().map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner).clone());
    assert!(seen.iter().all(|seen| seen.len() == 1), "{seen:?}");
    let all: HashSet<i32> = seen.iter().flatten().copied().collect();
    assert_eq!(all.len(), 3, "each class has a kthread of its own");
}

/// A thread of class 1 that keeps its kthread until it is told to end.
fn hog(ended: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::clone(ended));
    let has_begun = Arc::clone(&begun);
    let thread = spawn_in(1, move || {
        has_begun.store(true, Ordering::Release);
        while !ended.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
    });
    wait_until(|| begun.load(Ordering::Acquire), "the thread of class 1 has not begun");
    thread
}

/// Has the other kthreads look for work again and again.
fn let_thieves_look() {
    for n in 0..200 {
        let looks = [0, 2].map(|class| spawn_in(class, thread::yield_now));
        looks.into_iter().for_each(|thread| thread.join().unwrap());
        if n % 20 == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Returns threads of class 1, and how many of them have run.
fn waiting(ran: &Arc<AtomicUsize>) -> Vec<JoinHandle<()>> {
    let count = || {
        let ran = Arc::clone(ran);
        spawn_in(1, move || {
            thread::yield_now();
            ran.fetch_add(1, Ordering::Relaxed);
        })
    };
    (0..EACH).map(|_| count()).collect()
}

fn no_idle_kthread_takes_threads_that_wait_behind_a_busy_one() {
    let (ended, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let busy = hog(&ended);
    let threads = waiting(&ran);
    let_thieves_look();
    assert_eq!(ran.load(Ordering::Relaxed), 0, "they wait for their core");
    ended.store(true, Ordering::Release);
    busy.join().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(ran.load(Ordering::Relaxed), EACH);
}

fn threads_of_a_lost_core_run_elsewhere_and_return_with_it() {
    let (ended, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let home = spawn_in(1, kthread).join().unwrap();
    // It is still there when the core is back.
    let (stays, back) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(0)));
    let (waits, found) = (Arc::clone(&stays), Arc::clone(&back));
    let guest = spawn_in(1, move || {
        while waits.load(Ordering::Acquire) {
            thread::park();
        }
        *found.lock().unwrap_or_else(PoisonError::into_inner) = kthread();
    });
    let busy = hog(&ended);
    let threads = waiting(&ran);
    let_thieves_look();
    assert_eq!(ran.load(Ordering::Relaxed), 0, "they wait for their core");
    pretend_cores(&[CORES[0], None, CORES[2]]);
    wait_until(|| ran.load(Ordering::Relaxed) == EACH, "threads wait for a core that is lost");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    pretend_cores(&CORES);
    ended.store(true, Ordering::Release);
    busy.join().unwrap();
    stays.store(false, Ordering::Release);
    guest.thread().unpark();
    guest.join().unwrap();
    assert_eq!(*back.lock().unwrap_or_else(PoisonError::into_inner), home, "the core is back");
}

/// As [`Pinned`], without binding.
struct Loose(Pinned);

impl PlacementPolicy for Loose {
    fn classes(&self) -> u8 {
        self.0.classes()
    }

    fn allows(&self, class: u8, core: &Held, held: &[Held]) -> bool {
        self.0.allows(class, core, held)
    }
}

fn a_policy_that_does_not_bind_leaves_threads_to_thieves() {
    set_placement(Loose(Pinned::new(3)));
    let (ended, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let busy = hog(&ended);
    let threads = waiting(&ran);
    wait_until(|| ran.load(Ordering::Relaxed) == EACH, "threads behind a busy one are not stolen");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ended.store(true, Ordering::Release);
    busy.join().unwrap();
}
