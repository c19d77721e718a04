//! User threads.
//!
//! A handle is the word of the runtime's own, so a thread costs no allocation beside the runtime's.

use crate::border::{Address, Call};
use crate::{border, run};
use core::ffi::{CStr, c_char, c_int, c_void};
use tailwater::thread::{self, Builder, JoinHandle, Placement, ThreadClass};

/// A handle to a user thread, which is joined or detached once.
pub struct tw_thread {
    _private: (),
}

/// A thread is of the class of the one that starts it.
pub const TW_THREAD_INHERIT: u32 = 0;
/// An ordinary thread.
pub const TW_THREAD_NORMAL: u32 = 1;
/// A thread that runs while no ordinary one wants a core.
pub const TW_THREAD_BACKGROUND: u32 = 2;
/// A thread that has a kthread, and with it a core, of its own.
pub const TW_THREAD_EXCLUSIVE: u32 = 3;

/// Options of a new thread. Initialise it by `TW_THREAD_OPTIONS_INIT`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_thread_options {
    /// Size of this structure in bytes.
    pub size: usize,
    /// Name for messages and dumps; NULL for none. Copied.
    pub name: *const c_char,
    /// Usable bytes of the stack, 16 KiB to 128 GiB; 0 for the runtime's setting.
    pub stack_size: usize,
    /// `TW_THREAD_...`.
    pub thread_class: u32,
    /// 0: queued where it costs least. Otherwise: with the least loaded of so many kthreads.
    pub least_loaded_of: u32,
}

// A handle is one word, whichever side has it.
const _: () = assert!(size_of::<JoinHandle<Address>>() == size_of::<*mut tw_thread>());

fn into_raw(handle: JoinHandle<Address>) -> *mut tw_thread {
    // SAFETY: both are a word; only `from_raw` uses it.
    unsafe { core::mem::transmute::<JoinHandle<Address>, *mut tw_thread>(handle) }
}

/// # Safety
/// `thread` came from [`into_raw`], and this is its only use.
unsafe fn from_raw(thread: *mut tw_thread) -> JoinHandle<Address> {
    // SAFETY: by the caller's contract.
    unsafe { core::mem::transmute::<*mut tw_thread, JoinHandle<Address>>(thread) }
}

/// Returns a builder with the options; the error number of one that is invalid.
///
/// # Safety
/// `options` is valid as its documentation says.
unsafe fn builder(options: *const tw_thread_options) -> Result<Builder, c_int> {
    let mut builder = Builder::new();
    // SAFETY: 1. by the caller's contract. 2. Numbers and addresses.
    let (options, checked) = unsafe { border::sized(options) };
    checked?;
    if !options.name.is_null() {
        // SAFETY: by the caller's contract.
        let name = unsafe { CStr::from_ptr(options.name) };
        builder = builder.name(name.to_string_lossy().into_owned());
    }
    if options.stack_size > 0 {
        builder = builder.stack_size(options.stack_size);
    }
    if options.least_loaded_of > 0 {
        builder = builder.placement(Placement::LeastLoaded(options.least_loaded_of as usize));
    }
    match options.thread_class {
        TW_THREAD_INHERIT => Ok(builder),
        TW_THREAD_NORMAL => Ok(builder.class(ThreadClass::Normal)),
        TW_THREAD_BACKGROUND => Ok(builder.class(ThreadClass::Background)),
        TW_THREAD_EXCLUSIVE => Ok(builder.class(ThreadClass::Exclusive)),
        _ => Err(libc::EINVAL),
    }
}

/// Starts a user thread that runs `function(argument)`, and stores its handle in `*thread`, which
/// has to be joined or detached. `thread` may be NULL: the new thread is detached. `options` may be
/// NULL. May be called from ordinary threads, too. A poll point: may switch threads.
///
/// Returns 0, or `-EINVAL` for an option, `-ENOMEM` if there is no memory for the stack, `-ENXIO`
/// if there is no runtime; for an exclusive thread `-EBUSY` if no kthread is left for one, and
/// `-ENOTSUP` if the IOKernel grants no requested cores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_thread_spawn(
    thread: *mut *mut tw_thread,
    options: *const tw_thread_options,
    function: Option<unsafe extern "C" fn(argument: *mut c_void) -> *mut c_void>,
    argument: *mut c_void,
) -> c_int {
    let Some(function) = function else { return -libc::EINVAL };
    if !run::is_running() {
        return -libc::ENXIO;
    }
    let call = Call::function(function, argument);
    let started = if options.is_null() {
        // Known to have no settings where it is compiled.
        Builder::new().spawn(move || call.make()).map_err(|error| border::number(&error))
    } else {
        // SAFETY: by C's contract.
        unsafe { start_with(options, call) }
    };
    match started {
        Ok(handle) if thread.is_null() => drop(handle),
        // SAFETY: by C's contract.
        Ok(handle) => unsafe { thread.write(into_raw(handle)) },
        Err(number) => return -number,
    }
    0
}

/// Starts a thread with options; returns the error number if one is invalid, or there is no thread.
///
/// # Safety
/// `options` is valid as its documentation says.
#[inline(never)]
unsafe fn start_with(options: *const tw_thread_options, call: Call) -> Result<JoinHandle<Address>, c_int> {
    // SAFETY: by the caller's contract.
    let builder = unsafe { builder(options) }?;
    builder.spawn(move || call.make()).map_err(|error| border::number(&error))
}

/// Waits for the end of a thread, stores what its function returned in `*result` (which may be
/// NULL), and gives the handle up. Switches threads while it waits. May be called from ordinary
/// threads.
///
/// Returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_thread_join(thread: *mut tw_thread, result: *mut *mut c_void) -> c_int {
    // SAFETY: by C's contract the handle is given up here.
    let Ok(Address(value)) = (unsafe { from_raw(thread) }).join() else {
        unreachable!("a panic ends the process at the border");
    };
    if !result.is_null() {
        // SAFETY: by C's contract.
        unsafe { result.write(value) };
    }
    0
}

/// Gives the handle up; the thread goes on, and its result is dropped. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_thread_detach(thread: *mut tw_thread) {
    // SAFETY: by C's contract the handle is given up here.
    drop(unsafe { from_raw(thread) });
}

/// Returns whether the thread has ended, so that joining it does not wait. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_thread_is_finished(thread: *const tw_thread) -> bool {
    // SAFETY: by C's contract the handle is valid; it is not dropped here.
    let handle = core::mem::ManuallyDrop::new(unsafe { from_raw(thread.cast_mut()) });
    handle.is_finished()
}

/// Returns whether the caller is a user thread, and not an ordinary one. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_thread_is_user() -> bool {
    thread::is_user_thread()
}

/// Returns the maximum number of user threads that run at once: the number of kthreads. Without a
/// runtime, the number of CPUs. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_parallelism() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Lets other runnable threads run first: switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_yield() {
    thread::yield_now();
}

/// Waits until the calling thread has a token, and takes it. May return without one. Switches
/// threads while it waits.
#[unsafe(no_mangle)]
pub extern "C" fn tw_park() {
    thread::park();
}

/// Gives a thread its token: `tw_park` returns in it, now or at its next call. Never switches
/// threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_unpark(thread: *const tw_thread) {
    // SAFETY: by C's contract the handle is valid; it is not dropped here.
    let handle = core::mem::ManuallyDrop::new(unsafe { from_raw(thread.cast_mut()) });
    handle.thread().unpark();
}
