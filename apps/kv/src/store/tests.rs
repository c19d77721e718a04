//! The store against a model that is a map, and under its memory limit.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: Now = Now { seconds: 100, start_unix: 1_700_000_000 };

fn store(memory: usize, max_item: usize) -> Store {
    Store::new(Config { memory, max_item, evict: true, secret: [1, 2] }).unwrap()
}

fn at(seconds: u32) -> Now {
    Now { seconds, ..NOW }
}

fn set(store: &Store, key: &[u8], value: &[u8], now: Now) -> Stored {
    store.lock(key, now).put(&Put::new(Mode::Set, 0, Expiry::NEVER), value)
}

fn get(store: &Store, key: &[u8], now: Now) -> Option<Vec<u8>> {
    let mut locked = store.lock(key, now);
    let hit = locked.get(&Get::PLAIN)?;
    let mut value = Vec::new();
    locked.append_value(&hit, &mut value);
    Some(value)
}

#[test]
fn a_configuration_out_of_bounds_is_refused_with_the_reason() {
    let config =
        |memory, max_item| Store::new(Config { memory, max_item, evict: true, secret: [0; 2] }).err();
    assert_eq!(config(1 << 20, 1000), Some(ConfigError::ItemSize(1000)));
    assert_eq!(config(1 << 20, 1 << 20), Some(ConfigError::TooSmall { memory: 1 << 20, max_item: 1 << 20 }));
    assert!(matches!(config(usize::MAX / 2, 1 << 20), Some(ConfigError::NoMemory(_))));
    assert_eq!(config(1 << 16, 1 << 10), None);
}

#[test]
fn a_lower_limit_evicts_and_a_higher_one_than_at_the_start_is_refused() {
    let memory = 1 << 20;
    let store = Store::beside(Config { memory, max_item: 1 << 10, evict: true, secret: [1, 2] }, 1 << 16);
    let store = store.unwrap();
    let fill = || {
        for i in 0..10_000u32 {
            set(&store, &i.to_be_bytes(), &[1; 100], NOW);
        }
    };
    fill();
    let used = || store.totals(NOW).cells - store.totals(NOW).free_cells;
    let before = used();
    assert!(store.set_limit(memory / 2, NOW));
    let lower = used();
    assert!(lower * 2 < before && (lower + lower / 8) * CELL_BYTES as u64 > 3 << 17, "{before}, {lower}");
    store.check();
    fill();
    assert!(used() <= store.totals(NOW).cells && store.limit() == memory as u64 / 2);
    store.check();
    for wrong in [0, 1 << 16, memory + 1] {
        assert!(!store.set_limit(wrong, NOW), "{wrong}");
    }
    assert!(store.set_limit(memory, NOW));
    fill();
    assert_eq!(used(), before);
    store.check();
}

#[test]
fn a_limit_under_which_the_largest_items_cannot_be_stored_is_refused() {
    // 64 shards.
    let (store, len) = (store(64 << 20, 64 << 10), (64 << 10) - 100);
    for (mebibytes, accepted) in [(8, false), (9, false), (10, true)] {
        assert_eq!(store.set_limit(mebibytes << 20, NOW), accepted, "{mebibytes}");
    }
    let filling = store.lock(b"key", NOW).reserve(len).unwrap();
    store.abandon(filling);
    assert!(matches!(set(&store, b"key", &vec![0; len], NOW), Stored::Stored { .. }));
    store.check();
}

#[test]
fn a_limit_is_lowered_by_a_bounded_number_of_evictions_at_a_time() {
    // One shard.
    let store = store(1 << 18, 32 << 10);
    for i in 0..5000u32 {
        set(&store, &i.to_be_bytes(), b"1", NOW);
    }
    let evictions = || store.totals(NOW).counters.evictions;
    let mut steps = 0;
    loop {
        let before = evictions();
        let reached = store.shard(0).approach_limit(1 << 17, NOW);
        assert!(evictions() - before <= 64, "step {steps}");
        if reached {
            break;
        }
        steps += 1;
        // Others store meanwhile, and do not evict the rest for it.
        let before = evictions();
        assert!(matches!(set(&store, &[steps; 4], b"1", NOW), Stored::Stored { .. }));
        assert!(evictions() - before <= 1, "step {steps}");
    }
    assert!(steps > 20, "{steps}");
    store.check();
}

