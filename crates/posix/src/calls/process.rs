//! Threads, processes and signals: what a context does at home.
//!
//! Owns the rule for each call: calls that act on the calling OS thread, and those that wait for
//! the kernel, are made at home. Waits for other threads are waits of user threads; where that
//! could not be arranged (`resident::adopt_waits`), they are made at home, too. Threads are marked,
//! so that their ends are seen.

use super::events;
use crate::real::{self, ThreadFunction, ThreadMain};
use crate::{ready, start};
use core::time::Duration;
use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, gid_t, id_t, pid_t, pthread_attr_t, pthread_barrier_t,
    pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, pthread_spinlock_t, pthread_t, rusage, sem_t,
    siginfo_t, sigset_t, size_t, stack_t, timespec, uid_t,
};
use tailwater::resident;

/// Defines a function that calls one that may move the caller home, and then the C library's. The
/// latter unwinds where the thread is cancelled.
macro_rules! preceded {
    ($by:path => $name:ident($($arg:ident: $type:ty),*) $(-> $returned:ty)?;) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $returned)? {
            real::real! { $name($($arg: $type),*) $(-> $returned)?; }
            $by();
            // SAFETY: the caller's contract.
            unsafe { $name($($arg),*) }
        }
    };
}

macro_rules! at_home {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(preceded! { resident::go_home => $name($($arg: $type),*) $(-> $returned)?; })*
    };
}

macro_rules! waits {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        $(preceded! { go_home_to_wait => $name($($arg: $type),*) $(-> $returned)?; })*
    };
}

at_home! {
    capset(header: *mut c_void, data: *const c_void) -> c_int;
    forkpty(master: *mut c_int, name: *mut c_char, attributes: *const c_void, size: *const c_void) -> pid_t;
    nice(by: c_int) -> c_int;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    sched_setparam(pid: pid_t, parameters: *const c_void) -> c_int;
    setfsgid(id: gid_t) -> c_int;
    setfsuid(id: uid_t) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    setpriority(which: c_uint, who: id_t, priority: c_int) -> c_int;
    unshare(flags: c_int) -> c_int;
    daemon(stay: c_int, keep: c_int) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    exit(status: c_int);
    fork() -> pid_t;
    kill(pid: pid_t, signal: c_int) -> c_int;
    pclose(stream: *mut c_void) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int;
    pthread_kill(thread: pthread_t, signal: c_int) -> c_int;
    pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int;
    raise(signal: c_int) -> c_int;
    sched_setaffinity(pid: pid_t, size: size_t, set: *const c_void) -> c_int;
    sched_setscheduler(pid: pid_t, policy: c_int, parameters: *const c_void) -> c_int;
    sigaltstack(stack: *const stack_t, before: *mut stack_t) -> c_int;
    sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int;
    sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    // The C library waits until all threads have made these.
    initgroups(user: *const c_char, group: gid_t) -> c_int;
    setegid(id: gid_t) -> c_int;
    seteuid(id: uid_t) -> c_int;
    setgid(id: gid_t) -> c_int;
    setgroups(count: size_t, groups: *const gid_t) -> c_int;
    setregid(real: gid_t, effective: gid_t) -> c_int;
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    setreuid(real: uid_t, effective: uid_t) -> c_int;
    setuid(id: uid_t) -> c_int;
}

/// Defines functions that wait in the kernel, which handlers of signals end: also those that ran on
/// the way home, unless the call does not wait, or finds something at `first`, where it does not
/// wait. With `restarted`, handlers with `SA_RESTART` do not end the call (signal(7)).
macro_rules! interruptible {
    (restarted = $restarted:literal; $($name:ident($($arg:ident: $type:ty),*) -> $returned:ty = $result:expr $(, unless $not:expr)? $(, first $first:expr)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $returned {
                real::real! { $name($($arg: $type),*) -> $returned; }
                if let Some(interrupted) = resident::go_home()
                    && !($restarted && interrupted.restarts)
                    $(&& !$not)?
                {
                    $(
                        // SAFETY: the caller's contract.
                        if let Some(found) = unsafe { $first } {
                            return found;
                        }
                    )?
                    return $result;
                }
                // SAFETY: the caller's contract.
                unsafe { $name($($arg),*) }
            }
        )*
    };
}

