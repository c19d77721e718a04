//! RocksDB in user threads that are preempted frequently: results and thread-local storage.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tailwater_rocks::Store;
use tailwater_rocks::store::{Config, STACK};
use tailwater_testkit::{Storm, memory_folder, own_process};
use tailwater_workload::rocks::ScanSum;

const KEYS: u64 = 5_000;
const VALUE: usize = 64;

#[repr(C)]
struct PerfContext {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn rocksdb_set_perf_level(level: c_int);
    fn rocksdb_perfcontext_create() -> *mut PerfContext;
    fn rocksdb_perfcontext_reset(context: *mut PerfContext);
    fn rocksdb_perfcontext_metric(context: *mut PerfContext, metric: c_int) -> u64;
    fn rocksdb_perfcontext_destroy(context: *mut PerfContext);
}

/// `rocksdb_enable_count`
const COUNT: c_int = 2;
/// `rocksdb_user_key_comparison_count`
const COMPARISONS: c_int = 0;

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> tailwater::thread::JoinHandle<T> {
    tailwater::thread::Builder::new().stack_size(STACK).spawn(f).unwrap()
}

/// How long a thread runs before it yields to others, at a poll point or by signal.
const QUANTUM: Duration = Duration::from_micros(5);

fn loaded() -> (tempfile::TempDir, Arc<Store>) {
    let folder = memory_folder();
    // Small memory tables cause frequent flushes and compactions, and delayed writers.
    let config = Config { write_buffer: 256 << 10, ..Config::new(&folder.path().join("db")) };
    let store = Store::open(&config).unwrap();
    store.load(KEYS, VALUE).unwrap();
    (folder, Arc::new(store))
}

/// Puts its own keys among those of other writers, and checks each against a map.
fn write_and_check(store: &Store, writer: u64, rounds: u64) {
    let mut model = BTreeMap::new();
    for round in 0..rounds {
        let key = KEYS + writer + 100 * (round * 7 % 50);
        let value = vec![round as u8; 1 + (round as usize * 13) % 900];
        store.put(key, &value).unwrap();
        model.insert(key, value);
        let (&key, want) = model.iter().nth(round as usize % model.len()).unwrap();
        let mut got = Vec::new();
        assert!(store.get(key, &mut got).unwrap());
        assert_eq!(&got, want, "writer {writer}, round {round}, key {key}");
        // Code without poll points, which only a signal interrupts.
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(3) {}
    }
}

#[test]
fn preempted_threads_see_their_own_entries_and_their_own_thread_locals() {
    own_process(|| {
        let (_folder, store) = loaded();
        // The last owner is outside the runtime: closing is for ordinary threads.
        let inside = Arc::clone(&store);
        let _storm = Storm::start(Duration::from_micros(25));
        let run = tailwater::RuntimeBuilder::new().kthreads(2).quantum(QUANTUM).run(move || {
            scans_see_all_loaded_keys_and_writers_their_own(&inside);
            thread_locals_of_the_library_belong_to_the_user_thread(&inside);
            tailwater::debug::counters().preemptions
        });
        assert!(run.unwrap() > 0, "nothing was preempted by signal");
    });
}

fn scans_see_all_loaded_keys_and_writers_their_own(store: &Arc<Store>) {
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let store = Arc::clone(store);
            spawn(move || write_and_check(&store, writer, 1_500))
        })
        .collect();
    let ended = Arc::new(AtomicBool::new(false));
    let scanners: Vec<_> = (0..4u64)
        .map(|scanner| {
            let (store, ended) = (Arc::clone(store), Arc::clone(&ended));
            spawn(move || {
                let mut scans = 0;
                while !ended.load(Relaxed) || scans == 0 {
                    let (first, count) = (scanner * 100, 3_000);
                    let scan = store.scan(first, count, tailwater::poll).unwrap();
                    assert_eq!((scan.entries, scan.sum), (count, ScanSum::expected(first, count, VALUE)));
                    scans += 1;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    ended.store(true, Relaxed);
    for scanner in scanners {
        scanner.join().unwrap();
    }
}

fn thread_locals_of_the_library_belong_to_the_user_thread(store: &Arc<Store>) {
    let turn = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let (store, turn) = (Arc::clone(store), Arc::clone(&turn));
            spawn(move || {
                // SAFETY: the context is the calling thread's, which is what is tested; destroyed
                // below.
                let context = unsafe {
                    rocksdb_set_perf_level(if thread == 0 { COUNT } else { 1 });
                    let context = rocksdb_perfcontext_create();
                    rocksdb_perfcontext_reset(context);
                    context
                };
                for _ in 0..200 {
                    // On any kthread, between the other threads.
                    turn.fetch_add(1, Relaxed);
                    tailwater::thread::yield_now();
                    store.scan(thread * 10, 50, tailwater::poll).unwrap();
                }
                // SAFETY: made above.
                unsafe {
                    let comparisons = rocksdb_perfcontext_metric(context, COMPARISONS);
                    rocksdb_perfcontext_destroy(context);
                    comparisons
                }
            })
        })
        .collect();
    let counted: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(counted[0] > 0, "the thread that counts has counted nothing");
    assert_eq!(counted[1..], [0, 0, 0], "threads that do not count have counted");
}