#[test]
fn what_was_used_again_outlives_what_passes_by() {
    let store = store(1 << 18, 4 << 10);
    for i in 0..100u32 {
        set(&store, format!("hot{i}").as_bytes(), &[1; 200], NOW);
    }
    for i in 0..20_000u32 {
        set(&store, format!("cold{i}").as_bytes(), &[2; 200], NOW);
        let hot = format!("hot{}", i % 100);
        assert!(get(&store, hot.as_bytes(), NOW).is_some(), "{hot} after {i}");
    }
    assert!(store.totals(NOW).counters.evictions > 15_000);
    store.check();
}

#[test]
fn without_evictions_storing_fails_when_memory_is_full() {
    let config = Config { memory: 1 << 16, max_item: 1 << 10, evict: false, secret: [3, 4] };
    let store = Store::new(config).unwrap();
    let mut stored = 0u32;
    while let Stored::Stored { .. } = set(&store, format!("key{stored}").as_bytes(), &[0; 500], NOW) {
        stored += 1;
    }
    assert!(stored > 50);
    for i in 0..stored {
        assert!(get(&store, format!("key{i}").as_bytes(), NOW).is_some());
    }
    // Dead items are removed for room nevertheless.
    store.flush(None, NOW);
    assert!(matches!(set(&store, b"another", &[0; 500], NOW), Stored::Stored { .. }));
}

#[test]
fn the_crawler_removes_what_is_over_and_nothing_else() {
    let store = store(1 << 20, 1 << 10);
    let expiry = Expiry::decode(10, NOW);
    for i in 0..100u32 {
        let put = Put::new(Mode::Set, 0, if i % 2 == 0 { expiry } else { Expiry::NEVER });
        store.lock(format!("key{i}").as_bytes(), NOW).put(&put, b"value");
    }
    let mut progress = Crawl::default();
    while !store.crawl(&mut progress, at(110)) {}
    assert_eq!(store.totals(NOW).items, 50);
    store.flush(None, at(111));
    for _ in 0..store.crawl_steps() {
        store.crawl(&mut progress, at(111));
    }
    assert_eq!((store.totals(NOW).items, store.totals(NOW).bytes), (0, 0));
    store.check();
}

#[test]
fn a_flush_later_spares_what_is_asked_for_before_it() {
    let store = store(1 << 20, 1 << 10);
    set(&store, b"old", b"1", NOW);
    store.flush(Some(110), NOW);
    assert!(get(&store, b"old", at(109)).is_some());
    set(&store, b"between", b"2", at(109));
    assert!(get(&store, b"old", at(110)).is_none() && get(&store, b"between", at(110)).is_none());
    set(&store, b"new", b"3", at(110));
    assert!(get(&store, b"new", at(120)).is_some());
}

#[test]
fn lists_have_no_items_of_before_a_flush_that_is_due() {
    let listed = |store: &Store, now| {
        let (mut progress, mut count) = (Crawl::default(), 0);
        while store.dump(&mut progress, now, |_, _| count += 1) {}
        count
    };
    for sizes_first in [false, true] {
        let store = store(1 << 20, 1 << 10);
        set(&store, b"old", b"1", NOW);
        store.flush(Some(110), NOW);
        assert_eq!((listed(&store, at(109)), store.sizes(at(109)).len()), (1, 1));
        // No command has touched the shard since.
        if sizes_first {
            assert!(store.sizes(at(110)).is_empty());
        }
        assert_eq!(listed(&store, at(110)), 0);
    }
}

#[test]
fn a_flush_that_is_due_is_not_forgotten_for_a_later_one() {
    let store = store(1 << 20, 1 << 10);
    set(&store, b"key", b"1", NOW);
    store.flush(Some(101), NOW);
    store.flush(Some(200), at(101));
    assert_eq!(get(&store, b"key", at(101)), None);
}

#[test]
fn no_item_comes_back_after_65536_flushes() {
    let store = store(1 << 16, 1 << 10);
    set(&store, b"old", b"1", NOW);
    set(&store, b"being sent", b"2", NOW);
    let mut locked = store.lock(b"being sent", NOW);
    let hit = locked.get(&Get::PLAIN).unwrap();
    let pinned = locked.pin(&hit).unwrap();
    drop(locked);
    for _ in 0..=u16::MAX {
        store.flush(None, NOW);
    }
    assert_eq!((get(&store, b"old", NOW), get(&store, b"being sent", NOW)), (None, None));
    store.check();
    store.release(pinned);
    store.check();
    assert_eq!(store.totals(NOW).pinned_cells, 0);
}

