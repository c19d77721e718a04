//! Exclusive threads of a standalone program: alone on a kthread, and refused beyond the kthreads
//! that there are. One runtime per process, so one test function runs all.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;
use tailwater::cores;
use tailwater::sync::mpsc;
use tailwater::thread::{self, Builder, JoinHandle, Placement, ThreadClass};
use tailwater_testkit::{own_process, until};

/// Kthreads of the program.
const KTHREADS: u16 = 3;
/// No OS thread.
const NONE: i32 = 0;

#[test]
fn exclusive_threads() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(KTHREADS)
            .stall_timeout(Duration::ZERO)
            .run(|| {
                no_thread_runs_where_an_exclusive_thread_is();
                one_that_waits_gives_its_kthread_up_and_is_alone_again();
                one_core_each_is_requested_and_given_back();
                the_load_of_exclusive_threads_is_measured_apart();
                threads_of_all_classes_end();
            })
            .unwrap();
    });
}

fn exclusive<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().class(ThreadClass::Exclusive).spawn(body)
}

/// The OS threads on which exclusive threads run at present.
#[derive(Default)]
struct Taken([AtomicI32; 2]);

impl Taken {
    /// Fails if the caller, an ordinary thread, runs where an exclusive thread does.
    fn check(&self) {
        tailwater::no_preempt(|| {
            let here = rustix::thread::gettid().as_raw_nonzero().get();
            for taken in &self.0 {
                assert_ne!(taken.load(Ordering::SeqCst), here, "it runs beside an exclusive thread");
            }
        });
    }

    /// Runs `body` while place `n` holds the calling thread's OS thread.
    fn during(&self, n: usize, body: impl FnOnce()) {
        let here = rustix::thread::gettid().as_raw_nonzero().get();
        self.0[n].store(here, Ordering::SeqCst);
        body();
        assert_eq!(rustix::thread::gettid().as_raw_nonzero().get(), here, "it was moved");
        self.0[n].store(NONE, Ordering::SeqCst);
    }
}

/// Starts threads that check where they run until `stop`, placed and woken in all ways.
fn crowd(taken: &Arc<Taken>, stop: &Arc<AtomicBool>, turns: &Arc<AtomicUsize>) -> Vec<JoinHandle<()>> {
    let placements = [Placement::Parent, Placement::LeastLoaded(2), Placement::LeastLoaded(3)];
    let member = |n: usize| {
        let (taken, stop, turns) = (Arc::clone(taken), Arc::clone(stop), Arc::clone(turns));
        let body = move || {
            while !stop.load(Ordering::Relaxed) {
                taken.check();
                turns.fetch_add(1, Ordering::Relaxed);
                if n.is_multiple_of(4) {
                    thread::sleep(Duration::from_micros(20));
                } else {
                    thread::yield_now();
                }
            }
        };
        let class = if n % 5 == 1 { ThreadClass::Background } else { ThreadClass::Normal };
        Builder::new().placement(placements[n % 3]).class(class).spawn(body).unwrap()
    };
    (0..12).map(member).collect()
}

