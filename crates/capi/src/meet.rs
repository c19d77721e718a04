//! Where threads meet: once, semaphores, wait groups, barriers, in storage of the program.
//!
//! As the types of [`lock`](crate::lock). A wait group is a count and a wait list, because the
//! runtime's own counts values that are dropped, which C has not. Its storage is often on the stack
//! of the thread that waits, and gone when that goes on: so a thread that was woken takes the lock
//! once more, which the last task leaves by a single store.

use crate::border::{Call, limit};
use crate::fits;
use crate::lock::timed;
use core::ffi::{c_int, c_void};
use core::time::Duration;
use tailwater::internals::{SpinLock, WaitList, wait, wake_all};
use tailwater::sync::{Barrier, Once, Semaphore};

/// Runs a function once. Initialise it by `TW_ONCE_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_once {
    /// The library's.
    opaque: [u64; 6],
}

/// A counting semaphore, served first come, first served. Initialise it by `tw_sem_init`, or for 0
/// permits by `TW_SEM_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_sem {
    /// The library's.
    opaque: [u64; 8],
}

/// Waits for a changing number of tasks. Initialise it by `TW_WAITGROUP_INIT`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_waitgroup {
    /// The library's.
    opaque: [u64; 12],
}

/// Lets a number of threads wait for one another. Initialise it by `tw_barrier_init`.
#[repr(C)]
#[derive(Debug)]
pub struct tw_barrier {
    /// The library's.
    opaque: [u64; 12],
}

/// A wait group.
pub(crate) struct Group(SpinLock<Tasks>);

impl Group {
    /// Returns a group without tasks.
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self(SpinLock::new(Tasks { count: 0, waiters: WaitList::new() }))
    }
}

struct Tasks {
    count: u64,
    waiters: WaitList,
}

fits!(Once, tw_once);
fits!(Semaphore, tw_sem);
fits!(Group, tw_waitgroup);
fits!(Barrier, tw_barrier);

/// Calls `function(argument)` if no call with this object did before. Switches threads while
/// another one runs the function; when this returns, the function has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_once_call(
    object: *mut tw_once,
    function: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
) {
    // SAFETY: by C's contract it is initialised; the storage fits.
    let once: &Once = unsafe { &*object.cast() };
    once.call_once(|| {
        if let Some(function) = function {
            Call::procedure(function, argument).make();
        }
    });
}

/// # Safety
/// `object` is the address of an initialised object.
unsafe fn sem<'a>(object: *mut tw_sem) -> &'a Semaphore {
    // SAFETY: by the caller's contract; the storage fits.
    unsafe { &*object.cast() }
}

/// Makes a semaphore with `permits` in `*object`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sem_init(object: *mut tw_sem, permits: usize) {
    // SAFETY: by C's contract the storage is the caller's; it fits.
    unsafe { object.cast::<Semaphore>().write(Semaphore::new(permits)) };
}

/// Takes `permits`. Switches threads while there are too few, or others wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sem_acquire(object: *mut tw_sem, permits: usize) {
    // SAFETY: by C's contract.
    unsafe { sem(object) }.acquire_many(permits).forget();
}

/// Takes `permits` if they are there and no thread waits. Never switches threads.
///
/// Returns 0, or `-EAGAIN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sem_tryacquire(object: *mut tw_sem, permits: usize) -> c_int {
    // SAFETY: by C's contract.
    match unsafe { sem(object) }.try_acquire_many(permits) {
        Some(permit) => {
            permit.forget();
            0
        }
        None => -libc::EAGAIN,
    }
}

/// As `tw_sem_acquire`, for `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever.
///
/// Returns 0, or `-ETIMEDOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sem_acquire_for(object: *mut tw_sem, permits: usize, timeout_ns: u64) -> c_int {
    let timeout = limit(timeout_ns).unwrap_or(Duration::MAX);
    // SAFETY: by C's contract.
    let permit = unsafe { sem(object) }.acquire_many_timeout(permits, timeout);
    let in_time = permit.is_some();
    if let Some(permit) = permit {
        permit.forget();
    }
    timed(in_time)
}

/// Returns `permits` to the semaphore, and gives them to threads that wait. May switch threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sem_release(object: *mut tw_sem, permits: usize) {
    // SAFETY: by C's contract.
    unsafe { sem(object) }.add_permits(permits);
}

/// # Safety
/// `object` is the address of an initialised object.
unsafe fn group<'a>(object: *mut tw_waitgroup) -> &'a Group {
    // SAFETY: by the caller's contract; the storage fits, and zeros are the new object.
    unsafe { &*object.cast() }
}

/// Adds `tasks` to those that `tw_waitgroup_wait` waits for. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_waitgroup_add(object: *mut tw_waitgroup, tasks: u32) {
    // SAFETY: by C's contract.
    unsafe { group(object) }.0.lock().count += u64::from(tasks);
}

/// Ends a task. May switch threads.
///
/// Returns 0, or `-EINVAL` if there is no task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_waitgroup_done(object: *mut tw_waitgroup) -> c_int {
    // SAFETY: by C's contract.
    let mut tasks = unsafe { group(object) }.0.lock();
    let Some(left) = tasks.count.checked_sub(1) else { return -libc::EINVAL };
    tasks.count = left;
    if left == 0 {
        wake_all(tasks, |tasks| &mut tasks.waiters);
    }
    0
}

/// Waits until there are no tasks. Switches threads while there are. When all waiting threads have
/// returned, the storage may be given to other use: the `tw_waitgroup_done` that woke them, which
/// may not have returned yet, does not touch it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_waitgroup_wait(object: *mut tw_waitgroup) {
    // SAFETY: by C's contract.
    let group = unsafe { group(object) };
    let tasks = group.0.lock();
    if tasks.count > 0 {
        // SAFETY: the list is the group's only one, and stays in it.
        unsafe { wait(tasks, |tasks| &mut tasks.waiters, None) };
        // The thread that woke this one has left the lock then. `wake_all` takes it again only if
        // other threads still wait.
        drop(group.0.lock());
    }
}

/// Makes a barrier for `threads` in `*object`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_barrier_init(object: *mut tw_barrier, threads: usize) {
    // SAFETY: by C's contract the storage is the caller's; it fits.
    unsafe { object.cast::<Barrier>().write(Barrier::new(threads)) };
}

/// Waits until all threads of the barrier have called this; then it can be used again. Switches
/// threads.
///
/// Returns 1 in one of the threads, and 0 in the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_barrier_wait(object: *mut tw_barrier) -> c_int {
    // SAFETY: by C's contract it is initialised; the storage fits.
    let barrier: &Barrier = unsafe { &*object.cast() };
    barrier.wait().is_leader().into()
}
