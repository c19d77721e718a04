//! The C library's own functions, which the preloaded ones of the same names call.
//!
//! Owns the look-up, the macro that defines such a function, and those of descriptors, signals and
//! threads that this library itself needs. A function that a call only passes on to is defined
//! beside that call. The first call of each takes the lock of the dynamic linker.

use core::ffi::CStr;
use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, id_t, iovec, mmsghdr, msghdr, nfds_t,
    off64_t, pid_t, pollfd, pthread_attr_t, pthread_mutex_t, pthread_rwlock_t, pthread_t, rusage, siginfo_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

/// Returns the address of the C library's function.
pub fn find(name: &CStr) -> usize {
    // Where the C library has several versions of a name, the plain look-up may find an old one.
    let newest = name.to_bytes().starts_with(b"pthread_cond_").then_some(c"GLIBC_2.3.2");
    // SAFETY: look-ups of NUL-terminated names.
    let address = unsafe {
        let versioned = newest.map(|version| libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()));
        versioned
            .filter(|address| !address.is_null())
            .unwrap_or_else(|| libc::dlsym(libc::RTLD_NEXT, name.as_ptr()))
    };
    if address.is_null() {
        // A program that calls a function which its C library lacks would not have started.
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
    address as usize
}

/// Defines functions of the C library that are looked up at their first call.
macro_rules! real {
    ($($(#[$attribute:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(
            /// The C library's function.
            ///
            /// # Safety
            /// As its manual page says.
            $(#[$attribute])*
            #[inline]
            pub unsafe fn $name($($arg: $type),*) $(-> $returned)? {
                static FOUND: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
                let mut found = FOUND.load(core::sync::atomic::Ordering::Relaxed);
                if found == 0 {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    let name = core::ffi::CStr::from_bytes_with_nul(name).expect("ends with one NUL");
                    found = $crate::real::find(name);
                    FOUND.store(found, core::sync::atomic::Ordering::Relaxed);
                }
                // Points of cancellation unwind (pthreads(7)).
                type Function = unsafe extern "C-unwind" fn($($type),*) $(-> $returned)?;
                // SAFETY: the C library's function of this name has this type. The contract is the
                // caller's.
                unsafe { core::mem::transmute::<usize, Function>(found)($($arg),*) }
            }
        )*
    };
}

pub(crate) use real;

/// The main function of a POSIX thread.
pub type ThreadMain = extern "C" fn(*mut c_void) -> *mut c_void;
/// The main function of what clone(2) makes.
pub type ThreadFunction = extern "C" fn(*mut c_void) -> c_int;

real! {
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int);
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, ms: c_int, mask: *const sigset_t) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int;
    pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, time: *const timespec, mask: *const sigset_t) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, time: *mut timespec) -> c_int;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendfile64(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;

    #[expect(non_snake_case, reason = "the C library's name")]
    _Fork() -> pid_t;
    clone(main: ThreadFunction, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int;
    pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, main: ThreadMain, argument: *mut c_void) -> c_int;
    pthread_exit(value: *mut c_void);
    pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int;
    pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) -> c_int;
    pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) -> c_int;
    raise(signal: c_int) -> c_int;
    sched_yield() -> c_int;
    sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, time: *const timespec) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    waitid(kind: c_uint, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int;
}

/// Sets the calling thread's `errno` and returns -1.
pub fn fail(error: c_int) -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Returns the calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
