//! What one program can do to the sleepers of another at words that both map.

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;

/// Most bytes of a file whose words are tried.
const MOST: usize = 256 << 10;

/// The words of a memory file, mapped.
#[derive(Debug)]
pub struct Words {
    base: *mut AtomicU32,
    len: usize,
}

impl Words {
    /// Maps the file, for reading only if need be; `None` if it is none that can be mapped.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let len = (fstat(&file).ok()?.st_size as usize).min(MOST);
        let map = |access| {
            // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
            unsafe { mmap(core::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }
        };
        let base = map(ProtFlags::READ | ProtFlags::WRITE).or_else(|_| map(ProtFlags::READ)).ok()?;
        Some(Self { base: base.cast(), len })
    }

    fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping is as long as self says and page aligned; any bytes are an atomic.
        unsafe { core::slice::from_raw_parts(self.base, self.len / size_of::<AtomicU32>()) }
    }

    /// Moves all that sleep at any of the words to the first word (`FUTEX_REQUEUE`); returns how
    /// many.
    pub fn move_sleepers(&self) -> usize {
        let words = self.words();
        let (prison, rest) = words.split_first().expect("at least a page");
        let moved = |word| futex::requeue(word, futex::Flags::empty(), 0, i32::MAX as u32, prison);
        rest.iter().filter_map(|word| moved(word).ok()).sum()
    }

    /// Wakes all that were moved to the first word.
    pub fn free_sleepers(&self) {
        // Cannot fail on a mapped, aligned word.
        let _ = futex::wake(&self.words()[0], futex::Flags::empty(), i32::MAX as u32);
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping, which only this value has.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}
