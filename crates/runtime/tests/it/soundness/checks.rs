//! The checks of a session: each function uses something that Rust or the C library keeps per
//! thread, over a computation that is long enough to be preempted, and fails if it finds another
//! thread's.

use super::{lines, spans};
use rand::RngExt;
use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::panic::{catch_unwind, panic_any};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailwater::sync::Mutex;
use tailwater::thread;

/// Rounds of all checks per session.
const ROUNDS: u64 = 6;
/// Bytes of the largest allocation.
const LARGEST: usize = 100_000;

static STARTED: AtomicU64 = AtomicU64::new(0);
static DESTROYED: AtomicU64 = AtomicU64::new(0);
static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOKED: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);
/// First words of the sessions' random streams.
static RANDOM: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Blocks that sessions exchange: allocated by one thread, checked and freed by another.
static BLOCKS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Counts its drops.
struct Mine {
    id: u64,
    notes: Vec<u64>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        compute(self.id);
        if self.notes.iter().all(|&note| note == self.id) {
            DESTROYED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
    static LAZY: RefCell<HashMap<u64, String>> = RefCell::default();
}

/// Computes for a few tens of microseconds in vector and general registers; the result depends on
/// `seed` only.
#[inline(never)]
fn compute(seed: u64) -> u64 {
    let mut lanes = [1.0f64, 2.0, 3.0, 4.0];
    let mut hash = seed;
    for i in 0..1500u64 {
        for lane in &mut lanes {
            *lane = (*lane * 1.000_1 + (hash % 7) as f64).sqrt();
        }
        hash = (hash ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    }
    hash ^ lanes.iter().sum::<f64>().to_bits()
}

/// One user thread.
#[derive(Debug)]
pub struct Session {
    id: u64,
    std_id: std::thread::ThreadId,
    own_id: thread::ThreadId,
}

impl Session {
    pub fn new(id: u64) -> Self {
        STARTED.fetch_add(1, Ordering::Relaxed);
        MINE.with_borrow_mut(|mine| {
            assert!(mine.is_none(), "a new thread has inherited a thread-local");
            *mine = Some(Mine { id, notes: Vec::new() });
        });
        Self { id, std_id: std::thread::current().id(), own_id: thread::current().id() }
    }

    /// Returns whether session `id` ends by panic.
    pub fn panics(id: u64) -> bool {
        id % 5 == 3
    }

    /// Returns the result of session `id`.
    pub fn result(id: u64) -> u64 {
        compute(id)
    }

    pub fn run(self) -> u64 {
        let result = compute(self.id);
        RANDOM.lock().unwrap().push(rand::rng().random());
        for round in 0..ROUNDS {
            self.check_thread_locals();
            self.check_identity();
            self.check_collections(round);
            self.check_random();
            self.check_panics();
            self.check_errno();
            self.check_allocation(round);
            spans::check(self.id, || _ = black_box(compute(self.id)));
            EVENTS.fetch_add(1, Ordering::Relaxed);
            lines::print(self.id, round);
            assert_eq!(compute(self.id), result, "a computation went wrong");
            match (self.id + round) % 4 {
                0 => thread::sleep(Duration::from_micros(200)),
                1 => thread::yield_now(),
                _ => {}
            }
        }
        self.check_backtrace();
        if Self::panics(self.id) {
            PANICS.fetch_add(1, Ordering::Relaxed);
            panic_any(self.id);
        }
        result
    }

    fn check_thread_locals(&self) {
        MINE.with_borrow_mut(|mine| {
            let mine = mine.as_mut().expect("set by this thread");
            assert_eq!(mine.id, self.id, "another thread's thread-local");
            mine.notes.push(self.id);
            compute(self.id);
            assert!(mine.notes.iter().all(|&note| note == self.id), "another thread wrote here");
        });
        LAZY.with_borrow_mut(|map| {
            let len = map.len() as u64;
            compute(self.id);
            map.insert(len, self.id.to_string());
            assert!(map.values().all(|text| *text == self.id.to_string()), "another thread's map");
        });
    }

    fn check_identity(&self) {
        let handle = std::thread::current();
        compute(self.id);
        assert_eq!((handle.id(), std::thread::current().id()), (self.std_id, self.std_id), "std's identity");
        assert_eq!(thread::current().id(), self.own_id);
        assert!(!std::thread::panicking());
    }

    fn check_collections(&self, round: u64) {
        // Each map has a key of its own (`RandomState`), counted up in a thread-local.
        let map: HashMap<u64, String> = (0..50).map(|k| (k, format!("{}-{k}-{round}", self.id))).collect();
        compute(self.id);
        let damaged = map.iter().find(|(k, text)| **text != format!("{}-{k}-{round}", self.id));
        assert_eq!(damaged, None, "a map is damaged");
        assert_eq!(map.len(), 50);
    }

    fn check_random(&self) {
        let mut rng = rand::rng();
        let mut seen = HashSet::new();
        for _ in 0..64 {
            let word: u64 = rng.random();
            assert!(seen.insert(word), "a random word came twice");
            let small = rng.random_range(10..20);
            assert!((10..20).contains(&small));
        }
    }

    fn check_panics(&self) {
        PANICS.fetch_add(2, Ordering::Relaxed);
        let caught = catch_unwind(|| panic_any(self.id)).unwrap_err();
        assert_eq!(caught.downcast_ref(), Some(&self.id), "another thread's panic");
        let nested = catch_unwind(|| {
            // Its destructor computes and checks while its thread unwinds.
            struct WhileUnwinding(u64);
            impl Drop for WhileUnwinding {
                fn drop(&mut self) {
                    compute(self.0);
                    assert!(std::thread::panicking());
                }
            }
            let _guard = WhileUnwinding(self.id);
            panic!("session {}", self.id);
        });
        assert_eq!(message(&*nested.unwrap_err()), format!("session {}", self.id));
        assert!(!std::thread::panicking());
    }

    fn check_errno(&self) {
        // SAFETY: closing no descriptor has no effect; errno is the calling thread's.
        let closed = unsafe { libc::close(-1) };
        compute(self.id);
        assert_eq!((closed, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
        let mine = 1000 + (self.id % 1000) as i32;
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = mine };
        compute(self.id);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(mine), "another thread's errno");
        let missing = std::fs::metadata("/nonexistent").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    fn check_allocation(&self, round: u64) {
        let byte = self.id as u8;
        let sizes = (0..24).map(|i| 1 + (self.id as usize * 7 + i * i * 97 + round as usize) % 2000);
        let mut blocks: Vec<Vec<u8>> = sizes.map(|size| vec![byte; size]).collect();
        blocks.push(vec![byte; LARGEST]);
        compute(self.id);
        for block in &mut blocks {
            let len = block.len();
            block.extend(std::iter::repeat_n(byte, len % 500));
            assert!(block.iter().all(|&b| b == byte), "an allocation is shared");
        }
        let swapped = {
            let mut shared = BLOCKS.lock().unwrap();
            std::mem::replace(&mut *shared, blocks)
        };
        compute(self.id);
        assert!(
            swapped.iter().all(|block| block.iter().all(|b| *b == block[0])),
            "a foreign block is damaged"
        );
    }

    /// Captures a backtrace, which unwinds; printing reads symbols, which is slow, so few sessions
    /// do.
    #[inline(never)]
    fn check_backtrace(&self) {
        let backtrace = Backtrace::force_capture();
        compute(self.id);
        if self.id.is_multiple_of(16) {
            let text = backtrace.to_string();
            assert!(text.contains("check_backtrace") && text.contains("uthread_main"), "{text}");
        }
    }
}

pub fn count_hooked_panic() {
    HOOKED.fetch_add(1, Ordering::Relaxed);
}

/// Returns the message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".into())
}

/// Checks that nothing was lost, counted twice, or mixed up over `sessions` sessions.
pub fn check_totals(sessions: u64) -> Result<(), String> {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (events, wrong_spans) = spans::totals();
    let streams = RANDOM.lock().unwrap();
    let distinct = streams.iter().collect::<HashSet<_>>().len() as u64;
    for (what, found, expected) in [
        ("threads started", load(&STARTED), sessions),
        ("thread-local destructors that found their own value", load(&DESTROYED), sessions),
        ("panics the hook saw", load(&HOOKED), load(&PANICS)),
        ("tracing events", events, load(&EVENTS)),
        ("events in another thread's span", wrong_spans, 0),
        ("distinct random streams", distinct, sessions),
    ] {
        if found != expected {
            return Err(format!("{what}: {found}, not {expected}"));
        }
    }
    Ok(())
}
