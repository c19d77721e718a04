//! Single-producer single-consumer byte rings that carry frames between the IOKernel and one
//! kthread.
//!
//! A ring is a power-of-two number of 64-byte lines. A record takes whole lines: sixteen bytes of
//! header (length, kind, flags, flow hash, time stamp) and then the frame, so that Ethernet, IPv4
//! and UDP headers share the first line. Records never wrap: one that does not fit before the end
//! is preceded by a wrap marker.
//!
//! There is no head index. The header word of each record shows whether it is there: a producer
//! first clears the header **after** its record, then publishes its own. A waiting consumer
//! therefore polls the line its next frame will arrive in, and one packet costs one line transfer
//! instead of two.
//!
//! A ring to a runtime also carries **fences**, one line each: the records behind a fence must not
//! be read before another ring of the same runtime has been read up to a position. The IOKernel
//! writes one where a flow of frames continues in another ring, so that the flow stays in order.
//!
//! Each header names its lap, the number of times the ring has been written full before it, modulo
//! 64. A record that was not written in the consumer's lap is a lie, so a producer cannot have
//! records that it wrote once read for ever: each record read costs it a write.
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | header word of a record | producer | Release, after payload and after clearing the next header | consumer, Acquire, in `peek` |
//! | first header of a corked batch | producer | Release, after the whole batch | consumer, Acquire, in `peek` |
//! | other words of a record | producer | plain, before the header | consumer, plain, after the header |
//! | tail word | consumer | Release, after its last read of the lines it frees | producer, Acquire, when its cached copy is too old; before and at a fence, Acquire, in `has_passed` of [`Producer`] and [`Hint`]; any thread that waits for an empty ring, Relaxed, in `unread` |
//!
//! # Crash and lie
//! | side | lie | consequence |
//! |---|---|---|
//! | producer | impossible length, record past the end, unknown kind, record of another lap | [`RingLie`] from [`Consumer::peek`]; nothing is read |
//! | producer | a fence to an end that takes frames only, as the IOKernel's does | the same: [`Consumer::peek`] knows no such kind |
//! | producer | changes a record while it is copied | the copy is what is checked ([`Record::first_line`]) and delivered |
//! | consumer | tail ahead of the head, or moving backwards | [`RingLie::Tail`] from [`Producer::reserve`]; nothing is written |
//! | consumer | a possible tail ahead of what it has read | lines are overwritten and fences left out that only it reads |
//! | either | stops | the ring stays full or empty; the other side counts drops or waits |
//!
//! All state that decides *where* to read or write lives in the private [`Producer`] and
//! [`Consumer`], never in shared memory.

mod fence;
mod hint;

pub use fence::{Fence, Next};
pub use hint::Hint;

use crate::clock::Cycles;
use crate::memory::Mapping;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Length of a line in bytes.
pub const LINE: usize = 64;
/// Length of the record header before the frame in bytes.
pub const RECORD_HEADER: usize = 16;
/// Minimum length of a frame: an Ethernet header.
pub const MIN_FRAME: usize = 14;
/// Maximum length of an IP packet in a frame. Between two programs it may be that long whatever the
/// MTU of the network is.
pub const MAX_PACKET: u16 = 9000;
/// Maximum length of a frame: such a packet, an Ethernet header and a VLAN tag.
pub const MAX_FRAME: usize = MAX_PACKET as usize + MIN_FRAME + 4;
/// Minimum size of a ring: the longest record, its wrap marker and a terminator must fit.
pub const MIN_LINES: u32 = 512;
/// Maximum size of a ring: 16 MiB.
pub const MAX_LINES: u32 = 1 << 18;

