//! The ring of events that the IOKernel always writes: one writer that never waits, any number of
//! readers; the oldest is overwritten.
//!
//! Owns the memory file, its layout and the protocol of its two ends. [`Recorder`] is the
//! IOKernel's polling thread's, [`Recording`] a tracer's, which reads what happened before it came
//! as well as what happens next. An event takes one slot of four words, its time and the first
//! three words of its encoding, or two slots if it has more words.
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | head | writer | Release, after the slot; a Release fence before the next slot changes | reader, Acquire, before it reads slots; Relaxed after an Acquire fence, behind each copy |
//! | words of a slot | writer | Relaxed, between the two | reader, Relaxed, between the two |
//!
//! A copy of the slot at place `p` is whole if the head is below `p` plus the number of slots
//! afterwards: the writer publishes that head before it changes the slot again. There is no loom
//! model: both ends are of a mapping, in which loom's atomics cannot lie. A test has a writer
//! overtake its reader instead.
//!
//! # Crash and lie
//!
//! | the other side | consequence |
//! |---|---|
//! | a reader dies, is slow, or writes into the file | it cannot write: the file is sealed once the writer has mapped it. The writer reads nothing of it, and knows of no reader |
//! | the IOKernel ends in the middle of a slot | the head does not name that slot |
//! | an IOKernel writes an impossible head or event | an error, or events that are counted as lost; the reader reads within the slots whatever the head is |

use super::event::{CONTINUED, TraceEvent, Words};
use crate::clock::Cycles;
use crate::memory::{self, Mapping, MemoryError};
use crate::sync::{AtomicU64, Ordering, fence};
use rustix::fd::{AsFd, OwnedFd};

/// Bytes before the slots.
const HEADER_BYTES: usize = 4096;
/// Bytes of a slot.
const SLOT_BYTES: usize = 32;
/// First word of the file: "twtrace" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"twtrace1");
/// A reader that has been overtaken begins at this fraction of the slots before the oldest one is
/// overwritten.
const MARGIN: u64 = 16;

/// The beginning of the file.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    /// Frequency of the clock of the times.
    hz: AtomicU64,
    head: Head,
}

/// Number of slots written so far, on a line of its own.
#[repr(C, align(64))]
struct Head(AtomicU64);

#[repr(C, align(32))]
struct Slot([AtomicU64; 4]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Slot>() == SLOT_BYTES);

/// A mapping of the file, whose number of slots is a power of two.
#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    mask: u64,
}

impl Memory {
    fn header(&self) -> &Header {
        // SAFETY: the mapping is longer than a header (`create`, `new`), begins at a page, and
        // lives as long as this value; atomics, valid for any bytes.
        unsafe { &*self.mapping.base().cast::<Header>() }
    }

    #[inline(always)]
    fn slot(&self, place: u64) -> &[AtomicU64; 4] {
        let offset = HEADER_BYTES + (place & self.mask) as usize * SLOT_BYTES;
        // SAFETY: the mask keeps the slot within the mapping, which `create` made and `new`
        // checked to be that long; a multiple of 32 from the beginning of a page; atomics, valid
        // for any bytes.
        unsafe { &(*self.mapping.base().add(offset).cast::<Slot>()).0 }
    }

    /// Returns the memory with its number of slots; `None` if the length is that of no such file.
    fn new(mapping: Mapping) -> Option<Self> {
        let slots = mapping.len().checked_sub(HEADER_BYTES)? / SLOT_BYTES;
        let is_exact = slots.is_power_of_two() && mapping.len() == HEADER_BYTES + slots * SLOT_BYTES;
        is_exact.then(|| Self { mapping, mask: slots as u64 - 1 })
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Recorder {
    memory: Memory,
    next: u64,
}

impl Recorder {
    /// Returns the writing end of a new file of `slots` slots, rounded up to a power of two, for
    /// times of a clock of this frequency; and the file, which nothing else can write to.
    ///
    /// # Errors
    /// If there is no memory, or too many files.
    pub fn create(slots: usize, hz: u64) -> Result<(Self, OwnedFd), MemoryError> {
        let slots = slots.next_power_of_two();
        let file = memory::create("tailwater-recorder", HEADER_BYTES + slots * SLOT_BYTES)?;
        let memory = Memory { mapping: Mapping::new(&file, "recorder")?, mask: slots as u64 - 1 };
        memory::freeze(&file)?;
        // Relaxed: the file is sent to readers afterwards.
        memory.header().hz.store(hz, Ordering::Relaxed);
        memory.header().magic.store(MAGIC, Ordering::Relaxed);
        Ok((Self { memory, next: 0 }, file))
    }

    /// Writes an event, over the oldest.
    #[inline]
    pub fn record(&mut self, at: Cycles, event: &TraceEvent) {
        let [head, a, b, c, d] = event.to_words();
        self.put([at, head, a, b]);
        if TraceEvent::is_long_head(head) {
            self.put([at, u64::from(CONTINUED), c, d]);
        }
    }

    #[inline(always)]
    fn put(&mut self, words: [u64; 4]) {
        // Release: the head that ends the slot's earlier contents is published before they change;
        // pairs with the Acquire fence in `Recording::copy`.
        fence(Ordering::Release);
        for (slot, word) in self.memory.slot(self.next).iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.next += 1;
        // Release: pairs with the Acquire in `Recording::head`: a reader that sees the head sees
        // the slots before it.
        self.memory.header().head.0.store(self.next, Ordering::Release);
    }
}

/// Not the file of a recorder of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotARecording {
    /// It cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// It has another layout.
    #[error(
        "the IOKernel's record of events has another layout: it and this program are of different versions"
    )]
    Layout,
}

