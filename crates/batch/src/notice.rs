//! The abstract socket at which a batch job tells what it is and what it got.
//!
//! Owns its name, `@tailwater-batch-PID` with the number of the `tailwater run` that supervises the
//! job, and the answer: one JSON document for each connection. Linux frees the name when that
//! process ends, however it does. Any user can take such a name: what is read is shown and has no
//! other effect, a process that answers for another one is left out, those that do not answer delay
//! the reader for a bounded time together, and a user but root has a bounded number of the places
//! that there are. A network namespace has abstract names of its own.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// Beginning of the names.
const PREFIX: &str = "tailwater-batch-";
/// Longest answer that is read.
const MOST_BYTES: usize = 64 << 10;
/// Maximum number of names that are looked at, and of questions that are answered at once.
const MOST_NAMES: usize = 256;
/// Maximum number of jobs that are asked, and of those of one user other than root.
const MOST_JOBS: usize = 32;
const MOST_OF_A_USER: usize = 8;
/// Longest name that is shown.
const MOST_CHARS: usize = 256;

/// What a job tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Its name, as given to `tailwater run` or that of the program.
    pub name: String,
    /// The first process of the job; that process itself where it supervises a group.
    pub pid: i32,
    /// Control socket of the IOKernel whose cores it uses.
    pub iokernel: String,
    /// The cores that it may use.
    pub cores: Vec<usize>,
    /// The control group that it is, if it is one.
    pub group: Option<String>,
    /// What it got.
    pub usage: Usage,
}

/// The socket of this process's job.
#[derive(Debug)]
pub struct Desk(UnixListener);

impl Desk {
    /// Opens it.
    ///
    /// # Errors
    /// Linux's.
    pub fn open() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Returns the descriptor, which is readable when a connection waits.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.0
    }

    /// Answers the connections that wait.
    pub fn answer(&self, notice: impl FnOnce() -> Notice) {
        let connections: Vec<UnixStream> =
            (0..MOST_NAMES).map_while(|_| Some(self.0.accept().ok()?.0)).collect();
        if connections.is_empty() {
            return;
        }
        let Ok(text) = serde_json::to_string(&notice()) else { return };
        for mut connection in connections {
            // A small answer fits into the buffer of a new socket; a reader that is gone needs
            // none.
            let _ = connection.set_nonblocking(true);
            let _ = connection.write_all(text.as_bytes());
        }
    }
}

/// Returns what the batch jobs of this machine tell, those that answer within `patience`, at most
/// 32 and of a user other than root 8. A supervisor is an ordinary process, which may take long on
/// a busy machine.
#[must_use]
pub fn all(patience: Duration) -> Vec<Notice> {
    let names = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut pids: Vec<u32> = names.lines().filter_map(pid_of_line).collect();
    pids.sort_unstable();
    pids.dedup();
    let jobs = pids.into_iter().take(MOST_NAMES).filter_map(|pid| Asked::job(pid).ok());
    answers(choose(jobs), Instant::now() + patience)
}

/// Returns the jobs that have a place. Of users who have many, the first ones have.
fn choose(jobs: impl Iterator<Item = Asked>) -> Vec<Asked> {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Asked)> = jobs
        .filter_map(|job| {
            let rank = of_user.entry(job.user).or_default();
            *rank += 1;
            (job.user == 0 || *rank <= MOST_OF_A_USER).then_some((*rank, job))
        })
        .collect();
    // Stable: by user's rank, then by process.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, job)| job).take(MOST_JOBS).collect()
}

/// Returns the answers that come until a time, by process. All are awaited together: one that is
/// late, or drips, delays no other.
fn answers(mut open: Vec<Asked>, give_up: Instant) -> Vec<Notice> {
    let mut found = Vec::new();
    loop {
        open.retain_mut(|job| match job.read() {
            Ok(None) => true,
            Ok(Some(notice)) => {
                found.push((job.pid, notice));
                false
            }
            Err(_) => false,
        });
        let left = give_up.saturating_duration_since(Instant::now());
        if open.is_empty() || left.is_zero() {
            break;
        }
        let Ok(timeout) = Timespec::try_from(left) else { break };
        let mut fds: Vec<_> = open.iter().map(|job| PollFd::new(&job.connection, PollFlags::IN)).collect();
        // Interrupted by a signal: the reads say that there is nothing.
        let _ = poll(&mut fds, Some(&timeout));
    }
    found.sort_by_key(|(pid, _)| *pid);
    found.into_iter().map(|(_, notice)| notice).collect()
}

/// Returns the process of a line of `/proc/net/unix` (proc_net_unix is in proc(5)).
fn pid_of_line(line: &str) -> Option<u32> {
    line.split_ascii_whitespace().last()?.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok()
}

/// A job that has been asked.
#[derive(Debug)]
struct Asked {
    /// Its supervisor.
    pid: u32,
    /// The user whose process that is.
    user: u32,
    connection: UnixStream,
    text: Vec<u8>,
}

impl Asked {
    /// Asks the job of a supervisor. One with a full queue of connections is not waited for:
    /// connecting fails at once.
    fn job(pid: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(format!("{PREFIX}{pid}").as_bytes())?)?;
        let connection = UnixStream::from(socket);
        let peer = socket_peercred(&connection)?;
        if peer.pid.as_raw_nonzero().get().cast_unsigned() != pid {
            return Err(io::Error::other("another process has the name"));
        }
        Ok(Self { pid, user: peer.uid.as_raw(), connection, text: Vec::new() })
    }

    /// Reads what there is; returns the answer at its end.
    fn read(&mut self) -> io::Result<Option<Notice>> {
        let mut chunk = [0; 4_096];
        while self.text.len() < MOST_BYTES {
            match self.connection.read(&mut chunk) {
                Ok(0) => return parse(&self.text).map(Some),
                Ok(len) => self.text.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("an answer that is too long"))
    }
}

