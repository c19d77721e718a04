//! The reachable neighbours, readable by every thread without a lock.
//!
//! A direct-mapped table of small records, each guarded by a version (a sequence lock). It caches
//! the locked table: a reader that finds nothing, or overlaps a write, looks there. The writer
//! holds the locked table's lock, which the [`Writer`] proves.
//!
//! | field | writer | readers |
//! |---|---|---|
//! | `version` | odd: Relaxed, then `fence(Release)`; even: Release | Acquire; then `fence(Acquire)`, Relaxed |
//! | other words | Relaxed, while the version is odd | Relaxed; valid if both versions agree |

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use tailwater_wire::MacAddr;

/// Records: twice the maximum number of neighbours, so that few share one. 32 KiB.
const SLOTS: usize = 2 * super::CAPACITY;
/// The MAC word of an empty record; the upper 16 bits of an address are zero.
const NOTHING: u64 = u64::MAX;

/// The right to write. There is one, in the locked table.
#[derive(Debug)]
pub struct Writer(());

#[repr(align(32))]
#[derive(Debug)]
struct Record {
    version: AtomicU64,
    key: [AtomicU64; 2],
    mac: AtomicU64,
}

const _: () = assert!(size_of::<Record>() == 32 && SLOTS.is_power_of_two());

/// A network-layer address.
pub trait Address: Copy + Ord + core::fmt::Debug + 'static {
    /// Returns the address in at most 128 bits, which differ for different addresses of one family.
    fn bits(self) -> [u64; 2];
}

impl Address for core::net::Ipv4Addr {
    #[inline]
    fn bits(self) -> [u64; 2] {
        [0, u32::from(self).into()]
    }
}

impl Address for core::net::Ipv6Addr {
    #[inline]
    fn bits(self) -> [u64; 2] {
        let bits = self.to_bits();
        [(bits >> 64) as u64, bits as u64]
    }
}

/// The table.
#[derive(Debug)]
pub struct Published<A> {
    records: Box<[Record]>,
    _addresses: PhantomData<fn(A)>,
}

#[inline]
fn slot(key: [u64; 2]) -> usize {
    // Fibonacci hashing (Knuth, The Art of Computer Programming, section 6.4): neighbours'
    // addresses differ in a few bits.
    let mixed = (key[0].rotate_left(32) ^ key[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SLOTS.ilog2())) as usize
}

impl<A: Address> Published<A> {
    /// Makes an empty table and the right to write it.
    pub fn new() -> (Self, Writer) {
        let record = |_| Record {
            version: AtomicU64::new(0),
            key: [AtomicU64::new(0), AtomicU64::new(0)],
            mac: AtomicU64::new(NOTHING),
        };
        (Self { records: (0..SLOTS).map(record).collect(), _addresses: PhantomData }, Writer(()))
    }

    /// Returns the MAC address of `address` if this table has it.
    #[inline]
    pub fn find(&self, address: A) -> Option<MacAddr> {
        let wanted = address.bits();
        let record = &self.records[slot(wanted)];
        // Acquire: pairs with the Release that ends a write; the words read below are that write's
        // or later.
        let before = record.version.load(Ordering::Acquire);
        // Relaxed: validated by the second look.
        let found = [record.key[0].load(Ordering::Relaxed), record.key[1].load(Ordering::Relaxed)];
        let mac = record.mac.load(Ordering::Relaxed);
        // Acquire fence: pairs with the Release fence that begins a write. If any word above comes
        // from that write, so does the version below.
        fence(Ordering::Acquire);
        let after = record.version.load(Ordering::Relaxed);
        if before != after || before % 2 == 1 || mac == NOTHING || found != wanted {
            return None;
        }
        let [_, _, mac @ ..] = mac.to_be_bytes();
        Some(MacAddr(mac))
    }

    /// Records `mac` as the MAC address of `address`, in place of the record's former content.
    pub fn set(&self, writer: &mut Writer, address: A, mac: MacAddr) {
        let [a, b, c, d, e, f] = mac.0;
        self.write(writer, address.bits(), u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    }

    /// Removes `address`.
    pub fn clear(&self, writer: &mut Writer, address: A) {
        let key = address.bits();
        let record = &self.records[slot(key)];
        // Relaxed: only the writer writes, and that is the caller.
        if [record.key[0].load(Ordering::Relaxed), record.key[1].load(Ordering::Relaxed)] == key {
            self.write(writer, key, NOTHING);
        }
    }

    fn write(&self, _writer: &mut Writer, key: [u64; 2], mac: u64) {
        let record = &self.records[slot(key)];
        // Relaxed: only the writer writes, and that is the caller.
        let version = record.version.load(Ordering::Relaxed);
        record.version.store(version + 1, Ordering::Relaxed);
        // Release fence: pairs with the Acquire fence in `find`.
        fence(Ordering::Release);
        record.key[0].store(key[0], Ordering::Relaxed);
        record.key[1].store(key[1], Ordering::Relaxed);
        record.mac.store(mac, Ordering::Relaxed);
        // Release: pairs with the Acquire load in `find`.
        record.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn what_is_set_is_found_until_cleared() {
        let (table, mut writer) = Published::new();
        let (one, two) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(table.find(one), None);
        table.set(&mut writer, one, MacAddr([2, 3, 4, 5, 6, 7]));
        table.set(&mut writer, two, MacAddr([0xfe; 6]));
        assert_eq!(table.find(one), Some(MacAddr([2, 3, 4, 5, 6, 7])));
        assert_eq!(table.find(two), Some(MacAddr([0xfe; 6])));
        table.clear(&mut writer, one);
        assert_eq!(table.find(one), None);
        assert_eq!(table.find(two), Some(MacAddr([0xfe; 6])));
    }

    #[test]
    fn a_network_of_consecutive_addresses_hardly_collides() {
        let (table, mut writer) = Published::new();
        let address = |i: u32| Ipv4Addr::from(0x0a00_0000 + i);
        for i in 0..256 {
            table.set(&mut writer, address(i), MacAddr([2, 0, 0, 0, 0, i as u8]));
        }
        let found = (0..256).filter(|&i| table.find(address(i)).is_some()).count();
        assert!(found > 230, "{found} of 256 neighbours found");
    }

    /// Readers run beside a writer that alternates between two neighbours of one record. A reader
    /// finds its own neighbour, whole, or nothing.
    #[test]
    fn readers_never_see_half_a_write() {
        let (table, mut writer) = Published::new();
        let one = Ipv4Addr::new(10, 0, 0, 1);
        let others = (2..).map(|i| Ipv4Addr::from(0x0a00_0000 + i));
        let two = others.into_iter().find(|a| slot(a.bits()) == slot(one.bits())).unwrap();
        std::thread::scope(|s| {
            let readers: Vec<_> = [(one, [0x11; 6]), (two, [0x22; 6])]
                .into_iter()
                .map(|(address, mac)| {
                    let table = &table;
                    s.spawn(move || {
                        for _ in 0..200_000 {
                            if let Some(found) = table.find(address) {
                                assert_eq!(found, MacAddr(mac));
                            }
                        }
                    })
                })
                .collect();
            while readers.iter().any(|r| !r.is_finished()) {
                table.set(&mut writer, one, MacAddr([0x11; 6]));
                table.set(&mut writer, two, MacAddr([0x22; 6]));
            }
        });
    }
}
