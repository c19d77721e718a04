//! Libraries that are opened after the runtime has started and whose thread-locals the dynamic
//! linker puts into the static block.
//!
//! The linker initialises such thread-locals in the blocks of all OS threads at that moment. Blocks
//! of user threads are made from an image of before ([`tls`](crate::ground::tls)). They cannot be
//! put right here: they are in use, and taking a new image waits for a lock that `dlopen` holds
//! while it reads files. So such a library is named only.
//!
//! Owns the addresses of the libraries that were there at the last look. Waits for the lock of the
//! linker's list, so only the [reporter](super::report) looks.

use crate::ground::arch;
use core::ffi::{CStr, c_int, c_void};
use std::collections::HashSet;

/// `DT_FLAGS` (System V ABI, figure 5-10).
const DT_FLAGS: i64 = 30;
/// `DF_STATIC_TLS`: the library uses thread-locals of the initial-exec model.
const DF_STATIC_TLS: u64 = 0x10;

/// An entry of a library's dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct Entry {
    tag: i64,
    value: u64,
}

/// The libraries that are known.
#[derive(Debug)]
pub struct Opened {
    /// Number of libraries that were ever opened, at the last look.
    count: u64,
    /// Their addresses.
    bases: HashSet<u64>,
}

impl Opened {
    /// Knows the libraries that are loaded now.
    pub fn until_now() -> Self {
        let mut opened = Self { count: 0, bases: HashSet::new() };
        opened.take_late();
        opened
    }

    /// Returns the paths of libraries opened since the last look whose thread-locals user threads
    /// find in a wrong state.
    pub fn take_late(&mut self) -> Vec<String> {
        // User threads then use the block of their kthread's OS thread, which the linker has
        // initialised.
        if arch::shares_tls() {
            return Vec::new();
        }
        let count = count();
        if count == self.count {
            return Vec::new();
        }
        let mut all: Vec<Library> = Vec::new();
        // SAFETY: the callback gets the data that it expects.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut all).cast()) };
        let late = all.iter().filter(|library| library.is_static && !self.bases.contains(&library.base));
        let late = late.map(|library| library.path.clone()).collect();
        (self.count, self.bases) = (count, all.iter().map(|library| library.base).collect());
        late
    }
}

struct Library {
    base: u64,
    path: String,
    /// True if it has thread-locals, in the static block.
    is_static: bool,
}

/// Returns the number of libraries that were ever opened.
fn count() -> u64 {
    /// # Safety
    /// `data` is a `u64`, `info` valid.
    unsafe extern "C" fn read(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: by the contract. Not zero: each library says the same.
        unsafe { *data.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut count = 0u64;
    // SAFETY: the callback gets the data that it expects.
    unsafe { libc::dl_iterate_phdr(Some(read), (&raw mut count).cast()) };
    count
}

/// # Safety
/// `info` describes a loaded object; `data` is a `Vec<Library>`.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: by the contract; a loaded object has `dlpi_phnum` program headers and a name.
    let (info, headers, all) = unsafe {
        let info = &*info;
        (
            info,
            core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()),
            &mut *data.cast::<Vec<Library>>(),
        )
    };
    let find = |kind| headers.iter().find(|header| header.p_type == kind);
    let has_flag = |dynamic: &libc::Elf64_Phdr| {
        let first = (info.dlpi_addr + dynamic.p_vaddr) as *const Entry;
        // SAFETY: the section is part of a loaded segment, and has so many entries.
        let entries =
            unsafe { core::slice::from_raw_parts(first, dynamic.p_memsz as usize / size_of::<Entry>()) };
        entries.iter().any(|entry| entry.tag == DT_FLAGS && entry.value & DF_STATIC_TLS != 0)
    };
    // SAFETY: a string of the linker's, which lives as long as its lock is held.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned();
    let is_static = find(libc::PT_TLS).is_some() && find(libc::PT_DYNAMIC).is_some_and(has_flag);
    all.push(Library { base: info.dlpi_addr, path, is_static });
    0
}
