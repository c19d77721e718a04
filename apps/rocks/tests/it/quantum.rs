//! A GET that arrives while SCANs run: the purpose of the quantum (Shinjuku, NSDI'19, section 4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tailwater_rocks::Store;
use tailwater_rocks::store::{Config, STACK};
use tailwater_testkit::{memory_folder, own_process};

const VALUE: usize = 64;

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> tailwater::thread::JoinHandle<T> {
    tailwater::thread::Builder::new().stack_size(STACK).spawn(f).unwrap()
}

#[test]
fn a_get_beside_scans_is_answered_before_one_of_them_ends() {
    own_process(|| {
        const QUANTUM: Duration = Duration::from_micros(15);
        const SCANS: u32 = 3;
        const GETS: u64 = 500;
        let folder = memory_folder();
        let store = Store::open(&Config::new(&folder.path().join("db"))).unwrap();
        store.load(100_000, VALUE).unwrap();
        let store = Arc::new(store);
        // The last owner is outside the runtime: closing is for ordinary threads.
        let inside = Arc::clone(&store);
        let run = tailwater::RuntimeBuilder::new().kthreads(1).quantum(QUANTUM).run(move || {
            let ended = Arc::new(AtomicBool::new(false));
            let scans_ended = Arc::new(AtomicU32::new(0));
            let scanners: Vec<_> = (0..SCANS)
                .map(|_| {
                    let (store, ended, scans_ended) =
                        (Arc::clone(&inside), Arc::clone(&ended), Arc::clone(&scans_ended));
                    spawn(move || {
                        while !ended.load(Relaxed) {
                            store.scan(0, 100_000, tailwater::poll).unwrap();
                            scans_ended.fetch_add(1, Relaxed);
                        }
                    })
                })
                .collect();
            let mut early = 0;
            let mut delays: Vec<u64> = (0..GETS)
                .map(|key| {
                    // A GET waits for its turn like an arriving one: behind every SCAN, in the run
                    // queue.
                    let (start, before) = (Instant::now(), scans_ended.load(Relaxed));
                    tailwater::thread::yield_now();
                    assert!(inside.get(key, &mut Vec::new()).unwrap());
                    early += u64::from(scans_ended.load(Relaxed) == before);
                    start.elapsed().as_nanos() as u64
                })
                .collect();
            ended.store(true, Relaxed);
            for scanner in scanners {
                scanner.join().unwrap();
            }
            delays.sort_unstable();
            (delays[delays.len() / 2], delays[delays.len() * 9 / 10], early)
        });
        let (get_ns, p90_ns, early) = run.unwrap();
        println!(
            "GET beside {SCANS} SCANs: median {get_ns} ns, p90 {p90_ns} ns; {early} of {GETS} before one ended"
        );
        // Usually nearly all: each SCAN runs for one to two quanta at a time, and takes thousands.
        // Where threads run to their end, each GET waits for all SCANs.
        assert!(early > 0, "every GET waited for the end of a SCAN");
    });
}
