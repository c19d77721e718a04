//! A GET that comes while SCANs run: what the quantum is for (Shinjuku, NSDI'19, section 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tailwater_rocks::Store;
use tailwater_rocks::store::{Config, STACK};

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

const VALUE: usize = 64;

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> tailwater::thread::JoinHandle<T> {
    tailwater::thread::Builder::new().stack_size(STACK).spawn(f).unwrap()
}

#[test]
fn a_get_beside_scans_takes_a_few_quanta_not_a_scan() {
    const QUANTUM: Duration = Duration::from_micros(15);
    const SCANS: u32 = 3;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open(&Config::new(&folder.path().join("db"))).unwrap();
    store.load(100_000, VALUE).unwrap();
    let store = Arc::new(store);
    // The last owner is outside: closing is for ordinary threads.
    let inside = Arc::clone(&store);
    let run = tailwater::Builder::new().kthreads(1).quantum(QUANTUM).run(move || {
        let ended = Arc::new(AtomicBool::new(false));
        let scan_ns = Arc::new(AtomicU64::new(u64::MAX));
        let scanners: Vec<_> = (0..SCANS)
            .map(|_| {
                let (store, ended, scan_ns) = (Arc::clone(&inside), Arc::clone(&ended), Arc::clone(&scan_ns));
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
                assert!(inside.get(key, &mut Vec::new()).unwrap());
                start.elapsed().as_nanos() as u64
            })
            .collect();
        ended.store(true, Relaxed);
        for scanner in scanners {
            scanner.join().unwrap();
        }
        delays.sort_unstable();
        (delays[delays.len() / 2], delays[delays.len() * 9 / 10], scan_ns.load(Relaxed))
    });
    let (get_ns, p90_ns, scan_ns) = run.unwrap();
    println!("GET beside {SCANS} SCANs: median {get_ns} ns, p90 {p90_ns} ns; quickest SCAN {scan_ns} ns");
    // Each SCAN runs for one to two quanta, and a busy machine adds to that; a whole SCAN is far more.
    assert!(get_ns < scan_ns / 10, "a GET took {get_ns} ns, the quickest SCAN {scan_ns} ns");
}