fn no_thread_runs_where_an_exclusive_thread_is() {
    let (taken, stop, turns) = <(Arc<Taken>, Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
    let before = crowd(&taken, &stop, &turns);
    let alone = |n: usize| {
        let (taken, turns) = (Arc::clone(&taken), Arc::clone(&turns));
        exclusive(move || {
            taken.during(n, || {
                let enough = turns.load(Ordering::Relaxed) + 2_000;
                let mut other = thread::spawn(|| ());
                while turns.load(Ordering::Relaxed) < enough {
                    if other.is_finished() {
                        // Queued elsewhere.
                        let check = Arc::clone(&taken);
                        other = thread::spawn(move || check.check());
                    }
                    thread::yield_now();
                    tailwater::poll();
                }
            });
        })
        .unwrap()
    };
    let both: Vec<_> = (0..2).map(alone).collect();
    let after = crowd(&taken, &stop, &turns);
    both.into_iter().for_each(|thread| thread.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    before.into_iter().chain(after).for_each(|thread| thread.join().unwrap());
}

fn one_that_waits_gives_its_kthread_up_and_is_alone_again() {
    let (taken, stop, turns) = <(Arc<Taken>, Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
    let others = crowd(&taken, &stop, &turns);
    let (send, receive) = mpsc::channel::<u32>();
    let (answer, answers) = mpsc::channel();
    let check = Arc::clone(&taken);
    let alone = exclusive(move || {
        while let Ok(n) = receive.recv() {
            check.during(0, || (0..100).for_each(|_| thread::yield_now()));
            answer.send(n).unwrap();
        }
    })
    .unwrap();
    for n in 0..200 {
        send.send(n).unwrap();
        assert_eq!(answers.recv(), Ok(n));
        if n.is_multiple_of(20) {
            // It gives its kthread up meanwhile.
            thread::sleep(Duration::from_millis(1));
        }
    }
    drop(send);
    alone.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|thread| thread.join().unwrap());
}

fn one_core_each_is_requested_and_given_back() {
    cores::request(1);
    let stop = Arc::new(AtomicBool::new(false));
    let spin = || {
        let stop = Arc::clone(&stop);
        exclusive(move || {
            while !stop.load(Ordering::Relaxed) {
                tailwater::poll();
            }
        })
    };
    let two: Vec<_> = (0..2).map(|_| spin().unwrap()).collect();
    assert_eq!(cores::requested(), 3.into());
    let third = spin().unwrap_err();
    assert_eq!(third.kind(), ErrorKind::ResourceBusy);
    assert!(third.to_string().contains("kthread"), "{third}");
    assert_eq!(cores::requested(), 3.into());
    stop.store(true, Ordering::Relaxed);
    two.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(cores::requested(), 1.into());
    cores::request(0);
    // The place of one that has ended is free, also after a panic.
    for _ in 0..5 {
        let panics = exclusive(|| -> () { std::panic::panic_any(7) }).unwrap();
        assert_eq!(panics.join().unwrap_err().downcast_ref(), Some(&7));
    }
    assert_eq!(cores::requested().total(), 0);
}

/// For each exclusive thread a core is requested in any case: in the load by which a policy
/// requests cores it would count twice.
fn the_load_of_exclusive_threads_is_measured_apart() {
    let (stop, running) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
    let spin = || {
        let (stop, running) = (Arc::clone(&stop), Arc::clone(&running));
        exclusive(move || {
            running.fetch_add(1, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                tailwater::poll();
            }
        })
    };
    let two: Vec<_> = (0..2).map(|_| spin().unwrap()).collect();
    until("both run", || {
        thread::yield_now();
        running.load(Ordering::Relaxed) == 2
    });
    let mut meter = cores::LoadMeter::new();
    // Whatever the third kthread does meanwhile, two have nothing but these threads. One interval
    // is enough: Linux may let a kthread run too seldom to count its time.
    until("the load of two exclusive threads alone", || {
        thread::sleep(Duration::from_millis(20));
        let load = meter.load();
        assert!(load.exclusive <= 2.0, "{load:?}");
        load.exclusive >= 1.9 && load.utilisation <= 1.0 && load.runnable < 2.0
    });
    stop.store(true, Ordering::Relaxed);
    two.into_iter().for_each(|thread| thread.join().unwrap());
}

fn threads_of_all_classes_end() {
    let done = Arc::new(AtomicUsize::new(0));
    for round in 0..30u64 {
        let (send, receive) = mpsc::channel();
        let count = Arc::clone(&done);
        let alone = exclusive(move || {
            for message in &receive {
                if message % 7 == round % 7 {
                    thread::sleep(Duration::from_micros(message));
                }
                let count = Arc::clone(&count);
                drop(thread::spawn(move || count.fetch_add(1, Ordering::Relaxed)));
            }
        })
        .unwrap();
        let senders: Vec<_> = (0..8u64)
            .map(|n| {
                let send = send.clone();
                let class = if n == 3 { ThreadClass::Background } else { ThreadClass::Normal };
                let body = move || (0..10).for_each(|k| send.send(n * 10 + k).unwrap());
                Builder::new().class(class).spawn(body).unwrap()
            })
            .collect();
        drop(send);
        senders.into_iter().for_each(|thread| thread.join().unwrap());
        alone.join().unwrap();
    }
    until("all threads that exclusive threads have made end", || {
        thread::yield_now();
        done.load(Ordering::Relaxed) == 30 * 80
    });
}
