//! The weight of a best-effort program's session among the sessions of a shared machine.
//!
//! `SCHED_IDLE` ranks a kthread within its session only, where Linux groups sessions (sched(7),
//! "The autogroup feature"): a session whose one runnable thread is such a kthread would compete
//! with every other session as an equal. Only a session that the program leads is changed, for any
//! other may be a user's shell.

use rustix::process::{Pid, getsid};
use tailwater_shm::control::Class;

use crate::machine::SessionWeight;

/// Returns the weight of the session that `pid` leads if its program is of the best-effort class
/// and the machine is shared: it is to be the lowest while other programs compete for the cores.
/// Linux refuses it to other users than the program's and root.
pub(super) fn session(pid: i32, class: Class, dedicated: bool) -> Option<SessionWeight> {
    let leads = || {
        let pid = Pid::from_raw(pid);
        pid.is_some() && getsid(pid).ok() == pid
    };
    if class != Class::BestEffort || dedicated || !leads() {
        return None;
    }
    SessionWeight::open(&format!("/proc/{pid}/autogroup")).ok()
}
