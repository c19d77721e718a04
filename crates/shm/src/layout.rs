//! The shape of a runtime's region, byte for byte.
//!
//! ```text
//! 0        RegionHeader                         one page
//! 4096     KthreadShared x kthreads             512 bytes each, rounded up to a page
//! ...      ingress ring, egress ring            `ring_lines` x 64 bytes each, per kthread
//! ...      steps of traced requests             4096 bytes each, per kthread
//! ...      ClassPage                            one page
//! ```
//!
//! The IOKernel creates and lays out the region; it keeps its own [`RegionSpec`] and never reads
//! the layout back. A runtime checks the header against its own build before it trusts an offset.
//! Changing anything here changes [`VERSION`]; [`Version`] says which changes are compatible.
//!
//! # Ends of rings
//! Each ring has one producer and one consumer, each buffer of steps one writer. That is so by
//! construction: [`Region::create`] makes a new file and returns the IOKernel's ends with it,
//! [`Region::attach`] returns the runtime's ends of a file that was never attached to before (a
//! word of the header records it). Ends cannot be copied, and each keeps the mapping alive, so that
//! they may outlive the [`Region`].
//!
//! # A later registration
//! A runtime whose IOKernel has ended registers with the next one and gets another region. Its
//! memory takes the place of the old one's ([`Region::succeed`]), at the same address, so that
//! references to the words of kthreads and the ends of rings stay valid; the ends restart at the
//! beginning of rings that are empty.
//!
//! # No second end
//! A second producer of a ring cannot be had from the first,
//!
//! ```compile_fail,E0599
//! fn misuse(ends: &tailwater_shm::layout::RuntimeEnds) {
//!     let _second = ends.egress.clone();
//! }
//! ```
//!
//! and not from the region either:
//!
//! ```compile_fail,E0624
//! fn misuse(region: &tailwater_shm::layout::Region) {
//!     let _second = tailwater_shm::ring::Producer::new(region.egress(0));
//! }
//! ```

use crate::classes::{ClassPage, ClassReader};
use crate::grant::{GrantWord, StateWord};
use crate::memory::{self, Mapping, MemoryError};
use crate::park::Parker;
use crate::ring::{Consumer, Line, MAX_LINES, MIN_LINES, Producer, RingMemory, TailWord};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::trace::buffer::Slots;
use crate::trace::{TraceReader, TraceWriter};
use crate::version::Version;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Version of layout and protocols, as the number of a [`Version`]: the IOKernel has to
/// [serve](Version::serves) the program's.
pub const VERSION: u32 = Version::new(13, 4).0;

/// Name of a program's region, which Linux shows in `/proc/PID/maps` as that of a memory file.
pub const REGION_NAME: &str = "tailwater-region";
/// First word of a region: "tailwatr" in ASCII, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tailwatr");
/// The polling thread polls.
pub const AWAKE: u32 = 0;
/// The polling thread sleeps, or is about to.
pub const ASLEEP: u32 = 1;
/// The same, and a core is free.
pub const ASLEEP_BESIDE_FREE_CORES: u32 = 2;
/// Kthreads of services rank above best-effort ones.
const RANKS_DIFFER: u32 = 1;
/// Other programs compete for the cores, and the wake of a kthread of this service preempts them.
const WAKES_PREEMPT: u32 = 2;
/// In the word of granted cores: the IOKernel's policy grants requested cores. The number is in the
/// lower half.
pub const TAKES_REQUESTS: u64 = 1 << 32;
/// The kthread is in its scheduler.
pub const IN_SCHEDULER: u32 = 0;
/// The kthread runs a user thread.
pub const IN_THREAD: u32 = 1;
/// The kthread handles frames from its ingress ring.
pub const IN_STACK: u32 = 2;
/// Maximum number of kthreads a runtime may have.
pub const MAX_KTHREADS: u16 = 256;

const PAGE: usize = 4096;

/// First page of a region.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RegionHeader {
    magic: AtomicU64,
    version: AtomicU32,
    kthreads: AtomicU32,
    ring_lines: AtomicU32,
    /// 1 once a runtime has attached.
    attached: AtomicU32,
    tsc_hz: AtomicU64,
    /// Number of requested cores that are the runtime's own, and [`TAKES_REQUESTS`]; written by the
    /// IOKernel.
    granted: AtomicU64,
    _line: [AtomicU64; 3],
    /// [`AWAKE`], [`ASLEEP`] or [`ASLEEP_BESIDE_FREE_CORES`]; a line of its own.
    asleep: AtomicU32,
    /// [`RANKS_DIFFER`] and [`WAKES_PREEMPT`]; written by the IOKernel.
    contested: AtomicU32,
    _pad: [AtomicU32; 14],
}

