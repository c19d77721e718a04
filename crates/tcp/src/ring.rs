//! A ring of bytes that is no larger than its content requires.
//!
//! Owns its memory: none while empty, then a power of two that doubles up to the caller's limit.
//! Bytes may be written behind the end, leaving a gap to be filled later (data that arrived out of
//! order); only bytes before the end are read. It never decides how much is allowed, and never
//! shrinks while it holds something.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;

/// Smallest allocation: room for a small request or answer.
const MIN_CAPACITY: usize = 256;

/// The bytes in order, and perhaps some behind them.
#[derive(Default)]
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    head: u32,
    len: u32,
}

/// Omits the bytes, which are the application's and many.
impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} of {})", self.len, self.bytes.len())
    }
}

impl Ring {
    /// Returns the number of bytes in order.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the bytes of memory held.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Copies `data` to `offset` bytes behind the end, growing as needed. The end stays where it
    /// is: see [`extend`](Self::extend).
    ///
    /// The caller bounds `offset` and `data` by its own limit; together with the content they are
    /// below 2^31.
    pub fn write_behind(&mut self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let start = self.len() + offset;
        self.reserve(start + data.len());
        let at = self.index(start);
        let first = data.len().min(self.bytes.len() - at);
        self.bytes[at..at + first].copy_from_slice(&data[..first]);
        self.bytes[..data.len() - first].copy_from_slice(&data[first..]);
    }

    /// Moves the end over `bytes` that [`write_behind`](Self::write_behind) has filled.
    pub fn extend(&mut self, bytes: usize) {
        self.len += bytes as u32;
        debug_assert!(self.len() <= self.bytes.len());
    }

    /// Adds `data` at the end.
    pub fn push(&mut self, data: &[u8]) {
        self.write_behind(0, data);
        self.extend(data.len());
    }

    /// Returns `len` bytes from `offset` on, in two pieces if they wrap around.
    ///
    /// # Panics
    /// If they are not all there.
    #[inline]
    pub fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        assert!(offset + len <= self.len(), "{offset} and {len} of {}", self.len());
        if len == 0 {
            return (&[], &[]);
        }
        let at = self.index(offset);
        let first = len.min(self.bytes.len() - at);
        (&self.bytes[at..at + first], &self.bytes[..len - first])
    }

    /// Copies the bytes from `offset` on into `out`, until either ends; returns their number.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let len = out.len().min(self.len() - offset);
        let (a, b) = self.slices(offset, len);
        out[..a.len()].copy_from_slice(a);
        out[a.len()..len].copy_from_slice(b);
        len
    }

    /// Puts `data` in front of the content. Up to `behind` bytes behind the end stay.
    pub fn prepend(&mut self, data: &[u8], behind: usize) {
        if data.is_empty() {
            return;
        }
        self.reserve(data.len() + self.len() + behind);
        self.head = self.index(self.bytes.len() - data.len()) as u32;
        self.len += data.len() as u32;
        let first = data.len().min(self.bytes.len() - self.head as usize);
        self.bytes[self.head as usize..][..first].copy_from_slice(&data[..first]);
        self.bytes[..data.len() - first].copy_from_slice(&data[first..]);
    }

    /// Removes the first `bytes`.
    pub fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.len());
        if bytes > 0 {
            self.head = self.index(bytes) as u32;
            self.len -= bytes as u32;
        }
    }

    /// Starts again at the beginning of the memory if the ring is empty, because the memory used
    /// last is in the processor's cache. Bytes written behind the end are lost.
    #[inline]
    pub fn rewind(&mut self) {
        if self.len == 0 {
            self.head = 0;
        }
    }

    /// Moves the content to one piece, if it wraps around. Copies at most twice the content,
    /// however large the memory is. Bytes written behind the end are lost.
    pub fn straighten(&mut self) {
        let (head, len, capacity) = (self.head as usize, self.len(), self.bytes.len());
        if head + len <= capacity {
            return;
        }
        let first = capacity - head;
        if len <= head {
            self.bytes.copy_within(..len - first, first);
            self.bytes.copy_within(head.., 0);
            note_moved(len);
        } else {
            self.bytes.rotate_left(head);
            note_moved(capacity);
        }
        self.head = 0;
    }

    /// Makes `room` bytes free behind the content, which is in one piece and stays so. Bytes
    /// written behind the end are lost.
    ///
    /// The content moves to the front only if that frees at least as many bytes as it copies;
    /// otherwise the memory doubles. So, however the content grows and shrinks, no more bytes are
    /// copied here than are added, apart from the doublings.
    pub fn make_room(&mut self, room: usize) {
        let (head, len, need) = (self.head as usize, self.len(), self.len() + room);
        debug_assert!(head + len <= self.bytes.len(), "in one piece");
        if head + need <= self.bytes.len() {
            return;
        }
        if need > self.bytes.len() {
            self.reserve(need);
        } else if len <= head {
            self.bytes.copy_within(head..head + len, 0);
            self.head = 0;
            note_moved(len);
        } else {
            self.reserve(2 * need);
        }
    }

    /// Frees the memory; the content is lost.
    pub fn release(&mut self) {
        *self = Self::default();
    }

    #[inline]
    fn index(&self, offset: usize) -> usize {
        (self.head as usize + offset) & (self.bytes.len() - 1)
    }

    fn reserve(&mut self, need: usize) {
        if need <= self.bytes.len() {
            return;
        }
        let capacity = need.next_power_of_two().max(MIN_CAPACITY);
        let old = core::mem::replace(&mut self.bytes, vec![0; capacity].into_boxed_slice());
        // Copies all of the old memory from the head on: there may be out-of-order data behind the
        // end.
        let (tail, front) = old.split_at(self.head as usize);
        self.bytes[..front.len()].copy_from_slice(front);
        self.bytes[front.len()..old.len()].copy_from_slice(tail);
        self.head = 0;
        note_moved(old.len());
    }
}

