//! The shape of a runtime's region, byte for byte.
//!
//! ```text
//! 0        RegionHeader                         one page
//! 4096     KthreadShared x kthreads             512 bytes each, rounded up to a page
//! ...      ingress ring, egress ring            `ring_lines` x 64 bytes each, per kthread
//! ...      steps of traced requests             4096 bytes each, per kthread
//! ```
//!
//! The IOKernel creates and lays out the region; what it needs of the layout it keeps in its own [`RegionSpec`] and never reads
//! back. A runtime checks the header against its own build before it trusts an offset. Changing anything here changes
//! [`VERSION`].

use crate::grant::{GrantWord, StateWord};
use crate::memory::{Mapping, MemoryError};
use crate::ring::{Line, MAX_LINES, MIN_LINES, RingMemory, TailWord};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::trace::{Slots, TraceReader, TraceWriter};

/// Version of layout and protocols; both sides must agree.
pub const VERSION: u32 = 3;
/// First word of a region: "tailwatr" in ASCII, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tailwatr");
/// Most kthreads a runtime may have.
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
    _reserved: AtomicU32,
    tsc_hz: AtomicU64,
    _line: [AtomicU64; 4],
    /// Nonzero while the IOKernel sleeps and wants its doorbell rung; a line of its own.
    asleep: AtomicU32,
    _pad: [AtomicU32; 15],
}

/// What congestion detection looks at: one line, written by the runtime, read by the IOKernel every interval.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StatusLine {
    /// Next entry to run; advanced by the owner and by thieves.
    pub runq_head: AtomicU32,
    /// Next entry to fill; written by the owner only.
    pub runq_tail: AtomicU32,
    /// User threads that did not fit the run queue.
    pub overflow: AtomicU32,
    /// User threads made runnable by ordinary OS threads; counts for the runtime, published in kthread 0's line.
    pub injected: AtomicU32,
    /// TSC time of the earliest timer, `u64::MAX` when there is none.
    pub next_timer: AtomicU64,
    _rest: [AtomicU64; 5],
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
    /// How far the runtime has read its ingress ring; written by whichever kthread holds the consumer.
    pub ingress_tail: Padded<TailWord>,
    /// How far the IOKernel has read the egress ring.
    pub egress_tail: Padded<TailWord>,
    /// Steps of traced requests that the kthread has written down since it was made.
    pub trace_head: Padded<AtomicU64>,
}

impl KthreadShared {
    /// Words of a kthread that holds no core and has no work; for runtimes without an IOKernel, whose words are private.
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
                _rest: core::array::from_fn(|_| AtomicU64::new(0)),
            },
            ingress_tail: Padded(TailWord::new(0)),
            egress_tail: Padded(TailWord::new(0)),
            trace_head: Padded(AtomicU64::new(0)),
        }
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
    assert!(size_of::<StatusLine>() == 64);
    assert!(size_of::<KthreadShared>() == 512);
    assert!(offset_of!(KthreadShared, grant) == 0);
    assert!(offset_of!(KthreadShared, state) == 64);
    assert!(offset_of!(KthreadShared, status) == 128);
    assert!(offset_of!(KthreadShared, ingress_tail) == 192);
    assert!(offset_of!(KthreadShared, egress_tail) == 256);
    assert!(offset_of!(KthreadShared, trace_head) == 320);
};

/// Numbers that fix a region's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    kthreads: u16,
    ring_lines: u32,
}

/// A region cannot have this shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Too few or too many kthreads.
    #[error("{0} kthreads requested; 1 to {MAX_KTHREADS} are possible")]
    Kthreads(u32),
    /// Not a power of two, or out of range.
    #[error("rings of {0} bytes requested; a power of two from {least} to {most} is needed", least = MIN_LINES * 64, most = MAX_LINES * 64)]
    RingBytes(u64),
}

impl RegionSpec {
    /// A region for `kthreads` kthreads with rings of `ring_bytes` bytes in each direction.
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

    /// Number of kthreads.
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

    /// Length of the region in bytes.
    pub fn region_len(&self) -> usize {
        self.traces_offset() + self.kthreads as usize * size_of::<Slots>()
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
        "the IOKernel's shared memory has version {found:#x}, this program was built for version {VERSION}: rebuild one of them"
    )]
    Version {
        /// Version (or magic) found.
        found: u64,
    },
    /// Impossible numbers in the header.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// A mapped region and the spec it was laid out by.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    spec: RegionSpec,
}