/// Flag of a record for a runtime: the IOKernel guarantees all checksums in the frame: IPv4's, and
/// those of the transport protocol, whichever it is (ICMP, ICMPv6, TCP, UDP).
pub const FLAG_CHECKSUM_OK: u8 = 1 << 0;
/// Flag of a record from a runtime: the checksum of its TCP segment is not filled in. The IOKernel
/// does that if the frame leaves through a port; another runtime gets it as it is, with the
/// guarantee. On other frames the flag has no effect.
pub const FLAG_CHECKSUM_OWED: u8 = 1 << 1;
/// Flag of a record from a runtime: the frame is one that it has received, for the earlier
/// [instance](crate::control::Instance) of its program. [`FLAG_CHECKSUM_OK`] is as received.
/// `1 << 2` is [`FLAG_TRACED`](crate::trace::FLAG_TRACED).
pub const FLAG_PASSED_ON: u8 = 1 << 3;

/// One cache line of a ring.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line {
    words: [AtomicU64; LINE / 8],
}

impl Line {
    /// Returns a line of zeros.
    fn new() -> Self {
        Self { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == LINE);

/// The consumer's position, in lines since the ring was made; read by the producer.
pub(crate) type TailWord = AtomicU64;

/// The peer wrote an impossible value into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingLie {
    /// A frame length outside [`MIN_FRAME`]..=[`MAX_FRAME`].
    #[error("a record claims a frame of {0} bytes; {MIN_FRAME} to {MAX_FRAME} are allowed")]
    Length(u16),
    /// A record that reaches past the end of the ring.
    #[error("a record of {lines} lines at line {index} reaches past the end of the ring")]
    PastEnd {
        /// Line of the record's header.
        index: u32,
        /// Lines it claims.
        lines: u32,
    },
    /// A header kind that does not exist.
    #[error("a record header has unknown kind {0}")]
    Kind(u8),
    /// A record of another lap of the ring than the one being read.
    #[error("a record of lap {found} stands where lap {expected} is read")]
    Lap {
        /// The lap it names.
        found: u8,
        /// The lap of the consumer.
        expected: u8,
    },
    /// An impossible consumer position.
    #[error("the consumer claims to have read up to line {tail}, the producer is at {head}")]
    Tail {
        /// Position in shared memory.
        tail: u64,
        /// Producer's own position.
        head: u64,
    },
}

// A header of zeros is no record; kind 0 does not exist.
const KIND_FRAME: u8 = 1;
const KIND_WRAP: u8 = 2;
const KIND_FENCE: u8 = 3;

/// Number of laps that a header can tell apart.
const LAPS: u8 = 64;

/// Header word: length in bits 0-15, kind in 16-17, lap in 18-23, flags in 24-31, flow hash in
/// 32-63.
#[derive(Debug, Clone, Copy)]
struct Header(u64);

impl Header {
    fn new(kind: u8, lap: u8, len: u16, flags: u8, hash: u32) -> Self {
        debug_assert!(kind < 4 && lap < LAPS);
        let kind_and_lap = u64::from(kind | lap << 2);
        Self(u64::from(len) | kind_and_lap << 16 | u64::from(flags) << 24 | u64::from(hash) << 32)
    }
    fn len(self) -> u16 {
        self.0 as u16
    }
    fn kind(self) -> u8 {
        (self.0 >> 16) as u8 & 3
    }
    fn lap(self) -> u8 {
        (self.0 >> 18) as u8 % LAPS
    }
    fn flags(self) -> u8 {
        (self.0 >> 24) as u8
    }
    fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Lines taken by a record whose frame has `len` bytes.
#[inline(always)]
pub fn lines_of(len: usize) -> u32 {
    (len + RECORD_HEADER).div_ceil(LINE) as u32
}

/// Where a ring lies: its lines and its tail word, and the mapping that holds both.
#[derive(Debug, Clone)]
pub(crate) struct RingMemory {
    lines: *const Line,
    tail: *const TailWord,
    count: u32,
    _mapping: Arc<Mapping>,
}

// SAFETY: two addresses in memory that `new`'s contract keeps valid and that is accessed through
// atomics and documented copies.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Describes a ring of `count` lines at `lines` with its tail word at `tail`, in `mapping`.
    ///
    /// # Safety
    /// `lines` points to `count` lines and `tail` to a tail word, both valid for reads and writes
    /// for as long as `mapping` exists.
    ///
    /// # Panics
    /// If `count` is not a power of two within [`MIN_LINES`]..=[`MAX_LINES`].
    pub(crate) unsafe fn new(
        lines: *const Line,
        count: u32,
        tail: *const TailWord,
        mapping: Arc<Mapping>,
    ) -> Self {
        let least = if cfg!(loom) { 4 } else { MIN_LINES };
        assert!(
            count.is_power_of_two() && (least..=MAX_LINES).contains(&count),
            "a ring cannot have {count} lines"
        );
        Self { lines, tail, count, _mapping: mapping }
    }

