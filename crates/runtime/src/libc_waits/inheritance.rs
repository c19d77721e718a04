//! Mutexes with priority inheritance that user threads lock: `FUTEX_LOCK_PI`, `FUTEX_LOCK_PI2` and
//! `FUTEX_UNLOCK_PI`.
//!
//! The word of such a mutex is 0 or the number of its owner, with a bit if unlocking it takes a
//! call (futex(2)). The kernel finds the owner by that number, lets it inherit the priorities of
//! those that wait, and hands the mutex over. It finds no user thread: the call fails, and the C
//! library answers that by waiting without end. So what concerns user threads is done here, with
//! the same word. They inherit no priority.
//!
//! | caller | mutex of | |
//! |---|---|---|
//! | locks: user thread | nobody | takes it |
//! | locks: user thread | any thread | sets the bit and waits in [`waiters`] while the word stays as it is |
//! | locks: ordinary thread, or a user thread that may not wait there | a user thread | looks again after [`PAUSE`] |
//! | locks: ordinary thread | an ordinary thread, or nobody | the kernel |
//! | unlocks: user thread | itself | the word becomes 0; one user thread is woken |
//! | unlocks: ordinary thread | itself | the kernel; one user thread is woken |
//!
//! A thread that has waited takes the mutex with the bit set, since others may wait. An ordinary
//! thread does not wait for the word in the kernel, which refuses to lock for others a word that is
//! waited for so.
//!
//! Calls for words that processes may share are the kernel's alone.

use super::{ANY, deadline, is_free, waiters, wake, wake_users};
use crate::ground::tls::{is_user_thread, thread_number};
use crate::resident;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process};
use rustix::thread::{Timespec, nanosleep};
use tailwater_libc_waits::Call;
use tailwater_libc_waits::table::{bucket, bucket_of};
use tailwater_shm::{Cycles, clock};

/// Time between two looks of a thread that cannot wait otherwise.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Locks the mutex; returns what futex(2) does.
pub fn lock(call: &Call) -> isize {
    let Ok(deadline) = deadline(call) else { return error(libc::EINVAL) };
    // SAFETY: the caller of the library's function vouches for the word.
    let word = unsafe { waiters::word(call.address) };
    match thread_number() {
        me if is_user_thread(me) => lock_as_user_thread(call, word, me, deadline),
        _ => lock_in_kernel(call, word, deadline),
    }
}

fn lock_as_user_thread(call: &Call, word: &AtomicU32, me: u32, deadline: Option<Cycles>) -> isize {
    let mut waited = 0;
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if owner(seen) == 0 {
            // Acquire: pairs with the Release of the owner before.
            match word.compare_exchange(seen, seen | me | waited, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return 0,
                Err(now) => seen = now,
            }
            continue;
        }
        if owner(seen) == me {
            return error(libc::EDEADLK);
        }
        // Also if there is no time left: a wake that this thread was given concerns the next, too.
        waited = libc::FUTEX_WAITERS;
        let marked = seen | waited;
        if let Err(now) = word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed) {
            seen = now;
            continue;
        }
        if !wait(&Call { value: marked, ..*call }, deadline) {
            return error(libc::ETIMEDOUT);
        }
        seen = word.load(Ordering::Relaxed);
    }
}

/// Waits while the word has the call's value; returns false once the deadline has passed.
fn wait(call: &Call, deadline: Option<Cycles>) -> bool {
    if !is_free(call.stack) {
        return pause(deadline);
    }
    let (result, _) = resident::wait_for_word(call.address, |ends| waiters::wait(call, ANY, deadline, ends));
    result != error(libc::ETIMEDOUT)
}

/// Has the kernel lock the mutex once no user thread has it.
fn lock_in_kernel(call: &Call, word: &AtomicU32, deadline: Option<Cycles>) -> isize {
    loop {
        let seen = owner(word.load(Ordering::Relaxed));
        if !is_user_thread(seen) {
            // SAFETY: the caller of the library's function vouches for the word.
            let result = unsafe { call.make() };
            if result != error(libc::ESRCH) || is_abandoned(word, seen, exists) {
                return result;
            }
        }
        // A user thread has the mutex, or had it when the kernel looked and may have unlocked it.
        if !pause(deadline) {
            return error(libc::ETIMEDOUT);
        }
    }
}

/// Returns whether the mutex was left locked by the ordinary thread `seen`, its owner before the
/// kernel found none. Otherwise the kernel may have found the number of a user thread.
fn is_abandoned(word: &AtomicU32, seen: u32, exists: impl FnOnce(u32) -> bool) -> bool {
    // The word is read last: a thread that is gone unlocks nothing.
    seen != 0 && !exists(seen) && owner(word.load(Ordering::Relaxed)) == seen
}

/// Returns whether there is an OS thread with this number; true if the kernel does not tell. It
/// looks the number up as it does that of an owner, and `errno` stays as it is.
fn exists(number: u32) -> bool {
    let number = Pid::from_raw(number as i32);
    number.is_some() && getpriority_process(number) != Err(Errno::SRCH)
}

/// Unlocks the mutex; returns what futex(2) does.
pub fn unlock(call: &Call) -> isize {
    let me = thread_number();
    if !is_user_thread(me) {
        // SAFETY: the caller of the library's function vouches for the word.
        let result = unsafe { call.make() };
        if bucket(bucket_of(call.address)).waiters().0 > 0 {
            wake_users(call.address, 1, ANY);
        }
        return result;
    }
    // SAFETY: as above.
    let word = unsafe { waiters::word(call.address) };
    if owner(word.load(Ordering::Relaxed)) != me {
        return error(libc::EPERM);
    }
    // Release: pairs with the Acquire of the next owner.
    word.store(0, Ordering::Release);
    wake(call.address, 1, ANY);
    0
}

fn owner(word: u32) -> u32 {
    word & libc::FUTEX_TID_MASK
}

/// Sleeps in the kernel; returns false once the deadline has passed.
fn pause(deadline: Option<Cycles>) -> bool {
    if deadline.is_some_and(|deadline| clock::now() >= deadline) {
        return false;
    }
    // An early end is an early look.
    let _ = nanosleep(&PAUSE);
    true
}

fn error(number: i32) -> isize {
    -(number as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 7;
    const OTHER: u32 = 8;

    #[test]
    fn only_a_mutex_that_an_ended_thread_holds_is_abandoned() {
        let is_abandoned = |now, seen, exists| is_abandoned(&AtomicU32::new(now), seen, |_| exists);
        assert!(is_abandoned(THREAD, THREAD, false));
        assert!(is_abandoned(THREAD | libc::FUTEX_WAITERS, THREAD, false));
        // A user thread had it in between.
        assert!(!is_abandoned(THREAD, THREAD, true));
        assert!(!is_abandoned(0, 0, false));
        assert!(!is_abandoned(0, 0, true));
        // It has changed hands.
        for now in [0, OTHER, 1 << 23] {
            assert!(!is_abandoned(now, THREAD, false), "{now}");
        }
    }

    #[test]
    fn a_mutex_that_is_unlocked_before_its_owner_ends_is_not_abandoned() {
        let word = AtomicU32::new(THREAD);
        let unlocks_and_ends = |_| {
            word.store(0, Ordering::Relaxed);
            false
        };
        assert!(!is_abandoned(&word, THREAD, unlocks_and_ends));
    }

    #[test]
    fn threads_exist_that_the_kernel_knows() {
        assert!(exists(rustix::thread::gettid().as_raw_nonzero().get() as u32));
        // Above all numbers of Linux.
        assert!(!exists(1 << 23));
    }
}
