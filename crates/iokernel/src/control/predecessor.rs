//! An IOKernel takes the place of another one: the side of the new process.
//!
//! Owns the connection to the old one, what that one hands over, and the wait for its end.
//! [`takeover`](super::takeover) has the steps, and what happens if a process dies or lies.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_ports::{Port, PortError};
use tailwater_shm::control::{
    self, ClientMessage, ControlError, Estate, Handover, HandoverPort, Network, Peer, ServerMessage,
    TAKEOVER_STEPS, Takeover,
};
use tailwater_shm::layout::VERSION;

use super::directory::Directory;
use super::takeover::{END_TIMEOUT, STEP_TIMEOUT};
use super::user::user;
use crate::authority::Subordinates;
use crate::config::Config;

/// Time between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// Maximum time until Linux has torn down a process that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a takeover ends whose answer lacks descriptors.
const FEWER: &str = "fewer descriptors came with the answer than it says; raise `ulimit -n`";

/// Why a takeover ends that its operator has stopped.
const INTERRUPTED: &str = "interrupted by a signal; that one goes on";

/// The running IOKernel, on the side of the new one.
#[derive(Debug)]
pub(crate) struct Predecessor {
    socket: OwnedFd,
    process: Process,
    listener: OwnedFd,
    /// The descriptors of its ports, by name.
    ports: HashMap<String, Vec<OwnedFd>>,
    /// Its programs.
    estate: Estate,
}

/// The process of the running IOKernel.
#[derive(Debug)]
struct Process {
    pid: Pid,
    /// `None` if it has handed none over.
    descriptor: Option<OwnedFd>,
}

impl Predecessor {
    /// Asks the IOKernel at the address of `config` for what is needed to serve `network` in its
    /// place. It goes on meanwhile, and if this value is dropped.
    ///
    /// # Errors
    /// Why it was not given, in words; or `stop` is set.
    pub(crate) fn ask(config: &Config, network: Network, stop: &AtomicBool) -> Result<Self, String> {
        let socket = dial(&config.socket, stop)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK)).map_err(|e| e.to_string())?;
        let takeover = Takeover {
            version: VERSION,
            steps: TAKEOVER_STEPS,
            network,
            macs: config.macs.clone().into(),
            max_kthreads: config.max_kthreads,
        };
        control::send(&socket, &ClientMessage::Takeover(takeover), &[]).map_err(in_words)?;
        let (process, ports, fds) = match receive(&socket, stop)? {
            (ServerMessage::Handover(Handover { process, ports }), fds) => (process, ports, fds),
            (ServerMessage::Refused { why }, _) => return Err(explained(why)),
            (other, _) => return Err(format!("unexpected answer: {other:?}")),
        };
        let (mut fds, count) = (fds.into_iter(), |port: &HandoverPort| usize::from(port.descriptors));
        let promised: usize = ports.iter().map(count).sum();
        let first = (fds.next(), fds.next(), process.and_then(|_| fds.next()));
        let (Some(listener), Some(estate), descriptor) = first else { return Err(FEWER.to_owned()) };
        if fds.len() != promised || descriptor.is_some() != process.is_some() {
            return Err(FEWER.to_owned());
        }
        let process = Process::of(&socket, process, descriptor).map_err(|e| e.to_string())?;
        let estate =
            Estate::from_file(estate).map_err(|e| format!("cannot read its list of programs ({e})"))?;
        let take = |port: HandoverPort| {
            let devices = fds.by_ref().take(count(&port)).collect();
            (port.name, devices)
        };
        let ports = ports.into_iter().map(take).collect();
        Ok(Self { socket, process, listener, ports, estate })
    }

    /// Keeps what its programs have for them, until they register.
    ///
    /// # Errors
    /// Which of them would be refused, and why.
    pub(crate) fn keep_places(&self, directory: &mut Directory) -> Result<(), String> {
        let owners = Subordinates::of_machine();
        directory.expect(&self.estate.programs, |uid, groups| user(uid, groups, &owners))
    }

    /// Passes the devices of its ports to those of the same names.
    ///
    /// # Errors
    /// If one of them cannot go on with its devices.
    pub(crate) fn pass_devices(&mut self, ports: &mut [Box<dyn Port>]) -> Result<(), PortError> {
        for port in ports {
            if let Some(devices) = self.ports.remove(port.name()) {
                port.inherit(devices)?;
                tracing::info!(port = port.name(), "goes on with the device of the running IOKernel");
            }
        }
        Ok(())
    }

    /// Returns the ports whose devices were not passed, with the numbers of their descriptors.
    pub(crate) fn left_devices(&self) -> Vec<(String, usize)> {
        self.ports.iter().map(|(port, devices)| (port.clone(), devices.len())).collect()
    }

    /// Returns its listening socket.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(crate) fn listener(&self) -> Result<OwnedFd, Errno> {
        fcntl_dupfd_cloexec(&self.listener, 0)
    }

    /// Has it end, and returns when it serves no program any more. `main` is called with the number
    /// of this process before that one may end, and with that one's if it goes on.
    ///
    /// # Errors
    /// Why it goes on, in words; that it hangs, and Linux does not let it be killed; or that it has
    /// not ended yet, and `stop` is set.
    pub(crate) fn succeed(self, stop: &AtomicBool, main: &dyn Fn(u32)) -> Result<(), String> {
        if is_set(stop) {
            return Err(INTERRUPTED.to_owned());
        }
        main(std::process::id());
        self.ask_to_end(stop).inspect_err(|_| main(self.process.pid.as_raw_nonzero().get() as u32))?;
        if let Err(error) = control::listen_instead(&self.listener) {
            tracing::warn!(%error, "programs take the IOKernel for the one before");
        }
        self.wait_for_its_end(stop)
    }

    /// Returns when it has promised to end.
    fn ask_to_end(&self, stop: &AtomicBool) -> Result<(), String> {
        control::send(&self.socket, &ClientMessage::Succeed, &[]).map_err(in_words)?;
        let answer = receive(&self.socket, stop).or_else(|why| {
            // From here on it cannot send the promise; it may have done so just now.
            let _ = shutdown(&self.socket, Shutdown::Read);
            control::receive(&self.socket).map_err(|_| why)
        });
        match answer? {
            (ServerMessage::Leaving, _) => Ok(()),
            (ServerMessage::Refused { why }, _) => Err(why),
            (other, _) => Err(format!("unexpected answer: {other:?}")),
        }
    }

    fn wait_for_its_end(&self, stop: &AtomicBool) -> Result<(), String> {
        let start = Instant::now();
        while !has_hung_up(&self.socket, LOOK) {
            if is_set(stop) {
                let pid = self.process.pid;
                return Err(format!(
                    "interrupted after it had promised to end: if process {pid} goes on to run, kill it. Programs wait \
                     for another IOKernel"
                ));
            }
            if start.elapsed() >= END_TIMEOUT {
                return self.process.kill(KILL_TIMEOUT);
            }
        }
        Ok(())
    }
}

