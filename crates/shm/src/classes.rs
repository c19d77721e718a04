//! The page in which a program publishes what became of its requests, class by class.
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | version of an entry | program | odd, then a Release fence, before the entry changes; even, Release, after | IOKernel, Acquire, before; Relaxed after an Acquire fence, behind the copy |
//! | other words of an entry | program | Relaxed, between the two | IOKernel, Relaxed, between the two |
//!
//! Each entry has one writer at a time. A version of 0 is that of an entry that was never written.
//!
//! | the program | consequence |
//! |---|---|
//! | dies amid an entry | the version stays odd: the entry is not shown |
//! | changes an entry without end | the reader gives it up after `ATTEMPTS` |
//! | writes any numbers and names | they are shown as that program's, with nothing but printable ASCII |

use crate::memory::Mapping;
use crate::sync::{AtomicU64, Ordering, fence};
use std::sync::Arc;

/// Number of classes that a program can publish.
pub const CLASSES: usize = 16;
/// Most bytes of a class's name.
pub const NAME_LEN: usize = 32;

/// Maximum number of times that the reader copies an entry that changes meanwhile.
const ATTEMPTS: u32 = 8;
const NAME_WORDS: usize = NAME_LEN / 8;
const COUNTS: usize = 15;

/// What became of the requests of one class, as its program has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassRecord {
    /// The class's name.
    pub name: String,
    /// Number of its dispatcher, from 0.
    pub dispatcher: u64,
    /// Target for the 99th percentile of the latency, in nanoseconds.
    pub slo_ns: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused for lack of a place.
    pub dropped: u64,
    /// Requests finished.
    pub finished: u64,
    /// Those of them that panicked.
    pub panicked: u64,
    /// Times that one was preempted.
    pub preemptions: u64,
    /// Times that one blocked and kept its lane.
    pub held: u64,
    /// Requests that took longer than the target.
    pub late: u64,
    /// From arrival until a request first ran.
    pub queue_delay: Percentiles,
    /// How long a request ran.
    pub service: Percentiles,
    /// From arrival to the end.
    pub latency: Percentiles,
}

/// Two percentiles of a time, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Percentiles {
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
}

impl ClassRecord {
    fn to_counts(&self) -> [u64; COUNTS] {
        [
            self.dispatcher,
            self.slo_ns,
            self.accepted,
            self.dropped,
            self.finished,
            self.panicked,
            self.preemptions,
            self.held,
            self.late,
            self.queue_delay.p50_ns,
            self.queue_delay.p99_ns,
            self.service.p50_ns,
            self.service.p99_ns,
            self.latency.p50_ns,
            self.latency.p99_ns,
        ]
    }

    fn new(name: [u64; NAME_WORDS], counts: [u64; COUNTS]) -> Self {
        let [dispatcher, slo_ns, accepted, dropped, finished, panicked, preemptions, held, late, times @ ..] =
            counts;
        let [queue_50, queue_99, service_50, service_99, latency_50, latency_99] = times;
        Self {
            name: printable(name),
            dispatcher,
            slo_ns,
            accepted,
            dropped,
            finished,
            panicked,
            preemptions,
            held,
            late,
            queue_delay: Percentiles { p50_ns: queue_50, p99_ns: queue_99 },
            service: Percentiles { p50_ns: service_50, p99_ns: service_99 },
            latency: Percentiles { p50_ns: latency_50, p99_ns: latency_99 },
        }
    }
}

/// Returns the words of a name: its first bytes, to the end of a character, and zeros.
fn name_words(name: &str) -> [u64; NAME_WORDS] {
    let mut bytes = [0; NAME_LEN];
    let len = name.floor_char_boundary(NAME_LEN);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    core::array::from_fn(|i| u64::from_le_bytes(core::array::from_fn(|k| bytes[8 * i + k])))
}

/// Returns a name up to its first zero, with all that is not printable ASCII escaped: it goes to
/// terminals.
fn printable(words: [u64; NAME_WORDS]) -> String {
    let bytes = words.map(u64::to_le_bytes);
    let bytes = bytes.as_flattened();
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_LEN);
    String::from_utf8_lossy(&bytes[..len]).escape_default().to_string()
}

#[repr(C, align(256))]
#[derive(Debug)]
struct Entry {
    version: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
    counts: [AtomicU64; COUNTS],
}

/// The classes of a program.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ClassPage([Entry; CLASSES]);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<ClassPage>() == 4096);
    assert!(core::mem::offset_of!(Entry, counts) == 40);
};

impl Entry {
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.name.iter().chain(&self.counts)
    }

    fn read(&self) -> Option<ClassRecord> {
        for _ in 0..ATTEMPTS {
            // Acquire: pairs with the Release store of `write`.
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let copy = |words: &AtomicU64| words.load(Ordering::Relaxed);
            let (name, counts) = (self.name.each_ref().map(copy), self.counts.each_ref().map(copy));
            // Acquire: pairs with the Release fence of `write`: a copy with a word of a later write
            // is followed by a later version.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Some(ClassRecord::new(name, counts));
            }
            core::hint::spin_loop();
        }
        None
    }
}

