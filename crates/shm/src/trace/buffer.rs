//! A kthread's buffer of steps: one writer, one reader that does not trust it; a full buffer is
//! overwritten.
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | place word of a slot | writer | 0, then a Release fence, before the slot changes; place + 1, Release, after | reader, Acquire, before; Relaxed after an Acquire fence, behind the copy |
//! | other words of a slot | writer | Relaxed, between the two | reader, Relaxed, between the two |
//! | head | writer | Release, after the slot | reader, Acquire |
//!
//! The reader keeps its position private, so that no lie makes it read outside the slots or more
//! than requested.

use super::step::{Step, Written};
use crate::clock::Cycles;
use crate::memory::Mapping;
use crate::sync::{AtomicU64, Ordering, fence};
use core::cell::Cell;
use std::sync::Arc;

/// Number of steps that a kthread's buffer holds. A traced request leaves about eight; the IOKernel
/// reads every few microseconds.
pub const SLOTS: usize = 128;

/// One step: its place plus one, kind and number of the trace, time, argument.
#[repr(C, align(32))]
#[derive(Debug)]
struct Slot {
    words: [AtomicU64; 4],
}

/// The steps of one kthread.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct Slots([Slot; SLOTS]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slots>() == 4096);

/// The address of a buffer, and the mapping that holds it.
#[derive(Debug)]
struct BufferMemory {
    slots: *const Slots,
    head: *const AtomicU64,
    _mapping: Arc<Mapping>,
}

// SAFETY: two addresses that stay valid by the contract of the ends' `new` and are accessed through
// atomics only.
unsafe impl Send for BufferMemory {}

impl BufferMemory {
    #[inline(always)]
    fn slots(&self) -> &Slots {
        // SAFETY: valid by the contract of the ends' `new`; atomics, valid for any bytes.
        unsafe { &*self.slots }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: as in `slots`.
        unsafe { &*self.head }
    }
}

/// The writing end of a kthread's buffer; used by the kthread's OS thread with preemption off.
#[derive(Debug)]
pub struct TraceWriter {
    memory: BufferMemory,
    next: Cell<u64>,
}

impl TraceWriter {
    /// Returns the writing end of a zeroed buffer.
    ///
    /// # Safety
    /// Both pointers stay valid for as long as `mapping` exists.
    pub(crate) unsafe fn new(slots: *const Slots, head: *const AtomicU64, mapping: Arc<Mapping>) -> Self {
        Self { memory: BufferMemory { slots, head, _mapping: mapping }, next: Cell::new(0) }
    }

    /// Begins again at the start of the buffer, which has been replaced by a zeroed one.
    pub fn restart(&self) {
        self.next.set(0);
    }

    /// Writes a step of trace `id`, over the oldest if the buffer is full.
    pub fn write(&self, id: u32, step: Step, at: Cycles) {
        let place = self.next.get();
        let words = &self.memory.slots().0[place as usize % SLOTS].words;
        words[0].store(0, Ordering::Relaxed);
        // Release: the slot is marked as changing before it changes; pairs with the Acquire fence
        // in `read`.
        fence(Ordering::Release);
        let (kind, argument) = step.to_bits();
        words[1].store(u64::from(id) << 32 | u64::from(kind), Ordering::Relaxed);
        words[2].store(at, Ordering::Relaxed);
        words[3].store(argument, Ordering::Relaxed);
        // Release: pairs with the Acquire in `read`: a reader that sees the place sees the whole
        // step.
        words[0].store(place + 1, Ordering::Release);
        // Release: pairs with the Acquire in `read`.
        self.memory.head().store(place + 1, Ordering::Release);
        self.next.set(place + 1);
    }
}

/// Result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// The next step.
    Step(Written),
    /// This many steps were overwritten before they were read, according to the writer.
    Lost(u64),
    /// Nothing new.
    Nothing,
}

/// The reading end of a kthread's buffer, which trusts none of its contents.
#[derive(Debug)]
pub struct TraceReader {
    memory: BufferMemory,
    position: u64,
}

impl TraceReader {
    /// Returns the reading end of a zeroed buffer.
    ///
    /// # Safety
    /// Both pointers stay valid for as long as `mapping` exists.
    pub(crate) unsafe fn new(slots: *const Slots, head: *const AtomicU64, mapping: Arc<Mapping>) -> Self {
        Self { memory: BufferMemory { slots, head, _mapping: mapping }, position: 0 }
    }

    #[inline]
    fn head(&self) -> u64 {
        // Acquire: pairs with the Release in `write`.
        self.memory.head().load(Ordering::Acquire)
    }

    /// Skips all steps written so far.
    pub fn skip(&mut self) {
        self.position = self.head();
    }

