//! Mutexes, reader-writer locks and condition variables, in storage of the program.
//!
//! Each is the runtime's type, laid into C's storage. All bytes zero is the unlocked state, which
//! the static initialisers of the header rely on and a test checks. They have no destructor: a
//! program may forget them once no thread uses them.

use crate::border::limit;
use crate::fits;
use core::ffi::c_int;
use core::mem;
use core::time::Duration;
use std::sync::{LockResult, PoisonError, TryLockError};
use tailwater::sync::{Condvar, Mutex, RwLock};

/// Mutual exclusion between user threads, and ordinary ones. Initialise it by `TW_MUTEX_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_mutex {
    /// The library's.
    opaque: [u64; 6],
}

/// Many readers or one writer. Initialise it by `TW_RWLOCK_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_rwlock {
    /// The library's.
    opaque: [u64; 8],
}

/// A condition variable. Initialise it by `TW_COND_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_cond {
    /// The library's.
    opaque: [u64; 6],
}

fits!(Mutex<()>, tw_mutex);
fits!(RwLock<()>, tw_rwlock);
fits!(Condvar, tw_cond);

/// # Safety
/// `object` is the address of an initialised object.
unsafe fn mutex<'a>(object: *mut tw_mutex) -> &'a Mutex<()> {
    // SAFETY: by the caller's contract; the storage fits.
    unsafe { &*object.cast() }
}

/// # Safety
/// As [`mutex`].
unsafe fn rwlock<'a>(object: *mut tw_rwlock) -> &'a RwLock<()> {
    // SAFETY: as above.
    unsafe { &*object.cast() }
}

/// # Safety
/// As [`mutex`].
unsafe fn cond<'a>(object: *mut tw_cond) -> &'a Condvar {
    // SAFETY: as above.
    unsafe { &*object.cast() }
}

/// Returns the guard: no panic can poison C's locks.
fn held<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex. Switches threads while another one holds it; served first come, first served. A
/// thread that holds it already waits for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_mutex_lock(object: *mut tw_mutex) {
    // SAFETY: by C's contract.
    mem::forget(held(unsafe { mutex(object) }.lock()));
}

/// Locks a mutex if it is free. Never switches threads.
///
/// Returns 0, or `-EBUSY` if it is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_mutex_trylock(object: *mut tw_mutex) -> c_int {
    // SAFETY: by C's contract.
    match unsafe { mutex(object) }.try_lock() {
        Err(TryLockError::WouldBlock) => return -libc::EBUSY,
        Ok(guard) => mem::forget(guard),
        Err(TryLockError::Poisoned(error)) => mem::forget(error.into_inner()),
    }
    0
}

/// Unlocks a mutex, which the caller holds. Hands it to the thread that has waited longest. Never
/// switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_mutex_unlock(object: *mut tw_mutex) {
    // SAFETY: by C's contract the caller holds the mutex.
    drop(unsafe { mutex(object).make_guard_unchecked() });
}

/// Locks for reading. Switches threads while a writer holds the lock or waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_read(object: *mut tw_rwlock) {
    // SAFETY: by C's contract.
    mem::forget(held(unsafe { rwlock(object) }.read()));
}

/// Locks for reading if no writer holds the lock or waits for it. Never switches threads.
///
/// Returns 0, or `-EBUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_tryread(object: *mut tw_rwlock) -> c_int {
    // SAFETY: by C's contract.
    match unsafe { rwlock(object) }.try_read() {
        Err(TryLockError::WouldBlock) => return -libc::EBUSY,
        Ok(guard) => mem::forget(guard),
        Err(TryLockError::Poisoned(error)) => mem::forget(error.into_inner()),
    }
    0
}

/// Unlocks what `tw_rwlock_read` or `tw_rwlock_tryread` has locked. May switch threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_read_unlock(object: *mut tw_rwlock) {
    // SAFETY: by C's contract the caller holds the lock for reading.
    drop(unsafe { rwlock(object).make_read_guard_unchecked() });
}

/// Locks for writing. Switches threads while another one holds the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_write(object: *mut tw_rwlock) {
    // SAFETY: by C's contract.
    mem::forget(held(unsafe { rwlock(object) }.write()));
}

