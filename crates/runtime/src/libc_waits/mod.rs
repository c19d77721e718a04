//! Waits of the C library as waits of user threads: the hook that [`tailwater_libc_waits`] calls
//! for each futex call of the library.
//!
//! Owns the decision which thread waits where. Never waits on an ordinary thread, takes a lock that
//! an interrupted function may hold, allocates on a wake, or panics where the library called.
//!
//! | caller | waits | wakes user threads |
//! |---|---|---|
//! | user thread, preemption on, on its own stack | in [`waiters`], without a core | itself |
//! | context of an ordinary thread, [away](crate::resident), preemption on | the same, until a handler is to run | itself |
//! | user thread with preemption off, in a handler of an event loop, or on another stack (a signal handler with `SA_ONSTACK`); scheduler | in the kernel, with its core | as an ordinary thread |
//! | ordinary thread, in a signal handler or not; before the runtime has started | in the kernel | if it gets the two locks within a bounded time, else by the [`keeper`] |
//! | child of a fork | in the kernel | there are none |
//!
//! A thread that cannot wait here is counted in its bucket while it is in the kernel
//! ([`Handling::Counted`]), and a wake makes a system call only for a bucket with such a thread.
//!
//! Signal handlers may interrupt everything above and call `sem_post`. One that finds preemption
//! off may have interrupted the scheduler, so it touches no run queue; one on an ordinary thread
//! may have interrupted a holder of any lock, so it does not wait for one. Both are why an ordinary
//! thread's wake is bounded.
//!
//! Calls for words that processes may share (no `FUTEX_PRIVATE_FLAG`) are the kernel's: it ends
//! `pthread_join` that way. A user thread has a thread of the [`blocking`](fn@crate::blocking) pool
//! wait for it. Mutexes with priority inheritance are the kernel's, too, unless a user thread locks
//! them ([`inheritance`]). For both, wakes aside, the context of an ordinary thread goes home: the
//! kernel knows the owner by its OS thread.

mod inheritance;
pub mod keeper;
mod waiters;

pub use waiters::interrupt;

use crate::blocking::blocking;
use crate::error::{ConfigError, StartError};
use crate::ground::arch;
use crate::ground::guard::NoPreempt;
use crate::ground::stderr::print;
use crate::records::runtime::{deadline_after, started};
use crate::records::uthread::Uthread;
use crate::resident;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};
use tailwater_libc_waits::table::{bucket, bucket_of};
use tailwater_libc_waits::{Call, Handling, Ruling, redirect};
use tailwater_shm::Cycles;

/// All bits of a bitset: what `FUTEX_WAIT` and `FUTEX_WAKE` use.
const ANY: u32 = u32::MAX;
/// Lowest address that can be a futex word's.
const LOWEST: usize = 4096;

/// Redirects the C library's futex calls. The process has one thread.
///
/// # Errors
/// [`StartError::LibcWaits`] if they cannot be redirected; [`ConfigError::SharedTls`].
pub fn adopt() -> Result<(), StartError> {
    if arch::shares_tls() {
        return Err(ConfigError::SharedTls.into());
    }
    waiters::prepare();
    // SAFETY: 1. checked there; no thread is started here. 2. and 3. are what this module and
    // `waiters` do. 4. A mask is the one that the context had at home.
    let redirected = unsafe { redirect(hook) }?;
    if let Some(why) = redirected.gomp_left {
        print(&format!("tailwater: waits of OpenMP (libgomp) hold their core: {why}\n"));
    }
    Ok(())
}