/// Result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Played {
    /// The next event and its time.
    Event(Cycles, TraceEvent),
    /// So many slots were passed over, overwritten or about to be; an event has one or two.
    Lost(u64),
    /// The next slots have no event of this version.
    Impossible,
    /// Nothing new.
    Nothing,
}

/// The reading end.
#[derive(Debug)]
pub struct Recording {
    memory: Memory,
    position: u64,
}

impl Recording {
    /// Returns the reading end of the file that an IOKernel has sent, at the oldest event.
    ///
    /// # Errors
    /// If the file is another one.
    pub fn attach(file: impl AsFd) -> Result<Self, NotARecording> {
        let memory =
            Memory::new(Mapping::read_only(file, "record of events")?).ok_or(NotARecording::Layout)?;
        // Relaxed: written before the file was sent.
        if memory.header().magic.load(Ordering::Relaxed) != MAGIC {
            return Err(NotARecording::Layout);
        }
        let mut recording = Self { memory, position: 0 };
        let head = recording.head();
        // It begins with no loss: what was overwritten before was not asked for.
        recording.position = recording.oldest(head);
        Ok(recording)
    }

    /// Returns the frequency of the clock of the times.
    #[must_use]
    pub fn hz(&self) -> u64 {
        self.memory.header().hz.load(Ordering::Relaxed)
    }

    fn slots(&self) -> u64 {
        self.memory.mask + 1
    }

    fn head(&self) -> u64 {
        // Acquire: pairs with the Release in `put`.
        self.memory.header().head.0.load(Ordering::Acquire)
    }