    /// Returns the next step, if there is one.
    #[inline]
    pub fn read(&mut self) -> Read {
        let head = self.head();
        if head == self.position {
            return Read::Nothing;
        }
        let waiting = head.wrapping_sub(self.position);
        if waiting > SLOTS as u64 {
            // Overwritten, or a lie: a writer that went backwards counts as having lost nothing.
            let kept = if waiting > u64::MAX / 2 { 0 } else { SLOTS as u64 };
            self.position = head.wrapping_sub(kept);
            return Read::Lost(if kept == 0 { 0 } else { waiting - kept });
        }
        let words = &self.memory.slots().0[self.position as usize % SLOTS].words;
        self.position = self.position.wrapping_add(1);
        // Acquire: pairs with the Release of the place in `write`.
        let before = words[0].load(Ordering::Acquire);
        let [kind, at, argument] = [1, 2, 3].map(|i| words[i].load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence in `write`: a copy that saw a change sees the place
        // change, too.
        fence(Ordering::Acquire);
        let after = words[0].load(Ordering::Relaxed);
        if before != self.position || after != self.position {
            return Read::Lost(1);
        }
        Read::Step(Written { id: (kind >> 32) as u32, kind: kind as u32, at, argument })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zeroed() -> (Slots, AtomicU64) {
        let slot = |_| Slot { words: core::array::from_fn(|_| AtomicU64::new(0)) };
        (Slots(core::array::from_fn(slot)), AtomicU64::new(0))
    }

    fn ends(slots: &Slots, head: &AtomicU64) -> (TraceWriter, TraceReader) {
        // The buffer lies in the caller's frame: the mapping that the ends keep is a stand-in.
        let file = crate::memory::create("tailwater-test", 4096).unwrap();
        let mapping = Arc::new(Mapping::new(file, "stand-in").unwrap());
        // SAFETY: the caller keeps both for longer.
        unsafe {
            (TraceWriter::new(slots, head, Arc::clone(&mapping)), TraceReader::new(slots, head, mapping))
        }
    }

    #[test]
    fn steps_come_in_order_and_only_once() {
        let (slots, head) = zeroed();
        let (writer, mut reader) = ends(&slots, &head);
        for id in 0..1000 {
            writer.write(id, Step::Received, u64::from(id) * 10);
            let (kind, argument) = Step::Received.to_bits();
            assert_eq!(
                reader.read(),
                Read::Step(Written { id, kind, at: u64::from(id) * 10, argument }),
                "{id}"
            );
            assert_eq!(reader.read(), Read::Nothing);
        }
    }

    #[test]
    fn what_nobody_reads_is_overwritten_and_counted() {
        let (slots, head) = zeroed();
        let (writer, mut reader) = ends(&slots, &head);
        for id in 0..1000 {
            writer.write(id, Step::Sent, 1);
        }
        assert_eq!(reader.read(), Read::Lost(1000 - SLOTS as u64));
        let mut found = Vec::new();
        while let Read::Step(step) = reader.read() {
            found.push(step.id);
        }
        assert_eq!(found, (1000 - SLOTS as u32..1000).collect::<Vec<_>>());
        writer.write(7, Step::Sent, 1);
        reader.skip();
        assert_eq!(reader.read(), Read::Nothing);
    }

    #[test]
    fn a_step_is_never_torn_while_its_writer_overtakes_the_reader() {
        let (slots, head) = zeroed();
        let (writer, mut reader) = ends(&slots, &head);
        let done = core::sync::atomic::AtomicBool::new(false);
        let (mut read, mut lost) = (0u64, 0);
        std::thread::scope(|scope| {
            let done = &done;
            scope.spawn(move || {
                let writer = writer;
                for i in 0..200_000u32 {
                    writer.write(i, Step::Delivered { woke: true, ahead: i, queue: i }, u64::from(i));
                }
                done.store(true, Ordering::Release);
            });
            loop {
                let over = done.load(Ordering::Acquire);
                match reader.read() {
                    Read::Step(step) => {
                        assert_eq!(u64::from(step.id), step.at);
                        assert_eq!(step.argument, u64::from(step.id) << 32 | u64::from(step.id));
                        read += 1;
                    }
                    Read::Lost(n) => lost += n,
                    Read::Nothing if over => break,
                    Read::Nothing => {}
                }
            }
        });
        assert_eq!(read + lost, 200_000);
    }

    proptest! {
        #[test]
        fn a_hostile_buffer_costs_bounded_time_and_nothing_else(
            writes in prop::collection::vec((0..SLOTS, 0..4usize, any::<u64>()), 0..200),
            heads in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let (slots, head) = zeroed();
            let (_, mut reader) = ends(&slots, &head);
            for (slot, word, value) in writes {
                slots.0[slot].words[word].store(value, Ordering::Relaxed);
            }
            for value in heads {
                head.store(value, Ordering::Relaxed);
                let mut looks = 0;
                while reader.read() != Read::Nothing {
                    looks += 1;
                    prop_assert!(looks <= SLOTS + 1, "the reader did not come to an end");
                }
            }
        }
    }
}
