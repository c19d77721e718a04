//! Connections by flow.
//!
//! A hash table in [`SHARDS`] shards, each behind a lock that is held for one look-up: threads
//! seldom contend, and an uncontended lock costs two atomic operations on a cache line of its own.
//! A look-up returns a counted reference, so a socket that is removed meanwhile lives on until its
//! finder is done; its state, under its own lock, shows that it is over.

use super::key::{Key, Seeds};
use super::socket::Socket;
use crate::padded::Padded;
use crate::platform::{Lock, Platform};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// Shards of the table. One that grows moves its entries with preemption off: 4096 of them at a
/// million connections, some 50 us.
const SHARDS: usize = 256;
/// Capacity below which a shard is not shrunk.
const SMALL: usize = 64;

type Shard<P> = HashMap<Key, Arc<Socket<P>>, Seeds>;
type LockedShard<P> = <P as Platform>::Lock<Shard<P>>;

/// See the module documentation.
#[derive(Debug)]
pub struct Table<P: Platform> {
    shards: Box<[Padded<LockedShard<P>>]>,
    seeds: Seeds,
}

impl<P: Platform> Table<P> {
    /// Makes an empty table. `seed` is secret.
    pub fn new(seed: u64) -> Self {
        let seeds = Seeds::new(seed);
        let shard = |_| Padded(Lock::new(HashMap::with_hasher(seeds)));
        Self { shards: (0..SHARDS).map(shard).collect(), seeds }
    }

    #[inline]
    fn shard(&self, key: &Key) -> &LockedShard<P> {
        // The map uses the lowest and the highest bits.
        &self.shards[(self.seeds.hash_one(key) >> 32) as usize % SHARDS].0
    }

    /// Returns the socket of `key`.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<Arc<Socket<P>>> {
        self.shard(key).lock().get(key).cloned()
    }

    /// Returns whether there is a socket of `key`.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).lock().contains_key(key)
    }

    /// Adds a socket; false if there is one of its key.
    pub fn insert(&self, key: Key, socket: &Arc<Socket<P>>) -> bool {
        match self.shard(&key).lock().entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Arc::clone(socket));
                true
            }
        }
    }

    /// Removes `socket`, of `key`; false if it is not there.
    pub fn remove(&self, key: &Key, socket: &Socket<P>) -> bool {
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

    /// Calls `f` with every socket, shard by shard, with no lock held.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<Socket<P>>)) {
        for shard in &self.shards {
            let sockets: Vec<_> = shard.0.lock().values().cloned().collect();
            sockets.iter().for_each(&mut f);
        }
    }
}
