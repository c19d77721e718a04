//! The file of a control socket: replaced at the start if no process listens there any more,
//! removed at a clean end.
//!
//! A process that is killed leaves its file behind, and bind(2) refuses an address whose file
//! exists. Whether a process listens is learnt by connecting. Between bind(2) and listen(2) a
//! socket refuses connections like a dead one, so both happen under a lock of the directory
//! (flock(2)), which leaves no file behind. Where the lock cannot be had (another user can hold it,
//! too) no file is replaced.

use super::address;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, lstat, openat, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::path::Path;
use std::time::Duration;

/// Number of tries of the lock, and the time between two: a second together. It is held for
/// microseconds.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Locks the directory of the socket file `path`; `None` for an abstract address, or if the lock
/// cannot be had.
pub(super) fn lock(path: &str) -> Option<OwnedFd> {
    if path.starts_with('@') {
        return None;
    }
    let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
    for _ in 0..TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Removes the file at `path` if it is a socket at which no process listens; returns whether it
/// did. `_lock` is the lock of its directory.
pub(super) fn remove_dead(path: &str, _lock: &OwnedFd) -> bool {
    is_dead(path) && unlink(path).is_ok()
}

fn is_dead(path: &str) -> bool {
    let is_socket = lstat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_socket());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (true, Ok(probe), Ok(address)) = (is_socket, probe, address(path)) else { return false };
    // Any other error, as of a full backlog, is that of a socket which listens.
    connect(&probe, &address) == Err(Errno::CONNREFUSED)
}

/// The file of a socket that listens; removed on drop, unless another one has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: String,
    inode: (u64, u64),
}

impl SocketFile {
    /// Returns the file at which a socket that [`serve`](super::serve) made listens; `None` for an
    /// abstract address.
    pub fn of(path: &str) -> Option<Self> {
        let inode = if path.starts_with('@') { None } else { inode(path) };
        inode.map(|inode| Self { path: path.to_owned(), inode })
    }

    /// Leaves the file to a process that listens there from now on.
    pub fn leave(self) {
        let _ = core::mem::ManuallyDrop::new(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.inode) {
            // If this is refused, the next IOKernel finds it dead.
            let _ = unlink(&self.path);
        }
    }
}

/// Returns device and number of the file at `path`.
fn inode(path: &str) -> Option<(u64, u64)> {
    lstat(path).ok().map(|found| (found.st_dev, found.st_ino))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{dial, serve};
    use super::*;
    use std::path::PathBuf;

    /// A directory of this test alone, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tailwater-socket-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> String {
            self.0.join("socket").to_str().unwrap().to_owned()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = Directory::new("dead");
        let path = directory.socket();
        let first = serve(&path, |_| ()).unwrap();
        let refused = serve(&path, |_| ()).unwrap_err().to_string();
        assert!(refused.contains("another IOKernel runs there"), "{refused}");
        drop(first);
        assert!(dial(&path).is_err());
        let second = serve(&path, |_| ()).unwrap();
        dial(&path).unwrap();
        drop(second);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let directory = Directory::new("other");
        std::fs::write(directory.socket(), "precious").unwrap();
        serve(&directory.socket(), |_| ()).unwrap_err();
        assert_eq!(std::fs::read(directory.socket()).unwrap(), b"precious");
    }

    #[test]
    fn a_clean_end_removes_the_file_of_its_own_socket_only() {
        let directory = Directory::new("end");
        let path = directory.socket();
        let first = serve(&path, |_| ()).unwrap();
        let its_file = SocketFile::of(&path).unwrap();
        drop(first);
        // The second one's file has another number, for the first one's exists until then.
        std::fs::rename(&path, format!("{path}.old")).unwrap();
        let second = serve(&path, |_| ()).unwrap();
        drop(its_file);
        dial(&path).unwrap();
        drop(SocketFile::of(&path));
        assert!(!Path::new(&path).exists());
        drop(second);
        assert!(SocketFile::of("@tailwater").is_none());
    }
}
