//! Which threads of a trace are the kernel's own.

use std::path::Path;

use tailwater_batch::proc::Stat;

/// Inode number of the first PID namespace, `PROC_PID_INIT_INO` (linux/proc_ns.h).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Returns whether this process is in the machine's first PID namespace, whose thread numbers are
/// those of the kernel.
#[must_use]
pub fn in_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE))
}

/// Returns whether a thread is one of the kernel's own; `None` if it has ended.
#[must_use]
pub fn is_of_the_kernel(tid: u32) -> Option<bool> {
    Some(Stat::of_process(tid.cast_signed())?.is_kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_kernel_is_known_by_its_flags() {
        assert_eq!(is_of_the_kernel(std::process::id()), Some(false));
        // Above the limit of `pid_max` (proc_sys_kernel(5)).
        assert_eq!(is_of_the_kernel(1 << 23), None);
        // The kernel's own threads are not in other PID namespaces.
        if in_first_pid_namespace() {
            assert_eq!(is_of_the_kernel(2), Some(true));
        }
    }
}