#[test]
fn an_item_being_read_stays_as_it_was() {
    let store = store(1 << 20, 64 << 10);
    let value: Vec<u8> = (0..50_000u32).map(|i| (i * 7) as u8).collect();
    set(&store, b"key", &value, NOW);
    let mut locked = store.lock(b"key", NOW);
    let hit = locked.get(&Get::PLAIN).unwrap();
    let mut pinned = locked.pin(&hit).unwrap();
    drop(locked);
    set(&store, b"key", b"another", NOW);
    for i in 0..10_000u32 {
        set(&store, format!("other{i}").as_bytes(), &[5; 300], NOW);
        store.lock(b"key", NOW).delete(&Delete::default());
    }
    store.check();
    let mut read = Vec::new();
    while pinned.left() > 0 {
        store.drain(&mut pinned, 999, &mut read);
    }
    store.release(pinned);
    assert!(read == value);
    store.check();
    assert_eq!(store.totals(NOW).pinned_cells, 0);
}

#[test]
fn what_slow_readers_keep_does_not_stop_others_from_storing() {
    let store = store(512 << 10, 64 << 10);
    let mut kept = Vec::new();
    for i in 0..5u32 {
        let key = format!("large{i}");
        set(&store, key.as_bytes(), &[1; 45_000], NOW);
        let mut locked = store.lock(key.as_bytes(), NOW);
        let hit = locked.get(&Get::PLAIN).unwrap();
        kept.push(locked.pin(&hit).unwrap());
    }
    // All of it is used again, so that it becomes protected, and what is kept is alone on
    // probation.
    for i in 0..5000u32 {
        let key = format!("other{i}");
        let stored = set(&store, key.as_bytes(), &[2; 500], NOW);
        assert!(matches!(stored, Stored::Stored { .. }), "{key}: {stored:?}");
        assert!(get(&store, key.as_bytes(), NOW).is_some());
        store.check();
    }
    for (i, pinned) in kept.into_iter().enumerate() {
        assert!(get(&store, format!("large{i}").as_bytes(), NOW).is_some(), "what is being sent stays");
        store.release(pinned);
    }
    store.check();
    // They make way again.
    for i in 0..5000u32 {
        let key = format!("later{i}");
        set(&store, key.as_bytes(), &[2; 500], NOW);
        assert!(get(&store, key.as_bytes(), NOW).is_some());
    }
    assert!((0..5).any(|i| get(&store, format!("large{i}").as_bytes(), NOW).is_none()));
    store.check();
}

#[test]
fn an_item_being_received_is_nobodys_until_it_is_complete() {
    let store = store(1 << 20, 64 << 10);
    set(&store, b"key", b"before", NOW);
    let mut filling = store.lock(b"key", NOW).reserve(3000).unwrap();
    store.fill(&mut filling, &[1; 1000]);
    assert_eq!(get(&store, b"key", NOW).unwrap(), b"before");
    store.fill(&mut filling, &[2; 2000]);
    let stored = store.commit(filling, &Put::new(Mode::Append, 0, Expiry::NEVER), NOW, &Horizon::default());
    assert!(matches!(stored, Stored::Stored { .. }));
    assert_eq!(get(&store, b"key", NOW).unwrap(), [&b"before"[..], &[1; 1000], &[2; 2000]].concat());
    let abandoned = store.lock(b"key", NOW).reserve(3000).unwrap();
    store.abandon(abandoned);
    store.check();
    assert_eq!(store.totals(NOW).pinned_cells, 0);
}