/// The words that congestion detection reads: one line, written by the runtime, read by the
/// IOKernel every interval.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StatusLine {
    /// Next entry to run; advanced by the owner and by thieves.
    pub runq_head: AtomicU32,
    /// Next entry to fill; written by the owner only.
    pub runq_tail: AtomicU32,
    /// User threads that did not fit the run queue.
    pub overflow: AtomicU32,
    /// User threads made runnable by ordinary OS threads; counts for the runtime, published in
    /// kthread 0's line.
    pub injected: AtomicU32,
    /// TSC time of the earliest timer, `u64::MAX` if there is none.
    pub next_timer: AtomicU64,
    /// [`IN_SCHEDULER`], [`IN_THREAD`] or [`IN_STACK`], while the kthread holds a core and is not
    /// idle; other values count as [`IN_SCHEDULER`]. For the account of cores only.
    pub doing: AtomicU32,
    /// Wakes that the kthread was sent and did not get; see [`Parker`].
    pub lost_wakes: AtomicU32,
    /// Cores that the runtime requests: one byte per priority, priority 0 in the lowest. Counts for
    /// the runtime, published in kthread 0's line.
    pub requests: AtomicU64,
    /// 1 while the kthread is the host of an exclusive thread, which is to keep its core before the
    /// runtime's other kthreads; other values count as 1.
    pub hosted: AtomicU32,
    /// Sockets at which an acknowledgment may matter at once: a thread may wait for it, it may show
    /// that a segment is lost, or it may complete a handshake. Counts for the runtime, published in
    /// kthread 0's line.
    pub awaits_acks: AtomicU32,
    /// TSC time at which the kthread last gave its core up, written before it is `Parked`. For the
    /// account of cores only.
    pub ceded: AtomicU64,
    _rest: [AtomicU64; 1],
}

impl StatusLine {
    /// Returns the head and the tail of the run queue, modulo 2^32, of which the tail was read
    /// first. So entries between the two were queued when the head was read, whatever was queued
    /// and taken meanwhile; if the head has passed the tail, all that the tail shows is gone. Both
    /// are the program's word.
    #[inline]
    pub fn runq_ends(&self) -> (u32, u32) {
        // Acquire: pairs with the Release of the owner's push. The head is read after the tail, and
        // is at least what the owner saw when it wrote that.
        let tail = self.runq_tail.load(Ordering::Acquire);
        // Relaxed: nothing is read on the strength of it.
        (self.runq_head.load(Ordering::Relaxed), tail)
    }

    /// Returns how many entries the run queue holds by its [ends](Self::runq_ends): none if the
    /// head has passed the tail.
    #[inline]
    pub fn runq_len(&self) -> u32 {
        let (head, tail) = self.runq_ends();
        (tail.wrapping_sub(head) as i32).max(0) as u32
    }

