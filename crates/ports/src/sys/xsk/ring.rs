//! A ring of entries in memory shared with the kernel.
//!
//! Owns the mapping and the position of this process. See the parent module for what the four rings
//! hold and for the orderings.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::RING;

/// A ring in memory shared with the kernel.
pub(super) struct Ring<T> {
    base: *mut c_void,
    len: usize,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    /// Our own position: the next entry to write or to read.
    pub(super) position: u32,
}

// SAFETY: the pointers lead into a mapping that the ring owns; the owner of the ring uses it from
// one thread at a time.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    pub(super) fn map(socket: &OwnedFd, at: u64, offsets: &libc::xdp_ring_offset) -> Result<Self, Errno> {
        let len = offsets.desc as usize + RING as usize * size_of::<T>();
        let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
        let base = unsafe { mmap(core::ptr::null_mut(), len, access, how, socket, at) }?;
        let word = |offset: u64| base.cast::<u8>().wrapping_add(offset as usize).cast::<AtomicU32>();
        Ok(Self {
            base,
            len,
            producer: word(offsets.producer),
            consumer: word(offsets.consumer),
            flags: word(offsets.flags),
            entries: base.cast::<u8>().wrapping_add(offsets.desc as usize).cast::<T>(),
            position: 0,
        })
    }

    fn word(pointer: &*const AtomicU32) -> &AtomicU32 {
        // SAFETY: the kernel gave this offset for the mapping, which lives as long as the ring; the
        // word is only ever reached atomically, by us and by the kernel.
        unsafe { &**pointer }
    }

    fn slot(&self) -> *mut T {
        self.entries.wrapping_add((self.position & (RING - 1)) as usize)
    }

    /// Returns the number of entries that the kernel has written and we have not read.
    #[inline(always)]
    pub(super) fn readable(&self) -> u32 {
        // Acquire: see the module documentation.
        Self::word(&self.producer).load(Ordering::Acquire).wrapping_sub(self.position).min(RING)
    }

    /// Reads the next entry. Call only while [`readable`](Self::readable) is above 0.
    #[inline(always)]
    pub(super) fn read(&mut self) -> T {
        // SAFETY: the index is masked, so it is inside the mapping; T is made of integers.
        let entry = unsafe { self.slot().read_volatile() };
        self.position = self.position.wrapping_add(1);
        entry
    }

    /// Returns the entries read to the kernel.
    #[inline(always)]
    pub(super) fn release(&self) {
        // Release: see the module documentation.
        Self::word(&self.consumer).store(self.position, Ordering::Release);
    }

    /// Writes the next entry; there is room because a ring has as many entries as there are chunks.
    #[inline(always)]
    pub(super) fn write(&mut self, entry: T) {
        // SAFETY: as in `read`.
        unsafe { self.slot().write_volatile(entry) };
        self.position = self.position.wrapping_add(1);
    }

    /// Makes the written entries visible to the kernel.
    #[inline(always)]
    pub(super) fn publish(&self) {
        // Release: see the module documentation.
        Self::word(&self.producer).store(self.position, Ordering::Release);
    }

    /// Returns the position up to which the kernel, or the process before, has written.
    pub(super) fn written(&self) -> u32 {
        // Acquire: as in `readable`.
        Self::word(&self.producer).load(Ordering::Acquire)
    }

    /// Goes on where the process before has stopped writing. That process has ended.
    pub(super) fn resume_writing(&mut self) {
        self.position = self.written();
    }

    /// Goes on where the process before has stopped reading. That process has ended.
    pub(super) fn resume_reading(&mut self) {
        // Relaxed: the end of that process was learnt from the kernel, which orders its accesses.
        self.position = Self::word(&self.consumer).load(Ordering::Relaxed);
    }

    /// Returns the last `count` entries that were written, a ring of them at most.
    pub(super) fn last(&self, count: u32) -> impl Iterator<Item = T> {
        let first = self.position.wrapping_sub(count.min(RING));
        (0..count.min(RING)).map(move |i| {
            let slot = self.entries.wrapping_add((first.wrapping_add(i) & (RING - 1)) as usize);
            // SAFETY: as in `read`.
            unsafe { slot.read_volatile() }
        })
    }

    #[inline(always)]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: the kernel sets the flag before it sleeps for lack of entries, and then reads
        // the ring once more.
        Self::word(&self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `map`; nothing points into it after
        // this.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}
