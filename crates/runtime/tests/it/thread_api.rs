//! `tailwater::thread` through its public surface, in a standalone runtime. One runtime per
//! process, so one test function runs all.

use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

const LONG: Duration = Duration::from_secs(2 * PATIENCE.as_secs());

#[test]
fn the_thread_api_means_what_it_means_in_std() {
    own_process(|| {
        assert!(thread::available_parallelism().is_ok(), "without a runtime");
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                identities();
                a_token_is_given_once_and_waits();
                unpark_and_park_never_lose_each_other();
                a_parked_thread_times_out_or_is_unparked();
                an_old_handle_wakes_nobody();
                ordinary_threads_park_and_unpark();
                a_scope_waits_for_all_and_lends();
                scopes_propagate_panics();
                a_scope_outlives_the_results_of_its_threads();
                results_of_detached_threads_may_use_thread_locals();
                builders_choose_names_and_stacks();
                stacks_of_other_sizes_are_recycled();
            })
            .unwrap();
    });
}

fn panic_with(value: u32) {
    resume_unwind(Box::new(value));
}

fn identities() {
    let me = thread::current();
    assert_eq!(me.name(), Some("main"));
    assert_eq!(me.id(), thread::current().id());
    let threads: Vec<_> = (0..3000).map(|_| thread::spawn(|| thread::current().id())).collect();
    let ids: HashSet<_> = threads
        .into_iter()
        .map(|t| {
            let outside = t.thread().id();
            assert_eq!(t.join().unwrap(), outside, "a thread and its handle disagree");
            outside
        })
        .chain([me.id()])
        .collect();
    assert_eq!(ids.len(), 3001, "two threads shared an id");
    assert_eq!(thread::available_parallelism().unwrap().get(), 3);
    let os = std::thread::spawn(|| thread::current().id()).join().unwrap();
    assert!(!ids.contains(&os));
}

fn a_token_is_given_once_and_waits() {
    let me = thread::current();
    me.unpark();
    me.unpark();
    thread::park();
    let start = Instant::now();
    thread::park_timeout(Duration::from_millis(3));
    assert!(start.elapsed() >= Duration::from_millis(3), "two unparks gave two tokens");
}

fn unpark_and_park_never_lose_each_other() {
    const TURNS: usize = 20_000;
    let turn = Arc::new(AtomicUsize::new(0));
    let main = thread::current();
    let other = thread::spawn({
        let turn = Arc::clone(&turn);
        move || {
            for i in 0..TURNS {
                while turn.load(Ordering::Acquire) != 2 * i + 1 {
                    thread::park();
                }
                turn.store(2 * i + 2, Ordering::Release);
                main.unpark();
            }
        }
    });
    for i in 0..TURNS {
        turn.store(2 * i + 1, Ordering::Release);
        other.thread().unpark();
        while turn.load(Ordering::Acquire) != 2 * i + 2 {
            // Every third time with a timer that has no effect, or fires at any moment.
            match i % 3 {
                0 => thread::park(),
                1 => thread::park_timeout(LONG),
                _ => thread::park_timeout(Duration::from_micros(1)),
            }
        }
    }
    other.join().unwrap();
}

fn a_parked_thread_times_out_or_is_unparked() {
    let start = Instant::now();
    let sleeper = thread::spawn(|| thread::park_timeout(LONG));
    thread::yield_now();
    sleeper.thread().unpark();
    sleeper.join().unwrap();
    assert!(start.elapsed() < PATIENCE, "an unparked thread slept on");
    thread::park_timeout(Duration::ZERO);
}

fn an_old_handle_wakes_nobody() {
    let ended: Vec<_> = (0..50)
        .map(|_| {
            let handle = thread::spawn(|| ());
            let thread = handle.thread().clone();
            handle.join().unwrap();
            thread
        })
        .collect();
    // New threads on the same records: only their own handles may end their wait.
    let woken = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let woken = Arc::clone(&woken);
            thread::spawn(move || {
                thread::park();
                woken.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(2));
    ended.iter().for_each(thread::Thread::unpark);
    thread::sleep(Duration::from_millis(2));
    assert_eq!(woken.load(Ordering::SeqCst), 0, "a handle to an ended thread woke another");
    waiting.iter().for_each(|w| w.thread().unpark());
    waiting.into_iter().for_each(|w| w.join().unwrap());
}

fn ordinary_threads_park_and_unpark() {
    let done = Arc::new(AtomicBool::new(false));
    let user = thread::current();
    let os = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            assert!(!thread::is_user_thread());
            user.unpark();
            while !done.load(Ordering::Acquire) {
                thread::park();
            }
            thread::park_timeout(Duration::from_millis(1));
            let sum = thread::scope(|s| s.spawn(|| 1).join().unwrap() + s.spawn(|| 2).join().unwrap());
            assert_eq!(sum, 3, "a scope on an ordinary thread");
            thread::current().name().map(str::to_owned)
        }
    });
    thread::park();
    done.store(true, Ordering::Release);
    let handle = os.thread().clone();
    assert_eq!(thread::spawn(move || (handle.unpark(), os.join().unwrap()).1).join().unwrap(), None);
}