    /// Copies what a kthread and its runtime have published from `other`. No other thread writes
    /// either line.
    fn take_over(&self, other: &Self) {
        // All fields by name: a new one does not compile before it is decided whether it is kept.
        let Self {
            runq_head,
            runq_tail,
            overflow,
            injected,
            next_timer,
            doing,
            lost_wakes,
            requests,
            hosted,
            awaits_acks,
            ceded,
            _rest,
        } = other;
        let words = [
            (&self.runq_head, runq_head),
            (&self.runq_tail, runq_tail),
            (&self.overflow, overflow),
            (&self.injected, injected),
            (&self.doing, doing),
            (&self.lost_wakes, lost_wakes),
            (&self.hosted, hosted),
            (&self.awaits_acks, awaits_acks),
        ];
        // Relaxed: the caller's threads synchronise by other means.
        for (to, from) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in [(&self.next_timer, next_timer), (&self.requests, requests), (&self.ceded, ceded)] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// By what the IOKernel ends the turns of user threads: one line, written by the kthread, read by
/// the IOKernel several times per quantum, and not at all without one.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TurnLine {
    /// User threads resumed: the number of the turn in progress.
    pub turns: AtomicU64,
    /// Longest turn while something else waits for the kthread, in nanoseconds; 0: none. Written
    /// before the kthread is announced, read when it begins a tenancy.
    pub quantum_ns: AtomicU64,
    _rest: [AtomicU64; 6],
}

impl TurnLine {
    /// As [`StatusLine::take_over`].
    fn take_over(&self, other: &Self) {
        let Self { turns, quantum_ns, _rest } = other;
        for (to, from) in [(&self.turns, turns), (&self.quantum_ns, quantum_ns)] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// A word with a cache line to itself.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Padded<T>(pub T);

/// One kthread's words in its runtime's region: eight lines.
#[repr(C, align(512))]
#[derive(Debug)]
pub struct KthreadShared {
    /// Written by the IOKernel, polled by the kthread.
    pub grant: Padded<GrantWord>,
    /// Written by the kthread, polled by the IOKernel.
    pub state: Padded<StateWord>,
    /// Written by the runtime, sampled by the IOKernel.
    pub status: StatusLine,
    /// The runtime's position in its ingress ring; written by the kthread that holds the consumer.
    ingress_tail: Padded<TailWord>,
    /// The IOKernel's position in the egress ring.
    egress_tail: Padded<TailWord>,
    /// Steps of traced requests that the kthread has written since the region was made.
    trace_head: Padded<AtomicU64>,
    /// Written by the kthread, sampled by the IOKernel.
    pub turn: TurnLine,
    /// Where the kthread sleeps: its parker among those of the program. Written by it and by the
    /// IOKernel, which wakes it.
    pub parker: Parker,
}

impl KthreadShared {
    /// Returns the words of a kthread that holds no core and has no work; for runtimes without an
    /// IOKernel, whose words are private.
    pub fn new() -> Self {
        Self {
            grant: Padded(GrantWord::new()),
            state: Padded(StateWord::new()),
            status: StatusLine {
                runq_head: AtomicU32::new(0),
                runq_tail: AtomicU32::new(0),
                overflow: AtomicU32::new(0),
                injected: AtomicU32::new(0),
                next_timer: AtomicU64::new(u64::MAX),
                doing: AtomicU32::new(IN_SCHEDULER),
                lost_wakes: AtomicU32::new(0),
                requests: AtomicU64::new(0),
                hosted: AtomicU32::new(0),
                awaits_acks: AtomicU32::new(0),
                ceded: AtomicU64::new(0),
                _rest: core::array::from_fn(|_| AtomicU64::new(0)),
            },
            ingress_tail: Padded(TailWord::new(0)),
            egress_tail: Padded(TailWord::new(0)),
            trace_head: Padded(AtomicU64::new(0)),
            turn: TurnLine {
                turns: AtomicU64::new(0),
                quantum_ns: AtomicU64::new(0),
                _rest: core::array::from_fn(|_| AtomicU64::new(0)),
            },
            parker: Parker::new(),
        }
    }

    /// Copies what a kthread keeps when its region is replaced from `other`. No other thread uses
    /// the words of either.
    fn take_over(&self, other: &Self) {
        // The other words begin anew with each registration.
        let Self {
            grant: _,
            state: _,
            status,
            ingress_tail: _,
            egress_tail: _,
            trace_head: _,
            turn,
            parker: _,
        } = other;
        self.status.take_over(status);
        self.turn.take_over(turn);
    }
}

impl Default for KthreadShared {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<RegionHeader>() == 128);
    assert!(offset_of!(RegionHeader, asleep) == 64);
    assert!(offset_of!(RegionHeader, contested) == 68);
    assert!(size_of::<StatusLine>() == 64);
    assert!(offset_of!(RegionHeader, granted) == 32);
    assert!(offset_of!(StatusLine, doing) == 24);
    assert!(offset_of!(StatusLine, requests) == 32);
    assert!(offset_of!(StatusLine, hosted) == 40);
    assert!(offset_of!(StatusLine, awaits_acks) == 44);
    assert!(offset_of!(StatusLine, ceded) == 48);
    assert!(size_of::<KthreadShared>() == 512);
    assert!(offset_of!(KthreadShared, grant) == 0);
    assert!(offset_of!(KthreadShared, state) == 64);
    assert!(offset_of!(KthreadShared, status) == 128);
    assert!(offset_of!(KthreadShared, ingress_tail) == 192);
    assert!(offset_of!(KthreadShared, egress_tail) == 256);
    assert!(offset_of!(KthreadShared, trace_head) == 320);
    assert!(size_of::<TurnLine>() == 64);
    assert!(offset_of!(KthreadShared, turn) == 384);
    assert!(offset_of!(KthreadShared, parker) == 448);
};

/// Numbers that fix a region's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    kthreads: u16,
    ring_lines: u32,
}

/// The sizes are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Too few or too many kthreads.
    #[error("{0} kthreads requested; 1 to {MAX_KTHREADS} are allowed")]
    Kthreads(u32),
    /// Not a power of two, or out of range.
    #[error("rings of {0} bytes requested; a power of two from {least} to {most} is needed", least = MIN_LINES * 64, most = MAX_LINES * 64)]
    RingBytes(u64),
}