/// Locks for writing if no thread holds the lock or waits for it. Never switches threads.
///
/// Returns 0, or `-EBUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_trywrite(object: *mut tw_rwlock) -> c_int {
    // SAFETY: by C's contract.
    match unsafe { rwlock(object) }.try_write() {
        Err(TryLockError::WouldBlock) => return -libc::EBUSY,
        Ok(guard) => mem::forget(guard),
        Err(TryLockError::Poisoned(error)) => mem::forget(error.into_inner()),
    }
    0
}

/// Unlocks what `tw_rwlock_write` or `tw_rwlock_trywrite` has locked. May switch threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rwlock_write_unlock(object: *mut tw_rwlock) {
    // SAFETY: by C's contract the caller holds the lock for writing.
    drop(unsafe { rwlock(object).make_write_guard_unchecked() });
}

/// Unlocks the mutex, which the caller holds, waits for a signal, and locks the mutex again.
/// Switches threads. May return without a signal: check the condition in a loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cond_wait(object: *mut tw_cond, locked: *mut tw_mutex) {
    // SAFETY: by C's contract the objects are initialised, and the caller holds the mutex.
    let (cond, guard) = unsafe { (cond(object), mutex(locked).make_guard_unchecked()) };
    mem::forget(held(cond.wait(guard)));
}

/// As `tw_cond_wait`, for `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever.
///
/// Returns 0, or `-ETIMEDOUT`. The mutex is locked again in both cases.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cond_wait_for(
    object: *mut tw_cond,
    locked: *mut tw_mutex,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: by C's contract the objects are initialised, and the caller holds the mutex.
    let (cond, guard) = unsafe { (cond(object), mutex(locked).make_guard_unchecked()) };
    let timeout = limit(timeout_ns).unwrap_or(Duration::MAX);
    let (guard, outcome) = held(cond.wait_timeout(guard, timeout));
    mem::forget(guard);
    if outcome.timed_out() { -libc::ETIMEDOUT } else { 0 }
}

/// Wakes the thread that has waited longest, if any waits. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cond_signal(object: *mut tw_cond) {
    // SAFETY: by C's contract.
    unsafe { cond(object) }.notify_one();
}

/// Wakes all threads that wait. May switch threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cond_broadcast(object: *mut tw_cond) {
    // SAFETY: by C's contract.
    unsafe { cond(object) }.notify_all();
}

/// Returns the error number that a wait in a loop reports: 0, or `-ETIMEDOUT`.
pub(crate) fn timed(in_time: bool) -> c_int {
    if in_time { 0 } else { -libc::ETIMEDOUT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meet::{Group, tw_barrier, tw_once, tw_sem, tw_waitgroup};
    use tailwater::sync::{Once, Semaphore};

    /// Returns whether all bytes of a static object are zero.
    fn is_zero<T>(object: &'static T) -> bool {
        let bytes = core::ptr::from_ref(object).cast::<u8>();
        // SAFETY: the bytes of a static lie in the program's image, padding included.
        (0..size_of::<T>()).all(|index| unsafe { bytes.add(index).read_volatile() } == 0)
    }

    #[test]
    fn static_initialisers_are_the_new_objects() {
        static MUTEX: Mutex<()> = Mutex::new(());
        static RWLOCK: RwLock<()> = RwLock::new(());
        static COND: Condvar = Condvar::new();
        static ONCE: Once = Once::new();
        static SEM: Semaphore = Semaphore::new(0);
        static GROUP: Group = Group::new();
        assert!(
            is_zero(&GROUP)
                && is_zero(&MUTEX)
                && is_zero(&RWLOCK)
                && is_zero(&COND)
                && is_zero(&ONCE)
                && is_zero(&SEM)
        );
        let sizes = [
            size_of::<tw_mutex>(),
            size_of::<tw_rwlock>(),
            size_of::<tw_cond>(),
            size_of::<tw_once>(),
            size_of::<tw_sem>(),
            size_of::<tw_barrier>(),
            size_of::<tw_waitgroup>(),
        ];
        assert_eq!(sizes, [48, 64, 48, 48, 64, 96, 96], "sizes are part of the ABI");
    }

    #[test]
    fn errors_of_the_library_have_their_numbers() {
        let in_use = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        assert_eq!(crate::border::status(Err(in_use)), -libc::EADDRINUSE);
        assert_eq!(crate::border::status(Err(std::io::Error::from_raw_os_error(libc::EPIPE))), -libc::EPIPE);
    }
}
