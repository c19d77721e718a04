//! Signal handlers, timers, inherited descriptors, words of shared memory: all `unsafe` of this
//! crate.

#![allow(unsafe_code)]

use rustix::fd::BorrowedFd;
use rustix::process::Signal;
use rustix::thread::Pid;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
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

/// A timer that sends a signal to one thread of this process (timer_create(2), `SIGEV_THREAD_ID`).
/// Deleted when it is dropped.
#[derive(Debug)]
pub struct ThreadTimer(libc::c_int);

impl ThreadTimer {
    /// Makes a timer of the monotonic clock that sends `signal` to `thread`, a thread of this
    /// process.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn new(thread: Pid, signal: Signal) -> io::Result<Self> {
        let mut timer: libc::c_int = 0;
        // SAFETY: an all-zero sigevent is valid, and both structures live through the call. By
        // system call, since glibc before 2.34 has the function in a library of its own.
        let made = unsafe {
            let mut event: libc::sigevent = core::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal.as_raw();
            event.sigev_notify_thread_id = thread.as_raw_nonzero().get();
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        if made == 0 { Ok(Self(timer)) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends the signal once, in `delay`, above 0.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn fire_in(&self, delay: Duration) -> io::Result<()> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let delay = libc::timespec {
            tv_sec: libc::time_t::try_from(delay.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: delay.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: never, it_value: delay };
        let none = core::ptr::null_mut::<libc::itimerspec>();
        // SAFETY: the timer is this value's, and the structure lives through the call.
        let set = unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, &raw const times, none) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's, which nothing uses afterwards. It exists, so the call
        // cannot fail.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
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
