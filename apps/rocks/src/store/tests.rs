//! The store against a map, and its errors.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tailwater_testkit::memory_folder;
use tailwater_workload::rocks::ScanSum;

use super::*;

fn open(folder: &tempfile::TempDir) -> Store {
    Store::open(&Config::new(&folder.path().join("db"))).unwrap()
}

fn get(store: &Store, key: u64) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(key, &mut value).unwrap().then_some(value)
}

#[test]
fn a_value_is_appended_and_a_missing_one_is_not() {
    let folder = memory_folder();
    let store = open(&folder);
    store.put(7, b"seven").unwrap();
    store.put(8, b"").unwrap();
    let mut value = b"> ".to_vec();
    assert!(store.get(7, &mut value).unwrap());
    assert!(store.get(8, &mut value).unwrap());
    assert!(!store.get(9, &mut value).unwrap());
    assert_eq!(value, b"> seven");
}

#[test]
fn what_is_loaded_is_what_the_load_generator_expects() {
    let folder = memory_folder();
    let store = open(&folder);
    store.put(3, b"in the way").unwrap();
    store.load(2_500, 64).unwrap();
    for key in [0, 3, 999, 1_000, 2_499] {
        let mut want = Vec::new();
        write_value(key, 64, &mut want);
        assert_eq!(get(&store, key), Some(want));
    }
    assert_eq!(get(&store, 2_500), None);
    let polls = std::cell::Cell::new(0);
    let scan = store.scan(100, 1_000, || polls.set(polls.get() + 1)).unwrap();
    assert_eq!(scan, Scan { entries: 1_000, sum: ScanSum::expected(100, 1_000, 64) });
    assert_eq!(polls.get(), 1_000 / STEPS - 1);
    let rest = store.scan(2_400, u32::MAX, || ()).unwrap();
    assert_eq!(rest, Scan { entries: 100, sum: ScanSum::expected(2_400, 100, 64) });
}

#[test]
fn a_second_opener_and_an_impossible_path_are_told_why() {
    let folder = memory_folder();
    let store = open(&folder);
    let config = Config::new(&folder.path().join("db"));
    let error = Store::open(&config).unwrap_err();
    assert!(error.to_string().contains("lock"), "{error}");
    drop(store);
    drop(Store::open(&config).unwrap());
    let error = Store::open(&Config::new(Path::new("/dev/shm/no/such/folder"))).unwrap_err();
    assert!(matches!(error, StoreError::RocksDb { attempt: "open the store", .. }), "{error}");
    let error = Store::open(&Config::new(Path::new("a\0b"))).unwrap_err();
    assert!(matches!(error, StoreError::Path(_)));
}

/// The files of a store that is open, as they are now.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn whatever_was_put_before_the_end_is_in_a_file() {
    let folder = memory_folder();
    let store = open(&folder);
    let done = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u64)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    let keys = (0..).map(|i| writer << 32 | i);
                    let done = keys.take_while(|&key| match store.put(key, &key.to_le_bytes()) {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error, StoreError::Finished);
                            false
                        }
                    });
                    done.count() as u64
                })
            })
            .collect();
        // In the middle of it.
        while get(&store, 3 << 32 | 100).is_none() {
            std::thread::yield_now();
        }
        store.finish().unwrap();
        // What follows the end is not waited for: as if the process were gone now.
        let gone = folder.path().join("gone");
        copy(&folder.path().join("db"), &gone);
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (done, gone)
    });
    let (counts, gone) = done;
    let left = Store::open(&Config::new(&gone)).unwrap();
    for (writer, count) in (0u64..).zip(counts) {
        let scan = left.scan(writer << 32, u32::try_from(count).unwrap(), || ()).unwrap();
        let keys = (0..count).fold(0u64, |sum, i| sum.wrapping_add(writer << 32 | i));
        assert_eq!((u64::from(scan.entries), scan.sum.keys), (count, keys), "writer {writer}");
    }
}

#[test]
fn no_thread_is_started_after_opening() {
    let folder = memory_folder();
    let store =
        Store::open(&Config { write_buffer: 64 << 10, ..Config::new(&folder.path().join("db")) }).unwrap();
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.starts_with("rocksdb")).count()
    };
    let before = threads();
    assert!(before >= 2, "a flush and a compaction have threads, {before} found");
    for key in 0..5_000 {
        store.put(key % 500, &[key as u8; 1_000]).unwrap();
    }
    store.flush().unwrap();
    // Other tests of this process open stores as well, but the pool of threads is one for all of
    // them.
    assert_eq!(threads(), before);
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64, Vec<u8>),
    Get(u64),
    Scan(u64, u32),
    Flush,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that they are written and found again; two at the ends of their range.
    let key = || prop_oneof![8 => 0..40u64, 1 => Just(u64::MAX), 1 => Just(1 << 63)];
    prop_oneof![
        6 => (key(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(k, v)| Step::Put(k, v)),
        4 => key().prop_map(Step::Get),
        4 => (key(), 0..50u32).prop_map(|(k, n)| Step::Scan(k, n)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

fn expected(model: &BTreeMap<u64, Vec<u8>>, first: u64, count: u32) -> Scan {
    let mut scan = Scan { entries: 0, sum: ScanSum { keys: 0, value_bytes: 0 } };
    for (key, value) in model.range(first..).take(count as usize) {
        scan.entries += 1;
        scan.sum.keys = scan.sum.keys.wrapping_add(*key);
        scan.sum.value_bytes += value.len() as u64;
    }
    scan
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_store_is_a_map(steps in prop::collection::vec(step(), 1..120), wal: bool) {
        let folder = memory_folder();
        let config = Config { wal, ..Config::new(&folder.path().join("db")) };
        let mut store = Store::open(&config).unwrap();
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    store.put(key, &value).unwrap();
                    model.insert(key, value);
                }
                Step::Get(key) => prop_assert_eq!(get(&store, key), model.get(&key).cloned()),
                Step::Scan(first, count) => {
                    prop_assert_eq!(store.scan(first, count, || ()).unwrap(), expected(&model, first, count));
                }
                Step::Flush => store.flush().unwrap(),
                Step::Reopen => {
                    if !wal {
                        store.flush().unwrap();
                    }
                    drop(store);
                    store = Store::open(&config).unwrap();
                }
            }
        }
        prop_assert_eq!(store.scan(0, u32::MAX, || ()).unwrap(), expected(&model, 0, u32::MAX));
    }
}
