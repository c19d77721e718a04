//! The cost of GET, SCAN and PUT in the store: in a user thread on one core, without a network, and
//! on an ordinary thread for comparison.
//!
//! `cargo bench -p tailwater-rocks --features rocksdb`. In test mode each runs once.

use std::path::Path;

use criterion::{Criterion, Throughput};
use tailwater_rocks::Store;
use tailwater_rocks::store::{Config, STACK};

tailwater::allocator!();

const KEYS: u64 = 100_000;
const VALUE: usize = 64;

/// Iterates over all keys in a scattered order: an odd step visits each number of a power of two,
/// and those that are not keys are skipped.
struct Keys(u64);

impl Keys {
    fn draw(&mut self) -> u64 {
        loop {
            self.0 = self.0.wrapping_add(0x9e37_79b9) % KEYS.next_power_of_two();
            if self.0 < KEYS {
                return self.0;
            }
        }
    }
}

fn measure(criterion: &mut Criterion, place: &str, folder: &Path) {
    let store = tailwater::blocking(|| {
        let store = Store::open(&Config::new(folder)).unwrap();
        store.load(KEYS, VALUE).unwrap();
        store
    });
    let mut group = criterion.benchmark_group(place);
    let (mut keys, mut value) = (Keys(1), Vec::new());
    group.bench_function("get", |b| {
        b.iter(|| {
            value.clear();
            assert!(store.get(keys.draw(), &mut value).unwrap());
        });
    });
    for count in [1_000, 5_000] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("scan/{count}"), |b| {
            b.iter(|| store.scan(keys.draw() / 2, count as u32, tailwater::poll).unwrap());
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("put", |b| b.iter(|| store.put(keys.draw(), &[7; VALUE]).unwrap()));
    group.finish();
    tailwater::blocking(|| drop(store));
}

fn main() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().to_owned();
    let mut criterion = Criterion::default().configure_from_args();
    measure(&mut criterion, "ordinary_thread", &path.join("ordinary"));
    criterion.final_summary();
    let run = tailwater::RuntimeBuilder::new().kthreads(1).run(move || {
        let measuring = tailwater::thread::Builder::new().stack_size(4 * STACK).spawn(move || {
            let mut criterion = Criterion::default().configure_from_args();
            measure(&mut criterion, "user_thread", &path.join("user"));
            criterion.final_summary();
        });
        measuring.expect("memory for a stack").join().expect("measured");
    });
    run.expect("a runtime");
}