/// Decides about a call of the C library.
fn hook(call: &Call) -> Ruling {
    let flags = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    let operation = call.operation as i32 & !flags;
    let misplaced = call.address < LOWEST || !call.address.is_multiple_of(4);
    if misplaced {
        return Handling::Kernel.into();
    }
    if call.operation as i32 & libc::FUTEX_PRIVATE_FLAG == 0 {
        return match operation {
            libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => Handling::Kernel.into(),
            _ => wait_shared(call, operation),
        };
    }
    match operation {
        libc::FUTEX_WAIT => wait(call, ANY),
        libc::FUTEX_WAIT_BITSET if call.value3 != 0 => wait(call, call.value3),
        libc::FUTEX_WAKE => Handling::Done(wake(call.address, call.value, ANY)).into(),
        libc::FUTEX_WAKE_BITSET if call.value3 != 0 => {
            Handling::Done(wake(call.address, call.value, call.value3)).into()
        }
        libc::FUTEX_REQUEUE => Handling::Done(wake(call.address, wakes_and_moves(call), ANY)).into(),
        libc::FUTEX_CMP_REQUEUE => compare_and_wake(call).into(),
        libc::FUTEX_WAKE_OP => wake_and_change(call).into(),
        libc::FUTEX_LOCK_PI | libc::FUTEX_LOCK_PI2 => {
            at_home(call.stack).unwrap_or_else(|| Handling::Done(inheritance::lock(call)).into())
        }
        libc::FUTEX_UNLOCK_PI => {
            at_home(call.stack).unwrap_or_else(|| Handling::Done(inheritance::unlock(call)).into())
        }
        _ => at_home(call.stack).unwrap_or_else(|| Handling::Kernel.into()),
    }
}

/// Moves the context of an ordinary thread home, where the kernel does the call; `None` for other
/// callers.
fn at_home(stack: usize) -> Option<Ruling> {
    if !is_free(stack) {
        return None;
    }
    resident::go_home_unseen().map(|home| Ruling { handling: Handling::Kernel, mask: Some(home.mask) })
}

/// Returns the thread that may wait without its core, if the caller is one. `guard` is its only
/// proof.
fn may_wait(guard: &NoPreempt, stack: usize) -> Option<&'static Uthread> {
    let me = guard.lone_uthread()?;
    // Handlers of the program run at the home of a context, never above it.
    let on_own = me.resident || (me.limit..core::ptr::from_ref(me) as usize).contains(&stack);
    (on_own && !me.handles.load(Relaxed)).then_some(me)
}

/// Returns whether the caller may wait without its core, and run code of the scheduler.
fn is_free(stack: usize) -> bool {
    let guard = NoPreempt::new();
    let free = started().is_some() && may_wait(&guard, stack).is_some();
    // A switch here could be one on a signal handler's stack.
    guard.drop_quietly();
    free
}

fn wait(call: &Call, bits: u32) -> Ruling {
    if !is_free(call.stack) {
        return Handling::Counted.into();
    }
    // The kernel says what is wrong with the time.
    let Ok(deadline) = deadline(call) else { return Handling::Kernel.into() };
    let (result, arrived) =
        resident::wait_for_word(call.address, |ends| waiters::wait(call, bits, deadline, ends));
    let Some(arrived) = arrived else { return Handling::Done(result).into() };
    // The kernel restarts a wait without a limit only (futex(2), signal(7)).
    let restarts = result == -(libc::EINTR as isize) && arrived.restarts && deadline.is_none();
    let handling = if restarts { Handling::Counted } else { Handling::Done(result) };
    Ruling { handling, mask: Some(arrived.mask) }
}

/// Decides about a call for a word that processes may share, which is no wake.
fn wait_shared(call: &Call, operation: i32) -> Ruling {
    if !is_free(call.stack) {
        return Handling::Kernel.into();
    }
    let waits = matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
    if let Some(home) = resident::go_home_unseen() {
        // Handlers that run on the way end the wait, where the kernel would not restart it.
        let ends = home.interrupted.is_some_and(|handlers| !handlers.restarts || call.timeout != 0);
        // SAFETY: the caller of the library's function vouches for the word.
        let would_wait = || waits && unsafe { waiters::word(call.address) }.load(Relaxed) == call.value;
        let handling =
            if ends && would_wait() { Handling::Done(-(libc::EINTR as isize)) } else { Handling::Kernel };
        return Ruling { handling, mask: Some(home.mask) };
    }
    if !waits {
        return Handling::Kernel.into();
    }
    // SAFETY: the caller of the library's function vouches for the words, on whichever thread.
    Handling::Done(blocking(|| unsafe { call.make() })).into()
}

/// A timeout is malformed.
struct Invalid;