    /// Returns the place to begin at when the head is there: some way behind the oldest slot, which
    /// the writer is about to overwrite.
    fn oldest(&self, head: u64) -> u64 {
        head.saturating_sub(self.slots() - self.slots() / MARGIN)
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Played {
        let head = self.head();
        let waiting = head.wrapping_sub(self.position);
        if waiting == 0 {
            return Played::Nothing;
        }
        if waiting > self.slots() {
            // Overtaken, or a lie: a head that went backwards counts as nothing lost.
            let from = self.position;
            self.position = self.oldest(head);
            return Played::Lost(self.position.saturating_sub(from));
        }
        let Some([at, first, a, b]) = self.copy(self.position) else { return self.overtaken() };
        let mut words: Words = [first, a, b, 0, 0];
        let mut used = 1;
        if TraceEvent::is_long_head(first) {
            // The two slots of an event are published one after the other.
            if waiting == 1 {
                return Played::Nothing;
            }
            let Some([_, next, c, d]) = self.copy(self.position.wrapping_add(1)) else {
                return self.overtaken();
            };
            if next == u64::from(CONTINUED) {
                (words[3], words[4], used) = (c, d, 2);
            }
        }
        self.position = self.position.wrapping_add(used);
        // The second half of an event whose first was overwritten.
        if first == u64::from(CONTINUED) {
            return Played::Lost(1);
        }
        TraceEvent::from_words(words).map_or(Played::Impossible, |event| Played::Event(at, event))
    }

    fn overtaken(&mut self) -> Played {
        let from = self.position;
        self.position = self.oldest(self.head()).max(from.saturating_add(1));
        Played::Lost(self.position - from)
    }

    /// Returns the words of the slot at a place before the head; `None` if they are overwritten.
    fn copy(&self, place: u64) -> Option<[u64; 4]> {
        let words = self.memory.slot(place).each_ref().map(|word| word.load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence in `put`: a copy that saw a change sees the head
        // that was published before.
        fence(Ordering::Acquire);
        let head = self.memory.header().head.0.load(Ordering::Relaxed);
        (head.wrapping_sub(place) < self.slots()).then_some(words)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::trace::event::tests::WHO;
    use crate::trace::{CoreStep, Handoff, Written};
    use proptest::prelude::*;

    fn core(core: u16) -> TraceEvent {
        TraceEvent::Core { core, step: CoreStep::Decided, handoff: Handoff::Wake, who: WHO, from: Some(WHO) }
    }

    fn claimed(id: u32) -> TraceEvent {
        let number = u64::from(id);
        let written = Written { id, kind: id, at: number, argument: number << 32 | number };
        TraceEvent::Claimed { who: WHO, written }
    }

    fn ends(slots: usize) -> (Recorder, Recording) {
        let (recorder, file) = Recorder::create(slots, 7).unwrap();
        let recording = Recording::attach(&file).unwrap();
        assert_eq!(recording.hz(), 7);
        (recorder, recording)
    }

    /// Everything that is there, and how many slots were overwritten.
    fn all(recording: &mut Recording) -> (Vec<(Cycles, TraceEvent)>, u64) {
        let (mut events, mut lost) = (Vec::new(), 0);
        loop {
            match recording.next_event() {
                Played::Event(at, event) => events.push((at, event)),
                Played::Lost(slots) => lost += slots,
                Played::Nothing => return (events, lost),
                Played::Impossible => panic!("an impossible event"),
            }
        }
    }

    #[test]
    fn events_of_both_lengths_come_in_order_and_only_once() {
        let (mut recorder, mut recording) = ends(16);
        for id in 0..100 {
            recorder.record(u64::from(id), &core(id as u16));
            recorder.record(u64::from(id), &claimed(id));
            let (events, lost) = all(&mut recording);
            assert_eq!((events, lost), (vec![(id.into(), core(id as u16)), (id.into(), claimed(id))], 0));
        }
    }

    #[test]
    fn a_reader_that_comes_later_finds_the_latest_events() {
        let (mut recorder, file) = Recorder::create(64, 7).unwrap();
        for id in 0..1000u16 {
            recorder.record(u64::from(id), &core(id));
        }
        let mut recording = Recording::attach(&file).unwrap();
        let (events, lost) = all(&mut recording);
        assert_eq!((events.len(), lost), (60, 0));
        assert_eq!(events.last(), Some(&(999, core(999))));
        assert!(events.is_sorted_by_key(|(at, _)| *at));
        // A reader that was overtaken loses the oldest and says how many.
        for id in 0..100u16 {
            recorder.record(u64::from(id), &core(id));
        }
        let (events, lost) = all(&mut recording);
        assert_eq!((events.len() as u64 + lost, events.last()), (100, Some(&(99, core(99)))));
    }

    #[test]
    fn only_the_writer_can_change_the_file() {
        let (_recorder, file) = Recorder::create(16, 7).unwrap();
        assert!(Mapping::new(&file, "recorder").is_err());
        assert!(rustix::io::pwrite(&file, &[1], 0).is_err());
        let other = memory::create("tailwater-test", HEADER_BYTES + 16 * SLOT_BYTES).unwrap();
        assert!(matches!(Recording::attach(&other), Err(NotARecording::Layout)));
        let odd = memory::create("tailwater-test", HEADER_BYTES + 17 * SLOT_BYTES).unwrap();
        assert!(matches!(Recording::attach(&odd), Err(NotARecording::Layout)));
    }

    #[test]
    fn an_event_is_never_torn_while_the_writer_overtakes_the_reader() {
        let (mut recorder, mut recording) = ends(64);
        let done = core::sync::atomic::AtomicBool::new(false);
        let (mut read, mut last) = (0u64, 0);
        std::thread::scope(|scope| {
            let done = &done;
            scope.spawn(move || {
                for id in 0..200_000u32 {
                    recorder.record(u64::from(id), &claimed(id));
                }
                done.store(true, Ordering::Release);
            });
            loop {
                let over = done.load(Ordering::Acquire);
                match recording.next_event() {
                    Played::Event(at, event) => {
                        assert_eq!(event, claimed(at as u32));
                        (read, last) = (read + 1, at);
                    }
                    Played::Lost(_) => {}
                    Played::Nothing if over => break,
                    Played::Nothing => {}
                    Played::Impossible => panic!("an impossible event"),
                }
            }
        });
        assert!(read > 0 && last == 199_999, "{read} {last}");
    }

    proptest! {
        #[test]
        fn a_hostile_writer_costs_bounded_time_and_no_panic(
            slots in prop::collection::vec((0..16u64, prop::array::uniform4(any::<u64>()), 0u8..12), 0..40),
            heads in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let (recorder, mut recording) = ends(16);
            for (place, words, tag) in slots {
                for (slot, word) in recorder.memory.slot(place).iter().zip(words) {
                    slot.store(word, Ordering::Relaxed);
                }
                recorder.memory.slot(place)[1].store(words[1] & !0xff | u64::from(tag), Ordering::Relaxed);
            }
            for head in heads {
                recorder.memory.header().head.0.store(head, Ordering::Relaxed);
                let mut looks = 0;
                while recording.next_event() != Played::Nothing {
                    looks += 1;
                    prop_assert!(looks <= 20, "the reader did not come to an end");
                }
            }
        }
    }
}