impl ClassPage {
    /// Writes entry `index`. One thread at a time writes an entry. Entries beyond the last are not
    /// written.
    pub fn write(&self, index: usize, record: &ClassRecord) {
        let Some(entry) = self.0.get(index) else { return };
        let version = entry.version.load(Ordering::Relaxed) & !1;
        entry.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Release: the entry is marked as changing before it changes; pairs with the Acquire fence
        // of `read`.
        fence(Ordering::Release);
        let words = name_words(&record.name).into_iter().chain(record.to_counts());
        for (to, word) in entry.words().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire load of `read`. Never 0 again.
        entry.version.store(version.wrapping_add(2).max(2), Ordering::Release);
    }

    /// Copies what `other` has, of which no thread writes an entry.
    pub(crate) fn take_over(&self, other: &Self) {
        // Relaxed: the caller's threads synchronise by other means.
        for (to, from) in self.0.iter().zip(&other.0) {
            to.version.store(from.version.load(Ordering::Relaxed), Ordering::Relaxed);
            for (to, from) in to.words().zip(from.words()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

/// Reads the classes of a program, whose bytes it does not trust.
#[derive(Debug)]
pub struct ClassReader {
    offset: usize,
    mapping: Arc<Mapping>,
}

impl ClassReader {
    /// Returns a reader of the page at `offset`.
    ///
    /// # Safety
    /// A page that begins `offset` bytes after the base of `mapping` lies within it.
    pub(crate) unsafe fn new(offset: usize, mapping: Arc<Mapping>) -> Self {
        Self { offset, mapping }
    }

    /// Returns the classes that are published and do not change just now, by entry.
    pub fn read(&self) -> Vec<ClassRecord> {
        // SAFETY: in bounds by the contract of `new`, for as long as the mapping; page aligned,
        // and atomics only: valid for any bytes.
        let page = unsafe { &*self.mapping.base().add(self.offset).cast::<ClassPage>() };
        page.0.iter().filter_map(Entry::read).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::{Region, RegionSpec};
    use proptest::prelude::*;

    fn region() -> Region {
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        Region::create("tailwater-test", spec, 1_000_000_000).unwrap().0
    }

    fn record(name: &str) -> ClassRecord {
        let counts: Vec<u64> = (1..=COUNTS as u64).collect();
        ClassRecord::new(name_words(name), counts.try_into().unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        let region = region();
        let (page, reader) = (region.classes(), region.class_reader());
        assert_eq!(reader.read(), []);
        page.write(15, &record("SCAN"));
        page.write(3, &record("GET"));
        page.write(16, &record("one too many"));
        assert_eq!(reader.read(), [record("GET"), record("SCAN")]);
        let later = ClassRecord { finished: 77, ..record("GET") };
        page.write(3, &later);
        assert_eq!(reader.read()[0], later);
    }

    #[test]
    fn an_entry_that_is_being_written_is_not_read() {
        let region = region();
        region.classes().write(0, &record("GET"));
        let version = &region.classes().0[0].version;
        version.store(version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        assert_eq!(region.class_reader().read(), []);
        region.classes().write(0, &record("GET"));
        assert_eq!(region.class_reader().read().len(), 1);
    }

    #[test]
    fn names_are_cut_at_a_character_and_escaped() {
        assert_eq!(record(&"ä".repeat(17)).name, "\\u{e4}".repeat(16));
        assert_eq!(record(&format!("{}ä", "a".repeat(31))).name, "a".repeat(31));
        assert_eq!(record("\x1b[2J\"").name, "\\u{1b}[2J\\\"");
    }

    #[test]
    fn an_entry_is_read_whole_while_it_changes() {
        let region = region();
        let reader = region.class_reader();
        let written = |i: u64| ClassRecord::new(name_words(&i.to_string()), [i; COUNTS]);
        region.classes().write(0, &written(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..=50_000).for_each(|i| region.classes().write(0, &written(i))));
            while !writer.is_finished() {
                for record in reader.read() {
                    assert_eq!(record, written(record.accepted));
                }
            }
            writer.join().unwrap();
        });
        assert_eq!(reader.read(), [written(50_000)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_printable_names_and_some_numbers(
            words in prop::collection::vec(any::<u64>(), 512),
        ) {
            let region = region();
            // SAFETY: the page is as long as these words, which are atomics like its own.
            let page = unsafe { &*core::ptr::from_ref(region.classes()).cast::<[AtomicU64; 512]>() };
            for (to, word) in page.iter().zip(words) {
                to.store(word, Ordering::Relaxed);
            }
            let records = region.class_reader().read();
            prop_assert!(records.len() <= CLASSES);
            for record in records {
                prop_assert!(record.name.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                prop_assert!(record.name.len() <= 8 * NAME_LEN);
            }
        }
    }
}