impl RegionSpec {
    /// Returns a region for `kthreads` kthreads with rings of `ring_bytes` bytes in each direction.
    ///
    /// # Errors
    /// If either number is out of range.
    pub fn new(kthreads: u16, ring_bytes: u32) -> Result<Self, SpecError> {
        if !(1..=MAX_KTHREADS).contains(&kthreads) {
            return Err(SpecError::Kthreads(kthreads.into()));
        }
        let ring_lines = ring_bytes / 64;
        if !ring_bytes.is_power_of_two() || !(MIN_LINES..=MAX_LINES).contains(&ring_lines) {
            return Err(SpecError::RingBytes(ring_bytes.into()));
        }
        Ok(Self { kthreads, ring_lines })
    }

    /// Returns the number of kthreads.
    pub fn kthreads(&self) -> u16 {
        self.kthreads
    }

    fn rings_offset(&self) -> usize {
        (PAGE + self.kthreads as usize * size_of::<KthreadShared>()).next_multiple_of(PAGE)
    }

    fn ring_bytes(&self) -> usize {
        self.ring_lines as usize * size_of::<Line>()
    }

    fn traces_offset(&self) -> usize {
        self.rings_offset() + 2 * self.kthreads as usize * self.ring_bytes()
    }

    fn classes_offset(&self) -> usize {
        self.traces_offset() + self.kthreads as usize * size_of::<Slots>()
    }

    /// Returns the length of the region in bytes.
    pub fn region_len(&self) -> usize {
        self.classes_offset() + size_of::<ClassPage>()
    }
}

/// Why a region could not be used by a runtime.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The mapping failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Not a region of this version.
    #[error(
        "the IOKernel's shared memory has version {found:#x}, this program was built for version {}: rebuild one of them",
        Version::OWN
    )]
    Version {
        /// Version (or magic) found.
        found: u64,
    },
    /// Numbers in the header are out of range.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A runtime has this region's ends already.
    #[error("this shared memory was attached to before: each registration attaches once; register again")]
    AttachedBefore,
}

/// The IOKernel's ends of the rings and the steps of one kthread.
#[derive(Debug)]
pub struct IoKernelEnds {
    /// Frames to the kthread.
    pub ingress: Producer,
    /// Frames from the kthread.
    pub egress: Consumer,
    /// Steps of traced requests that the kthread writes.
    pub steps: TraceReader,
}

/// The runtime's ends of the rings and the steps of one kthread.
#[derive(Debug)]
pub struct RuntimeEnds {
    /// Frames to the kthread.
    pub ingress: Consumer,
    /// Frames from the kthread.
    pub egress: Producer,
    /// Steps of traced requests that the kthread writes.
    pub steps: TraceWriter,
}

/// The region of a later registration, checked. See [`Region::successor`].
#[derive(Debug)]
pub struct Successor(Region);

/// A mapped region and the spec it was laid out by.
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    spec: RegionSpec,
}

/// Reads what waits for a runtime's kthreads, from any thread. The words are the runtime's, and
/// are shown and used for nothing else.
#[derive(Debug)]
pub struct Queues(Region);

/// What waits for a runtime's kthreads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// User threads that are runnable.
    pub threads: u32,
    /// Kthreads in whose ring frames wait.
    pub rings: u16,
}

impl Queues {
    /// Returns what waits now; the answer is old at once.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for index in 0..self.0.spec.kthreads {
            let status = &self.0.kthread(index).status;
            // Relaxed: a statistic.
            let beside = [&status.overflow, &status.injected].map(|word| word.load(Ordering::Relaxed));
            let queued = beside.into_iter().fold(status.runq_len(), u32::saturating_add);
            waiting.threads = waiting.threads.saturating_add(queued);
            waiting.rings += u16::from(self.0.ingress(index).unread().1);
        }
        waiting
    }
}

impl Region {
    /// Makes and lays out a region in its own memory file, named `name` in `/proc/PID/maps`.
    /// IOKernel side. Returns the region, the IOKernel's ends by kthread, and the file for the
    /// runtime.
    ///
    /// # Errors
    /// If the kernel refuses the memory.
    pub fn create(
        name: &str,
        spec: RegionSpec,
        tsc_hz: u64,
    ) -> Result<(Self, Vec<IoKernelEnds>, OwnedFd), MemoryError> {
        let (region, ends, file) = Self::create_sparse(name, spec, tsc_hz)?;
        region.populate()?;
        Ok((region, ends, file))
    }

