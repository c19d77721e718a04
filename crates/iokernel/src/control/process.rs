//! The process at the other end of a connection.
//!
//! Linux reuses process and thread numbers. A process may connect, give the connection to a child
//! and end; the threads that are sent later would be of the process that has its number by then,
//! perhaps another user's. Only a descriptor of the process itself tells the two apart.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities};

use super::directory::Refusal;
use crate::sys::peer;

/// Returns the process that connected `socket`, whose number was `pid`.
///
/// # Errors
/// If it is gone.
pub(super) fn at(socket: impl AsFd, pid: i32) -> Result<OwnedFd, Errno> {
    match peer::process_of(socket) {
        // Linux before 6.5: the number must do.
        Err(Errno::NOPROTOOPT) => pidfd_open(Pid::from_raw(pid).ok_or(Errno::SRCH)?, PidfdFlags::empty()),
        process => process,
    }
}

/// Checks that this process may bind threads of user `theirs` to cores and send them the preempt
/// signal. Root may not in a container that leaves it neither `CAP_SYS_NICE` nor `CAP_KILL`
/// (capabilities(7)): a runtime would be registered and never lent a core.
pub(super) fn check_control(theirs: u32) -> Result<(), Refusal> {
    let ours = geteuid();
    let needed = CapabilitySet::SYS_NICE | CapabilitySet::KILL;
    let may = || ours.is_root() && capabilities(None).is_ok_and(|held| held.effective.contains(needed));
    match theirs == ours.as_raw() || may() {
        true => Ok(()),
        false => Err(Refusal::OtherUser { theirs, ours: ours.as_raw() }),
    }
}

/// Checks that `process`, whose number is `pid`, runs as user `connected`, and then that it has not
/// ended: what was read of `/proc/PID` before was of this process.
pub(super) fn check(process: &OwnedFd, pid: i32, connected: u32) -> Result<(), Refusal> {
    let is_same_user = effective_user(pid) == Some(connected);
    let mut fd = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // The descriptor becomes readable when the process ends.
    match poll(&mut fd, Some(&now)) {
        Ok(0) if is_same_user => Ok(()),
        Ok(0) => Err(Refusal::UserChanged { pid, connected }),
        _ => Err(Refusal::ProcessGone { pid }),
    }
}

/// Returns the effective user of a process: the second number of `Uid:` in proc_pid_status(5).
fn effective_user(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_a_living_process_of_the_same_user_passes() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let (pid, user) = (pid.as_raw_nonzero().get(), geteuid().as_raw());
        assert_eq!(check(&process, pid, user), Ok(()));
        let changed = Refusal::UserChanged { pid, connected: user + 1 };
        assert_eq!(check(&process, pid, user + 1), Err(changed));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(check(&process, pid, user), Err(Refusal::ProcessGone { pid }));
        // Another process that has the number changes nothing.
        let own = std::process::id() as i32;
        assert_eq!(check(&process, own, user), Err(Refusal::ProcessGone { pid: own }));
    }
}