#[test]
fn what_clients_keep_has_a_bound() {
    let store = store(1 << 20, 64 << 10);
    let mut kept = Vec::new();
    for i in 0..1000u32 {
        if let Ok(filling) = store.lock(format!("key{i}").as_bytes(), NOW).reserve(60_000) {
            kept.push(filling);
        }
    }
    let totals = store.totals(NOW);
    assert!(totals.pinned_cells * 2 <= totals.cells && kept.len() > 4, "{totals:?}");
    // Others store and read meanwhile.
    for i in 0..1000u32 {
        let key = format!("other{i}");
        assert!(matches!(set(&store, key.as_bytes(), &[0; 1000], NOW), Stored::Stored { .. }));
        assert!(get(&store, key.as_bytes(), NOW).is_some());
    }
    kept.into_iter().for_each(|filling| store.abandon(filling));
    store.check();
}

#[test]
fn two_threads_find_what_they_stored() {
    let store = store(8 << 20, 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..2000u32 {
                    let key = format!("{thread}/{}", i % 50);
                    set(store, key.as_bytes(), &i.to_le_bytes(), NOW);
                    assert_eq!(get(store, key.as_bytes(), NOW).unwrap(), i.to_le_bytes());
                    store.lock(b"sum", NOW).arithmetic(&Arithmetic {
                        up: true,
                        delta: 1,
                        compare: 0,
                        vivify: Some((1, Expiry::NEVER)),
                        touch: None,
                        binary_key: false,
                        version: None,
                    });
                }
            });
        }
    });
    assert_eq!(get(&store, b"sum", NOW).unwrap(), b"8000");
    store.check();
}

/// One step of the comparison with a map.
#[derive(Debug, Clone)]
enum Operation {
    Put { key: u8, mode: u8, len: usize, expiry: i64, compare: Option<bool> },
    Get { key: u8, touch: Option<i64> },
    Delete { key: u8 },
    Count { key: u8, up: bool, delta: u64 },
    Flush { delay: u32 },
    Pass { seconds: u32 },
    Crawl,
}

fn operation() -> impl Strategy<Value = Operation> {
    let expiry = prop_oneof![Just(0i64), Just(-1), 1i64..20];
    let compare = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    prop_oneof![
        6 => (0u8..8, 0u8..5, 0usize..600, expiry.clone(), compare)
            .prop_map(|(key, mode, len, expiry, compare)| Operation::Put { key, mode, len, expiry, compare }),
        6 => (0u8..8, prop_oneof![3 => Just(None), 1 => expiry.prop_map(Some)])
            .prop_map(|(key, touch)| Operation::Get { key, touch }),
        1 => (0u8..8).prop_map(|key| Operation::Delete { key }),
        2 => (0u8..8, any::<bool>(), any::<u64>()).prop_map(|(key, up, delta)| Operation::Count { key, up, delta }),
        1 => (0u32..3).prop_map(|delay| Operation::Flush { delay }),
        2 => (1u32..5).prop_map(|seconds| Operation::Pass { seconds }),
        1 => Just(Operation::Crawl),
    ]
}

/// The naive store: nothing is evicted, and everything is looked up anew.
#[derive(Default)]
struct Model {
    items: HashMap<u8, (Vec<u8>, Expiry, u64)>,
    flush: Option<u32>,
}

impl Model {
    fn tick(&mut self, now: Now) {
        if self.flush.is_some_and(|at| at <= now.seconds) {
            self.flush = None;
            self.items.clear();
        }
        self.items.retain(|_, (_, expiry, _)| !expiry.is_over(now));
    }

    fn put(&mut self, key: u8, put: &Put, value: &[u8]) -> bool {
        let old = self.items.get(&key).cloned();
        let joined = match (put.mode, &old) {
            (Mode::Add, Some(_)) | (Mode::Replace | Mode::Append | Mode::Prepend, None) => return false,
            (Mode::Set | Mode::Replace | Mode::Append | Mode::Prepend, old)
                if put.compare.is_some_and(|cas| old.as_ref().is_none_or(|old| old.2 != cas)) =>
            {
                return false;
            }
            (Mode::Append, Some((old, expiry, _))) => ([&old[..], value].concat(), *expiry),
            (Mode::Prepend, Some((old, expiry, _))) => ([value, &old[..]].concat(), *expiry),
            _ => (value.to_vec(), put.expiry),
        };
        self.items.insert(key, (joined.0, joined.1, 0));
        true
    }
}