fn a_scope_waits_for_all_and_lends() {
    let counter = AtomicUsize::new(0);
    let mut text = String::from("lent");
    let length = thread::scope(|s| {
        for i in 0..100 {
            let counter = &counter;
            s.spawn(move || {
                thread::sleep(Duration::from_micros(i % 7 * 50));
                counter.fetch_add(1, Ordering::Relaxed);
                s.spawn(move || counter.fetch_add(1, Ordering::Relaxed));
            });
        }
        let writer = s.spawn(|| {
            text.push('!');
            text.len()
        });
        writer.join().unwrap()
    });
    assert_eq!((counter.into_inner(), length, text.as_str()), (200, 5, "lent!"));
}

fn scopes_propagate_panics() {
    let ended = AtomicUsize::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        thread::scope(|s| {
            s.spawn(|| {
                thread::sleep(Duration::from_millis(1));
                ended.fetch_add(1, Ordering::Relaxed);
            });
            panic_with(1);
        });
    }));
    assert_eq!(*caught.unwrap_err().downcast::<u32>().unwrap(), 1, "the panic of the closure");
    assert_eq!(ended.load(Ordering::Relaxed), 1, "scope returned before its thread had ended");
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let caught = catch_unwind(|| thread::scope(|s| drop(s.spawn(|| panic_with(2)))));
    std::panic::set_hook(quiet);
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "a scoped thread panicked");
    let joined = thread::scope(|s| s.spawn(|| panic_with(3)).join());
    assert_eq!(*joined.unwrap_err().downcast::<u32>().unwrap(), 3, "a joined panic is the joiner's");
}

/// Counts drops of values that borrow.
struct Counted<'a>(&'a AtomicUsize);
impl Drop for Counted<'_> {
    fn drop(&mut self) {
        thread::yield_now();
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn a_scope_outlives_the_results_of_its_threads() {
    for _ in 0..200 {
        let drops = AtomicUsize::new(0);
        thread::scope(|s| {
            drop(s.spawn(|| Counted(&drops)));
            let kept = s.spawn(|| Counted(&drops));
            while !kept.is_finished() {
                thread::yield_now();
            }
        });
        assert_eq!(drops.load(Ordering::SeqCst), 2, "a result that borrows outlived its scope");
    }
}

fn results_of_detached_threads_may_use_thread_locals() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    /// A result that fills a thread-local when it is dropped, after the thread's destructors have
    /// run.
    struct Fills;
    impl Drop for Fills {
        fn drop(&mut self) {
            LATE.set(Some(Late));
        }
    }
    for round in 1..=50 {
        // Ends only when it is detached: its handle would drop the result in this thread otherwise.
        let detached = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&detached);
        drop(thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            Fills
        }));
        detached.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while DROPPED.load(Ordering::SeqCst) < round && start.elapsed() < LONG {
            thread::yield_now();
        }
        assert_eq!(DROPPED.load(Ordering::SeqCst), round, "a thread-local of an ended thread was forgotten");
    }
}

fn builders_choose_names_and_stacks() {
    let named = thread::Builder::new().name("a name".to_owned()).spawn(thread::current).unwrap();
    assert_eq!(named.thread().name(), Some("a name"));
    assert_eq!(named.join().unwrap().name(), Some("a name"));
    // As with `std`: the argument's type follows from the method's.
    let converted = thread::Builder::new().name("converted".into()).spawn(thread::current).unwrap();
    assert_eq!(converted.join().unwrap().name(), Some("converted"));
    assert_eq!(thread::spawn(thread::current).join().unwrap().name(), None, "a name was inherited");
    for (bytes, range) in [(1000, "16384"), (usize::MAX, "137438953472")] {
        let error = thread::Builder::new().stack_size(bytes).spawn(|| ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(range), "{error}");
    }
    let unmappable = thread::Builder::new().stack_size(1 << 37).spawn(|| ());
    if let Err(error) = unmappable {
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory, "{error}");
    }
    // Far deeper than the 256 KiB of other stacks.
    let deep = thread::Builder::new().stack_size(16 << 20).spawn(|| depth(40_000)).unwrap();
    assert_eq!(deep.join().unwrap(), 40_000);
}

/// Uses more than 100 bytes of stack per level.
#[inline(never)]
fn depth(levels: u64) -> u64 {
    let frame = std::hint::black_box([levels; 12]);
    if levels == 0 { 0 } else { 1 + depth(frame[7] - 1) }
}

fn stacks_of_other_sizes_are_recycled() {
    let here = |size: usize| {
        let thread = thread::Builder::new().stack_size(size).spawn(|| {
            let local = 0u8;
            std::ptr::from_ref(std::hint::black_box(&local)) as usize
        });
        thread.unwrap().join().unwrap() >> 16
    };
    let places: HashSet<_> = (0..500).map(|_| here(1 << 20)).collect();
    assert!(places.len() <= 8, "{} mappings for threads that ran one at a time", places.len());
    // Several at once, repeatedly, on all kthreads: a stack must not be taken while its last thread
    // still uses it.
    for round in 0..200 {
        let threads: Vec<_> = (0..8u64)
            .map(|i| thread::Builder::new().stack_size(64 << 10).spawn(move || depth(i * 10)).unwrap())
            .collect();
        for (i, thread) in (0u64..).zip(threads) {
            assert_eq!(thread.join().unwrap(), i * 10, "round {round}");
        }
    }
}
