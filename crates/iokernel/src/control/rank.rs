//! The weight of a best-effort program's session among the sessions of a shared machine.
//!
//! `SCHED_IDLE` ranks a kthread within its session only, where Linux groups sessions (sched(7),
//! "The autogroup feature"): a session whose one runnable thread is such a kthread would compete
//! with every other session as an equal. Only a session that the program leads is changed, for any
//! other may be a user's shell.

use tailwater_shm::control::Class;

use crate::machine::SessionWeight;

/// Returns the weight of the session that `pid` leads if its program is of the best-effort class
/// and the machine is shared: it is to be the lowest while other programs compete for the cores.
/// Linux refuses it to other users than the program's and root.
pub(super) fn session(pid: i32, class: Class, dedicated: bool) -> Option<SessionWeight> {
    if class != Class::BestEffort || dedicated || !leads_session(pid) {
        return None;
    }
    SessionWeight::open(&format!("/proc/{pid}/autogroup")).ok()
}

/// Returns whether a process leads its session. One whose leader is in another PID namespace, as of
/// a program started by `docker exec`, has session 0 here.
fn leads_session(pid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // proc_pid_stat(5): the name, which may contain any byte, is in parentheses; the session is the
    // fourth field after it.
    let session = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(3));
    session == Some(pid.to_string().as_str())
}
