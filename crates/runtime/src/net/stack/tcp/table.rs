//! Which socket a segment is for.
//!
//! A hash table in [`SHARDS`] parts, each behind a spin lock that is held for one look-up: with that many, kthreads seldom meet, and an uncontended lock costs
//! two atomic operations on a line of its own. What is found is handed out as a counted reference, so a socket that is removed meanwhile lives on
//! until its finder is done, and says under its own lock that it is over.

use super::key::{Key, Seeds};
use super::socket::Socket;
use crate::sync::spin::SpinLock;
use core::hash::BuildHasher;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tailwater_shm::layout::Padded;

/// Parts of the table. A part that grows moves its entries with preemption off: at a million connections 4096 of them, some 50 us.
const SHARDS: usize = 256;
/// A part with less capacity than this is not worth shrinking.
const SMALL: usize = 64;

type Shard = HashMap<Key, Arc<Socket>, Seeds>;

/// See the module documentation.
#[derive(Debug)]
pub struct Table {
    shards: Box<[Padded<SpinLock<Shard>>]>,
    seeds: Seeds,
}

impl Table {
    /// An empty table. `seed` must not be guessable.
    pub fn new(seed: u64) -> Self {
        let seeds = Seeds::new(seed);
        let shard = |_| Padded(SpinLock::new(HashMap::with_hasher(seeds)));
        Self { shards: (0..SHARDS).map(shard).collect(), seeds }
    }

    #[inline]
    fn shard(&self, key: &Key) -> &SpinLock<Shard> {
        // The map uses the lowest and the highest bits.
        &self.shards[(self.seeds.hash_one(key) >> 32) as usize % SHARDS].0
    }

    /// The socket of `key`.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<Arc<Socket>> {
        self.shard(key).lock().get(key).cloned()
    }

    /// Whether there is a socket of `key`.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).lock().contains_key(key)
    }

    /// Adds a socket; false if there is one already.
    pub fn insert(&self, key: Key, socket: &Arc<Socket>) -> bool {
        match self.shard(&key).lock().entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Arc::clone(socket));
                true
            }
        }
    }

    /// Takes out `socket`, of `key`; false if it is not there.
    pub fn remove(&self, key: &Key, socket: &Socket) -> bool {
        let mut shard = self.shard(key).lock();
        if !shard.get(key).is_some_and(|found| core::ptr::eq(&raw const **found, socket)) {
            return false;
        }
        let removed = shard.remove(key);
        if shard.capacity() > SMALL && shard.len() < shard.capacity() / 8 {
            let room = shard.len() * 2;
            shard.shrink_to(room);
        }
        drop(shard);
        drop(removed);
        true
    }

    /// Calls `f` with every socket, part by part and with no lock held.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<Socket>)) {
        for shard in &self.shards {
            let sockets: Vec<_> = shard.0.lock().values().cloned().collect();
            sockets.iter().for_each(&mut f);
        }
    }
}
