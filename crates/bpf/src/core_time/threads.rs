//! What Linux says of the threads of a trace: which are the kernel's own, and their control groups.

use std::path::Path;
use std::sync::Arc;

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

/// Returns the control group of a thread, as seen from this process; `None` if it has ended.
#[must_use]
pub fn control_group(tid: u32) -> Option<Arc<str>> {
    let groups = std::fs::read(format!("/proc/{tid}/cgroup")).ok()?;
    Some(deepest(&String::from_utf8_lossy(&groups)).into())
}

/// Returns the longest path of a `/proc/PID/cgroup` (cgroups(7)). Where a machine has several
/// hierarchies, a program is often in the root of most.
fn deepest(text: &str) -> &str {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.fold("/", |longest, path| if path.len() > longest.len() { path } else { longest })
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
    #[test]
    fn the_deepest_control_group_is_named() {
        let hybrid = "12:cpuset:/\n5:cpu,cpuacct:/batch/a:b\n1:name=systemd:/x\n0::/\n";
        assert_eq!(
            (deepest(hybrid), deepest("0::/system.slice/xz.service\n")),
            ("/batch/a:b", "/system.slice/xz.service")
        );
        assert_eq!((deepest(""), deepest("garbage\n0::/\n")), ("/", "/"));
        assert!(control_group(std::process::id()).is_some_and(|group| group.starts_with('/')));
        assert_eq!(control_group(1 << 23), None);
    }
}
