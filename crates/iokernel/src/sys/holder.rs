//! A second process on the memory of the IOKernel, so that the descriptors of an IOKernel that is
//! killed are closed at once.
//!
//! When a process ends, its last thread takes the memory apart, and only then closes the
//! descriptors. With the regions of many programs mapped that is long: 80 ms for 256 MiB, 250 ms
//! for 1 GiB (2-vCPU VM). Meanwhile the programs of an IOKernel that was killed do not notice, and
//! its devices are in use. If another process has the same memory (`CLONE_VM` of clone(2)), the
//! threads leave it as it is, and the descriptors are closed at once.
//!
//! Owns the second process. It has no descriptor but one of this process (pidfd_open(2)), blocks
//! all signals, touches no memory but its stack, and sleeps. Its end must not come before the last
//! thread of this process has closed the descriptors, so `PR_SET_PDEATHSIG` does not do: Linux
//! sends that when the thread that has made the process ends, and the last of the others would
//! take the memory apart.
//!
//! | what ends | what happens |
//! |---|---|
//! | this process, however | its descriptors are closed; the other one reads that at its own, and ends, which takes the memory apart |
//! | the thread that has made it | nothing |
//! | the other one | this process goes on; its own end takes long again |

use core::arch::asm;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::last_error;

/// Bytes of its stack, of which it uses some hundred.
const STACK: usize = 16 * 1024;
/// What `ps` shows.
const NAME: &[u8; 16] = b"tailwater-hold\0\0";

/// See the module documentation. Ended on drop.
#[derive(Debug)]
pub(crate) struct Holder {
    pid: Pid,
    /// In use until the process has ended.
    _stack: Box<[u128]>,
}

impl Holder {
    /// Starts the process.
    ///
    /// # Errors
    /// If Linux permits no more processes.
    pub(crate) fn start() -> Result<Self, Errno> {
        let mut stack = vec![0u128; STACK / size_of::<u128>()].into_boxed_slice();
        let parent = ptr::without_provenance_mut(std::process::id() as usize);
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigfillset` writes the whole set, which `pthread_sigmask` reads; the mask before
        // is written by the first call and read by the last. `hold` gets a stack of its own, which
        // is kept until the process has ended, and meets the contract of a function that shares
        // its caller's memory and thread-local storage: see there.
        let pid = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let pid = libc::clone(hold, stack.as_mut_ptr_range().end.cast(), libc::CLONE_VM, parent);
            let error = last_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            if pid < 0 {
                return Err(error);
            }
            pid
        };
        Ok(Self { pid: Pid::from_raw(pid).ok_or(Errno::SRCH)?, _stack: stack })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        // SAFETY: the status is not asked for. The process has no signal for its end, and is waited
        // for all the same with `__WALL`.
        while unsafe { libc::waitpid(self.pid.as_raw_nonzero().get(), ptr::null_mut(), libc::__WALL) } < 0
            && last_error() == Errno::INTR
        {}
    }
}

/// Sleeps until all threads of the process that has made this one have ended; `parent` is its
/// number.
///
/// It runs on the memory of that process: it calls no function of a library, which may use
/// thread-local storage that is the other thread's, and writes to its own stack only.
extern "C" fn hold(parent: *mut c_void) -> c_int {
    const LAST: usize = u32::MAX as usize;
    let process = system_call(libc::SYS_pidfd_open, [parent.addr(), 0, 0]);
    // Negative: before Linux 5.3, or it has ended.
    let Ok(fd @ 0..) = c_int::try_from(process.cast_signed()) else { return 0 };
    if process > 0 {
        system_call(libc::SYS_close_range, [0, process - 1, 0]);
    }
    system_call(libc::SYS_close_range, [process + 1, LAST, 0]);
    system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr().addr(), 0]);
    // Another process may have its number by now, if it ended at once.
    if system_call(libc::SYS_getppid, [0; 3]) == parent.addr() {
        let mut ended = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // Nothing interrupts it: all signals are blocked.
        system_call(libc::SYS_poll, [(&raw mut ended).addr(), 1, usize::MAX]);
    }
    0
}

/// Makes a system call with three arguments, without `errno`.
#[inline(always)]
fn system_call(number: libc::c_long, [first, second, third]: [usize; 3]) -> usize {
    let result;
    // SAFETY: the calls of `hold` write no memory but its own `pollfd`, and read `NAME`; the
    // instruction changes the named registers only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tailwater_testkit::until;

    /// Returns whether a process has not ended.
    fn lives(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    }

    #[test]
    fn the_process_has_this_ones_memory_and_no_other_descriptor_and_outlives_the_thread_that_made_it() {
        let maker = std::thread::spawn(|| {
            let holder = Holder::start().unwrap();
            let pid = holder.pid.as_raw_nonzero().get();
            until("it has its name", || {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "tailwater-hold\n")
            });
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let targets: Vec<_> = descriptors.map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
            assert!(matches!(&targets[..], [one] if one.to_string_lossy().contains("pidfd")), "{targets:?}");
            let maps = |process: &str| fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
            // Other tests map and unmap meanwhile.
            until("it has the same memory", || maps(&pid.to_string()) == maps("self"));
            (holder, pid, rustix::thread::gettid())
        });
        let (holder, pid, maker) = maker.join().unwrap();
        // Linux has no trace of that thread any more, and has sent what it sends at its end.
        let task = format!("/proc/self/task/{}", maker.as_raw_nonzero());
        until("the thread has ended", || !fs::exists(&task).unwrap());
        assert!(lives(pid));
        drop(holder);
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let holder = Holder::start().unwrap();
        let pid = holder.pid.as_raw_nonzero().get();
        drop(holder);
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    }
}
