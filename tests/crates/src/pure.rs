//! Crates that compute without waiting: no difference from an ordinary thread.

use std::collections::HashMap;

use rand::RngExt;
use serde::{Deserialize, Serialize};
use tailwater::thread;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    items: Vec<String>,
    prices: HashMap<String, f64>,
}

/// A value survives a round trip through JSON, in many user threads that yield in between.
pub fn serde() {
    let threads = (0..100).map(|id| {
        thread::spawn(move || {
            let items: Vec<String> = (0..20).map(|i| format!("item {i}")).collect();
            let prices = items.iter().map(|item| (item.clone(), item.len() as f64)).collect();
            let order = Order { id, items, prices };
            let text = serde_json::to_string(&order).unwrap();
            thread::yield_now();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}

/// `rand::rng` is a thread-local: each user thread has its own, seeded by a system call at its
/// first use.
pub fn rand() {
    let threads = (0..100).map(|_| {
        thread::spawn(|| {
            let first: u64 = rand::rng().random();
            thread::yield_now();
            [first, rand::rng().random()]
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut drawn: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    drawn.sort_unstable();
    // Two of 200 numbers of 64 bits are equal with a probability below one in 10^15.
    assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]), "two threads drew the same number");
}