    #[inline(always)]
    fn index(&self, position: u64) -> u32 {
        position as u32 & (self.count - 1)
    }

    /// Lap of a position, as headers name it.
    #[inline(always)]
    fn lap(&self, position: u64) -> u8 {
        (position >> self.count.trailing_zeros()) as u8 % LAPS
    }

    #[inline(always)]
    fn line(&self, index: u32) -> &Line {
        debug_assert!(index < self.count);
        // SAFETY: index is below count (every caller masks), and the line is valid by `new`'s
        // contract.
        unsafe { &*self.lines.add(index as usize) }
    }

    #[inline(always)]
    fn header(&self, index: u32) -> &AtomicU64 {
        &self.line(index).words[0]
    }

    /// Returns how far the ring has been read, in lines, and whether a record seems to wait there.
    /// Any thread may ask; the answer is old at once.
    pub(crate) fn unread(&self) -> (u64, bool) {
        // Relaxed: no record is read.
        let tail = self.tail().load(Ordering::Relaxed);
        (tail, self.header(self.index(tail)).load(Ordering::Relaxed) != 0)
    }

    #[inline(always)]
    fn tail(&self) -> &TailWord {
        // SAFETY: valid by `new`'s contract.
        unsafe { &*self.tail }
    }
}

/// Copies whole lines with plain vector moves that the compiler cannot see, reorder, tear into
/// validity assumptions or repeat: the memory may change under the copy, and whatever arrives is
/// treated as bytes.
///
/// # Safety
/// 1. `from` is valid for reading and `to` for writing `lines` lines; the ranges do not overlap.
/// 2. `lines` is at least 1.
#[cfg(not(loom))]
#[inline(always)]
unsafe fn copy_lines(from: *const Line, to: *const Line, lines: u32) {
    // SAFETY: by the caller's contract; xmm registers and flags are declared clobbered, the stack
    // is not touched.
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n:e}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            n = inout(reg) lines => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

#[cfg(loom)]
unsafe fn copy_lines(from: *const Line, to: *const Line, lines: u32) {
    for i in 0..lines as usize {
        // SAFETY: by the caller's contract.
        let (from, to) = unsafe { (&*from.add(i), &*to.add(i)) };
        for (f, t) in from.words.iter().zip(&to.words) {
            t.store(f.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Why a record could not be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The consumer has not freed enough lines yet: drop and count, or try later.
    #[error("the ring is full")]
    Full,
    /// The consumer's position is impossible.
    #[error(transparent)]
    Lie(#[from] RingLie),
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    /// Lines written since the ring was made.
    head: u64,
    /// Latest tail read.
    tail: u64,
    cork: Cork,
}

/// Records become visible one by one or all at once. See [`Producer::cork`].
#[derive(Debug, Clone, Copy)]
enum Cork {
    /// Each commit publishes its record.
    Open,
    /// The next record is the first to be held back.
    Empty,
    /// The header that hides this record, and with it all that follow.
    Held { index: u32, header: Header },
}

impl Producer {
    /// Returns the writing end of a ring that has just been zeroed.
    ///
    /// # Safety
    /// It is the only producer made for the ring, over all processes that keep the protocol.
    pub(crate) unsafe fn new(memory: RingMemory) -> Self {
        Self { memory, head: 0, tail: 0, cork: Cork::Open }
    }

    /// Begins again at the start of the ring, which has been replaced by a zeroed one.
    pub fn restart(&mut self) {
        (self.head, self.tail, self.cork) = (0, 0, Cork::Open);
    }

    /// Lines written since the ring was made, truncated: what congestion detection compares.
    pub fn head(&self) -> u32 {
        self.head as u32
    }

    /// Returns the position behind the last record committed, in lines since the ring was made.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Returns the consumer's position as shared memory has it, unchecked and truncated likewise.
    pub fn unchecked_tail(&self) -> u32 {
        // Relaxed: a statistic.
        self.memory.tail().load(Ordering::Relaxed) as u32
    }

    /// Hides committed records from now on until [`uncork`](Self::uncork). Returns true if the ring
    /// was not corked before.
    ///
    /// A polling consumer fetches the line of the next header over and over; publishing record by
    /// record makes the producer compete for each of these lines (140 ns a record between two cores
    /// of a 2-vCPU VM, 65 ns in batches of 32). A batch published at once competes once: only its
    /// first header is withheld, and the consumer does not read beyond.
    #[inline(always)]
    pub fn cork(&mut self) -> bool {
        let open = matches!(self.cork, Cork::Open);
        if open {
            self.cork = Cork::Empty;
        }
        open
    }

    /// Publishes everything committed since [`cork`](Self::cork).
    #[inline(always)]
    pub fn uncork(&mut self) {
        if let Cork::Held { index, header } = self.cork {
            // Release: pairs with the Acquire in `peek`; a consumer that sees the first header sees
            // all records of the batch.
            self.memory.header(index).store(header.0, Ordering::Release);
        }
        self.cork = Cork::Open;
    }

    /// Makes room for a frame of `len` bytes. Nothing is visible to the consumer before
    /// [`Slot::commit`].
    ///
    /// # Errors
    /// [`ReserveError::Full`], or [`ReserveError::Lie`] if the consumer's position is impossible.
    ///
    /// # Panics
    /// If `len` is outside [`MIN_FRAME`]..=[`MAX_FRAME`].
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Slot<'_>, ReserveError> {
        assert!((MIN_FRAME..=MAX_FRAME).contains(&len), "a ring cannot carry a frame of {len} bytes");
        let lines = lines_of(len);
        let index = self.memory.index(self.head);
        let to_end = self.memory.count - index;
        let skip = if lines > to_end { to_end } else { 0 };
        // One more line than the record: the terminator after it must not overwrite an unread
        // record.
        let need = u64::from(skip + lines + 1);
        if need > self.free() {
            self.refresh()?;
            if need > self.free() {
                return Err(ReserveError::Full);
            }
        }
        if skip > 0 {
            // Relaxed: published by the Release store of the wrap marker that follows.
            self.memory.header(0).store(0, Ordering::Relaxed);
            let marker = Header::new(KIND_WRAP, self.memory.lap(self.head), 0, 0, 0);
            // Release: pairs with the Acquire in `peek`.
            self.memory.header(index).store(marker.0, Ordering::Release);
            self.head += u64::from(skip);
        }
        Ok(Slot { len: len as u16, lines, producer: self })
    }

    /// Publishes a record of `lines` lines at the head: its header, and the word after that.
    #[inline(always)]
    fn commit(&mut self, lines: u32, header: Header, word: u64) {
        let memory = &self.memory;
        let index = memory.index(self.head);
        // Relaxed: ordered before the header by its Release.
        memory.line(index).words[1].store(word, Ordering::Relaxed);
        let next = memory.index(self.head + u64::from(lines));
        // Relaxed: as above. The consumer must never find a stale header after this record.
        memory.header(next).store(0, Ordering::Relaxed);
        if let Cork::Empty = self.cork {
            // The header word is zero already: the commit before wrote it as its terminator.
            self.cork = Cork::Held { index, header };
        } else {
            // Release: pairs with the Acquire in `peek`; a consumer that sees the header sees
            // payload, stamp and terminator.
            memory.header(index).store(header.0, Ordering::Release);
        }
        self.head += u64::from(lines);
    }

    #[inline(always)]
    fn free(&self) -> u64 {
        u64::from(self.memory.count) - (self.head - self.tail)
    }

    /// Returns the number of lines that the consumer has not finished with, by its position as last
    /// read: never too few.
    #[inline(always)]
    pub fn filled(&self) -> u32 {
        (self.head - self.tail) as u32
    }

    /// Reads the consumer's position anew.
    ///
    /// # Errors
    /// If it is impossible.
    pub fn refresh(&mut self) -> Result<(), RingLie> {
        // Acquire: pairs with the Release in `Consumer::publish`: the consumer has finished with
        // the lines it frees.
        let tail = self.memory.tail().load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            return Err(RingLie::Tail { tail, head: self.head });
        }
        self.tail = tail;
        Ok(())
    }
}

/// A reserved record at the head of a ring.
#[derive(Debug)]
pub struct Slot<'a> {
    producer: &'a mut Producer,
    len: u16,
    lines: u32,
}

impl Slot<'_> {
    #[inline(always)]
    fn index(&self) -> u32 {
        self.producer.memory.index(self.producer.head)
    }

    /// Returns the address of the frame: valid for writing the reserved length until `commit`.
    #[inline(always)]
    pub fn frame(&mut self) -> *mut u8 {
        // SAFETY: the record's lines lie within the ring, so the offset stays in bounds.
        unsafe {
            self.producer.memory.lines.add(self.index() as usize).cast_mut().cast::<u8>().add(RECORD_HEADER)
        }
    }

    /// Copies `bytes` into the frame at `offset`.
    ///
    /// # Panics
    /// If they do not fit in the reserved length.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len as usize),
            "{} bytes at {offset} do not fit a frame of {}",
            bytes.len(),
            self.len
        );
        // SAFETY: in bounds by the assertion; the consumer does not touch these lines before
        // `commit`.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.frame().add(offset), bytes.len()) };
    }

    /// Shortens the frame to `len` bytes (for producers that learn the length while writing).
    ///
    /// # Panics
    /// If `len` is longer than reserved or shorter than [`MIN_FRAME`].
    pub fn truncate(&mut self, len: usize) {
        assert!(
            (MIN_FRAME..=self.len as usize).contains(&len),
            "cannot truncate a {}-byte frame to {len}",
            self.len
        );
        self.len = len as u16;
        self.lines = lines_of(len);
    }

    /// Publishes the frame.
    #[inline]
    pub fn commit(self, hash: u32, flags: u8, stamp: Cycles) {
        let lap = self.producer.memory.lap(self.producer.head);
        let header = Header::new(KIND_FRAME, lap, self.len, flags, hash);
        self.producer.commit(self.lines, header, stamp);
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    /// Lines read since the ring was made.
    tail: u64,
    /// Tail last published.
    published: u64,
}

