//! Reads threads from `/proc` (proc_pid_stat(5)).

use std::path::Path;

/// Inode number of the first PID namespace, `PROC_PID_INIT_INO` (linux/proc_ns.h).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// `PF_KTHREAD` (linux/sched.h): a thread of the kernel.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// Returns whether this process is in the machine's first PID namespace, whose thread numbers are
/// those of the kernel.
#[must_use]
pub fn in_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE))
}

/// Returns whether a thread is one of the kernel's own; `None` if it has ended.
#[must_use]
pub fn is_of_the_kernel(tid: u32) -> Option<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    Some(flags(&stat)? & KERNEL_THREAD != 0)
}

/// Returns the flags of a thread's `stat` file: the seventh word behind its name in parentheses,
/// which may contain anything.
fn flags(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_kernel_is_known_by_its_flags() {
        let of_kthreadd = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0";
        let nasty = "7 (a) S 1 1 1 1 -1 1 (b)) R 1 7 7 0 -1 4194304 9";
        assert!(flags(of_kthreadd).is_some_and(|flags| flags & KERNEL_THREAD != 0));
        assert!(flags(nasty).is_some_and(|flags| flags & KERNEL_THREAD == 0));
        assert_eq!(flags(""), None);
        assert_eq!(is_of_the_kernel(std::process::id()), Some(false));
        // Above the limit of `pid_max` (proc_sys_kernel(5)).
        assert_eq!(is_of_the_kernel(1 << 23), None);
        // The kernel's own threads are not in other PID namespaces.
        if in_first_pid_namespace() {
            assert_eq!(is_of_the_kernel(2), Some(true));
        }
    }
}
