//! The weight of a session among the sessions of the machine.
//!
//! Owns [`SessionWeight`], which sets the weight and restores it. Decides nothing: the IOKernel
//! says which session has which weight.

use std::fs::{self, File};
use std::io::{self, Read, Write};

/// The weight of a session among the sessions of the machine, where Linux groups them (sched(7),
/// "The autogroup feature"); its former value is restored on drop.
///
/// Real-time threads are in no autogroup. The weight is for those that are: kthreads of
/// best-effort programs, which `SCHED_IDLE` ranks within their session only, and the polling thread
/// on a dedicated machine, where Linux refuses real-time rank, and in rests.
#[derive(Debug)]
pub struct SessionWeight {
    /// Open from the beginning, so that it never is the file of another process with the same
    /// number: a write fails once the process is gone.
    file: File,
    before: i32,
    now: i32,
}

impl SessionWeight {
    /// Opens the weight of the session of the process that the file `/proc/PID/autogroup` belongs
    /// to.
    ///
    /// # Errors
    /// If Linux does not group sessions, or may not be asked to change this one.
    pub fn open(path: &str) -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let before = parse_autogroup(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the process is in no autogroup"))?;
        Ok(Self { file, before, now: before })
    }

    /// Opens the weight and sets the nice value of the session.
    ///
    /// # Errors
    /// As for [`open`](Self::open), or if Linux refuses the value; nothing is changed then.
    pub fn open_and_set(path: &str, nice: i32) -> io::Result<Self> {
        let mut session = Self::open(path)?;
        session.set(nice)?;
        Ok(session)
    }

    /// Sets the nice value of the session.
    ///
    /// # Errors
    /// If Linux refuses the value or the process is gone; nothing is changed then.
    pub fn set(&mut self, nice: i32) -> io::Result<()> {
        self.file.write_all(nice.to_string().as_bytes())?;
        self.now = nice;
        Ok(())
    }

    /// Sets the nice value that the session had before.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn restore(&mut self) -> io::Result<()> {
        if self.now == self.before { Ok(()) } else { self.set(self.before) }
    }
}

impl Drop for SessionWeight {
    fn drop(&mut self) {
        // Fails if the process is gone.
        let _ = self.restore();
    }
}

/// Returns whether Linux groups sessions (sched(7), "The autogroup feature").
#[must_use]
pub fn groups_sessions() -> bool {
    fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1")
}

/// Parses the text of `/proc/PID/autogroup`: `/autogroup-57 nice 0`, or nothing for a process that
/// no session was made for.
fn parse_autogroup(text: &str) -> Option<i32> {
    text.trim().rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_sessions_weight_is_read_from_its_autogroup() {
        assert_eq!(parse_autogroup("/autogroup-57 nice -20\n"), Some(-20));
        assert_eq!(parse_autogroup("/autogroup-57 nice -3\n"), Some(-3));
        assert_eq!(parse_autogroup(""), None);
    }

    #[test]
    fn a_sessions_weight_is_restored_and_never_another_processs() {
        // Without this capability, weights may be changed ten times a second, all together.
        let held = rustix::thread::capabilities(None).unwrap().effective;
        if !held.contains(rustix::thread::CapabilitySet::SYS_ADMIN) {
            eprintln!("skipped: needs CAP_SYS_ADMIN");
            return;
        }
        // In another user namespace it is not the capability that the kernel asks for
        // (user_namespaces(7)); the initial one maps all users to themselves.
        let map = fs::read_to_string("/proc/self/uid_map").unwrap();
        if map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"] {
            eprintln!("skipped: needs CAP_SYS_ADMIN in the initial user namespace");
            return;
        }
        // An answer from cat means that setsid(2) has ended: until then the new session may already
        // be seen while its leader still belongs to the autogroup of this process.
        let mut command = Command::new("setsid");
        let Ok(mut leader) = command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            return;
        };
        leader.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        leader.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let path = format!("/proc/{}/autogroup", leader.id());
        let nice = || parse_autogroup(&fs::read_to_string(&path).unwrap()).unwrap();
        if let Ok(weight) = SessionWeight::open_and_set(&path, 19) {
            assert_eq!(nice(), 19);
            let second = SessionWeight::open_and_set(&path, 7).unwrap();
            drop(second);
            assert_eq!(nice(), 19);
            drop(weight);
            assert_eq!(nice(), 0);
        }
        let mut weight = SessionWeight::open_and_set(&path, 5);
        drop(leader.stdin.take());
        leader.wait().unwrap();
        if let Ok(weight) = &mut weight {
            weight.file.write_all(b"0").unwrap_err();
        }
    }
}