/// Counts bytes that were copied within a ring, for the tests that bound them.
#[inline]
fn note_moved(bytes: usize) {
    #[cfg(test)]
    tests::MOVED.set(tests::MOVED.get() + bytes);
    let _ = bytes;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::cell::Cell;
    use proptest::prelude::*;

    std::thread_local! {
        /// Bytes that this thread has copied within rings.
        pub(crate) static MOVED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn an_empty_ring_owns_nothing() {
        let mut ring = Ring::default();
        assert_eq!((ring.capacity(), ring.len()), (0, 0));
        ring.push(b"request");
        assert_eq!(ring.capacity(), MIN_CAPACITY);
        ring.consume(7);
        ring.release();
        assert_eq!(ring.capacity(), 0);
    }

    #[test]
    fn what_fits_is_written_to_the_same_memory_again() {
        let mut ring = Ring::default();
        for _ in 0..10 {
            ring.push(&[7; 200]);
            assert_eq!(ring.slices(0, 200).1, [], "in one piece");
            ring.consume(100);
            ring.rewind();
            assert_eq!(ring.len(), 100, "what is held stays");
            ring.consume(100);
            ring.rewind();
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        Gap(usize, usize),
        Consume(usize),
        Rewind,
        Straighten,
        MakeRoom(usize),
        Prepend(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..600_usize).prop_map(Step::Push),
            (0..300_usize, 0..300_usize).prop_map(|(gap, len)| Step::Gap(gap, len)),
            (0..900_usize).prop_map(Step::Consume),
            Just(Step::Rewind),
            Just(Step::Straighten),
            (0..600_usize).prop_map(Step::MakeRoom),
            (0..600_usize).prop_map(Step::Prepend),
        ]
    }

    proptest! {
        #[test]
        fn bytes_come_out_as_they_went_in(steps in prop::collection::vec(any_step(), 0..60)) {
            let (mut ring, mut model, mut next) = (Ring::default(), alloc::collections::VecDeque::new(), 0_u8);
            let mut bytes = |len| (0..len).map(|_| { next = next.wrapping_mul(5).wrapping_add(1); next }).collect::<Vec<_>>();
            for step in steps {
                match step {
                    Step::Push(len) => {
                        let data = bytes(len);
                        ring.push(&data);
                        model.extend(data);
                    }
                    // Writes the later piece first, then the one before it.
                    Step::Gap(gap, len) => {
                        let (first, second) = (bytes(gap), bytes(len));
                        ring.write_behind(gap, &second);
                        ring.write_behind(0, &first);
                        ring.extend(gap + len);
                        model.extend(first);
                        model.extend(second);
                    }
                    Step::Consume(len) => {
                        let len = len.min(model.len());
                        ring.consume(len);
                        model.drain(..len);
                    }
                    Step::Rewind => ring.rewind(),
                    Step::Straighten => {
                        let before = MOVED.get();
                        ring.straighten();
                        prop_assert!(ring.slices(0, ring.len()).1.is_empty());
                        prop_assert!(MOVED.get() - before <= 2 * ring.len());
                    }
                    // Between the two pieces of a gap.
                    Step::Prepend(len) => {
                        let (front, behind) = (bytes(len), bytes(7));
                        ring.write_behind(9, &behind);
                        ring.prepend(&front, 16);
                        let gap = bytes(9);
                        ring.write_behind(0, &gap);
                        ring.extend(16);
                        front.iter().rev().for_each(|&byte| model.push_front(byte));
                        model.extend(gap);
                        model.extend(behind);
                    }
                    Step::MakeRoom(room) => {
                        ring.straighten();
                        ring.make_room(room);
                        let data = bytes(room);
                        ring.push(&data);
                        model.extend(data);
                        prop_assert!(ring.slices(0, ring.len()).1.is_empty(), "in one piece");
                    }
                }
                let mut out = vec![0; model.len() + 1];
                prop_assert_eq!(ring.copy_to(0, &mut out), model.len());
                prop_assert!(model.iter().eq(&out[..model.len()]));
                prop_assert!(ring.capacity() <= 1 << 20);
            }
        }
    }
}