interruptible! {
    restarted = false;
    clock_nanosleep(clock: c_int, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int = {
        if flags & libc::TIMER_ABSTIME == 0 {
            // SAFETY: the caller's contract.
            unsafe { all_left(time, left) };
        }
        libc::EINTR
    };
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int = {
        // SAFETY: the caller's contract.
        unsafe { all_left(time, left) };
        real::fail(libc::EINTR)
    };
    pause() -> c_int = real::fail(libc::EINTR);
    sigsuspend(mask: *const sigset_t) -> c_int = real::fail(libc::EINTR);
    sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, time: *const timespec) -> c_int = real::fail(libc::EINTR), first take_signal(set, info, time);
    sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int = real::fail(libc::EINTR), first take_signal(set, info, core::ptr::null());
    sleep(seconds: c_uint) -> c_uint = seconds;
    usleep(microseconds: c_uint) -> c_int = real::fail(libc::EINTR);
}

interruptible! {
    restarted = true;
    wait(status: *mut c_int) -> pid_t = real::fail(libc::EINTR), first reap(-1, status, 0, core::ptr::null_mut());
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t = real::fail(libc::EINTR), unless at_once(options), first reap(-1, status, options, usage);
    wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t = real::fail(libc::EINTR), unless at_once(options), first reap(pid, status, options, usage);
    waitid(kind: c_uint, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int = real::fail(libc::EINTR), unless at_once(options), first reap_by_id(kind, id, info, options);
    waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t = real::fail(libc::EINTR), unless at_once(options), first reap(pid, status, options, core::ptr::null_mut());
}

/// Takes a signal of `set`, if one is pending. A wait of no length is over then.
///
/// # Safety
/// As sigtimedwait(2).
unsafe fn take_signal(set: *const sigset_t, info: *mut siginfo_t, time: *const timespec) -> Option<c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        let taken = real::sigtimedwait(set, info, &raw const ready::NOW);
        let found_none = taken < 0 && real::errno() == libc::EAGAIN;
        (!found_none || events::duration(time) == Some(Duration::ZERO)).then_some(taken)
    }
}

/// Calls wait4(2) so that it does not wait; `None` if no child has changed.
///
/// # Safety
/// As wait4(2).
unsafe fn reap(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> Option<pid_t> {
    // SAFETY: the caller's contract.
    let found = unsafe { real::wait4(pid, status, options | libc::WNOHANG, usage) };
    (found != 0).then_some(found)
}

/// As [`reap`], for waitid(2).
///
/// # Safety
/// As waitid(2).
unsafe fn reap_by_id(kind: c_uint, id: id_t, info: *mut siginfo_t, options: c_int) -> Option<c_int> {
    // SAFETY: room for an information, zeroes of which are valid; the caller's contract.
    unsafe {
        let mut found = core::mem::zeroed::<siginfo_t>();
        let result = real::waitid(kind, id, &raw mut found, options | libc::WNOHANG);
        if result == 0 && found.si_pid() == 0 {
            return None;
        }
        if result == 0 && !info.is_null() {
            info.write(found);
        }
        Some(result)
    }
}

/// Returns whether waitpid(2) does not wait.
fn at_once(options: c_int) -> bool {
    options & libc::WNOHANG != 0
}

/// Writes that nothing of a sleep's time has passed.
///
/// # Safety
/// As nanosleep(2).
unsafe fn all_left(time: *const timespec, left: *mut timespec) {
    // SAFETY: the caller's contract: each is null or valid.
    unsafe {
        if !time.is_null() && !left.is_null() {
            left.write(time.read());
        }
    }
}

/// Returns whether the caller would hold its core while it waited for another thread.
fn would_hold_core() -> bool {
    !resident::has_adopted_waits() && resident::is_away()
}

/// Moves the caller home before a wait for another thread that would hold its core.
fn go_home_to_wait() {
    if would_hold_core() {
        resident::go_home();
    }
}

waits! {
    pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int;
    pthread_cond_clockwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: c_int, until: *const timespec) -> c_int;
    pthread_cond_timedwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int;
    pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int;
}

/// The child would run in this process's memory on a kthread's stack, and close its descriptors in
/// this process's table: it gets memory of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no preconditions that vfork does not have.
    unsafe { fork() }
}

/// A fork without the handlers of `pthread_atfork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> pid_t {
    resident::go_home();
    // SAFETY: the caller's contract.
    let child = unsafe { real::_Fork() };
    if child == 0 {
        start::forget();
    }
    child
}

/// What a child with memory of its own runs.
struct Child {
    main: ThreadFunction,
    argument: *mut c_void,
}

