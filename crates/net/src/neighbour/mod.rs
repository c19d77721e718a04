//! The link-layer addresses of the neighbours on the link.
//!
//! Owns the cache of neighbours of one address family, its bounds and its timers. Makes no packet:
//! a [`Question`] is returned when a neighbour must be solicited, and the stack sends it as the
//! family requires (ARP for IPv4, RFC 826).
//!
//! # Bounds
//! [`CAPACITY`] neighbours, [`entry::PENDING_BYTES`] of packets waiting for each, one question a
//! second for each. A neighbour needed for a packet of this host evicts the least useful one. A
//! neighbour that only sent something evicts none, so a flood of strangers cannot empty the cache.
//!
//! # Locking
//! The table has one lock. The ordinary send does not take it: it reads [`Published`]. While the
//! lock is held no packet is sent and no other lock is taken.

mod entry;
mod published;

pub use entry::{Ask, Evidence, PendingFrame};
use entry::{Entry, Expiry, Learned, Use};
pub use published::Address;
use published::{Published, Writer};

use crate::platform::{Lock, Platform};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use tailwater_wire::MacAddr;

/// Maximum number of neighbours remembered.
pub const CAPACITY: usize = 512;

/// A request for a neighbour's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<A> {
    /// The neighbour.
    pub address: A,
    /// The stations asked.
    pub ask: Ask,
}

/// The fate of a packet for a neighbour that [`NeighbourCache::find`] did not find.
#[derive(Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send it to this station.
    Go(MacAddr),
    /// The cache keeps it until the neighbour is known.
    Waits {
        /// Older packets dropped to make room.
        dropped: usize,
    },
    /// The neighbour does not answer, or the cache is full of neighbours that packets wait for.
    Unreachable,
}

/// The effect of evidence of a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The neighbour is known; these packets waited for it and can be sent.
    Known(VecDeque<PendingFrame>),
    /// Not cached: the neighbour is unknown and not needed.
    Stranger,
    /// Ignored: the address changed a moment ago or may not be replaced, or the cache is full.
    Ignored,
}

/// An action due at the current time.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<A> {
    /// Send the question.
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
pub struct NeighbourCache<P: Platform, A: Address> {
    published: Published<A>,
    table: P::Lock<Table<A>>,
    /// Nanoseconds at which the next entry is due; `u64::MAX` for never. Written under the lock,
    /// Relaxed: a reader that sees an old value polls a moment early or late.
    due: AtomicU64,
}

impl<P: Platform, A: Address> NeighbourCache<P, A> {
    /// Returns an empty cache.
    pub fn new() -> Self {
        let (published, writer) = Published::new();
        Self {
            published,
            table: Lock::new(Table { entries: BTreeMap::new(), writer }),
            due: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the station of `address` if it is reachable for certain. Takes no lock.
    #[inline]
    pub fn find(&self, address: A) -> Option<MacAddr> {
        self.published.find(address)
    }

    /// Finds the station of `address`, or begins to solicit it. `frame` makes the packet that waits
    /// meanwhile, and is called only in that case. The caller sends the question, if there is one,
    /// whatever the resolution.
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
                    // Another neighbour replaced its record.
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

    /// Records evidence that `address` is at station `mac`. Only a request adds a neighbour that
    /// was not solicited.
    pub fn hear(&self, address: A, mac: MacAddr, evidence: Evidence, now: Duration) -> Heard {
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let full = entries.len() >= CAPACITY;
        let (entry, pending) = match entries.get_mut(&address) {
            Some(entry) => match entry.handle_evidence(mac, evidence, now) {
                Learned::Accepted(pending) => (entry, pending),
                Learned::Ignored => return Heard::Ignored,
            },
            None if evidence != Evidence::Request => return Heard::Stranger,
            None if full => return Heard::Ignored,
            None => (entries.entry(address).or_insert(Entry::known(mac, now)), VecDeque::new()),
        };
        self.published.set(writer, address, mac);
        self.expect_by(entry.deadline());
        Heard::Known(pending)
    }

    /// Records that packets to `address` seem to be lost, so its station is no longer certain. The
    /// caller sends the question, if there is one.
    pub fn doubt(&self, address: A, now: Duration) -> Option<Question<A>> {
        let mut table = self.table.lock();
        let Table { entries, writer } = &mut *table;
        let entry = entries.get_mut(&address)?;
        let ask = entry.doubt(now)?;
        self.published.clear(writer, address);
        self.expect_by(entry.deadline());
        Some(Question { address, ask })
    }

    /// Returns whether packets wait for any neighbour.
    pub fn is_any_awaited(&self) -> bool {
        self.table.lock().entries.values().any(Entry::is_awaited)
    }

    /// Returns when [`poll`](Self::poll) has something to do, if ever. Takes no lock.
    #[inline]
    pub fn deadline(&self) -> Option<Duration> {
        // Relaxed: see the field.
        let due = self.due.load(Ordering::Relaxed);
        (due != u64::MAX).then(|| Duration::from_nanos(due))
    }

    /// Runs the expired timers of all neighbours; returns the actions due.
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

    /// Removes the least useful neighbour. False if packets wait for all of them.
    fn evict(&self, entries: &mut BTreeMap<A, Entry>, writer: &mut Writer) -> bool {
        let worth = |(&address, entry): (&A, &Entry)| entry.worth().map(|worth| (worth, address));
        let Some((_, address)) = entries.iter().filter_map(worth).min() else { return false };
        entries.remove(&address);
        self.published.clear(writer, address);
        true
    }

    /// Lowers the time of the next poll to `deadline`. The caller holds the lock.
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