/// Performs `operations` on both and compares every result.
fn agree(operations: &[Operation]) {
    let store = store(4 << 20, 64 << 10);
    let (mut model, mut now) = (Model::default(), NOW);
    for operation in operations {
        model.tick(now);
        match *operation {
            Operation::Put { key, mode, len, expiry, compare } => {
                let mode =
                    [Mode::Set, Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend][usize::from(mode)];
                let there = model.items.get(&key).map_or(1 << 40, |item| item.2);
                let compare = compare.filter(|_| mode != Mode::Add);
                let compare = compare.map(|right| if right { there } else { there + 1 });
                let put = Put { compare, ..Put::new(mode, 7, Expiry::decode(expiry, now)) };
                // Every other value is a number.
                let value = if len % 2 == 0 { vec![len as u8; len] } else { len.to_string().into_bytes() };
                let stored = store.lock(&[key], now).put(&put, &value);
                let cas = if let Stored::Stored { cas } = stored { Some(cas) } else { None };
                assert_eq!(cas.is_some(), model.put(key, &put, &value), "{stored:?}");
                if let (Some(cas), Some(item)) = (cas, model.items.get_mut(&key)) {
                    item.2 = cas;
                }
            }
            Operation::Get { key, touch } => {
                let touch = touch.map(|touch| Expiry::decode(touch, now));
                let mut locked = store.lock(std::slice::from_ref(&key), now);
                let hit = locked.get(&Get { touch, ..Get::PLAIN });
                let found = hit.map(|hit| {
                    let mut value = Vec::new();
                    locked.append_value(&hit, &mut value);
                    (value, hit.facts.cas)
                });
                let wanted = model.items.get_mut(&key).map(|item| {
                    item.1 = touch.unwrap_or(item.1);
                    (item.0.clone(), item.2)
                });
                assert_eq!(found, wanted);
            }
            Operation::Delete { key } => {
                let deleted = store.lock(&[key], now).delete(&Delete::default());
                assert_eq!(deleted == Deleted::Deleted, model.items.remove(&key).is_some());
            }
            Operation::Count { key, up, delta } => count(&store, &mut model, key, up, delta, now),
            Operation::Flush { delay } => {
                store.flush((delay > 0).then(|| now.seconds + delay), now);
                model.flush = Some(now.seconds + delay);
            }
            Operation::Pass { seconds } => now.seconds += seconds,
            Operation::Crawl => {
                store.crawl(&mut Crawl::default(), now);
            }
        }
        store.check();
    }
}

fn count(store: &Store, model: &mut Model, key: u8, up: bool, delta: u64, now: Now) {
    let how =
        Arithmetic { up, delta, compare: 0, vivify: None, touch: None, binary_key: false, version: None };
    let counted = store.lock(&[key], now).arithmetic(&how);
    let Some(item) = model.items.get_mut(&key) else { return assert_eq!(counted, Counted::NotFound) };
    // All values of this test are either short or of one byte repeated. Only the beginning is
    // looked at.
    let rest = item.0[..item.0.len().min(64)].trim_ascii_start();
    let digits = rest.split(u8::is_ascii_whitespace).next();
    let digits = digits.filter(|digits| digits.len() < rest.len() || item.0.len() <= 64);
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let Some(number) = digits.and_then(|digits| digits.parse::<u64>().ok()) else {
        return assert_eq!(counted, Counted::NotNumeric);
    };
    let number = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
    let Counted::Value(value, facts) = counted else { panic!("{counted:?}") };
    assert_eq!(value, number);
    // Shorter results are padded.
    item.0 = format!("{number:<width$}", width = item.0.len()).into_bytes();
    item.2 = facts.cas;
}

proptest! {
    #[test]
    fn the_store_does_what_a_map_does(operations in proptest::collection::vec(operation(), 1..120)) {
        agree(&operations);
    }

    /// Items of all sizes, in a store that is far too small for them.
    #[test]
    fn memory_stays_under_its_limit(sizes in proptest::collection::vec((0u16..500, 0usize..16_000, 0u8..4), 1..400)) {
        let store = store(200_000, 16 << 10);
        for (key, len, mode) in sizes {
            let key = format!("{key:0>width$}", width = 1 + usize::from(key) % 250);
            let mode = [Mode::Set, Mode::Append, Mode::Prepend, Mode::Add][usize::from(mode)];
            store.lock(key.as_bytes(), NOW).put(&Put::new(mode, 0, Expiry::NEVER), &vec![1; len]);
            store.check();
        }
    }
}
