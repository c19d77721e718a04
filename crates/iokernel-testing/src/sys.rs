//! Signal handlers, inherited descriptors, words of shared memory: all `unsafe` of this crate.

#![allow(unsafe_code)]

use rustix::fd::BorrowedFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use tailwater_shm::grant::PREEMPT_SIGNAL;
use tailwater_shm::memory::Mapping;

/// Overwrites the 64-bit word number `at` of a mapping.
///
/// # Panics
/// If it has no such word.
pub(crate) fn store_word(mapping: &Mapping, at: u64, value: u64) {
    assert!(at < mapping.len() as u64 / 8, "word {at} is behind the end");
    let words = mapping.base().cast::<AtomicU64>();
    // SAFETY: the word is within the mapping, which is page aligned and lives as long as the
    // reference; other processes access it through atomics or copies.
    unsafe { &*words.add(at as usize) }.store(value, Ordering::Relaxed);
}

/// Returns the 32-bit words of a mapping.
pub(crate) fn words(mapping: &Mapping) -> &[AtomicU32] {
    let words = mapping.base().cast::<AtomicU32>();
    // SAFETY: the words are within the mapping, which is page aligned and lives as long as the
    // reference; any bytes are an atomic, and other processes access them through atomics or
    // copies.
    unsafe { core::slice::from_raw_parts(words, mapping.len() / size_of::<AtomicU32>()) }
}

thread_local! {
    /// Set by the handler of the preempt signal on the thread it interrupts. It has no destructor
    /// and no lazy initialization, so that a handler may use it.
    static PREEMPTED: AtomicBool = const { AtomicBool::new(false) };
}

extern "C" fn on_preempt_signal(_signal: libc::c_int) {
    PREEMPTED.with(|flag| flag.store(true, Ordering::Relaxed));
}

/// Makes the preempt signal set a flag of the thread it interrupts ([`take_preempt_signal`]). For
/// raw runtimes.
pub(crate) fn note_preempt_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| handle_preempt_signal(on_preempt_signal));
}

fn handle_preempt_signal(handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a zeroed sigaction is a valid one (no flags, empty mask); the handlers of this module
    // are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // Cannot fail for a signal that can be caught and a handler that exists.
        libc::sigaction(PREEMPT_SIGNAL, &raw const action, core::ptr::null_mut());
    }
}

/// Returns whether the calling thread got the preempt signal since the last call.
pub(crate) fn take_preempt_signal() -> bool {
    PREEMPTED.with(|flag| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed))
}

/// Returns a descriptor that this process inherited, by number.
///
/// # Panics
/// If it is negative.
pub(crate) fn borrow_inherited(fd: i32) -> BorrowedFd<'static> {
    assert!(fd >= 0, "descriptor {fd} was not inherited");
    // SAFETY: the number is valid for the life of the process: the parent passed it open, and no
    // code here closes it. Were it not open, using it would be an error of the kernel's, no
    // undefined behaviour of ours.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

static PARKED_FD: AtomicI32 = AtomicI32::new(-1);
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn park_in_handler(_signal: libc::c_int) {
    let mut word = 1u64;
    let buffer = (&raw mut word).cast::<libc::c_void>();
    // SAFETY: write and read are async-signal-safe; the buffer is eight bytes on this stack.
    unsafe {
        libc::write(PARKED_FD.load(Ordering::Relaxed), buffer, 8);
        libc::read(WAKE_FD.load(Ordering::Relaxed), buffer, 8);
    }
}

/// Makes the preempt signal park the thread it interrupts: rings `parked`, then blocks reading
/// `wake` (Shenango section 6.1). For the baseline of the hand-off benchmark.
pub(crate) fn park_at_preempt_signal(parked: i32, wake: i32) {
    PARKED_FD.store(parked, Ordering::Relaxed);
    WAKE_FD.store(wake, Ordering::Relaxed);
    handle_preempt_signal(park_in_handler);
}
