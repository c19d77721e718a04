//! Memory files and their mappings.
//!
//! The IOKernel creates every shared file as an anonymous memfd and seals it against shrinking and
//! growing before any other process sees it: a runtime that truncated its region would otherwise
//! kill the IOKernel with SIGBUS. Once the runtime has mapped the file, the IOKernel also seals it
//! against all changes but those through mappings that exist ([`freeze`]): an access to a page that
//! is being punched out of the file waits for the end of that (shmem_fault in mm/shmem.c), and
//! makes a new page, which is charged to the process that accesses it. Anonymous files need no
//! clean-up: they are freed with the last process that maps them.

use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mlock, mmap, mremap_fixed, msync, munmap,
};
use std::os::fd::{AsFd, OwnedFd};

/// Why a memory file could not be made or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("cannot {action} a {len}-byte memory file: {source}; check the memory limit (ulimit -v, cgroup)")]
    System {
        /// What was attempted.
        action: &'static str,
        /// Length concerned.
        len: usize,
        /// The kernel's error.
        source: rustix::io::Errno,
    },
    /// The other side sent a file of the wrong length.
    #[error(
        "the {what} is {found} bytes long, {expected} expected: the IOKernel and this program are of different versions"
    )]
    WrongSize {
        /// The file.
        what: &'static str,
        /// Length this build expects.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// Memory that was to be replaced is unmapped, and no other took its place.
    #[error(
        "cannot move a {len}-byte memory file: {source}; the memory in its place is gone; start the program again"
    )]
    Gone {
        /// Length concerned.
        len: usize,
        /// The kernel's error.
        source: rustix::io::Errno,
    },
    /// The other side sent a file that can still be resized.
    #[error("the {what} is not sealed against resizing; attach to a Tailwater IOKernel only")]
    NotSealed {
        /// The file.
        what: &'static str,
    },
}

/// A shared mapping of a whole memory file; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: a Mapping is an address range; all access to it goes through atomics or documented copies
// by the types that own it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Bytes that [`Mapping::populate`] makes at a time: about 5 ms.
const POPULATE_SLICE: usize = 16 << 20;
/// Seals from the beginning.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals from the time at which no writable mapping is needed any more.
const FROZEN: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Creates a sealed memory file of `len` zero bytes; `name` shows in `/proc/PID/maps`.
///
/// # Errors
/// If the kernel refuses (no memory, too many files).
pub fn create(name: &str, len: usize) -> Result<OwnedFd, MemoryError> {
    let system = |action| move |source| MemoryError::System { action, len, source };
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system("create"))?;
    ftruncate(&fd, len as u64).map_err(system("size"))?;
    fcntl_add_seals(&fd, SEALS).map_err(system("seal"))?;
    Ok(fd)
}

/// Seals `fd`, which both sides have mapped: from now on no page can be taken out of it
/// (fallocate(2), `MADV_REMOVE`), and it is written to through the present mappings only. When this
/// returns, no attempt at that is under way any more: it may wait for one. Linux before 5.1 does
/// not have such a seal; there the file stays as it was.
///
/// # Errors
/// If the other side has sealed it already.
pub fn freeze(fd: impl AsFd) -> Result<(), MemoryError> {
    match fcntl_add_seals(fd, FROZEN) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(source) => Err(MemoryError::System { action: "seal", len: 0, source }),
    }
}

/// Returns whether `fd` is sealed as by [`freeze`].
pub fn is_frozen(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(FROZEN))
}

/// Returns the first byte of `fd` without memory; its length if there is none. Memory is charged to
/// the process that touched it first.
///
/// # Errors
/// If the kernel refuses.
pub fn first_hole(fd: impl AsFd) -> Result<usize, MemoryError> {
    // Not by the number of blocks: a huge page at the end has more than the file.
    let hole = seek(fd, SeekFrom::Hole(0));
    hole.map(|at| at as usize).map_err(|source| MemoryError::System { action: "inspect", len: 0, source })
}

