//! The process at the other end of a connection.
//!
//! Linux reuses process and thread numbers. A process may connect, give the connection to a child
//! and end; the threads that are sent later would be of the process that has its number by then,
//! perhaps another user's. Only a descriptor of the process itself tells the two apart, and only in
//! a [`Folder`] that was opened while the process lived are its files read.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities, sched_getaffinity, sched_setaffinity};

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

/// Checks that this process may bind these threads of process `pid`, by giving each the cores that
/// it has. Linux refuses a thread with capabilities that this process lacks, also one of its own
/// user (`cap_task_setscheduler`, capabilities(7)); each thread has capabilities of its own. Writes
/// to the threads: call it once [`check`] has shown that they are of that process.
pub(super) fn check_binding(pid: i32, tids: &[i32]) -> Result<(), Refusal> {
    let is_refused = |&tid: &i32| {
        let thread = Pid::from_raw(tid);
        let bound = sched_getaffinity(thread).and_then(|cores| sched_setaffinity(thread, &cores));
        bound == Err(Errno::PERM)
    };
    if tids.iter().any(is_refused) { Err(Refusal::MayNotBind { pid }) } else { Ok(()) }
}

/// The folder `/proc/PID` of a process. Once it is [checked](check), whatever is read there is of
/// that process, or fails because it has ended.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    pid: i32,
    /// The user of the process when it connected.
    user: u32,
}

impl Folder {
    /// Opens that of the process which has this number now, and connected as `user`.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn open(pid: i32, user: u32) -> Result<Self, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty());
        opened.map(|fd| Self { fd, pid, user }).map_err(|_| Refusal::ProcessGone { pid })
    }

    /// Returns whether the process runs as the user that it connected as. Linux shows the effective
    /// user as the owner of the folder; one system call.
    pub(crate) fn is_of_user(&self) -> bool {
        fstat(&self.fd).is_ok_and(|found| found.st_uid == self.user)
    }

    /// Returns the path of a file in it.
    pub(super) fn path(&self, file: &str) -> String {
        format!("/proc/self/fd/{}/{file}", self.fd.as_raw_fd())
    }

    /// Returns the text of a file in it; nothing if it cannot be read.
    pub(super) fn read(&self, file: &str) -> String {
        let bytes = std::fs::read(self.path(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }
}

/// Checks that `process`, whose folder is `folder`, runs as the user that it connected as, and then
/// that it has not ended: what was read of `/proc/PID` before was of this process.
pub(super) fn check(process: &OwnedFd, folder: &Folder) -> Result<(), Refusal> {
    let (pid, connected, is_same_user) = (folder.pid, folder.user, folder.is_of_user());
    // The descriptor becomes readable when the process ends.
    match has_event(process, PollFlags::IN) {
        Ok(false) if is_same_user => Ok(()),
        Ok(false) => Err(Refusal::UserChanged { pid, connected }),
        _ => Err(Refusal::ProcessGone { pid }),
    }
}

/// Returns whether one of these events has happened at a descriptor.
pub(super) fn has_event(fd: &impl AsFd, events: PollFlags) -> Result<bool, Errno> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(fd, events)], Some(&at_once))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn only_a_living_process_of_the_same_user_passes() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let (pid, user) = (pid.as_raw_nonzero().get(), geteuid().as_raw());
        let folder = Folder::open(pid, user).unwrap();
        assert_eq!(check(&process, &folder), Ok(()));
        assert!(folder.read("stat").starts_with(&format!("{pid} (cat)")), "{}", folder.read("stat"));
        let changed = Refusal::UserChanged { pid, connected: user + 1 };
        assert_eq!(check(&process, &Folder::open(pid, user + 1).unwrap()), Err(changed));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(check(&process, &folder), Err(Refusal::ProcessGone { pid }));
        assert_eq!(folder.read("stat"), "", "not that of another process with the number");
        assert_eq!(Folder::open(pid, user).err(), Some(Refusal::ProcessGone { pid }));
        // Another process that has the number changes nothing.
        let own = std::process::id() as i32;
        let own_folder = Folder::open(own, user).unwrap();
        assert_eq!(check(&process, &own_folder), Err(Refusal::ProcessGone { pid: own }));
    }

    #[test]
    fn a_process_that_becomes_one_of_another_user_is_seen_in_its_folder() {
        if !geteuid().is_root() {
            return eprintln!("skipped: only root may start a process of another user");
        }
        // Becomes another user's when its input ends, as one does that runs a set-user-ID program.
        let script = "read line; exec setpriv --reuid=65534 cat";
        let mut child =
            Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        let folder = Folder::open(child.id() as i32, 0).unwrap();
        assert!(folder.is_of_user());
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\nhere\n").unwrap();
        let mut answer = [0; 5];
        let answered = child.stdout.as_mut().unwrap().read_exact(&mut answer);
        if answered.is_err() {
            return eprintln!("skipped: there is no setpriv(1)");
        }
        assert!(!folder.is_of_user());
        drop(input);
        child.wait().unwrap();
    }
}