impl Consumer {
    /// Returns the reading end of a ring that has just been zeroed.
    ///
    /// # Safety
    /// It is the only consumer made for the ring, over all processes that keep the protocol.
    pub(crate) unsafe fn new(memory: RingMemory) -> Self {
        Self { memory, tail: 0, published: 0 }
    }

    /// Begins again at the start of the ring, which has been replaced by a zeroed one.
    pub fn restart(&mut self) {
        (self.tail, self.published) = (0, 0);
    }

    /// Returns whether a record or a wrap marker waits. One load; cannot fail, since it interprets
    /// nothing.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        // Relaxed: a hint; `peek` loads again with Acquire.
        self.memory.header(self.memory.index(self.tail)).load(Ordering::Relaxed) != 0
    }

    /// Returns the next record, if one waits. Steps over wrap markers.
    ///
    /// # Errors
    /// [`RingLie`] if the producer wrote an impossible header; the ring is unusable from then on. A
    /// fence is one: see [`next`](Self::next).
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, RingLie> {
        match self.find()? {
            None => Ok(None),
            Some((header, index)) if header.kind() == KIND_FRAME => self.check(header, index).map(Some),
            Some((header, _)) => Err(RingLie::Kind(header.kind())),
        }
    }

    /// Steps over a wrap marker. Returns the next header and its line, if one waits.
    #[inline(always)]
    fn find(&mut self) -> Result<Option<(Header, u32)>, RingLie> {
        // At most one wrap marker stands between two records; a second one in a row is a lie.
        for _ in 0..2 {
            let index = self.memory.index(self.tail);
            // Acquire: pairs with the Release in `commit` and `reserve`.
            let header = Header(self.memory.header(index).load(Ordering::Acquire));
            if header.0 == 0 {
                return Ok(None);
            }
            let lap = self.memory.lap(self.tail);
            if header.lap() != lap {
                return Err(RingLie::Lap { found: header.lap(), expected: lap });
            }
            if header.kind() != KIND_WRAP || index == 0 {
                return Ok(Some((header, index)));
            }
            self.tail += u64::from(self.memory.count - index);
        }
        Ok(None)
    }

    #[inline(always)]
    fn check(&mut self, header: Header, index: u32) -> Result<Record<'_>, RingLie> {
        let len = header.len() as usize;
        if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return Err(RingLie::Length(header.len()));
        }
        let lines = lines_of(len);
        if lines > self.memory.count - index {
            return Err(RingLie::PastEnd { index, lines });
        }
        Ok(Record { len, header, index, lines, ring: self })
    }

    /// Publishes how far this end has read; call once per batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            // Release: pairs with the Acquire in `refresh`.
            self.memory.tail().store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }
}

