//! Redirects the futex system calls of the C library to a function of the program.
//!
//! Whatever waits in the C library waits by futex(2): mutexes, condition variables, semaphores,
//! barriers, `stdio`, the dynamic linker, and, by the library's function `syscall`, `std::sync` of
//! Rust and C++. [`redirect`] decodes the loaded library, finds the system calls that may be
//! futex calls, and has them ask a [`Hook`] first. A runtime of user threads can so let a thread
//! that waits give its core away.
//!
//! | module | does |
//! |---|---|
//! | [`image`] | segments and functions of a library |
//! | [`flow`] | the constants that a register may hold |
//! | [`sites`] | the system calls to redirect |
//! | [`stub`] | the code that they jump to |
//! | [`table`] | how many threads wait, by address |
//! | `sys` | everything that is unsafe: the loaded libraries, the entry, the change of code |
//!
//! # What is redirected
//! The C library with its threads and its dynamic linker are one unit, since each wakes threads
//! that wait in another: all their sites are redirected, or none. `libgomp`, which waits for words
//! of its own, is another. A program's own `syscall` instructions and libraries that are loaded
//! later are left alone: what waits there is woken there.

pub mod flow;
pub mod image;
pub mod sites;
pub mod stub;
mod sys;
pub mod table;

pub use sys::entry::{Call, Handling, Hook, Ruling, is_active};
pub use sys::patch::PatchError;

use image::{Image, NoFunctions};
use sites::{Found, Unfit};
use std::io;
use sys::loaded::{Loaded, libraries};
use sys::{entry, patch};

/// The parts of glibc that wait for each other's words. From 2.34 on, libc.so.6 has the threads.
const LIBC: [&str; 3] = ["libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"];
/// GCC's library of OpenMP.
const GOMP: [&str; 1] = ["libgomp.so.1"];

/// Why nothing was redirected.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Other threads run.
    #[error(
        "the process has {0} threads: the C library's code can be changed while there is one only. Do it first in main, \
         before anything starts threads"
    )]
    OtherThreads(usize),
    /// Something about the process could not be found out.
    #[error("cannot {action}: {source}")]
    System {
        /// What was to be done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no shared C library.
    #[error("the program is not linked with glibc's libc.so.6")]
    NoLibc,
    /// The bounds of the library's functions are not known.
    #[error("{library}: {source}")]
    NoFunctions {
        /// Path of the library.
        library: String,
        /// What is wrong.
        source: NoFunctions,
    },
    /// The library has a system call that may be a futex call, in a form that is not known.
    #[error("{library}: {source}. This build of the library is not known; please report its version")]
    Unfit {
        /// Path of the library.
        library: String,
        /// The first such call.
        source: Unfit,
    },
    /// The library's code could not be changed.
    #[error("{library}: {source}")]
    Patch {
        /// Path of the library.
        library: String,
        /// What is wrong.
        source: PatchError,
    },
}

/// What was redirected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirected {
    /// Number of system calls.
    pub sites: usize,
    /// Why libgomp, which is loaded, was left alone.
    pub gomp_left: Option<String>,
}

/// Has the futex calls of the C library, and of libgomp if it is loaded, call `hook` from now on,
/// for as long as the process lives.
///
/// # Errors
/// [`RedirectError`]; the C library is as it was then.
///
/// # Safety
/// 1. The process has one thread, the caller's, when this is called; that is checked, but not
///    whether one is started meanwhile by a signal handler.
/// 2. `hook` keeps the contract of futex(2) for each call that it declares [`Handling::Done`]: a
///    thread waits only while its word has the expected value, and each wake that follows a change
///    of the word ends the wait. It may return early.
/// 3. Where it declares a private wait [`Handling::Counted`], its wakes of that word make the
///    system call, too, if [`table::Bucket::waiters`] says that threads may wait in the kernel.
/// 4. A [`Ruling::mask`] is one that the calling OS thread may have.
pub unsafe fn redirect(hook: Hook) -> Result<Redirected, RedirectError> {
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(|source| RedirectError::System { action: "count the threads in /proc/self/task", source })?
        .count();
    if threads != 1 {
        return Err(RedirectError::OtherThreads(threads));
    }
    entry::prepare(hook)
        .map_err(|source| RedirectError::System { action: "prepare for redirected calls", source })?;
    // SAFETY: 1. is the caller's, with the check above.
    let mut sites = unsafe { change(&libraries(&LIBC)) }?;
    if sites == 0 {
        return Err(RedirectError::NoLibc);
    }
    // SAFETY: as above.
    let gomp = unsafe { change(&libraries(&GOMP)) };
    sites += gomp.as_ref().copied().unwrap_or_default();
    entry::activate();
    Ok(Redirected { sites, gomp_left: gomp.err().map(|error| error.to_string()) })
}

/// Redirects all sites of these libraries, or none. Returns their number.
///
/// # Safety
/// 1. The process has one thread.
/// 2. `entry::prepare` has succeeded.
unsafe fn change(libraries: &[Loaded]) -> Result<usize, RedirectError> {
    let surveyed: Vec<_> = libraries.iter().map(survey).collect::<Result<_, _>>()?;
    let mut prepared = Vec::new();
    for (library, (image, found)) in libraries.iter().zip(&surveyed) {
        let failed = |source| RedirectError::Patch { library: library.path.clone(), source };
        prepared.push(patch::prepare(&found.sites, &image.bounds()).map_err(failed)?);
    }
    for library in prepared {
        // SAFETY: 1. and 3. are the caller's; 2. the sites were found just now.
        unsafe { library.write() };
    }
    Ok(surveyed.iter().map(|(_, found)| found.sites.len()).sum())
}

/// Finds the sites of a library, all of which can be redirected.
fn survey(library: &Loaded) -> Result<(Image<'static>, Found), RedirectError> {
    let path = || library.path.clone();
    let image = Image::new(library.segments.clone(), library.eh_frame_hdr)
        .map_err(|source| RedirectError::NoFunctions { library: path(), source })?;
    let found = sites::find(&image);
    match found.unfit.first() {
        Some(unfit) => Err(RedirectError::Unfit { library: path(), source: unfit.clone() }),
        None => Ok((image, found)),
    }
}
