//! The mode of the control socket's file: who may connect.
//!
//! Owns the one change of it. bind(2) makes the file with the mode that the umask leaves, in which
//! root and the IOKernel's user may connect. With grants, others are to ask, too: who may register
//! what is decided for each connection ([`authority`](crate::authority)), so the file lets all
//! connect. It stays so when a reload takes the last grant away: other users who connect then are
//! refused.

use rustix::fd::AsRawFd;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use crate::config::Config;

/// Read and write for all: connect(2) asks for write permission (unix(7)).
const ALL: u32 = 0o666;

/// Lets all users connect to the socket of an IOKernel of root whose configuration has grants.
///
/// # Errors
/// If Linux refuses to change the mode.
pub fn admit_granted(config: &Config) -> io::Result<()> {
    let is_file = !config.socket.starts_with('@');
    match is_file && !config.grant.is_empty() && geteuid().is_root() {
        true => open_to_all(&config.socket),
        false => Ok(()),
    }
}

/// Lets all users connect to the socket at `path`, if that is a socket of this user: a user
/// who may write to its folder can put another file, or a link to one, in its place.
fn open_to_all(path: &str) -> io::Result<()> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode).is_socket();
    if !is_socket || found.st_uid != geteuid().as_raw() || found.st_nlink != 1 {
        return Err(Errno::NOTSOCK.into());
    }
    // The opened file, whatever has the name by now (proc_pid_fd(5)).
    set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(ALL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::metadata;
    use tailwater_shm::control::serve;

    #[test]
    fn grants_open_the_socket_to_all_and_nothing_else_does() {
        if !geteuid().is_root() {
            return eprintln!("skipped: only an IOKernel of root has grants");
        }
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket").display().to_string();
        let _listener = serve(&socket, |_| {}).unwrap();
        set_permissions(&socket, Permissions::from_mode(0o755)).unwrap();
        let mode = || metadata(&socket).unwrap().permissions().mode() & 0o777;
        let without = Config { socket: socket.clone(), ..Config::default() };
        admit_granted(&without).unwrap();
        assert_eq!(mode(), 0o755);
        let grants = Config::from_toml("[[grant]]\nusers = \"*\"").unwrap();
        admit_granted(&Config { socket: socket.clone(), ..grants }).unwrap();
        assert_eq!(mode(), ALL);
        admit_granted(&without).unwrap();
        assert_eq!(mode(), ALL, "it is not closed again");
    }

    #[test]
    fn a_file_or_a_link_in_the_place_of_the_socket_stays_as_it_is() {
        if !geteuid().is_root() {
            return eprintln!("skipped: only an IOKernel of root has grants");
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let grants = Config::from_toml("[[grant]]\nusers = \"*\"").unwrap();
            let socket = path.display().to_string();
            assert!(admit_granted(&Config { socket, ..grants }).is_err(), "{}", path.display());
        }
        assert_eq!(metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