/// The next record of a ring, found by [`Consumer::peek`]: checked numbers, not bytes. Dropping it
/// leaves it in the ring.
#[derive(Debug)]
pub struct Record<'a> {
    ring: &'a mut Consumer,
    len: usize,
    header: Header,
    index: u32,
    lines: u32,
}

impl Record<'_> {
    /// Frame length in bytes, within [`MIN_FRAME`]..=[`MAX_FRAME`].
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Flow hash as the producer wrote it.
    #[inline(always)]
    pub fn hash(&self) -> u32 {
        self.header.hash()
    }

    /// Flags as the producer wrote them.
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.header.flags()
    }

    /// Returns the time stamp.
    #[inline(always)]
    pub fn stamp(&self) -> Cycles {
        // Relaxed: ordered after the header by `peek`'s Acquire.
        self.line().words[1].load(Ordering::Relaxed)
    }

    /// Frees the record. The producer sees it after the next [`Consumer::publish`].
    #[inline(always)]
    pub fn advance(self) {
        self.ring.tail += u64::from(self.lines);
    }

    #[inline(always)]
    fn line(&self) -> &Line {
        self.ring.memory.line(self.index)
    }

    /// Copies the first line, for a consumer that distrusts the producer: header words and the
    /// first 48 bytes of frame, read once. A decision made on the copy holds for the frame that
    /// [`forward`] delivers.
    #[inline(always)]
    pub fn first_line(&self) -> FirstLine {
        let line = self.line();
        // Relaxed: ordered after the header by `peek`'s Acquire.
        FirstLine { words: core::array::from_fn(|i| line.words[i].load(Ordering::Relaxed)) }
    }

    /// Copies the frame into `out`, for a consumer that distrusts the producer.
    #[cfg(not(loom))]
    pub fn copy_frame<'b>(&self, out: &'b mut FrameBuffer) -> &'b mut [u8] {
        // SAFETY: `check` found all lines of the record inside the ring; the buffer holds the
        // longest record.
        unsafe {
            copy_lines(self.ring.memory.lines.add(self.index as usize), out.lines.as_ptr(), self.lines);
        }
        out.frame(self.len)
    }

    /// Returns the frame in place, for a consumer that **trusts** the producer (a runtime reading
    /// what its IOKernel delivered).
    ///
    /// # Safety
    /// The producer keeps the protocol: it does not write the record's lines before they are freed
    /// and published.
    #[inline(always)]
    pub unsafe fn frame(&self) -> &[u8] {
        // SAFETY: in bounds by `check`; the lines are not written while `self` exists, by the
        // caller's contract and because this is the only consumer; `peek`'s Acquire ordered the
        // writes before this.
        unsafe {
            core::slice::from_raw_parts(
                self.ring.memory.lines.add(self.index as usize).cast::<u8>().add(RECORD_HEADER),
                self.len,
            )
        }
    }
}

