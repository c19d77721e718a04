//! What each descriptor of the process is, where it is more than the kernel's.
//!
//! Owns the table. A slot has a hint, which one load reads for the descriptors that are only the
//! kernel's, and the file behind a lock. Numbers beyond the table stay the kernel's.
//!
//! # fork
//! The files of a forked child belong to its parent: their destructors would take locks that other
//! threads of the parent held, and change epoll sets that both share. Once a child
//! has [abandoned](crate::forked::abandon) them, all descriptors are only the kernel's, and no file
//! ends.

use crate::file::File;
use crate::forked::is_abandoned;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use tailwater::internals::SpinLock;

/// Descriptors that can be served.
pub const MAX: usize = 1 << 16;

struct Slot {
    taken: AtomicBool,
    file: SpinLock<Option<Arc<File>>>,
}

static SLOTS: [Slot; MAX] =
    [const { Slot { taken: AtomicBool::new(false), file: SpinLock::new(None) } }; MAX];
/// One more than the highest number that was ever taken.
static END: AtomicUsize = AtomicUsize::new(0);

fn slot(fd: i32) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(fd).ok()?)
}

/// Returns the file of a descriptor that is not only the kernel's.
#[inline]
pub fn get(fd: i32) -> Option<Arc<File>> {
    let slot = slot(fd)?;
    // Acquire: pairs with the Release in `put`.
    if !slot.taken.load(Ordering::Acquire) || is_abandoned() {
        return None;
    }
    slot.file.lock().clone()
}

/// Makes `fd` the descriptor of `file`; returns whether the table has room for the number.
pub fn put(fd: i32, file: Arc<File>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    END.fetch_max(fd as usize + 1, Ordering::Relaxed);
    let before = slot.file.lock().replace(file);
    // Release: pairs with the Acquire in `get`.
    slot.taken.store(true, Ordering::Release);
    drop(before);
    true
}

/// Makes `fd` only the kernel's; returns what it was.
pub fn take(fd: i32) -> Option<Arc<File>> {
    let slot = slot(fd)?;
    if !slot.taken.load(Ordering::Acquire) || is_abandoned() {
        return None;
    }
    let mut file = slot.file.lock();
    slot.taken.store(false, Ordering::Release);
    file.take()
}

/// Calls `each` with the descriptors from `first` to `last` that are not only the kernel's.
pub fn each(first: u32, last: u32, mut each: impl FnMut(i32)) {
    if is_abandoned() {
        return;
    }
    let end = END.load(Ordering::Relaxed).min((last as usize).saturating_add(1));
    for (fd, slot) in SLOTS.iter().enumerate().take(end).skip(first as usize) {
        if slot.taken.load(Ordering::Acquire) {
            each(fd as i32);
        }
    }
}
