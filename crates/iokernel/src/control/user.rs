//! Who the user of a client is, and whether that user is trusted.
//!
//! Linux says both: what it says of a socket is as of the time at which the client connected.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::geteuid;
use std::sync::LazyLock;
use tailwater_shm::control::Peer;

use crate::authority::{Subordinates, User};
use crate::sys::peer;

/// Returns whether a user is root, the IOKernel's own, or the one who started it by sudo(8).
pub(super) fn is_trusted(uid: u32) -> bool {
    static STARTED_BY: LazyLock<Option<u32>> =
        LazyLock::new(|| started_by(geteuid().is_root(), std::env::var("SUDO_UID").ok().as_deref()));
    uid == 0 || uid == geteuid().as_raw() || Some(uid) == *STARTED_BY
}

/// Returns the user who started a process by sudo(8). That user has had root's rights for it.
fn started_by(is_root: bool, sudo_uid: Option<&str>) -> Option<u32> {
    // In a process of another user any program may have set the variable.
    if is_root { sudo_uid?.parse().ok() } else { None }
}

/// Returns the user of a client when it connected.
///
/// # Errors
/// The kernel's error.
pub(super) fn user_of(socket: impl AsFd + Copy, owners: &Subordinates) -> Result<User, Errno> {
    let Peer { uid, gid, .. } = Peer::of(socket)?;
    let mut groups = peer::groups_of(socket)?;
    groups.push(gid);
    // A user namespace lets a process repeat them, 65,536 in all.
    groups.sort_unstable();
    groups.dedup();
    Ok(user(uid, groups, owners))
}

/// Returns a user with these groups. Ids that a trusted user gives out, as root does to containers
/// of several users, count each by itself.
pub(super) fn user(uid: u32, groups: Vec<u32>, owners: &Subordinates) -> User {
    let privileged = is_trusted(uid);
    let owner = if privileged { uid } else { owners.owner(uid) };
    let owner = if is_trusted(owner) { uid } else { owner };
    User { uid, owner, groups, privileged }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_sudo_is_known_to_processes_of_root_only() {
        assert_eq!(started_by(true, Some("1000")), Some(1000));
        for (is_root, sudo_uid) in
            [(false, Some("1000")), (true, None), (true, Some("alice")), (true, Some("-1"))]
        {
            assert_eq!(started_by(is_root, sudo_uid), None);
        }
    }
}
