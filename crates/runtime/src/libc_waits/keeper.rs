//! The thread that makes the wakes which could not be made where they were asked for.
//!
//! Such a wake marks its bucket and rouses the keeper, an ordinary thread with all signals blocked,
//! which wakes all user threads that wait in marked buckets. Those that are woken for nothing wait
//! again, as waiters of futexes do.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `Bucket::missed` | true by a wake, before `ROUSED`; false by the keeper, before it wakes | the keeper |
//! | [`ROUSED`] | a wake adds one | the keeper sleeps while it is what it was before the keeper looked at the buckets |

use super::waiters;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex;
use std::io;
use tailwater_libc_waits::table::{BUCKETS, bucket};

/// Number of wakes left to the keeper.
static ROUSED: AtomicU32 = AtomicU32::new(0);

/// Starts the keeper.
///
/// # Errors
/// If no thread can be started.
pub fn start() -> io::Result<()> {
    std::thread::Builder::new().name("tailwater/waits".to_owned()).spawn(run).map(drop)
}

/// Has the keeper wake what waits in bucket `index`. May be called in a signal handler.
pub fn rouse(index: usize) {
    bucket(index).missed.store(true, Ordering::Release);
    // Release: pairs with the Acquire in `run`. The kernel's look at the word, and its wake, are
    // ordered by its own lock.
    ROUSED.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&ROUSED, futex::Flags::PRIVATE, 1);
}

fn run() {
    block_signals();
    loop {
        // Acquire: a bucket that was marked before is seen.
        let roused = ROUSED.load(Ordering::Acquire);
        // Acquire: pairs with `rouse`: what the waker did before is seen by those that wake.
        for index in (0..BUCKETS).filter(|&i| bucket(i).missed.swap(false, Ordering::Acquire)) {
            waiters::wake_all(index);
        }
        // Every error is a reason to look again.
        let _ = futex::wait(&ROUSED, futex::Flags::PRIVATE, roused, None);
    }
}

/// Keeps handlers of the program from this thread: one could interrupt it while it holds a lock.
fn block_signals() {
    // SAFETY: an all-zero set is valid, and filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, core::ptr::null_mut());
    }
}