extern "C" fn run_child(child: *mut c_void) -> c_int {
    start::forget();
    // SAFETY: `clone` made it, and this process has a copy of its stack.
    let Child { main, argument } = unsafe { child.cast::<Child>().read() };
    main(argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    main: ThreadFunction,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    resident::go_home();
    let mut own = Child { main, argument };
    let (main, argument): (ThreadFunction, _) =
        if flags & libc::CLONE_VM == 0 { (run_child, (&raw mut own).cast()) } else { (main, argument) };
    // SAFETY: the caller's contract. The last three are there if `flags` say so, and not read else.
    unsafe { real::clone(main, stack, flags, argument, parent, tls, child) }
}

/// Linux's call: C libraries have a function for it since glibc 2.41.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_setattr(pid: pid_t, attributes: *mut c_void, flags: c_uint) -> c_int {
    let (pid, flags) = (c_long::from(pid), c_long::from(flags));
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_sched_setattr, pid, attributes as c_long, flags, 0, 0, 0) as c_int }
}

macro_rules! tried_first {
    ($($name:ident by $try:ident($lock:ident: $type:ty);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($lock: *mut $type) -> c_int {
                // SAFETY: the caller's contract.
                unsafe {
                    if would_hold_core() {
                        let result = libc::$try($lock);
                        if result != libc::EBUSY {
                            return result;
                        }
                        // The holder may be a context that waits for this kthread.
                        resident::go_home();
                    }
                    real::$name($lock)
                }
            }
        )*
    };
}

tried_first! {
    pthread_mutex_lock by pthread_mutex_trylock(mutex: pthread_mutex_t);
    pthread_rwlock_rdlock by pthread_rwlock_tryrdlock(lock: pthread_rwlock_t);
    pthread_rwlock_wrlock by pthread_rwlock_trywrlock(lock: pthread_rwlock_t);
}

/// Moves the caller home before a wait for a semaphore that would hold its core. Returns the result
/// if there is one: the semaphore was free, or a handler ran on the way that ends the wait. The
/// kernel restarts none that is `limited`.
///
/// # Safety
/// As sem_trywait(3).
unsafe fn take_or_go_home(semaphore: *mut sem_t, limited: bool) -> Option<c_int> {
    if !would_hold_core() {
        return None;
    }
    // SAFETY: the caller's contract.
    let is_free = || unsafe { libc::sem_trywait(semaphore) == 0 };
    if is_free() {
        return Some(0);
    }
    let interrupted = resident::go_home()?;
    if is_free() {
        return Some(0);
    }
    (limited || !interrupted.restarts).then(|| real::fail(libc::EINTR))
}

macro_rules! semaphore_waits {
    ($($name:ident($semaphore:ident: $type:ty $(, $arg:ident: $of:ty)*), limited = $limited:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($semaphore: $type $(, $arg: $of)*) -> c_int {
                real::real! { $name($semaphore: $type $(, $arg: $of)*) -> c_int; }
                // SAFETY: the caller's contract.
                unsafe {
                    take_or_go_home($semaphore, $limited).unwrap_or_else(|| $name($semaphore $(, $arg)*))
                }
            }
        )*
    };
}

semaphore_waits! {
    sem_clockwait(semaphore: *mut sem_t, clock: c_int, until: *const timespec), limited = true;
    sem_timedwait(semaphore: *mut sem_t, until: *const timespec), limited = true;
    sem_wait(semaphore: *mut sem_t), limited = false;
}

