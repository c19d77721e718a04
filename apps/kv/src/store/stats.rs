//! The counters of a store.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts since the start or the last reset. Those of a shard change under its lock.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                // `evicted_time` is a time, not a count: the latest known.
                let evicted_time = self.evicted_time.max(other.evicted_time);
                $(self.$name += other.$name;)*
                self.evicted_time = evicted_time;
            }
        }
    };
}

counters! {
    /// Keys fetched.
    cmd_get,
    /// Items offered to be stored.
    cmd_set,
    /// Keys touched, fetched or not.
    cmd_touch,
    /// Found.
    get_hits,
    /// Not found.
    get_misses,
    /// Not found because it had just expired.
    get_expired,
    /// Not found because it had been flushed.
    get_flushed,
    /// Deleted.
    delete_hits,
    /// Not there to be deleted.
    delete_misses,
    /// Incremented.
    incr_hits,
    /// Not there to be incremented.
    incr_misses,
    /// Decremented.
    decr_hits,
    /// Not there to be decremented.
    decr_misses,
    /// Stored because the version was right.
    cas_hits,
    /// Not there to be compared.
    cas_misses,
    /// Not stored because the version was wrong.
    cas_badval,
    /// Found and touched.
    touch_hits,
    /// Not there to be touched.
    touch_misses,
    /// Larger than an item may be.
    too_large,
    /// Failures for lack of room with nothing to evict.
    out_of_memory,
    /// Items that were ever in the table.
    total_items,
    /// Living items that were evicted.
    evictions,
    /// Those among them that were never fetched.
    evicted_unfetched,
    /// Those among them that had a time to live.
    evicted_nonzero,
    /// Those among them that had been used since they got their place.
    evicted_active,
    /// Seconds since the last of them was used.
    evicted_time,
    /// Dead items that were removed for room.
    reclaimed,
    /// Those among them that were never fetched.
    expired_unfetched,
    /// Dead items the crawler removed.
    crawler_reclaimed,
    /// Items the crawler checked.
    crawler_items_checked,
    /// Items that moved to the protected list.
    promoted,
}

/// Sums over a store's shards, each taken at a slightly different time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Counts.
    pub counters: Counters,
    /// Items, including dead ones not yet detected.
    pub items: u64,
    /// Bytes of their keys, values and headers.
    pub bytes: u64,
    /// Bytes of real memory: cells used so far, and the hash tables.
    pub memory: u64,
    /// Number of cells, and of free ones.
    pub cells: u64,
    /// See `cells`.
    pub free_cells: u64,
    /// Cells pinned by clients that send or receive an item piece by piece.
    pub pinned_cells: u64,
    /// Items used again and protected from passing traffic.
    pub protected: u64,
    /// Seconds since the oldest item of the probation list was used.
    pub age: u32,
    /// Seconds since the oldest protected item was used.
    pub protected_age: u32,
    /// Buckets of the hash tables.
    pub buckets: u64,
}