impl Mapping {
    /// Maps all of `fd`, which must be sealed; pages are populated so that no page fault happens
    /// later.
    ///
    /// # Errors
    /// If the kernel refuses, or the file is not sealed.
    pub fn new(fd: impl AsFd, what: &'static str) -> Result<Self, MemoryError> {
        Self::map(fd, what, ProtFlags::READ | ProtFlags::WRITE, MapFlags::POPULATE)
    }

    /// As [`Self::new`], for reading only.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn read_only(fd: impl AsFd, what: &'static str) -> Result<Self, MemoryError> {
        Self::map(fd, what, ProtFlags::READ, MapFlags::POPULATE)
    }

    /// As [`Self::new`], but pages are made when they are first touched, or by [`Self::populate`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn sparse(fd: impl AsFd, what: &'static str) -> Result<Self, MemoryError> {
        Self::map(fd, what, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
    }

    fn map(
        fd: impl AsFd,
        what: &'static str,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self, MemoryError> {
        let system = |action, len| move |source| MemoryError::System { action, len, source };
        let len = fstat(&fd).map_err(system("inspect", 0))?.st_size as usize;
        if !fcntl_get_seals(&fd).map_err(system("inspect", len))?.contains(SEALS) {
            return Err(MemoryError::NotSealed { what });
        }
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
        let base = unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED | flags, &fd, 0) }
            .map_err(system("map", len))?;
        Ok(Self { base: base.cast(), len })
    }

    /// Makes all pages, and keeps them in memory where this process may lock as much: then no page
    /// fault happens later, whatever limits the control group has that the pages are charged to. In
    /// slices, between which other threads may map and unmap memory. Kernels before 5.14 make the
    /// pages when they are touched.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn populate(&self) -> Result<(), MemoryError> {
        for start in (0..self.len).step_by(POPULATE_SLICE) {
            let len = POPULATE_SLICE.min(self.len - start);
            let slice = self.base.wrapping_add(start).cast();
            // SAFETY: the range is within the mapping, and the advice changes no byte of it.
            match unsafe { madvise(slice, len, Advice::LinuxPopulateWrite) } {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(source) => return Err(MemoryError::System { action: "populate", len: self.len, source }),
            }
            // SAFETY: as above. Fails beyond RLIMIT_MEMLOCK, without CAP_IPC_LOCK.
            let _ = unsafe { mlock(slice, len) };
        }
        Ok(())
    }

    /// Puts the memory of `other` in the place of this mapping's, at the same address; this
    /// mapping's own memory is gone afterwards. One step for other threads, whose accesses wait for
    /// it in the kernel.
    ///
    /// # Errors
    /// If the lengths differ, or the kernel refuses: then this mapping is as it was, unless the
    /// error is [`MemoryError::Gone`], after which the next access ends the process.
    ///
    /// # Safety
    /// 1. No reference to anything but atomics points into either mapping.
    /// 2. The users of this mapping accept that its contents change at once.
    pub(crate) unsafe fn replace(&self, other: Self) -> Result<(), MemoryError> {
        if other.len != self.len {
            return Err(MemoryError::WrongSize { what: "memory file", expected: self.len, found: other.len });
        }
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: both ranges are whole mappings of this type. The one that moves is given up, and
        // by the caller's contract the other may be replaced.
        let moved = unsafe { mremap_fixed(other.base.cast(), self.len, self.len, flags, self.base.cast()) };
        match moved {
            Ok(_) => {
                // Nothing is left at its address.
                core::mem::forget(other);
                Ok(())
            }
            // The memory that was to move is where it was, and is unmapped here.
            Err(source) if self.is_mapped() => {
                Err(MemoryError::System { action: "move", len: self.len, source })
            }
            Err(source) => Err(MemoryError::Gone { len: self.len, source }),
        }
    }

    /// Returns whether no page of the range is unmapped.
    fn is_mapped(&self) -> bool {
        // SAFETY: the call changes no memory. It fails for ranges with unmapped pages (msync(2)).
        unsafe { msync(self.base.cast(), self.len, MsyncFlags::ASYNC) }.is_ok()
    }

    /// Returns the address of the first byte; page aligned.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those mmap returned, and the types built on the mapping own it
        // or share its ownership.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};

    #[test]
    fn a_peer_cannot_resize_the_file() {
        let fd = create("tailwater-test", 8192).unwrap();
        assert!(ftruncate(&fd, 4096).is_err(), "a sealed file was shrunk");
        assert!(ftruncate(&fd, 16384).is_err(), "a sealed file was grown");
    }

    #[test]
    fn a_frozen_file_is_written_through_its_mappings_only_and_keeps_its_pages() {
        let fd = create("tailwater-test", 8192).unwrap();
        let [mapping, unlocked] = [(); 2].map(|()| Mapping::new(&fd, "x").unwrap());
        let punch = || {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&fd, flags, 0, 4096)
        };
        assert_eq!((first_hole(&fd), punch()), (Ok(8192), Ok(())), "before the mapping is in use");
        assert_eq!(first_hole(&fd), Ok(0));
        mapping.populate().unwrap();
        freeze(&fd).unwrap();
        assert_eq!(punch(), Err(Errno::PERM));
        // SAFETY: the range is the mapping's, whose only user is this test.
        assert_eq!(unsafe { madvise(unlocked.base().cast(), 4096, Advice::LinuxRemove) }, Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(&fd, &[1], 0), Err(Errno::PERM));
        assert!(Mapping::new(&fd, "x").is_err(), "another writable mapping");
        // SAFETY: as above.
        unsafe { mapping.base().write(1) };
        assert_eq!(first_hole(&fd), Ok(8192));
        assert!(freeze(&fd).is_err(), "sealed twice");
    }

    #[test]
    fn an_unsealed_file_is_refused() {
        let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Mapping::new(&fd, "region"), Err(MemoryError::NotSealed { what: "region" })));
    }

    #[test]
    fn a_sparse_mapping_takes_memory_only_once_it_is_populated() {
        // Three slices, the last of them short.
        let len = 2 * POPULATE_SLICE + 4096;
        let fd = create("tailwater-test", len).unwrap();
        let taken = || fstat(&fd).unwrap().st_blocks as usize * 512;
        let mapping = Mapping::sparse(&fd, "x").unwrap();
        assert_eq!(taken(), 0);
        mapping.populate().unwrap();
        assert!(taken() >= len, "{} of {len} bytes", taken());
    }

    #[test]
    fn a_mapping_takes_the_place_of_another() {
        let files = [0, 1].map(|_| create("tailwater-test", 8192).unwrap());
        let [old, new] = files.each_ref().map(|file| Mapping::new(file, "x").unwrap());
        let kept = Mapping::new(&files[1], "x").unwrap();
        // SAFETY: all mappings are 8192 bytes long, and this test is their only user.
        unsafe {
            old.base().add(5000).write(1);
            new.base().add(5000).write(2);
            old.replace(new).unwrap();
            assert_eq!(old.base().add(5000).read(), 2);
            old.base().write(3);
            assert_eq!(kept.base().read(), 3);
        }
    }

    #[test]
    fn a_mapping_of_another_length_takes_no_place() {
        let files = [4096, 8192].map(|len| create("tailwater-test", len).unwrap());
        let [short, long] = files.map(|file| Mapping::new(&file, "x").unwrap());
        // SAFETY: this test is their only user.
        let refused = unsafe { long.replace(short) };
        assert!(matches!(refused, Err(MemoryError::WrongSize { expected: 8192, found: 4096, .. })));
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let fd = create("tailwater-test", 4096).unwrap();
        let (a, b) = (Mapping::new(&fd, "x").unwrap(), Mapping::new(&fd, "x").unwrap());
        // SAFETY: both mappings are 4096 bytes long and this test is their only user.
        unsafe {
            a.base().add(100).write(42);
            assert_eq!(b.base().add(100).read(), 42);
        }
    }
}
