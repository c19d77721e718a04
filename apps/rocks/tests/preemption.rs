//! RocksDB in user threads that are preempted all the time: results, thread-local storage, and GETs beside SCANs.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tailwater_rocks::Store;
use tailwater_rocks::store::{Config, STACK};
use tailwater_workload::rocks::ScanSum;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

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

/// Has what runs make room for others every few microseconds, at poll points and by signal.
fn builder() -> tailwater::Builder {
    tailwater::Builder::new().kthreads(2).quantum(Duration::from_micros(5))
}

fn loaded() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    // Small memory tables: flushes and compactions all the time, and writers who are held up.
    let config = Config { write_buffer: 256 << 10, ..Config::new(&folder.path().join("db")) };
    let store = Store::open(&config).unwrap();
    store.load(KEYS, VALUE).unwrap();
    (folder, Arc::new(store))
}

/// Puts keys of its own among those of others, and checks each against a map.
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
        // What a signal interrupts: code that reaches no poll point.
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(3) {}
    }
}

#[test]
fn scans_see_all_loaded_keys_and_writers_their_own_while_all_are_preempted() {
    let (_folder, store) = loaded();
    let preemptions = builder().run(move || {
        let writers: Vec<_> = (0..8u64)
            .map(|writer| {
                let store = Arc::clone(&store);
                spawn(move || write_and_check(&store, writer, 1_500))
            })
            .collect();
        let ended = Arc::new(AtomicBool::new(false));
        let scanners: Vec<_> = (0..4u64)
            .map(|scanner| {
                let (store, ended) = (Arc::clone(&store), Arc::clone(&ended));
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
        tailwater::debug::counters().preemptions
    });
    assert!(preemptions.unwrap() > 0, "nothing was preempted by signal");
}

#[test]
fn thread_locals_of_the_library_belong_to_the_user_thread() {
    let (_folder, store) = loaded();
    let run = builder().run(move || {
        let turn = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let (store, turn) = (Arc::clone(&store), Arc::clone(&turn));
                spawn(move || {
                    // SAFETY: the context is the calling thread's, which is what is tested; destroyed below.
                    let context = unsafe {
                        rocksdb_set_perf_level(if thread == 0 { COUNT } else { 1 });
                        let context = rocksdb_perfcontext_create();
                        rocksdb_perfcontext_reset(context);
                        context
                    };
                    for _ in 0..200 {
                        // On whichever kthread, between the others.
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
    });
    run.unwrap();
}

#[test]
fn a_get_beside_scans_takes_a_few_quanta_not_a_scan() {
    const QUANTUM: Duration = Duration::from_micros(15);
    const SCANS: u32 = 3;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open(&Config::new(&folder.path().join("db"))).unwrap();
    store.load(100_000, VALUE).unwrap();
    let store = Arc::new(store);
    let run = tailwater::Builder::new().kthreads(1).quantum(QUANTUM).run(move || {
        let ended = Arc::new(AtomicBool::new(false));
        let scan_ns = Arc::new(AtomicU64::new(u64::MAX));
        let scanners: Vec<_> = (0..SCANS)
            .map(|_| {
                let (store, ended, scan_ns) = (Arc::clone(&store), Arc::clone(&ended), Arc::clone(&scan_ns));
                spawn(move || {
                    while !ended.load(Relaxed) {
                        let start = Instant::now();
                        store.scan(0, 100_000, tailwater::poll).unwrap();
                        scan_ns.fetch_min(start.elapsed().as_nanos() as u64, Relaxed);
                    }
                })
            })
            .collect();
        let mut delays: Vec<u64> = (0..500u64)
            .map(|key| {
                // A GET waits for its turn as one that arrives: behind every SCAN, in the run queue.
                let start = Instant::now();
                tailwater::thread::yield_now();
                assert!(store.get(key, &mut Vec::new()).unwrap());
                start.elapsed().as_nanos() as u64
            })
            .collect();
        ended.store(true, Relaxed);
        for scanner in scanners {
            scanner.join().unwrap();
        }
        delays.sort_unstable();
        (delays[delays.len() / 2], scan_ns.load(Relaxed))
    });
    let (get_ns, scan_ns) = run.unwrap();
    // Each SCAN runs for one to two quanta, and a busy machine adds to that; a whole SCAN is far more.
    assert!(get_ns < scan_ns / 10, "a GET took {get_ns} ns, the quickest SCAN {scan_ns} ns");
}
