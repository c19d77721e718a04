//! Names and addresses that belong to programs of an IOKernel that is gone.
//!
//! Owns the list of the registered programs, in a file beside the socket's. An IOKernel that is
//! killed cannot hand anything over, and its programs come back when they can: one that is stopped
//! by a debugger, much later than the others. So the next IOKernel reads the list, and gives the
//! name and the address of a program that still lives to that program alone: to a registration of
//! the same user under the same name. What a program says that it had is not believed without the
//! list. There is no list for an abstract socket, which has no folder.
//!
//! | file | |
//! |---|---|
//! | `SOCKET.programs` | the list, as JSON, readable for the IOKernel's user only; written when a program has become ready or has ended, and removed when there is none |
//! | `SOCKET.programs.new` | the next list, until it is renamed |
//!
//! A program is known by its process number and the time at which that process began, since numbers
//! are used again.
//!
//! # Crash and lie
//!
//! | | |
//! |---|---|
//! | death while the list is written | the former list is there, whole |
//! | death between `Ready` and the list | the program is not in it: its name and address are kept for no one, as without a list |
//! | the list is of another user, a link, or damaged | it is not read; a line of the log says so |
//! | it cannot be written | a line of the log; registration goes on |
//! | a process that has ended | its name and address are free |

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use tailwater_batch::proc::Stat;
use tailwater_host::own_file;
use tailwater_sched::RuntimeId;

/// Maximum length of a list: that of some ten thousand programs.
const MOST_BYTES: u64 = 4 << 20;

/// A program, with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owed {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) uid: u32,
    pid: i32,
    /// When its process began, in clock ticks since the machine did.
    began: u64,
}

impl Owed {
    /// Returns that of the process with this number, whose `/proc/PID/stat` reads `stat`; `None` if
    /// it has ended.
    pub(crate) fn new(name: &str, ip: Ipv4Addr, uid: u32, (pid, stat): (i32, &str)) -> Option<Self> {
        Some(Self { name: name.to_owned(), ip, uid, pid, began: Stat::parse(stat)?.start })
    }

    /// Returns whether it belongs to the program of user `uid` under this name.
    pub(crate) fn is_of(&self, uid: u32, name: &str) -> bool {
        self.uid == uid && self.name == name
    }

    /// Returns whether it belongs to the same process as another one, under the same name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_of(other.uid, &other.name) && (self.pid, self.began) == (other.pid, other.began)
    }

    /// Returns whether its process lives.
    pub(crate) fn lives(&self) -> bool {
        Stat::of_process(self.pid).is_some_and(|stat| stat.start == self.began)
    }
}

/// The list in the file.
#[derive(Debug)]
pub(super) struct List {
    path: PathBuf,
    programs: BTreeMap<u32, Owed>,
    /// It could not be written, which was logged.
    failed: bool,
}

impl List {
    /// Returns the list of the IOKernel at this socket; `None` for an abstract one.
    pub(super) fn beside(socket: &str) -> Option<Self> {
        let path = (!socket.starts_with('@')).then(|| PathBuf::from(format!("{socket}.programs")))?;
        Some(Self { path, programs: BTreeMap::new(), failed: false })
    }

    /// Returns the programs of the IOKernel before that still live; `None` if there is no list.
    pub(super) fn read(&self) -> Option<Vec<Owed>> {
        match read(&self.path) {
            Ok(programs) => Some(programs.into_iter().filter(Owed::lives).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(
                    %error, %file,
                    "cannot read which programs the IOKernel before had: their names and addresses may be given to \
                     others; remove the file"
                );
                None
            }
        }
    }

    /// Enters a program that is ready, beside those of `others` that have not come back.
    pub(super) fn add(&mut self, id: RuntimeId, program: Owed, others: &[Owed]) {
        self.programs.insert(id.0, program);
        self.write(others);
    }

    /// Removes a program that has ended.
    pub(super) fn remove(&mut self, id: RuntimeId, others: &[Owed]) {
        if self.programs.remove(&id.0).is_some() {
            self.write(others);
        }
    }

    fn write(&mut self, others: &[Owed]) {
        let all: Vec<&Owed> = self.programs.values().chain(others).collect();
        let result = write(&self.path, &all);
        if let Err(error) = &result
            && !self.failed
        {
            let file = self.path.display();
            tracing::warn!(
                %error, %file,
                "cannot write which programs are registered: if this IOKernel is killed, the next one may give their \
                 names and addresses to others"
            );
        }
        self.failed = result.is_err();
    }
}

fn read(path: &Path) -> io::Result<Vec<Owed>> {
    let file = own_file::open(File::options().read(true), path)?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

fn write(path: &Path, programs: &[&Owed]) -> io::Result<()> {
    match programs {
        [] => own_file::remove(path),
        _ => own_file::replace(path, &serde_json::to_vec(programs)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    fn owed(name: &str, pid: u32) -> Owed {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        Owed::new(name, Ipv4Addr::new(10, 77, 0, 2), 7, (pid as i32, &stat)).unwrap()
    }

    #[test]
    fn the_next_iokernel_reads_the_programs_that_still_live() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket").to_str().unwrap().to_owned();
        assert!(List::beside("@abstract").is_none());
        let mut list = List::beside(&socket).unwrap();
        assert_eq!(list.read(), None, "no IOKernel before");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (lasting, passing) = (owed("lasting", std::process::id()), owed("passing", child.id()));
        list.add(RuntimeId(0), lasting.clone(), &[]);
        list.add(RuntimeId(1), passing.clone(), &[]);
        let next = List::beside(&socket).unwrap();
        assert_eq!(next.read(), Some(vec![lasting.clone(), passing]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(next.read(), Some(vec![lasting.clone()]));
        // Those that have not come back stay in the list of the next one.
        list.remove(RuntimeId(0), std::slice::from_ref(&lasting));
        assert_eq!(next.read(), Some(vec![lasting.clone()]));
        let another = Owed { began: lasting.began + 1, ..lasting };
        assert!(!another.lives(), "another process that has the number");
        let file = format!("{socket}.programs");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        list.remove(RuntimeId(1), &[]);
        assert!(!Path::new(&file).exists(), "no program is registered");
    }

    #[test]
    fn a_list_that_another_may_have_written_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket").to_str().unwrap().to_owned();
        let list = List::beside(&socket).unwrap();
        std::fs::write(folder.path().join("elsewhere"), "[]").unwrap();
        symlink(folder.path().join("elsewhere"), &list.path).unwrap();
        assert_eq!(list.read(), None);
        std::fs::remove_file(&list.path).unwrap();
        std::fs::write(&list.path, "garbage").unwrap();
        assert_eq!(list.read(), None);
        std::fs::write(&list.path, "[]").unwrap();
        assert_eq!(list.read(), Some(Vec::new()));
    }
}