/// A private copy of a record's first line.
#[derive(Debug, Clone, Copy)]
pub struct FirstLine {
    words: [u64; LINE / 8],
}

/// Bytes of frame in a [`FirstLine`].
pub const FIRST_LINE_FRAME: usize = LINE - RECORD_HEADER;

impl FirstLine {
    /// Returns the first bytes of the frame: 48, whatever its length.
    #[inline(always)]
    pub fn frame(&self) -> &[u8; FIRST_LINE_FRAME] {
        let words: &[u64; FIRST_LINE_FRAME / 8] = self.words[2..].try_into().expect("six words");
        // SAFETY: six u64 are 48 bytes, any of which are valid u8; alignment of u8 is 1.
        unsafe { &*core::ptr::from_ref(words).cast() }
    }
}

/// Room for the longest record, line aligned.
#[derive(Debug)]
pub struct FrameBuffer {
    #[cfg_attr(loom, allow(dead_code, reason = "the models copy no frames"))]
    lines: Box<[Line]>,
}

/// Lines of a [`FrameBuffer`].
pub const FRAME_BUFFER: usize = (MAX_FRAME + RECORD_HEADER).div_ceil(LINE);

impl FrameBuffer {
    /// Returns a zeroed buffer.
    pub fn new() -> Self {
        Self { lines: (0..FRAME_BUFFER).map(|_| Line::new()).collect() }
    }