    /// As [`Region::create`], but takes memory for the header only; [`Region::populate`] takes the
    /// rest.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create_sparse(
        name: &str,
        spec: RegionSpec,
        tsc_hz: u64,
    ) -> Result<(Self, Vec<IoKernelEnds>, OwnedFd), MemoryError> {
        let file = memory::create(name, spec.region_len())?;
        let region = Self { mapping: Arc::new(Mapping::sparse(&file, "region")?), spec };
        let header = region.header();
        // Relaxed: the peer gets the region through a system call later.
        header.kthreads.store(spec.kthreads.into(), Ordering::Relaxed);
        header.ring_lines.store(spec.ring_lines, Ordering::Relaxed);
        header.tsc_hz.store(tsc_hz, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Relaxed);
        for k in 0..spec.kthreads {
            region.kthread(k).status.next_timer.store(u64::MAX, Ordering::Relaxed);
        }
        let ends = |index| {
            // SAFETY: the file was made above and is in no other hands yet, and this closure runs
            // once per index: these are the only ends on the IOKernel's side.
            unsafe {
                IoKernelEnds {
                    ingress: Producer::new(region.ingress(index)),
                    egress: Consumer::new(region.egress(index)),
                    steps: TraceReader::new(region.slots(index), region.trace_head(index), region.keep()),
                }
            }
        };
        let ends = (0..spec.kthreads).map(ends).collect();
        Ok((region, ends, file))
    }

    /// Makes all pages of the region, so that no page fault happens later.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn populate(&self) -> Result<(), MemoryError> {
        self.mapping.populate()
    }

    /// Checks and adopts a region the IOKernel laid out. Runtime side. Returns it and the runtime's
    /// ends by kthread.
    ///
    /// # Errors
    /// If version, numbers or length are not those this build expects, or a runtime has attached to
    /// it before.
    pub fn attach(mapping: Mapping) -> Result<(Self, Vec<RuntimeEnds>), RegionError> {
        let region = Self::check(mapping)?;
        let spec = region.spec;
        let ends = |index| {
            // SAFETY: the word above was 0, so no other attachment has ends, and this closure runs
            // once per index: these are the only ends on the runtime's side.
            unsafe {
                RuntimeEnds {
                    ingress: Consumer::new(region.ingress(index)),
                    egress: Producer::new(region.egress(index)),
                    steps: TraceWriter::new(region.slots(index), region.trace_head(index), region.keep()),
                }
            }
        };
        let ends = (0..spec.kthreads).map(ends).collect();
        Ok((region, ends))
    }

    /// Checks a region that the IOKernel laid out, and marks it as attached to.
    fn check(mapping: Mapping) -> Result<Self, RegionError> {
        if mapping.len() < PAGE {
            let found = mapping.len();
            return Err(MemoryError::WrongSize { what: "region", expected: PAGE, found }.into());
        }
        let spec = RegionSpec { kthreads: 1, ring_lines: MIN_LINES };
        let mut region = Self { mapping: Arc::new(mapping), spec };
        let header = region.header();
        let magic = header.magic.load(Ordering::Relaxed);
        let version = header.version.load(Ordering::Relaxed);
        if magic != MAGIC || !Version(version).serves(Version::OWN) {
            return Err(RegionError::Version { found: if magic == MAGIC { version.into() } else { magic } });
        }
        let kthreads = header.kthreads.load(Ordering::Relaxed);
        let ring_bytes = u64::from(header.ring_lines.load(Ordering::Relaxed)) * 64;
        let spec = RegionSpec::new(
            kthreads.try_into().map_err(|_| SpecError::Kthreads(kthreads))?,
            ring_bytes.try_into().map_err(|_| SpecError::RingBytes(ring_bytes))?,
        )?;
        let (expected, found) = (spec.region_len(), region.mapping.len());
        if expected != found {
            return Err(MemoryError::WrongSize { what: "region", expected, found }.into());
        }
        region.spec = spec;
        // Relaxed: the word orders nothing; its only purpose is that one attachment finds it 0.
        if region.header().attached.swap(1, Ordering::Relaxed) != 0 {
            return Err(RegionError::AttachedBefore);
        }
        Ok(region)
    }

    /// Checks the region of a later registration, which is to [take the place](Self::succeed) of
    /// this one.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), or if its numbers differ from this one's.
    pub fn successor(&self, mapping: Mapping) -> Result<Successor, RegionError> {
        let region = Self::check(mapping)?;
        if region.spec != self.spec {
            let (expected, found) = (self.mapping.len(), region.mapping.len());
            return Err(MemoryError::WrongSize { what: "region", expected, found }.into());
        }
        Ok(Successor(region))
    }

    /// Puts the memory of a later registration in the place of this one's: all addresses stay
    /// valid. What the runtime publishes about its kthreads moves with it; the other words are
    /// those of the new region, and its rings and buffers are empty. Each end is to be
    /// restarted ([`Consumer::restart`]) before its next use.
    ///
    /// # Errors
    /// If the lengths differ or the kernel refuses: all is as it was then, except after
    /// [`MemoryError::Gone`].
    ///
    /// # Safety
    /// 1. No thread uses an end of a ring, or has a reference to a frame in one.
    /// 2. No thread writes or waits at a word of the region.
    pub unsafe fn succeed(&self, next: Successor) -> Result<(), MemoryError> {
        for index in 0..self.spec.kthreads {
            next.0.kthread(index).take_over(self.kthread(index));
        }
        next.0.classes().take_over(self.classes());
        let Some(mapping) = Arc::into_inner(next.0.mapping) else {
            unreachable!("a successor has no ends, so nothing shares its mapping")
        };
        // SAFETY: 1. and 2. by the caller's contract: what is left are references to atomics.
        unsafe { self.mapping.replace(mapping) }
    }

    fn keep(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    fn header(&self) -> &RegionHeader {
        // SAFETY: the mapping is at least a page, page aligned, and a header is atomics only: valid
        // for any bytes.
        unsafe { &*self.mapping.base().cast::<RegionHeader>() }
    }

    /// Returns the spec the region was laid out by.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Frequency of the TSC in Hz, as the IOKernel measured it.
    pub fn tsc_hz(&self) -> u64 {
        self.header().tsc_hz.load(Ordering::Relaxed)
    }

    /// Not [`AWAKE`] while the IOKernel sleeps. Written by the IOKernel, and by the runtime that
    /// has lost it. A thread that has work for the IOKernel rings its doorbell. Both sides fence
    /// between their write and their read of the other's word (store-load).
    pub fn asleep(&self) -> &AtomicU32 {
        &self.header().asleep
    }

    /// Returns whether kthreads of services rank above best-effort ones, as of the IOKernel's last
    /// look: while other programs compete for the cores, or cores hardly change hands
    /// ([`crate::priority`]).
    pub fn ranks_differ(&self) -> bool {
        // Relaxed: a hint; a kthread that sees it late yields without effect, or sleeps and is
        // woken.
        self.header().contested.load(Ordering::Relaxed) & RANKS_DIFFER != 0
    }

    /// Returns whether other programs of the machine compete for the cores, as of the IOKernel's
    /// last look, and the wake of a kthread of this service preempts them at once.
    pub fn wakes_preempt(&self) -> bool {
        // Relaxed: a hint; a kthread that sees it late polls for too long, or sleeps and is woken.
        self.header().contested.load(Ordering::Relaxed) & WAKES_PREEMPT != 0
    }

    /// Sets what [`ranks_differ`](Self::ranks_differ) and [`wakes_preempt`](Self::wakes_preempt)
    /// return; for the IOKernel.
    pub fn set_ranks(&self, ranks_differ: bool, wakes_preempt: bool) {
        let ranks_differ = if ranks_differ { RANKS_DIFFER } else { 0 };
        let wakes_preempt = if wakes_preempt { WAKES_PREEMPT } else { 0 };
        self.header().contested.store(ranks_differ | wakes_preempt, Ordering::Relaxed);
    }

    /// How many of the cores that the runtime requests are its own, with [`TAKES_REQUESTS`] if the
    /// policy grants any. Written by the IOKernel.
    pub fn granted(&self) -> &AtomicU64 {
        &self.header().granted
    }

    /// Returns the words of kthread `index`.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn kthread(&self, index: u16) -> &KthreadShared {
        assert!(index < self.spec.kthreads, "the region has no kthread {index}");
        // SAFETY: in bounds by the assertion and the spec; atomics only, valid for any bytes;
        // 512-byte aligned.
        unsafe { &*self.mapping.base().add(PAGE).cast::<KthreadShared>().add(index as usize) }
    }

    /// Memory of the ring that carries frames to kthread `index`.
    fn ingress(&self, index: u16) -> RingMemory {
        self.ring(2 * index as usize, &self.kthread(index).ingress_tail.0)
    }

    /// Memory of the ring that carries frames from kthread `index`.
    fn egress(&self, index: u16) -> RingMemory {
        self.ring(2 * index as usize + 1, &self.kthread(index).egress_tail.0)
    }

    /// Returns how far the IOKernel has read the egress ring of kthread `index`, in lines, and
    /// whether a frame seems to wait there. Any thread may ask; the answer is old at once.
    pub fn unsent(&self, index: u16) -> (u64, bool) {
        self.egress(index).unread()
    }

    /// Returns the lines of a ring.
    pub fn ring_lines(&self) -> u64 {
        self.spec.ring_lines.into()
    }

    fn trace_head(&self, index: u16) -> *const AtomicU64 {
        core::ptr::from_ref(&self.kthread(index).trace_head.0)
    }

    /// Steps of traced requests of kthread `index`.
    fn slots(&self, index: u16) -> *const Slots {
        assert!(index < self.spec.kthreads, "the region has no kthread {index}");
        let offset = self.spec.traces_offset() + index as usize * size_of::<Slots>();
        // SAFETY: in bounds by the spec and the assertion. Rings are whole pages, so the slots are
        // page aligned.
        unsafe { self.mapping.base().add(offset).cast::<Slots>() }
    }

    /// The page in which the runtime publishes its classes of requests.
    pub fn classes(&self) -> &ClassPage {
        // SAFETY: in bounds by the spec; rings and slots are whole pages, so it is page aligned;
        // atomics only, valid for any bytes.
        unsafe { &*self.mapping.base().add(self.spec.classes_offset()).cast::<ClassPage>() }
    }

    /// Returns a reader of that page, which keeps the memory.
    pub fn class_reader(&self) -> ClassReader {
        // SAFETY: in bounds by the spec.
        unsafe { ClassReader::new(self.spec.classes_offset(), self.keep()) }
    }

    /// Returns a reader of what waits for the kthreads, which keeps the memory.
    pub fn queues(&self) -> Queues {
        Queues(Self { mapping: self.keep(), spec: self.spec })
    }

    /// Ring `number`, which the caller computed from a kthread's index that `kthread` has checked.
    fn ring(&self, number: usize, tail: &TailWord) -> RingMemory {
        // SAFETY: the offset is in bounds by the spec; lines and tail lie in the mapping, which the
        // result keeps.
        unsafe {
            let lines = self.mapping.base().add(self.spec.rings_offset() + number * self.spec.ring_bytes());
            RingMemory::new(
                lines.cast::<Line>(),
                self.spec.ring_lines,
                core::ptr::from_ref(tail),
                self.keep(),
            )
        }
    }
}

