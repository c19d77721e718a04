//! Who on the link has which link-layer address.
//!
//! Owns: the cache of neighbours of one family of addresses, its bounds and its timers. Never makes a packet: that a neighbour
//! must be asked for comes back as a [`Question`], and the stack asks as that family does (IPv4 by ARP, RFC 826).
//!
//! # Bounds
//! [`CAPACITY`] neighbours, [`entry::PENDING_BYTES`] of packets waiting for each, one question a second for each. Whom a packet of ours
//! needs pushes out whoever is least needed; who merely speaks to us pushes out nobody, so that no flood of strangers can.
//!
//! # Locking
//! The table has one spin lock. The ordinary send does not take it: [`Published`] answers without. While the lock is held no
//! packet is sent and no other lock is taken.

mod entry;
mod published;

pub use entry::{Ask, PendingFrame};
use entry::{Entry, Expiry, Learned, Use};
pub use published::Address;
use published::{Published, Writer};

use crate::net::wire::MacAddr;
use crate::sync::spin::SpinLock;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Most neighbours remembered.
pub const CAPACITY: usize = 512;

/// A neighbour's MAC address is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<A> {
    /// Whose.
    pub address: A,
    /// Who may know.
    pub ask: Ask,
}

/// What is to become of a packet for a neighbour that was not in [`NeighbourCache::find`].
#[derive(Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send it to this station.
    Go(MacAddr),
    /// The cache has taken it and gives it back when the neighbour is known.
    Waits {
        /// So many older packets were dropped for it.
        dropped: usize,
    },
    /// The neighbour does not answer, or the cache is full of neighbours that packets wait for.
    Unreachable,
}

/// What hearing of a neighbour did.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Known now; these packets waited for it and may go.
    Known(VecDeque<PendingFrame>),
    /// A stranger, and nothing wants it.
    Stranger,
    /// Not believed: the address changed a moment ago, or the cache is full.
    Ignored,
}

/// What time brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<A> {
    /// Ask.
    Ask(Question<A>),
    /// The neighbour does not answer; these packets cannot be delivered.
    Failed(VecDeque<PendingFrame>),
}

#[derive(Debug)]
struct Table<A> {
    entries: BTreeMap<A, Entry>,
    writer: Writer,
}

/// The cache.
#[derive(Debug)]
pub struct NeighbourCache<A> {
    published: Published<A>,
    table: SpinLock<Table<A>>,
    /// Nanoseconds at which the next entry is due; `u64::MAX` for never. Written under the lock, Relaxed: a reader that sees an
    /// old value polls a moment early or late.
    due: AtomicU64,
}

impl<A: Address> NeighbourCache<A> {
    /// An empty cache.
    pub fn new() -> Self {
        let (published, writer) = Published::new();
        Self {
            published,
            table: SpinLock::new(Table { entries: BTreeMap::new(), writer }),
            due: AtomicU64::new(u64::MAX),
        }
    }

    /// The station of `address`, if it is known for certain. No lock.
    #[inline]
    pub fn find(&self, address: A) -> Option<MacAddr> {
        self.published.find(address)
    }

    /// Finds or asks for the station of `address`. `frame` makes the packet that waits meanwhile; it is called only then. The
    /// question, if there is one, is to be asked whatever the resolution.
    pub fn resolve(
        &self,
        address: A,
        now: Duration,
        frame: impl FnOnce() -> PendingFrame,
    ) -> (Resolution, Option<Question<A>>) {
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let mut ask = None;
        if !entries.contains_key(&address) {
            if entries.len() >= CAPACITY && !self.evict(entries, writer) {
                return (Resolution::Unreachable, None);
            }
            entries.insert(address, Entry::wanted(now));
            ask = Some(Ask::All);
        }
        let entry = entries.get_mut(&address).expect("present or just inserted");
        let resolution = match entry.use_now(now) {
            Use::Go(mac, probe) => {
                ask = probe;
                if let Some(mac) = entry.fresh() {
                    // Another neighbour took its record.
                    self.published.set(writer, address, mac);
                }
                Resolution::Go(mac)
            }
            Use::Wait => Resolution::Waits { dropped: entry.enqueue(frame()) },
            Use::Fail => Resolution::Unreachable,
        };
        self.expect_by(entry.deadline());
        (resolution, ask.map(|ask| Question { address, ask }))
    }

    /// `address` was heard to be at station `mac`. A neighbour nobody asked for is remembered only if `introduce`.
    pub fn hear(&self, address: A, mac: MacAddr, introduce: bool, now: Duration) -> Heard {
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let full = entries.len() >= CAPACITY;
        let (entry, pending) = match entries.get_mut(&address) {
            Some(entry) => match entry.handle_evidence(mac, now) {
                Learned::Accepted(pending) => (entry, pending),
                Learned::TooSoon => return Heard::Ignored,
            },
            None if !introduce => return Heard::Stranger,
            None if full => return Heard::Ignored,
            None => (entries.entry(address).or_insert(Entry::known(mac, now)), VecDeque::new()),
        };
        self.published.set(writer, address, mac);
        self.expect_by(entry.deadline());
        Heard::Known(pending)
    }

    /// What is sent to `address` seems to be lost: a station that is known for certain is so no longer. The question, if there
    /// is one, is to be asked.
    pub fn doubt(&self, address: A, now: Duration) -> Option<Question<A>> {
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let entry = entries.get_mut(&address)?;
        let ask = entry.doubt(now)?;
        self.published.clear(writer, address);
        self.expect_by(entry.deadline());
        Some(Question { address, ask })
    }

    /// When [`poll`](Self::poll) has something to do, if ever. No lock.
    #[inline]
    pub fn deadline(&self) -> Option<Duration> {
        // Relaxed: see the field.
        let due = self.due.load(Ordering::Relaxed);
        (due != u64::MAX).then(|| Duration::from_nanos(due))
    }

    /// Lets time pass for all neighbours and reports what is to be done.
    pub fn poll(&self, now: Duration) -> Vec<Due<A>> {
        let mut all = Vec::new();
        if self.deadline().is_none_or(|due| now < due) {
            return all;
        }
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let mut next = u64::MAX;
        entries.retain(|&address, entry| {
            let expiry = entry.poll(now);
            if expiry != Expiry::Nothing {
                self.published.clear(writer, address);
            }
            match expiry {
                Expiry::Nothing | Expiry::Aged => {}
                Expiry::Ask(ask) => all.push(Due::Ask(Question { address, ask })),
                Expiry::Failed(pending) => all.push(Due::Failed(pending)),
                Expiry::Forget => return false,
            }
            next = next.min(nanos(entry.deadline()));
            true
        });
        self.due.store(next, Ordering::Relaxed);
        all
    }

    /// Forgets whoever is least needed. False if packets wait for everybody.
    fn evict(&self, entries: &mut BTreeMap<A, Entry>, writer: &mut Writer) -> bool {
        let worth = |(&address, entry): (&A, &Entry)| entry.worth().map(|worth| (worth, address));
        let Some((_, address)) = entries.iter().filter_map(worth).min() else { return false };
        entries.remove(&address);
        self.published.clear(writer, address);
        true
    }

    /// Makes sure that `poll` is called by `deadline`. The caller holds the lock.
    fn expect_by(&self, deadline: Duration) {
        if nanos(deadline) < self.due.load(Ordering::Relaxed) {
            self.due.store(nanos(deadline), Ordering::Relaxed);
        }
    }
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests;
