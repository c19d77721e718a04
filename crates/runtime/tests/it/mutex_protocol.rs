//! Mutexes of the C library that are asked for a priority protocol exclude user threads and
//! ordinary threads, also those that a library makes.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater::thread;
use tailwater_testkit::{own_process, text};

struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex of the C library is made for several threads.
unsafe impl Sync for Mutex {}

impl Mutex {
    /// Returns a mutex that was asked for a protocol, and the protocol that its attributes have.
    fn new(protocol: c_int) -> (&'static Self, c_int) {
        let mutex = Box::leak(Box::new(Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))));
        let mut has = -1;
        // SAFETY: initialised before any thread uses it.
        unsafe {
            let mut attributes = std::mem::zeroed();
            assert_eq!(libc::pthread_mutexattr_init(&raw mut attributes), 0);
            assert_eq!(libc::pthread_mutexattr_setprotocol(&raw mut attributes, protocol), 0);
            assert_eq!(libc::pthread_mutexattr_getprotocol(&raw const attributes, &raw mut has), 0);
            assert_eq!(libc::pthread_mutex_init(mutex.0.get(), &raw const attributes), 0);
        }
        (mutex, has)
    }

    fn lock(&self) -> c_int {
        // SAFETY: an initialised mutex.
        unsafe { libc::pthread_mutex_lock(self.0.get()) }
    }

    fn unlock(&self) -> c_int {
        // SAFETY: as above; the caller has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) }
    }
}

/// Has four user threads and two ordinary ones contend for the mutex; each holder lets the others
/// run.
fn contend(mutex: &'static Mutex) {
    const ROUNDS: u32 = 50;
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    let work = |yields: fn()| {
        move || {
            for _ in 0..ROUNDS {
                assert_eq!(mutex.lock(), 0);
                assert_eq!(INSIDE.fetch_add(1, Ordering::Relaxed), 0);
                yields();
                INSIDE.fetch_sub(1, Ordering::Relaxed);
                assert_eq!(mutex.unlock(), 0);
            }
        }
    };
    let users: Vec<_> = (0..4).map(|_| thread::spawn(work(thread::yield_now))).collect();
    let ordinary: Vec<_> =
        tailwater::blocking(|| (0..2).map(|_| std::thread::spawn(work(std::thread::yield_now))).collect());
    users.into_iter().for_each(|thread| thread.join().unwrap());
    ordinary.into_iter().for_each(|thread| tailwater::blocking(|| thread.join()).unwrap());
}

#[test]
fn mutexes_with_a_priority_protocol_exclude_user_threads_and_ordinary_ones() {
    own_process(|| {
        // One that is made before the runtime starts, and one after.
        let (early, has) = Mutex::new(libc::PTHREAD_PRIO_INHERIT);
        assert_eq!(has, libc::PTHREAD_PRIO_NONE);
        // A holder that is queued behind a waiter in the kernel runs when the stall detector has
        // interrupted that.
        let builder = tailwater::RuntimeBuilder::new().kthreads(2);
        let run = builder.stall_timeout(std::time::Duration::from_millis(1)).run(move || {
            contend(early);
            for protocol in [libc::PTHREAD_PRIO_INHERIT, libc::PTHREAD_PRIO_PROTECT] {
                let (mutex, has) = Mutex::new(protocol);
                assert_eq!(has, libc::PTHREAD_PRIO_NONE);
                contend(mutex);
            }
            // SAFETY: initialised, and of this thread alone.
            unsafe {
                let mut attributes = std::mem::zeroed();
                libc::pthread_mutexattr_init(&raw mut attributes);
                assert_eq!(libc::pthread_mutexattr_setprotocol(&raw mut attributes, 7), libc::EINVAL);
            }
        });
        run.unwrap();
    });
}

const SOURCE: &str = "
#include <pthread.h>
int protocol(void) {
    pthread_mutexattr_t attributes;
    int has = -1;
    pthread_mutexattr_init(&attributes);
    if (pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) != 0)
        return -2;
    pthread_mutexattr_getprotocol(&attributes, &has);
    return has;
}
";

#[test]
fn a_library_that_is_opened_later_makes_no_mutex_with_a_priority_protocol() {
    own_process(|| {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("library.c"), folder.path().join("library.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let made =
            Command::new(&compiler).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output();
        match made {
            Ok(output) if output.status.success() => {}
            Ok(output) => return eprintln!("skipped: {compiler:?}: {}", text(&output.stderr)),
            Err(error) => return eprintln!("skipped: {compiler:?}: {error}"),
        }
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        let run = tailwater::RuntimeBuilder::new().kthreads(1).run(move || {
            // SAFETY: the library has no initialisers; the function has this type.
            unsafe {
                let opened = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
                assert!(!opened.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
                let found = libc::dlsym(opened, c"protocol".as_ptr());
                assert!(!found.is_null());
                std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> c_int>(found)()
            }
        });
        assert_eq!(run.unwrap(), libc::PTHREAD_PRIO_NONE);
    });
}