impl Process {
    /// Returns the process of this number and descriptor; without them the one that called
    /// listen(2), which is not killed: it may have handed the socket on.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::SRCH`] if that one has no number here.
    fn of(socket: &OwnedFd, number: Option<i32>, descriptor: Option<OwnedFd>) -> Result<Self, Errno> {
        match number.filter(|&number| number > 0).and_then(Pid::from_raw) {
            Some(pid) => Ok(Self { pid, descriptor }),
            None => {
                // None: in another PID namespace.
                let pid = Peer::of(socket)?.pid.and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
                Ok(Self { pid, descriptor: None })
            }
        }
    }

    /// Kills the process, which has promised to end, and waits until it has ended, `limit` at most:
    /// once the signal is on its way, the process runs no more instructions of its own.
    ///
    /// # Errors
    /// If it may go on, in words.
    fn kill(&self, limit: Duration) -> Result<(), String> {
        let (pid, seconds) = (self.pid, END_TIMEOUT.as_secs());
        let Some(descriptor) = self.descriptor.as_ref().filter(|process| is_killed(process)) else {
            return Err(format!(
                "it has promised to end, and has not within {seconds} s: kill process {pid}, then start this one without \
                 --takeover; its programs wait for it"
            ));
        };
        tracing::warn!(
            %pid, "killed the IOKernel before, which had promised to end and has not within {seconds} s"
        );
        let mut ended = [PollFd::new(descriptor, PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        // After an interruption its devices may be in use for a moment longer.
        let _ = poll(&mut ended, Some(&limit));
        Ok(())
    }
}

/// Kills a process; returns whether that succeeds, or the process has ended.
fn is_killed(process: &OwnedFd) -> bool {
    matches!(pidfd_send_signal(process, Signal::KILL), Ok(()) | Err(Errno::SRCH))
}

/// Returns whether the other end of a connection was closed, after `limit` at most. A message, or
/// the end of what can be received, is no sign of that: this end may have been shut for receiving.
fn has_hung_up(socket: &OwnedFd, limit: Duration) -> bool {
    // poll(2): POLLHUP is reported whether or not it is requested.
    let mut end = [PollFd::new(socket, PollFlags::empty())];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let _ = poll(&mut end, Some(&limit));
    end[0].revents().contains(PollFlags::HUP)
}

/// Returns the reason of a refusal; if the running IOKernel does not understand the request, with
/// what follows from that.
fn explained(why: String) -> String {
    if why.contains("not one this version understands") {
        format!(
            "its build has other steps of a takeover ({why}); stop it, then start this one without --takeover: its \
             programs wait for it"
        )
    } else {
        why
    }
}

/// Connects to the IOKernel at `path`.
///
/// # Errors
/// Why not, in words; or `stop` is set.
fn dial(path: &str, stop: &AtomicBool) -> Result<OwnedFd, String> {
    let start = Instant::now();
    loop {
        match control::dial_within(path, LOOK) {
            // As many connections wait as Linux keeps.
            Err(ControlError::System { source: Errno::AGAIN, .. }) => go_on(start, stop)?,
            result => return result.map_err(in_words),
        }
    }
}

/// Returns the process of the IOKernel at `socket`, if there is one and Linux says which it is.
/// Waits for it no longer when `stop` is set.
pub fn process_at(socket: &str, stop: &AtomicBool) -> Option<i32> {
    Peer::of(dial(socket, stop).ok()?).ok()?.pid
}

/// Receives a message on a socket that waits for [`LOOK`].
fn receive(socket: &OwnedFd, stop: &AtomicBool) -> Result<(ServerMessage, Vec<OwnedFd>), String> {
    let start = Instant::now();
    loop {
        match control::receive(socket) {
            Err(ControlError::WouldBlock) => go_on(start, stop)?,
            result => return result.map_err(in_words),
        }
    }
}

/// Returns an error, in words, if a wait since `start` is to end.
fn go_on(start: Instant, stop: &AtomicBool) -> Result<(), String> {
    if is_set(stop) {
        Err(INTERRUPTED.to_owned())
    } else if start.elapsed() >= STEP_TIMEOUT {
        Err(in_words(ControlError::WouldBlock))
    } else {
        Ok(())
    }
}

fn is_set(stop: &AtomicBool) -> bool {
    // Relaxed: the flag publishes nothing else.
    stop.load(Ordering::Relaxed)
}

/// Says why the running IOKernel cannot be taken over from.
fn in_words(error: ControlError) -> String {
    match error {
        ControlError::Closed => {
            "it ended the connection; if it has ended, start this one without --takeover".to_owned()
        }
        ControlError::WouldBlock => format!("it does not answer within {} s", STEP_TIMEOUT.as_secs()),
        ControlError::OtherUser { theirs, ours, .. } => {
            format!("it is of user {theirs}, and this process of user {ours}; run as that user")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{PidfdFlags, pidfd_open};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_promise_that_is_found_after_the_shutdown_is_not_taken_for_the_end() {
        let none = SocketFlags::empty();
        let (old, new) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, none, None).unwrap();
        control::send(&old, &ServerMessage::Leaving, &[]).unwrap();
        shutdown(&new, Shutdown::Read).unwrap();
        let promise = control::receive::<ServerMessage>(&new);
        assert!(matches!(promise, Ok((ServerMessage::Leaving, _))), "{promise:?}");
        assert!(!has_hung_up(&new, Duration::ZERO));
        drop(old);
        assert!(has_hung_up(&new, KILL_TIMEOUT));
    }

    #[test]
    fn an_iokernel_that_does_not_understand_the_request_is_to_be_restarted() {
        let why = ControlError::Malformed { len: 200, why: "unknown field `steps`".to_owned() };
        assert!(explained(why.to_string()).contains("without --takeover"));
        assert_eq!(explained("another reason".to_owned()), "another reason");
    }

    #[test]
    fn a_process_that_hangs_is_killed_and_one_that_cannot_be_is_named() {
        if let Err(error) = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
            return eprintln!("skipped: pidfd_open(2): {error}");
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let descriptor = Some(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let unknown = Process { pid, descriptor: None };
        let why = unknown.kill(KILL_TIMEOUT).unwrap_err();
        assert!(why.contains(&format!("kill process {pid}")), "{why}");
        assert_eq!(child.try_wait().unwrap(), None);
        let known = Process { pid, descriptor };
        known.kill(KILL_TIMEOUT).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        // It has ended: nothing is left to kill.
        known.kill(KILL_TIMEOUT).unwrap();
    }
}
