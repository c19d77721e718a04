//! Linux's groups of a program's threads, and the weight of a best-effort program's session among
//! the sessions of a shared machine.
//!
//! `SCHED_IDLE` ranks a kthread within its session only, where Linux groups sessions (sched(7),
//! "The autogroup feature"): a session whose one runnable thread is such a kthread would compete
//! with every other session as an equal. Only a session that the program leads is changed, for any
//! other may be a user's shell.

use std::hash::{DefaultHasher, Hash, Hasher};

use tailwater_host::{SessionWeight, groups_sessions};
use tailwater_shm::control::ProgramClass;
use tailwater_shm::priority::LOWEST;

use super::process::Folder;

/// Gives the session that a process leads the lowest weight, if its program is of the best-effort
/// class and the machine is shared; returns what restores the former one. Linux refuses it to other
/// users than the program's and root, and ten times a second at most to those without
/// `CAP_SYS_ADMIN`.
///
/// `stat` is the text of `/proc/PID/stat`.
pub(super) fn session(
    process: &Folder,
    stat: &str,
    class: ProgramClass,
    dedicated: bool,
) -> Option<SessionWeight> {
    if class != ProgramClass::BestEffort || dedicated || !leads_session(process.pid(), stat) {
        return None;
    }
    SessionWeight::open_and_set(&process.path("autogroup"), LOWEST).ok()
}

/// Returns a number for the group in which Linux ranks the threads of a process, whose file
/// `/proc/PID/cgroup` reads `cgroups`: a `sched_yield` passes the core to threads of the same group
/// only. Where it cannot be told whether a control group has the controller `cpu`, it is taken for
/// one that has, and its sessions for groups as well.
pub(super) fn group(process: &Folder, cgroups: &str) -> u64 {
    let session = process.read("autogroup");
    let session = session.split(" nice").next().unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    group_of(cgroups, if groups_sessions() { session } else { "" }).hash(&mut hasher);
    hasher.finish()
}

/// Returns the control group and the session that are the group (cgroups(7), sched(7)).
fn group_of<'a>(cgroups: &'a str, session: &'a str) -> (&'a str, &'a str) {
    let lines = || cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let first = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "cpu"));
    match first.or_else(|| lines().find(|(controllers, _)| controllers.is_empty())) {
        // Sessions are groups within the root of version 1 only.
        Some((controllers, path)) if !controllers.is_empty() && path != "/" => (path, ""),
        Some((_, path)) => (path, session),
        None => ("", session),
    }
}

/// Returns whether a process leads its session. One whose leader is in another PID namespace, as of
/// a program started by `docker exec`, has session 0 here.
fn leads_session(pid: i32, stat: &str) -> bool {
    // proc_pid_stat(5): the name, which may contain any byte, is in parentheses; the session is the
    // fourth field after it.
    let session = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(3));
    session == Some(pid.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_grouped_by_control_group_and_session() {
        let of = |cgroups| group_of(cgroups, "/autogroup-7");
        assert_eq!(of("0::/system.slice/a.service\n"), ("/system.slice/a.service", "/autogroup-7"));
        assert_eq!(of("4:memory:/m\n3:cpuset:/s\n2:cpu,cpuacct:/a\n0::/b\n"), ("/a", ""));
        assert_eq!(of("3:cpuset:/s\n1:cpu:/\n0::/b\n"), ("/", "/autogroup-7"));
        assert_eq!(of(""), ("", "/autogroup-7"));
    }

    #[test]
    fn a_process_is_in_one_group_with_itself() {
        let own = Folder::open(std::process::id() as i32, 0).unwrap();
        let cgroups = own.read("cgroup");
        assert!(!cgroups.is_empty());
        assert_eq!(group(&own, &cgroups), group(&own, &cgroups));
        assert_ne!(group(&own, &cgroups), group(&own, "1:cpu:/elsewhere\n"));
    }
}