impl Region {
    /// Lays out a fresh, zeroed region. IOKernel side.
    ///
    /// # Errors
    /// If the mapping's length is not the spec's.
    pub fn create(mapping: Mapping, spec: RegionSpec, tsc_hz: u64) -> Result<Self, MemoryError> {
        let (expected, found) = (spec.region_len(), mapping.len());
        if expected != found {
            return Err(MemoryError::WrongSize { what: "region", expected, found });
        }
        let region = Self { mapping, spec };
        let header = region.header();
        // Relaxed: the peer learns of the region through a system call later.
        header.kthreads.store(spec.kthreads.into(), Ordering::Relaxed);
        header.ring_lines.store(spec.ring_lines, Ordering::Relaxed);
        header.tsc_hz.store(tsc_hz, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Relaxed);
        for k in 0..spec.kthreads {
            region.kthread(k).status.next_timer.store(u64::MAX, Ordering::Relaxed);
        }
        Ok(region)
    }

    /// Checks and adopts a region the IOKernel laid out. Runtime side.
    ///
    /// # Errors
    /// If version, numbers or length are not those this build expects.
    pub fn attach(mapping: Mapping) -> Result<Self, RegionError> {
        if mapping.len() < PAGE {
            let found = mapping.len();
            return Err(MemoryError::WrongSize { what: "region", expected: PAGE, found }.into());
        }
        let mut region = Self { mapping, spec: RegionSpec { kthreads: 1, ring_lines: MIN_LINES } };
        let header = region.header();
        let magic = header.magic.load(Ordering::Relaxed);
        let version = header.version.load(Ordering::Relaxed);
        if magic != MAGIC || version != VERSION {
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
        Ok(region)
    }

    fn header(&self) -> &RegionHeader {
        // SAFETY: the mapping is at least a page, page aligned, and a header is atomics only: valid for any bytes.
        unsafe { &*self.mapping.base().cast::<RegionHeader>() }
    }

    /// The spec the region was laid out by.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Frequency of the TSC in Hz, as the IOKernel measured it.
    pub fn tsc_hz(&self) -> u64 {
        self.header().tsc_hz.load(Ordering::Relaxed)
    }

    /// Nonzero while the IOKernel sleeps. Who has work for it then rings its doorbell. Both sides fence between their
    /// write and their look at the other's word (store-load).
    pub fn asleep(&self) -> &AtomicU32 {
        &self.header().asleep
    }

    /// The words of kthread `index`.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn kthread(&self, index: u16) -> &KthreadShared {
        assert!(index < self.spec.kthreads, "the region has no kthread {index}");
        // SAFETY: in bounds by the assertion and the spec; atomics only, valid for any bytes; 512-byte aligned.
        unsafe { &*self.mapping.base().add(PAGE).cast::<KthreadShared>().add(index as usize) }
    }

