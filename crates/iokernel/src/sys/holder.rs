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
//! thread of this process has closed the descriptors, so `PR_SET_PDEATHSIG` is only used where
//! pidfd_open(2) is refused, as by a seccomp filter: Linux sends that signal when the thread that
//! has made the process ends, and the last of the others may take the memory apart.
//!
//! | what ends | what happens |
//! |---|---|
//! | this process, however | its descriptors are closed; the other one reads that at its own, and ends, which takes the memory apart |
//! | the thread that has made it | nothing; without a pidfd the other one ends |
//! | the other one | this process goes on; its own end takes long again |

use core::arch::asm;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tailwater_shm::last_error;

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

/// Sleeps until all threads of the process that has made this one have ended, or, without a pidfd,
/// the thread that has made it; `parent` is the number of that process.
///
/// It runs on the memory of that process: it calls no function of a library, which may use
/// thread-local storage that is the other thread's, and writes to its own stack only.
extern "C" fn hold(parent: *mut c_void) -> c_int {
    const LAST: usize = u32::MAX as usize;
    // First: where the table of descriptors is full, it has no room for a pidfd.
    system_call(libc::SYS_close_range, [0, LAST, 0]);
    let process = system_call(libc::SYS_pidfd_open, [parent.addr(), 0, 0]);
    let fd = c_int::try_from(process.cast_signed()).unwrap_or(-1);
    if fd < 0 {
        system_call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0]);
    }
    system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr().addr(), 0]);
    // If it ended at once, another process may have its number by now, and no signal is sent.
    if system_call(libc::SYS_getppid, [0; 3]) == parent.addr() {
        let mut ended = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // Nothing but that signal interrupts it: all others are blocked. A negative descriptor is
        // passed over (poll(2)).
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
    use std::os::fd::OwnedFd;
    use tailwater_testkit::{own_process, until};

    /// Returns whether a process has not ended.
    fn lives(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    }

    /// Waits until a process has its name or has ended, and returns what its descriptors are.
    fn descriptors(pid: i32) -> Vec<String> {
        until("it has its name, or has ended", || {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name == "tailwater-hold\n") || !lives(pid)
        });
        assert!(lives(pid), "it has ended");
        let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        all.map(|fd| fs::read_link(fd.unwrap().path()).unwrap().to_string_lossy().into_owned()).collect()
    }

    /// Makes pidfd_open(2) fail in the calling thread, and in what it makes; false if that is not
    /// permitted.
    fn refuse_pidfds() -> bool {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
        let step = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        // The number of the call is the first field of what a filter reads.
        let mut steps = [
            step(BPF_LD | BPF_W | BPF_ABS, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, 1, libc::SYS_pidfd_open as u32),
            step(BPF_RET | BPF_K, 0, refused),
            step(BPF_RET | BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: `filter` and the steps that it points to live until the calls return.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        }
    }

    #[test]
    fn it_needs_no_room_in_the_table_of_descriptors() {
        own_process(|| {
            let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
            // SAFETY: the limit is read.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            let full: Vec<OwnedFd> =
                std::iter::from_fn(|| fs::File::open("/dev/null").ok().map(OwnedFd::from)).collect();
            let holder = Holder::start().unwrap();
            drop(full);
            let all = descriptors(holder.pid.as_raw_nonzero().get());
            assert!(matches!(&all[..], [one] if one.contains("pidfd")), "{all:?}");
        });
    }

    #[test]
    fn without_a_pidfd_it_lives_as_long_as_the_thread_that_made_it() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (made, holder) = std::sync::mpsc::channel();
        // A filter is of one thread.
        let maker = std::thread::spawn(move || {
            if refuse_pidfds() {
                made.send(Holder::start().unwrap()).unwrap();
                let _ = ended.recv();
            }
        });
        let Ok(holder) = holder.recv() else {
            eprintln!("skipped: no seccomp filter can be set here");
            return;
        };
        let pid = holder.pid.as_raw_nonzero().get();
        assert_eq!(descriptors(pid), [""; 0]);
        drop(end);
        maker.join().unwrap();
        until("it has ended", || !lives(pid));
        drop(holder);
    }

    #[test]
    fn the_process_has_this_ones_memory_and_no_other_descriptor_and_outlives_the_thread_that_made_it() {
        let maker = std::thread::spawn(|| {
            let holder = Holder::start().unwrap();
            let pid = holder.pid.as_raw_nonzero().get();
            let all = descriptors(pid);
            assert!(matches!(&all[..], [one] if one.contains("pidfd")), "{all:?}");
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
