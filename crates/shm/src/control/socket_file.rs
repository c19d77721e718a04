//! The file of a control socket: replaced at the start if no process listens there any more,
//! removed at a clean end.
//!
//! A process that is killed leaves its file behind, and bind(2) refuses an address whose file
//! exists. Whether a process listens is learnt by connecting. Between bind(2) and listen(2) a
//! socket refuses connections like a dead one, so both happen under a lock: of a file `SOCKET.lock`
//! (flock(2)), which only this user may open, and which is removed with the lock. The directory
//! would not do: any user who may read it can lock it. Where the lock cannot be had (another user
//! has put a file of that name there) no socket is replaced.

use super::address;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, lstat, openat, stat, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use std::time::Duration;

/// Number of tries of the lock, and the time between two: a second together. It is held for
/// microseconds.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The lock of a socket file; its own file is removed on drop.
#[derive(Debug)]
pub(super) struct Lock {
    path: String,
    _file: OwnedFd,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock goes with the descriptor: no other process has the lock of this file.
        let _ = unlink(&self.path);
    }
}

/// Locks the socket file `path`; `None` for an abstract address, or if the lock cannot be had.
pub(super) fn lock(path: &str) -> Option<Lock> {
    if path.starts_with('@') {
        return None;
    }
    let path = format!("{path}.lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let file = openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        let found = fstat(&file).ok()?;
        if found.st_uid != geteuid().as_raw() || !FileType::from_raw_mode(found.st_mode).is_file() {
            return None;
        }
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // The file may have been removed since it was opened, with the lock of another process.
        if locked.is_ok() && inode(&path) == Some((found.st_dev, found.st_ino)) {
            return Some(Lock { path, _file: file });
        }
        if !matches!(locked, Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR)) {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// Removes the file at `path` if it is a socket at which no process listens; returns whether it
/// did. `_lock` is its lock.
pub(super) fn remove_dead(path: &str, _lock: &Lock) -> bool {
    is_dead(path) && unlink(path).is_ok()
}

/// Returns whether there is a file at `path` that is no socket.
pub(super) fn is_other(path: &str) -> bool {
    !path.starts_with('@')
        && stat(path).is_ok_and(|found| !FileType::from_raw_mode(found.st_mode).is_socket())
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
    use std::path::{Path, PathBuf};

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
    fn a_lock_of_the_directory_stops_no_restart() {
        let directory = Directory::new("locked");
        let path = directory.socket();
        drop(serve(&path, |_| ()).unwrap());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let held = openat(CWD, &directory.0, flags, Mode::empty()).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let _second = serve(&path, |_| ()).unwrap();
        dial(&path).unwrap();
        let files = std::fs::read_dir(&directory.0).unwrap();
        assert_eq!(files.map(|file| file.unwrap().file_name()).collect::<Vec<_>>(), ["socket"]);
    }

    #[test]
    fn several_that_start_at_once_replace_a_dead_socket_once() {
        let directory = Directory::new("race");
        let path = directory.socket();
        for _ in 0..20 {
            drop(serve(&path, |_| ()));
            let start = || {
                std::thread::spawn({
                    let path = path.clone();
                    move || serve(&path, |_| ()).ok()
                })
            };
            let started = [start(), start(), start()].map(|thread| thread.join().unwrap());
            assert_eq!(started.iter().flatten().count(), 1);
            dial(&path).unwrap();
        }
    }

    #[test]
    fn a_lock_in_the_name_of_another_is_not_taken() {
        let directory = Directory::new("link");
        let path = directory.socket();
        std::os::unix::fs::symlink("/dev/null", format!("{path}.lock")).unwrap();
        assert!(lock(&path).is_none());
        // A socket is made all the same, if none is in its place.
        serve(&path, |_| ()).unwrap();
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