/// Returns when a wait ends: after a time (`FUTEX_WAIT`), at a time of day (`FUTEX_LOCK_PI`), or at
/// a time of the clock that the flags name (all others). If that clock is set meanwhile, the wait
/// ends when it would have.
fn deadline(call: &Call) -> Result<Option<Cycles>, Invalid> {
    let pointer = call.timeout as *const libc::timespec;
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller of the library's function passes a valid time.
    let time = unsafe { pointer.read_unaligned() };
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) else {
        return Err(Invalid);
    };
    if nanoseconds >= 1_000_000_000 {
        return Err(Invalid);
    }
    let time = Duration::new(seconds, nanoseconds);
    let named = call.operation as i32 & libc::FUTEX_CLOCK_REALTIME != 0;
    let realtime = match call.operation as i32 & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAIT => return Ok(Some(deadline_after(time))),
        libc::FUTEX_LOCK_PI => true,
        _ => named,
    };
    let now = clock_gettime(if realtime { ClockId::Realtime } else { ClockId::Monotonic });
    let now = Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec as u32);
    Ok(Some(deadline_after(time.saturating_sub(now))))
}

/// Wakes up to `limit` threads that wait for the word; returns how many. Where both user threads
/// and others wait, they take turns to be the first.
fn wake(address: usize, limit: u32, bits: u32) -> isize {
    let limit = limit.min(i32::MAX as u32);
    let index = bucket_of(address);
    let (users, in_kernel) = bucket(index).waiters();
    let kernel_first = users > 0 && in_kernel > 0 && waiters::is_kernels_turn(index);
    let mut woken = 0;
    if in_kernel > 0 && kernel_first {
        woken += wake_in_kernel(address, limit, bits);
    }
    if users > 0 && woken < limit {
        woken += wake_users(address, limit - woken, bits);
    }
    if in_kernel > 0 && !kernel_first && woken < limit {
        woken += wake_in_kernel(address, limit - woken, bits);
    }
    woken as isize
}

fn wake_in_kernel(address: usize, limit: u32, bits: u32) -> u32 {
    let operation = (libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG) as u32;
    let call = Call { address, operation, value: limit, timeout: 0, address2: 0, value3: bits, stack: 0 };
    // SAFETY: a wake reads and writes no memory of the process.
    u32::try_from(unsafe { call.make() }).unwrap_or(0)
}

fn wake_users(address: usize, limit: u32, bits: u32) -> u32 {
    let Some(runtime) = started() else { return 0 };
    let marker = 0u8;
    if is_free(core::ptr::from_ref(&marker) as usize) {
        return waiters::wake(address, limit, bits);
    }
    // No proof that is dropped within may switch: this may be a signal handler's stack.
    let guard = NoPreempt::new();
    let woken = waiters::wake_from_outside(runtime, address, limit, bits);
    guard.drop_quietly();
    woken.unwrap_or_else(|| {
        keeper::rouse(bucket_of(address));
        0
    })
}

/// Returns how many threads a requeue wakes or moves. All of them are woken: waiters of futexes
/// expect to be woken for nothing, and one that were moved in the kernel would be counted in the
/// wrong bucket.
fn wakes_and_moves(call: &Call) -> u32 {
    call.value.saturating_add(call.timeout as u32)
}

fn compare_and_wake(call: &Call) -> Handling {
    // SAFETY: the caller of the library's function vouches for the word.
    if unsafe { waiters::word(call.address) }.load(Relaxed) != call.value3 {
        return Handling::Done(-(libc::EAGAIN as isize));
    }
    Handling::Done(wake(call.address, wakes_and_moves(call), ANY))
}

/// `FUTEX_WAKE_OP`: the kernel changes the second word and wakes its own waiters; user threads are
/// woken at both words, whatever the second one was.
fn wake_and_change(call: &Call) -> Handling {
    // SAFETY: the caller of the library's function vouches for the words.
    let woken = unsafe { call.make() };
    if woken < 0 || call.address2 < LOWEST {
        return Handling::Done(woken);
    }
    let second = call.timeout as u32;
    let users = [(call.address, call.value), (call.address2, second)].map(|(address, limit)| {
        let (users, _) = bucket(bucket_of(address)).waiters();
        if users > 0 { wake_users(address, limit, ANY) } else { 0 }
    });
    Handling::Done(woken + users.iter().sum::<u32>() as isize)
}
