//! The weight of a best-effort program's session among the sessions of the machine.
//!
//! Owns one number that Linux keeps for each session where it groups them (sched(7), "The autogroup
//! feature"). `SCHED_IDLE` ranks a kthread within its session only: a session whose one runnable
//! thread is such a kthread would compete with every other session as an equal. Only a session that
//! the program leads is changed, for any other may be a user's shell.

use rustix::process::{Pid, getsid};
use tailwater_shm::control::Class;
use tailwater_shm::priority::LOWEST;

/// Gives the session that `pid` leads the lowest weight if its program is of the best-effort class.
/// Returns whether it did; it is refused to other users than the program's and root.
pub(super) fn lower_session(pid: i32, class: Class, dedicated: bool) -> bool {
    let leads = || {
        let pid = Pid::from_raw(pid);
        pid.is_some() && getsid(pid).ok() == pid
    };
    class == Class::BestEffort && !dedicated && leads() && set_nice(pid, LOWEST)
}

/// Gives the session of a program that has left, and may live on, the usual weight.
pub(super) fn restore_session(pid: i32) {
    set_nice(pid, 0);
}

fn set_nice(pid: i32, nice: i32) -> bool {
    // Fails as well where Linux does not group sessions, and then threads rank by themselves.
    std::fs::write(format!("/proc/{pid}/autogroup"), nice.to_string()).is_ok()
}
