//! The abstract socket at which a batch job tells what it is and what it got.
//!
//! Owns its name, `@tailwater-batch-PID` with the number of the `tailwater run` that supervises the
//! job, and the answer: one JSON document for each connection. Linux frees the name when that
//! process ends, however it does. Any user can take such a name: what is read is shown and has no
//! other effect, a process that answers for another one is left out, and one that does not answer
//! delays the reader for a bounded time. A network namespace has abstract names of its own.

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
/// Maximum number of jobs that are asked.
const MOST_JOBS: usize = 256;
/// Longest time for which one job is waited for, whose supervisor is an ordinary process, and all
/// of them together.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(2);
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
            (0..MOST_JOBS).map_while(|_| Some(self.0.accept().ok()?.0)).collect();
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

/// Returns what the batch jobs of this machine tell, those that answer.
#[must_use]
pub fn all() -> Vec<Notice> {
    let names = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut pids: Vec<u32> = names.lines().filter_map(pid_of_line).collect();
    pids.sort_unstable();
    pids.dedup();
    let give_up = Instant::now() + PATIENCE_FOR_ALL;
    let in_time = pids.into_iter().take(MOST_JOBS).take_while(|_| Instant::now() < give_up);
    in_time.filter_map(|pid| ask(pid, give_up.min(Instant::now() + PATIENCE)).ok()).collect()
}

/// Returns the process of a line of `/proc/net/unix` (proc_net_unix is in proc(5)).
fn pid_of_line(line: &str) -> Option<u32> {
    line.split_ascii_whitespace().last()?.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok()
}

/// Asks the job of a supervisor, and gives up at a time. One with a full queue of connections is
/// not waited for: connecting fails at once.
fn ask(pid: u32, give_up: Instant) -> io::Result<Notice> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(format!("{PREFIX}{pid}").as_bytes())?)?;
    let connection = UnixStream::from(socket);
    let peer = socket_peercred(&connection)?;
    if peer.pid.as_raw_nonzero().get().cast_unsigned() != pid {
        return Err(io::Error::other("another process has the name"));
    }
    let notice: Notice = serde_json::from_slice(&read_until(connection, give_up)?)?;
    if [Some(&notice.name), notice.group.as_ref()].into_iter().flatten().all(|name| can_be_shown(name)) {
        Ok(notice)
    } else {
        Err(io::Error::other("a name with control characters, or of over 256 characters"))
    }
}

/// Reads to the end, at most [`MOST_BYTES`], from a socket that does not block.
fn read_until(mut connection: UnixStream, give_up: Instant) -> io::Result<Vec<u8>> {
    let (mut text, mut chunk) = (Vec::new(), [0; 4_096]);
    while text.len() < MOST_BYTES {
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        // Interrupted by a signal: the read says that there is nothing.
        let _ = poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&timeout));
        match connection.read(&mut chunk) {
            Ok(0) => return Ok(text),
            Ok(len) => text.extend_from_slice(&chunk[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("an answer that is too long"))
}

/// Returns whether a name does nothing to the terminal that shows it.
fn can_be_shown(name: &str) -> bool {
    name.chars().count() <= MOST_CHARS && !name.chars().any(char::is_control)
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread::{scope, sleep};
    use tailwater_testkit::until;

    /// The name is the process's: one test at a time has it.
    static NAME: Mutex<()> = Mutex::new(());

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_job_is_found_while_its_socket_is_open() {
        let _name = NAME.lock().unwrap();
        let desk = Desk::open().unwrap();
        let notice = Notice {
            name: "xz".into(),
            pid: 7,
            iokernel: "@here".into(),
            cores: vec![1, 2],
            group: None,
            usage: Usage { threads: 4, ..Usage::default() },
        };
        let found = scope(|scope| {
            let asked = scope.spawn(|| ask(std::process::id(), in_a_minute()));
            until("the job has answered", || {
                desk.answer(|| notice.clone());
                asked.is_finished()
            });
            asked.join().unwrap()
        });
        assert_eq!(found.unwrap(), notice);
        drop(desk);
        assert!(ask(std::process::id(), in_a_minute()).is_err());
    }

    #[test]
    fn a_job_that_does_not_answer_is_given_up() {
        let _name = NAME.lock().unwrap();
        let own = std::process::id();
        let listener = UnixListener::bind_addr(&address(own).unwrap()).unwrap();
        // One that drips, so that no single read takes long.
        let (give_up, done) = (Instant::now() + Duration::from_millis(50), AtomicBool::new(false));
        scope(|scope| {
            scope.spawn(|| {
                let (mut connection, _) = listener.accept().unwrap();
                while !done.load(Relaxed) && connection.write_all(b" ").is_ok() {
                    sleep(Duration::from_millis(1));
                }
            });
            let why = ask(own, give_up).unwrap_err();
            done.store(true, Relaxed);
            assert_eq!(why.kind(), ErrorKind::TimedOut, "{why}");
        });
        // One whose queue is full: closed connections stay in it until they are accepted.
        rustix::net::listen(&listener, 0).unwrap();
        assert_eq!(ask(own, Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
        let full = ask(own, in_a_minute()).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
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