/// Tries to take a spin lock before the core is given up. The holder may wait for this kthread, and
/// the preempt signal spares the C library, so a caller that spins there would never give way.
const SPINS: u32 = 100;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_spin_lock(lock: *mut pthread_spinlock_t) -> c_int {
    loop {
        for _ in 0..SPINS {
            // SAFETY: the caller's contract.
            let result = unsafe { libc::pthread_spin_trylock(lock) };
            if result != libc::EBUSY {
                return result;
            }
            core::hint::spin_loop();
        }
        if resident::is_away() {
            tailwater::thread::yield_now();
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sched_yield() -> c_int {
    if resident::is_away() {
        tailwater::thread::yield_now();
        return 0;
    }
    // SAFETY: no preconditions.
    unsafe { real::sched_yield() }
}

/// Returns whether a system call neither waits nor is about the calling OS thread.
fn stays_away(number: c_long, b: c_long, c: c_long) -> bool {
    match number {
        libc::SYS_futex if resident::has_adopted_waits() => true,
        libc::SYS_futex => {
            let operation = b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
            matches!(operation, libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET | libc::FUTEX_WAKE_OP)
        }
        // The runtime's own, to its kthreads.
        libc::SYS_tgkill => c as c_int == resident::RING,
        libc::SYS_clock_gettime
        | libc::SYS_getpid
        | libc::SYS_getrandom
        | libc::SYS_rt_sigaction
        | libc::SYS_timer_create
        | libc::SYS_timer_settime => true,
        _ => false,
    }
}

/// Makes a system call by the function of this library that has it, if it is one that programs make
/// for sockets: libuv closes descriptors so, and sends and receives several datagrams.
///
/// # Safety
/// As syscall(2).
unsafe fn by_function(number: c_long, [a, b, c, d, e]: [c_long; 5]) -> Option<c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        Some(match number {
            libc::SYS_close => libc::close(a as c_int),
            libc::SYS_close_range => libc::close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_accept4 => libc::accept4(a as c_int, b as *mut _, c as *mut _, d as c_int),
            libc::SYS_sendmmsg => libc::sendmmsg(a as c_int, b as *mut _, c as c_uint, d as c_int),
            libc::SYS_recvmmsg => {
                libc::recvmmsg(a as c_int, b as *mut _, c as c_uint, d as c_int, e as *mut _)
            }
            _ => return None,
        })
    }
}

/// Locks that do not come through the C library's functions wait by this call.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller's contract.
    if let Some(result) = unsafe { by_function(number, [a, b, c, d, e]) } {
        return result.into();
    }
    if resident::is_away() && !stays_away(number, b, c) {
        resident::go_home();
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::syscall(number, a, b, c, d, e, f) };
    let forks =
        number == libc::SYS_fork || number == libc::SYS_clone && a & c_long::from(libc::CLONE_VM) == 0;
    if forks && result == 0 {
        start::forget();
    }
    result
}

/// What a new thread runs.
struct Start {
    main: ThreadMain,
    argument: *mut c_void,
}

/// The main function of a thread whose end is seen.
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` made it for this thread alone.
    let Start { main, argument } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    start::stay();
    let value = main(argument);
    start::leave();
    value
}

/// By how much a stack is larger whose size the program sets: room for a call of a socket, which
/// takes up to 11 KiB without optimization (5 with it), and for the frame of a signal with the
/// widest registers.
const STACK_MORE: size_t = 16 * 1024;

/// Returns the attributes with a larger stack, if its size is set, and its memory is not.
///
/// # Safety
/// As pthread_create(3) for `attributes`.
unsafe fn with_larger_stack(attributes: *const pthread_attr_t) -> Option<pthread_attr_t> {
    if attributes.is_null() {
        return None;
    }
    let (mut low, mut size) = (core::ptr::null_mut(), 0);
    // SAFETY: the caller's contract. The copy is read once and not destroyed: what it refers to is
    // the original's.
    unsafe {
        let known = libc::pthread_attr_getstack(attributes, &raw mut low, &raw mut size) == 0;
        // A size of zero is the default one. Without memory of the program's the upper end is null.
        if !known || size == 0 || !low.wrapping_byte_add(size).is_null() {
            return None;
        }
        let mut larger = attributes.read();
        let size = size.checked_add(STACK_MORE)?;
        (libc::pthread_attr_setstacksize(&raw mut larger, size) == 0).then_some(larger)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    main: ThreadMain,
    argument: *mut c_void,
) -> c_int {
    // A failure is said once a socket is served.
    let _ = start::adopt_waits();
    // The new thread has the affinity, priority and mask of its creator's OS thread.
    resident::go_home();
    // SAFETY: the caller's contract.
    let larger = unsafe { with_larger_stack(attributes) };
    let attributes = larger.as_ref().map_or(attributes, core::ptr::from_ref);
    let start = Box::into_raw(Box::new(Start { main, argument }));
    // SAFETY: the caller's contract.
    let result = unsafe { real::pthread_create(thread, attributes, run, start.cast()) };
    if result != 0 {
        // SAFETY: no thread was started that has it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_exit(value: *mut c_void) -> ! {
    start::leave();
    // SAFETY: the caller's contract.
    unsafe { real::pthread_exit(value) };
    unreachable!("pthread_exit does not return")
}