    /// Returns a copy of `frame`.
    ///
    /// # Panics
    /// If it is longer than [`MAX_FRAME`].
    #[cfg(not(loom))]
    pub fn hold(&mut self, frame: &[u8]) -> &mut [u8] {
        let copy = self.frame(frame.len());
        copy.copy_from_slice(frame);
        copy
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn frame(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= MAX_FRAME, "a buffer cannot hold a frame of {len} bytes");
        // SAFETY: the lines are ours alone while `self` is borrowed, any bytes are valid, and there
        // is room for MAX_FRAME of them behind the record header.
        unsafe {
            core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<u8>().add(RECORD_HEADER), len)
        }
    }
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies `record` into another ring: `first` is delivered as it was checked, further lines as they
/// are now. The record keeps its place in its own ring, so that a broadcast can be copied several
/// times before [`Record::advance`]. The copy gets `flags`: those of the record are the sender's
/// and unchecked.
///
/// # Errors
/// As [`Producer::reserve`].
#[inline]
pub fn forward(
    record: &Record<'_>,
    first: &FirstLine,
    to: &mut Producer,
    hash: u32,
    flags: u8,
    stamp: Cycles,
) -> Result<(), ReserveError> {
    let slot = to.reserve(record.len)?;
    let target = slot.producer.memory.line(slot.index());
    for i in 2..LINE / 8 {
        // Relaxed: ordered before the header by `commit`'s Release.
        target.words[i].store(first.words[i], Ordering::Relaxed);
    }
    if record.lines > 1 {
        // SAFETY: the record's lines lie inside its ring (`check`), as many lines inside `to`
        // (`reserve`); should both be ends of one ring, the lines reserved are free and the
        // record's are not.
        unsafe {
            copy_lines(
                record.ring.memory.lines.add(record.index as usize + 1),
                slot.producer.memory.lines.add(slot.index() as usize + 1),
                record.lines - 1,
            );
        }
    }
    slot.commit(hash, flags, stamp);
    Ok(())
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod private;
#[cfg(all(test, not(loom)))]
mod tests;