/// The ends of a run queue under every interleaving that loom can make: `RUSTFLAGS="--cfg loom"
/// cargo test -p tailwater-shm --lib`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// A queue that never holds more than one entry never seems to.
    #[test]
    fn entries_that_were_taken_between_the_two_reads_are_not_counted() {
        loom::model(|| {
            let kthread = Arc::new(KthreadShared::new());
            let owner = Arc::clone(&kthread);
            let owner = thread::spawn(move || {
                let status = &owner.status;
                for entry in 1..=2 {
                    // As `Owner::push` and `pop` of the runtime.
                    status.runq_tail.store(entry, Ordering::Release);
                    status.runq_head.store(entry, Ordering::Release);
                }
            });
            assert!(kthread.status.runq_len() <= 1);
            owner.join().unwrap();
            assert_eq!(kthread.status.runq_len(), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::classes::ClassRecord;

    const HZ: u64 = 1_000_000_000;

    fn map(file: &OwnedFd) -> Mapping {
        Mapping::new(file, "region").unwrap()
    }

    #[test]
    fn a_runtime_sees_what_the_iokernel_laid_out() {
        let spec = RegionSpec::new(3, 1 << 16).unwrap();
        let (iokernel, _, file) = Region::create("tailwater-test", spec, 2_700_000_000).unwrap();
        let (runtime, ends) = Region::attach(map(&file)).unwrap();
        assert_eq!((runtime.spec(), ends.len()), (spec, 3));
        assert_eq!(runtime.tsc_hz(), 2_700_000_000);
        iokernel.kthread(2).grant.0.store(crate::Grant::Run { core: 1 }, crate::Generation(5));
        assert_eq!(runtime.kthread(2).grant.0.load(), (crate::Grant::Run { core: 1 }, crate::Generation(5)));
        assert_eq!(runtime.kthread(0).grant.0.load().0, crate::Grant::Park);
    }

    #[test]
    fn frames_cross_between_the_two_mappings() {
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        let (_iokernel, mut to, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        let (_runtime, mut from) = Region::attach(map(&file)).unwrap();
        let mut slot = to[1].ingress.reserve(100).unwrap();
        slot.write(0, &[7; 100]);
        slot.commit(0xabcd, 1, 99);
        let record = from[1].ingress.peek().unwrap().unwrap();
        assert_eq!((record.len(), record.hash(), record.flags(), record.stamp()), (100, 0xabcd, 1, 99));
        // SAFETY: this test is the producer and does not write again.
        assert_eq!(unsafe { record.frame() }, &[7; 100]);
    }

    #[test]
    fn steps_cross_between_the_two_mappings() {
        use crate::trace::Step;
        use crate::trace::buffer::Read;
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        let (_iokernel, mut readers, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        let (_runtime, writers) = Region::attach(map(&file)).unwrap();
        writers[1].steps.write(5, Step::Received, 77);
        let Read::Step(step) = readers[1].steps.read() else { panic!("no step was read") };
        assert_eq!((step.id, step.at), (5, 77));
        assert_eq!(readers[0].steps.read(), Read::Nothing);
    }

    #[test]
    fn a_region_of_another_version_or_size_is_refused() {
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let (region, _, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        region.header().version.store(VERSION + 1, Ordering::Relaxed);
        assert!(matches!(Region::attach(map(&file)), Err(RegionError::Version { .. })));
        let (region, _, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        let newer = Version::new(Version::OWN.major(), Version::OWN.minor() + 1);
        region.header().version.store(newer.0, Ordering::Relaxed);
        assert!(Region::attach(map(&file)).is_ok(), "of a newer IOKernel that serves this version");
        let (region, _, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        region.header().kthreads.store(200, Ordering::Relaxed);
        assert!(matches!(
            Region::attach(map(&file)),
            Err(RegionError::Memory(MemoryError::WrongSize { .. }))
        ));
    }

    #[test]
    fn a_later_region_takes_the_place_of_an_earlier_one() {
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        let (_dead, mut to, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        let (runtime, mut from) = Region::attach(map(&file)).unwrap();
        let words = runtime.kthread(1);
        words.status.runq_head.store(7, Ordering::Relaxed);
        words.status.runq_tail.store(9, Ordering::Relaxed);
        words.status.next_timer.store(1234, Ordering::Relaxed);
        words.status.requests.store(0x0102, Ordering::Relaxed);
        words.turn.turns.store(42, Ordering::Relaxed);
        words.turn.quantum_ns.store(50_000, Ordering::Relaxed);
        words.grant.0.store(crate::Grant::Cede { successor: crate::NextOwner::Awake }, crate::Generation(3));
        let class = ClassRecord { name: "GET".to_owned(), finished: 7, ..ClassRecord::default() };
        runtime.classes().write(5, &class);
        let mut send = |byte: u8| {
            let mut slot = to[1].ingress.reserve(100).unwrap();
            slot.write(0, &[byte; 100]);
            slot.commit(0, 0, 0);
        };
        send(1);
        send(2);
        from[1].ingress.peek().unwrap().unwrap().advance();
        from[1].egress.reserve(1000).unwrap().commit(0, 0, 0);

        let (iokernel, mut to, file) = Region::create("tailwater-test", spec, HZ).unwrap();
        let next = runtime.successor(map(&file)).unwrap();
        // SAFETY: 1. and 2. This test is the only user of both.
        unsafe { runtime.succeed(next) }.unwrap();
        assert_eq!(iokernel.class_reader().read(), [class]);
        from[1].ingress.restart();
        from[1].egress.restart();
        assert_eq!(words.status.runq_head.load(Ordering::Relaxed), 7);
        assert_eq!(words.status.runq_tail.load(Ordering::Relaxed), 9);
        assert_eq!(words.status.next_timer.load(Ordering::Relaxed), 1234);
        assert_eq!(words.status.requests.load(Ordering::Relaxed), 0x0102);
        assert_eq!(words.turn.turns.load(Ordering::Relaxed), 42);
        assert_eq!(words.turn.quantum_ns.load(Ordering::Relaxed), 50_000);
        assert_eq!(words.grant.0.load(), (crate::Grant::Park, crate::Generation(0)));
        assert!(from[1].ingress.peek().unwrap().is_none(), "a frame of the old ring was read");
        let mut slot = to[1].ingress.reserve(100).unwrap();
        slot.write(0, &[3; 100]);
        slot.commit(0, 0, 0);
        let record = from[1].ingress.peek().unwrap().unwrap();
        // SAFETY: this test is the producer and does not write again.
        assert_eq!(unsafe { record.frame() }, &[3; 100]);
        assert!(to[1].egress.peek().unwrap().is_none(), "a frame of the old ring was sent");
        from[1].egress.reserve(200).unwrap().commit(0, 0, 0);
        assert_eq!(to[1].egress.peek().unwrap().unwrap().len(), 200);
    }

    #[test]
    fn a_region_of_other_numbers_takes_no_place() {
        let make = |kthreads| {
            let spec = RegionSpec::new(kthreads, 1 << 15).unwrap();
            Region::create("tailwater-test", spec, HZ).unwrap()
        };
        let ((_, _, old), (_, _, new)) = (make(2), make(3));
        let (runtime, _) = Region::attach(map(&old)).unwrap();
        assert!(matches!(
            runtime.successor(map(&new)),
            Err(RegionError::Memory(MemoryError::WrongSize { .. }))
        ));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(RegionSpec::new(0, 1 << 16), Err(SpecError::Kthreads(0)));
        assert_eq!(RegionSpec::new(257, 1 << 16), Err(SpecError::Kthreads(257)));
        assert_eq!(RegionSpec::new(1, 3 << 16), Err(SpecError::RingBytes(3 << 16)));
        assert_eq!(RegionSpec::new(1, 1 << 14), Err(SpecError::RingBytes(1 << 14)));
    }
}