fn parse(text: &[u8]) -> io::Result<Notice> {
    let notice: Notice = serde_json::from_slice(text)?;
    let texts = [Some(&notice.name), Some(&notice.iokernel), notice.group.as_ref()];
    if texts.into_iter().flatten().all(|text| can_be_shown(text)) {
        Ok(notice)
    } else {
        Err(io::Error::other("a name with control characters, or of over 256 characters"))
    }
}

/// Returns whether a name does nothing to the terminal that shows it.
fn can_be_shown(name: &str) -> bool {
    name.chars().count() <= MOST_CHARS && !name.chars().any(char::is_control)
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;
    use tailwater_testkit::until;

    /// The name is the process's: one test at a time has it.
    pub(crate) static NAME: Mutex<()> = Mutex::new(());

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn notice(name: &str) -> Notice {
        Notice {
            name: name.into(),
            pid: 7,
            iokernel: "@here".into(),
            cores: vec![1, 2],
            group: None,
            usage: Usage { threads: 4, ..Usage::default() },
        }
    }

    /// Returns a job of a user, and the end at which it answers.
    fn job(pid: u32, user: u32) -> (Asked, UnixStream) {
        let (connection, other) = UnixStream::pair().unwrap();
        connection.set_nonblocking(true).unwrap();
        (Asked { pid, user, connection, text: Vec::new() }, other)
    }

    #[test]
    fn a_job_is_found_while_its_socket_is_open() {
        let _name = NAME.lock().unwrap();
        let desk = Desk::open().unwrap();
        let asked = Asked::job(std::process::id()).unwrap();
        desk.answer(|| notice("xz"));
        assert_eq!(answers(vec![asked], in_a_minute()), [notice("xz")]);
        drop(desk);
        // A child that another test starts has the socket, too, until it becomes its program.
        until("the job is found no more", || Asked::job(std::process::id()).is_err());
    }

    #[test]
    fn a_job_that_does_not_answer_delays_no_other() {
        let (jobs, mut ends): (Vec<_>, Vec<_>) = (1..=5).map(|pid| job(pid, 7)).unzip();
        for (end, name) in [(1, "one"), (3, "two")] {
            let text = serde_json::to_vec(&notice(name)).unwrap();
            ends[end].write_all(&text).unwrap();
            ends[end].shutdown(std::net::Shutdown::Write).unwrap();
        }
        // One has begun, one says too much, and one nothing.
        ends[0].write_all(b"{").unwrap();
        ends[2].write_all(&vec![b' '; MOST_BYTES]).unwrap();
        // What is there is read before the time is looked at.
        let found = answers(jobs, Instant::now() + Duration::from_millis(20));
        let names: Vec<&str> = found.iter().map(|notice| notice.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
    }

    #[test]
    fn a_job_whose_queue_is_full_is_not_awaited() {
        let _name = NAME.lock().unwrap();
        let own = std::process::id();
        let listener = UnixListener::bind_addr(&address(own).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // Closed connections stay in the queue until they are accepted.
        drop(Asked::job(own).unwrap());
        let full = Asked::job(own).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
    }

    #[test]
    fn a_user_takes_no_places_of_others() {
        let users = |of: &[(u32, usize)]| {
            let mut pid = 0;
            let mut jobs = Vec::new();
            for (user, count) in of {
                for _ in 0..*count {
                    pid += 1;
                    jobs.push(job(pid, *user).0);
                }
            }
            choose(jobs.into_iter()).into_iter().map(|job| job.user).collect::<Vec<u32>>()
        };
        let count = |users: &[u32], user| users.iter().filter(|each| **each == user).count();
        let chosen = users(&[(1_000, 100), (1_001, 1), (0, 10)]);
        let counts = [1_000, 1_001, 0].map(|user| count(&chosen, user));
        assert_eq!(counts, [MOST_OF_A_USER, 1, 10]);
        // More users than fit: each has one before another has two.
        let chosen = users(&[(1_000, 8), (1_001, 8), (1_002, 8), (1_003, 8), (1_004, 8), (0, 2)]);
        assert_eq!((chosen.len(), count(&chosen, 0), count(&chosen, 1_004)), (MOST_JOBS, 2, 6));
    }

    #[test]
    fn a_name_that_would_write_on_the_terminal_is_not_shown() {
        assert!(can_be_shown("xz") && can_be_shown("/system.slice/a b.service"));
        assert!(!can_be_shown("\u{1b}[2J") && !can_be_shown(&"x".repeat(257)));
    }

    #[test]
    fn lines_of_other_sockets_are_left_out() {
        let line = |name: &str| format!("ffff: 00000002 00000000 00010000 0001 01 19 {name}");
        assert_eq!(pid_of_line(&line("@tailwater-batch-4711")), Some(4_711));
        for name in ["@tailwater-batch-", "@tailwater-batch-x", "/run/tailwater-batch-1", "@tailwater"] {
            assert_eq!(pid_of_line(&line(name)), None, "{name}");
        }
    }
}
