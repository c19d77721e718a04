//! A ring buffer that programs write and this process reads (the kernel's bpf/ringbuf.rst).
//!
//! | field | written by | ordering | read by |
//! |---|---|---|---|
//! | producer's position | kernel | Release, after it has reserved a record | reader, Acquire |
//! | length of a record | kernel | Release, after the record; busy before | reader, Acquire |
//! | consumer's position | reader | Release, after it has copied a record | kernel, Acquire |
//!
//! The kernel is trusted: positions and lengths are its own. All the same the reader stays within
//! the mapping whatever they are.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tailwater_shm::last_error;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::param::page_size;

use super::make_map;

const MAP_TYPE_RINGBUF: u32 = 27;
/// In the length of a record (linux/bpf.h): it is being written; it is to be skipped.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Bytes before a record: its length, and a number of the kernel's.
const HEADER: u64 = 8;

/// Memory of a descriptor, which is unmapped with the value.
#[derive(Debug)]
struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

impl Mapped {
    fn new(file: &OwnedFd, offset: usize, len: usize, is_writable: bool) -> Result<Self, Errno> {
        let protection = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_error());
        }
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Returns the word of eight bytes at an offset, of which there are `len`.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len, "outside of the ring: {offset}");
        // SAFETY: within the mapping, which begins at a page and has a multiple of eight bytes, by
        // the assertion; it lives as long as this value; an atomic, valid for any bytes.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// As [`word`](Self::word), of four bytes.
    fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(8) && offset < self.len, "outside of the ring: {offset}");
        // SAFETY: as in `word`.
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and references into it borrow the value. A failure
        // would leave it mapped, which harms nothing.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the memory is shared with the kernel by atomics, whichever thread reads it.
unsafe impl Send for Mapped {}

/// A ring of records of `N` words.
#[derive(Debug)]
pub struct Ring<const N: usize> {
    map: OwnedFd,
    consumer: Mapped,
    /// A page with the producer's position, and the data twice, so that no record is divided.
    produced: Mapped,
    page: usize,
    bytes: usize,
    position: u64,
}

impl<const N: usize> Ring<N> {
    /// Returns an empty ring of at least so many bytes.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::PERM`] without `CAP_BPF`, [`Errno::INVAL`] before Linux 5.8.
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        let page = page_size();
        let bytes = bytes.max(page).next_power_of_two();
        let entries = u32::try_from(bytes).map_err(|_| Errno::INVAL)?;
        let map = make_map(MAP_TYPE_RINGBUF, 0, 0, entries, 0)?;
        let consumer = Mapped::new(&map, 0, page, true)?;
        let produced = Mapped::new(&map, page, page + 2 * bytes, false)?;
        Ok(Self { map, consumer, produced, page, bytes, position: 0 })
    }

    /// Returns the number that a program names the ring by.
    pub fn number(&self) -> i32 {
        self.map.as_raw_fd()
    }

    /// Returns the oldest record that has not been read; `None` if there is none.
    pub fn next_record(&mut self) -> Option<[u64; N]> {
        // Acquire: pairs with the kernel's Release (module documentation), as below.
        while self.position != self.produced.word(0).load(Ordering::Acquire) {
            let at = self.page + (self.position as usize & (self.bytes - 1));
            let length = self.produced.half(at).load(Ordering::Acquire);
            if length & BUSY != 0 {
                return None;
            }
            let bytes = u64::from(length & !DISCARDED);
            // Relaxed: the Acquire of the length orders them.
            let is_record = length & DISCARDED == 0 && bytes == 8 * N as u64;
            let record = is_record.then(|| {
                core::array::from_fn(|i| self.produced.word(at + 8 + 8 * i).load(Ordering::Relaxed))
            });
            self.position = self.position.wrapping_add((bytes + HEADER).next_multiple_of(8));
            // Release: the record is copied before its place may be written again.
            self.consumer.word(0).store(self.position, Ordering::Release);
            if record.is_some() {
                return record;
            }
        }
        None
    }
}