    /// Memory of the ring that carries frames to kthread `index`. Point 2 of [`RingMemory::new`]'s contract passes on to the
    /// caller: one producer (IOKernel) and one consumer (runtime) per ring.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn ingress(&self, index: u16) -> RingMemory {
        self.ring(2 * index as usize, &self.kthread(index).ingress_tail.0)
    }

    /// Memory of the ring that carries frames from kthread `index`; as [`ingress`](Self::ingress) with the roles reversed.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn egress(&self, index: u16) -> RingMemory {
        self.ring(2 * index as usize + 1, &self.kthread(index).egress_tail.0)
    }

    /// The writing end of kthread `index`'s steps of traced requests. Point 2 of [`TraceWriter::new`]'s contract passes on to
    /// the caller: one writer, in the runtime. The result must not outlive the region.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn trace_writer(&self, index: u16) -> TraceWriter {
        let head = core::ptr::from_ref(&self.kthread(index).trace_head.0);
        // SAFETY: `slots` and `head` lie in the region, which outlives the writer as it outlives its rings.
        unsafe { TraceWriter::new(self.slots(index), head) }
    }

    /// The reading end of the same.
    ///
    /// # Panics
    /// If the region has no such kthread.
    pub fn trace_reader(&self, index: u16) -> TraceReader {
        let head = core::ptr::from_ref(&self.kthread(index).trace_head.0);
        // SAFETY: as in `trace_writer`.
        unsafe { TraceReader::new(self.slots(index), head) }
    }

    /// Only computed for an index that `kthread` has checked.
    fn slots(&self, index: u16) -> *const Slots {
        let offset = self.spec.traces_offset() + index as usize * size_of::<Slots>();
        // SAFETY: in bounds by the spec: the caller has checked the index. Rings are whole pages, so the slots are page aligned.
        unsafe { self.mapping.base().add(offset).cast::<Slots>() }
    }

    fn ring(&self, number: usize, tail: &TailWord) -> RingMemory {
        // SAFETY: the offset is in bounds by the spec, which `kthread` has checked the index against. The region outlives
        // its rings: IOKernel and runtime keep both in one struct.
        unsafe {
            let lines = self.mapping.base().add(self.spec.rings_offset() + number * self.spec.ring_bytes());
            RingMemory::new(lines.cast::<Line>(), self.spec.ring_lines, core::ptr::from_ref(tail))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory;

    fn mapped(spec: RegionSpec) -> (Mapping, Mapping) {
        let fd = memory::create("tailwater-test", spec.region_len()).unwrap();
        (Mapping::new(&fd, "region").unwrap(), Mapping::new(&fd, "region").unwrap())
    }

    #[test]
    fn a_runtime_sees_what_the_iokernel_laid_out() {
        let spec = RegionSpec::new(3, 1 << 16).unwrap();
        let (a, b) = mapped(spec);
        let iokernel = Region::create(a, spec, 2_700_000_000).unwrap();
        let runtime = Region::attach(b).unwrap();
        assert_eq!(runtime.spec(), spec);
        assert_eq!(runtime.tsc_hz(), 2_700_000_000);
        iokernel.kthread(2).grant.0.store(crate::Grant::Run { core: 1 }, crate::Generation(5));
        assert_eq!(runtime.kthread(2).grant.0.load(), (crate::Grant::Run { core: 1 }, crate::Generation(5)));
        assert_eq!(runtime.kthread(0).grant.0.load().0, crate::Grant::Park);
    }

    #[test]
    fn frames_cross_between_the_two_mappings() {
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        let (a, b) = mapped(spec);
        let (iokernel, runtime) =
            (Region::create(a, spec, 1_000_000_000).unwrap(), Region::attach(b).unwrap());
        let mut to = crate::ring::Producer::new(iokernel.ingress(1));
        let mut from = crate::ring::Consumer::new(runtime.ingress(1));
        let mut slot = to.reserve(100).unwrap();
        slot.write(0, &[7; 100]);
        slot.commit(0xabcd, 1, 99);
        let record = from.peek().unwrap().unwrap();
        assert_eq!((record.len, record.hash, record.flags, from.stamp(&record)), (100, 0xabcd, 1, 99));
        // SAFETY: this test is the producer and does not write again.
        assert_eq!(unsafe { from.frame(&record) }, &[7; 100]);
    }

    #[test]
    fn steps_cross_between_the_two_mappings() {
        use crate::trace::Step;
        use crate::trace::buffer::Read;
        let spec = RegionSpec::new(2, 1 << 15).unwrap();
        let (a, b) = mapped(spec);
        let (iokernel, runtime) =
            (Region::create(a, spec, 1_000_000_000).unwrap(), Region::attach(b).unwrap());
        let (writer, mut reader) = (runtime.trace_writer(1), iokernel.trace_reader(1));
        writer.write(5, Step::Received, 77);
        let Read::Step(step) = reader.read() else { panic!("nothing came") };
        assert_eq!((step.id, step.at), (5, 77));
        assert_eq!(iokernel.trace_reader(0).read(), Read::Nothing);
    }

    #[test]
    fn a_region_of_another_version_or_size_is_refused() {
        let spec = RegionSpec::new(1, 1 << 15).unwrap();
        let (a, b) = mapped(spec);
        let region = Region::create(a, spec, 1_000_000_000).unwrap();
        region.header().version.store(VERSION + 1, Ordering::Relaxed);
        assert!(matches!(Region::attach(b), Err(RegionError::Version { .. })));
        let (a, b) = mapped(spec);
        let region = Region::create(a, spec, 1_000_000_000).unwrap();
        region.header().kthreads.store(200, Ordering::Relaxed);
        assert!(matches!(Region::attach(b), Err(RegionError::Memory(MemoryError::WrongSize { .. }))));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(RegionSpec::new(0, 1 << 16), Err(SpecError::Kthreads(0)));
        assert_eq!(RegionSpec::new(257, 1 << 16), Err(SpecError::Kthreads(257)));
        assert_eq!(RegionSpec::new(1, 3 << 16), Err(SpecError::RingBytes(3 << 16)));
        assert_eq!(RegionSpec::new(1, 1 << 14), Err(SpecError::RingBytes(1 << 14)));
    }
}
