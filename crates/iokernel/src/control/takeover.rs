//! An IOKernel takes the place of another one: what passes from the old process to the new.
//!
//! Owns both sides. The new process connects to the control socket of the old one and is handed
//! copies of two kinds of descriptors: the listening socket, and the devices of the ports
//! ([`Predecessor::ask`], [`Control::hand_over`]). The old one serves as before while the new one
//! makes all that it needs. Only when nothing of that can fail any more does the new one request
//! that the old one end ([`Predecessor::succeed`], [`Control::leave`]). The old one promises that,
//! ends all registrations, and closes the connection, upon which the new one polls the ports.
//!
//! The devices and the listening socket are worth as much as all rights of the old process: who
//! listens there gets the programs of all its users. So the old one hands them to a process of its
//! own user, of its namespaces and with at least its capabilities only ([`standing`]).
//!
//! The new one looks at its stop flag in every wait, last directly before it requests the end of
//! the old one. A stop after the promise comes too late: both end.
//!
//! Programs find the same socket: connections wait in it until the new one accepts them, as frames
//! wait in a TAP device. Regions, counters and the ledger of cores do not pass. Programs register
//! again, as after a restart.
//!
//! # Crash and lie
//!
//! | step | the other process dies here | lies here |
//! |---|---|---|
//! | new: has asked | the connection ends: it does not start | what it gets is of its own user or of root |
//! | old: has handed over | it goes on; the connection is dropped, at the latest after [`STEP_TIMEOUT`] | only a process of its own [`standing`], version and addresses is handed anything |
//! | new: has the devices | it notices when it wants to succeed, and does not start | a device of another name or kind is refused |
//! | old: sends `Leaving` | nothing is sent, and it goes on | - |
//! | old: has sent `Leaving` | it ends all the same, and programs wait for another IOKernel | - |
//! | new: has received `Leaving` | the connection ends: it serves | the connection stays: it serves after [`STEP_TIMEOUT`], and warns |
//!
//! The promise is all or nothing although the new process waits for it with a time-out and a stop
//! flag: it first shuts its receiving end, after which the old one cannot send, then looks for the
//! message once more.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_shm::control::{
    self, ClientMessage, ControlError, Handover, HandoverPort, Network, ServerMessage, SocketFile, Takeover,
};
use tailwater_shm::layout::VERSION;

use super::client::ClientSocket;
use super::session::State;
use super::{Command, Control, standing};
use crate::config::Config;
use crate::port::{Port, PortError};

/// Maximum time from one step to the next. Each takes milliseconds, but on a machine that other
/// programs keep busy a process may wait long for a core.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// Why a takeover ends that its operator has stopped.
const INTERRUPTED: &str = "interrupted by a signal; that one goes on";

/// Why a second takeover is refused.
const TAKEN: &str = "another IOKernel takes over from it already";

/// The descriptors of a port.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) port: String,
    pub(crate) files: Vec<OwnedFd>,
}

/// The running IOKernel, on the side of the new one.
#[derive(Debug)]
pub(crate) struct Predecessor {
    socket: OwnedFd,
    listener: OwnedFd,
    /// The descriptors of its ports, by name.
    ports: HashMap<String, Vec<OwnedFd>>,
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
            network,
            macs: config.macs.clone().into(),
            max_kthreads: config.max_kthreads,
        };
        control::send(&socket, &ClientMessage::Takeover(takeover), &[]).map_err(in_words)?;
        let (ports, fds) = match receive(&socket, stop)? {
            (ServerMessage::Handover(Handover { ports }), fds) => (ports, fds),
            (ServerMessage::Refused { why }, _) => return Err(why),
            (other, _) => return Err(format!("unexpected answer: {other:?}")),
        };
        let mut fds = fds.into_iter();
        let listener = fds.next().ok_or("no descriptor came with the answer; raise `ulimit -n`")?;
        let take = |port: HandoverPort| (port.name, fds.by_ref().take(port.descriptors.into()).collect());
        Ok(Self { socket, listener, ports: ports.into_iter().map(take).collect() })
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

    /// Returns its listening socket.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(crate) fn listener(&self) -> Result<OwnedFd, Errno> {
        fcntl_dupfd_cloexec(&self.listener, 0)
    }

    /// Has it end, and returns when it serves no program any more, or `stop` is set after it has
    /// promised to end.
    ///
    /// # Errors
    /// Why it goes on, in words.
    pub(crate) fn succeed(self, stop: &AtomicBool) -> Result<(), String> {
        if is_set(stop) {
            return Err(INTERRUPTED.to_owned());
        }
        control::send(&self.socket, &ClientMessage::Succeed, &[]).map_err(in_words)?;
        let answer = receive(&self.socket, stop).or_else(|why| {
            // From here on it cannot send the promise; it may have done so just now.
            let _ = shutdown(&self.socket, Shutdown::Read);
            control::receive(&self.socket).map_err(|_| why)
        });
        match answer? {
            (ServerMessage::Leaving, _) => {}
            (ServerMessage::Refused { why }, _) => return Err(why),
            (other, _) => return Err(format!("unexpected answer: {other:?}")),
        }
        if let Err(error) = control::listen_instead(&self.listener) {
            tracing::warn!(%error, "programs take the IOKernel for the one before");
        }
        self.wait_for_its_end(stop);
        Ok(())
    }

    fn wait_for_its_end(&self, stop: &AtomicBool) {
        let start = Instant::now();
        while matches!(control::receive::<ServerMessage>(&self.socket), Err(ControlError::WouldBlock)) {
            if is_set(stop) {
                return;
            }
            if start.elapsed() >= STEP_TIMEOUT {
                tracing::warn!(
                    "the IOKernel before has not ended its registrations within {} s; kill it, so that its programs attach here",
                    STEP_TIMEOUT.as_secs()
                );
                return;
            }
        }
    }
}

/// Connects to the IOKernel at `path`.
///
/// # Errors
/// Why not, in words; or `stop` is set.
pub(crate) fn dial(path: &str, stop: &AtomicBool) -> Result<OwnedFd, String> {
    let start = Instant::now();
    loop {
        match control::dial_within(path, LOOK) {
            // As many connections wait as Linux keeps.
            Err(ControlError::System { source: Errno::AGAIN | Errno::INTR, .. }) => go_on(start, stop)?,
            result => return result.map_err(in_words),
        }
    }
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
        ControlError::Closed => "it ended the connection".to_owned(),
        ControlError::WouldBlock => format!("it does not answer within {} s", STEP_TIMEOUT.as_secs()),
        ControlError::OtherUser { theirs, ours, .. } => {
            format!("it is of user {theirs}, and this process of user {ours}; run as that user")
        }
        other => other.to_string(),
    }
}

impl Control {
    /// Hands the client what it needs to take this IOKernel's place, or refuses with a reason.
    pub(super) fn hand_over(&mut self, token: u64, socket: &Arc<ClientSocket>, wish: &Takeover) {
        if let Err(why) = self.may_take_over(socket, wish) {
            return self.refuse_takeover(token, socket, why);
        }
        let devices = &self.parts.devices;
        let files = devices.iter().flat_map(|port| &port.files).map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> = [self.parts.listener.as_fd()].into_iter().chain(files).collect();
        let ports = devices
            .iter()
            .map(|Devices { port, files }| HandoverPort {
                name: port.clone(),
                descriptors: files.len() as u16,
            })
            .collect();
        match control::send(&**socket, &ServerMessage::Handover(Handover { ports }), &fds) {
            Ok(()) => {
                tracing::info!("another IOKernel prepares to take over");
                self.set_state(token, State::Succeeding);
            }
            Err(error) => {
                tracing::info!(%error, "another IOKernel was not handed the ports");
                self.drop_session(token);
            }
        }
    }

    /// Ends this IOKernel, unless the client that takes its place is gone.
    pub(super) fn leave(&mut self, token: u64, socket: Arc<ClientSocket>) {
        if self.successor.is_some() {
            return self.refuse_takeover(token, &socket, TAKEN.to_owned());
        }
        if let Err(error) = control::send(&*socket, &ServerMessage::Leaving, &[]) {
            tracing::info!(%error, "the other IOKernel does not take over");
            return self.drop_session(token);
        }
        if let Some(file) = self.parts.socket_file.take() {
            file.leave();
        }
        for watched in [self.parts.listener.as_fd(), socket.as_fd()] {
            // Fails for a listener that is out already.
            let _ = rustix::event::epoll::delete(&self.epoll, watched);
        }
        self.sessions.remove(&token);
        // Closed with this value, when all registrations have ended.
        self.successor = Some(socket);
        self.tell(Command::Leave);
        // Last: whatever reads the log may take its time.
        tracing::info!("another IOKernel takes over");
    }

    /// Removes the socket's file at the end: the IOKernel before has left it to this one.
    pub(crate) fn own_socket_file(&mut self) {
        self.parts.socket_file = SocketFile::of(&self.parts.config.socket);
    }

    fn refuse_takeover(&mut self, token: u64, socket: &ClientSocket, why: String) {
        if self.may_log_for(token) {
            tracing::info!(why, "refused a takeover");
        }
        // Fails if the peer is gone and needs no answer.
        let _ = control::send(socket, &ServerMessage::Refused { why }, &[]);
        self.drop_session(token);
    }

    fn may_take_over(&self, socket: &ClientSocket, wish: &Takeover) -> Result<(), String> {
        standing::check(socket)?;
        if wish.version != VERSION {
            return Err(format!(
                "it speaks version {VERSION} of the protocol and this one version {}, with which its programs cannot go \
                 on: stop that one and its programs, then start this one, and the programs built with it",
                wish.version
            ));
        }
        if wish.network != self.parts.network {
            return Err(format!(
                "its programs have addresses in network {}, and this one would serve {}: take over with the same \
                 network, prefix-len, ipv6, network6, mtu and port, or stop that one and its programs first",
                self.parts.network, wish.network
            ));
        }
        let config = &self.parts.config;
        if wish.macs != config.macs.clone().into() {
            return Err(
                "its programs have the MAC addresses of its `macs`, and this one would give them others: take over with \
                 the same `macs`, or stop that one and its programs first"
                    .to_owned(),
            );
        }
        if wish.max_kthreads < config.max_kthreads {
            return Err(format!(
                "its programs may have {} kthreads, and this one permits {}: take over with a max-kthreads of no less, \
                 or stop that one and its programs first",
                config.max_kthreads, wish.max_kthreads
            ));
        }
        if self.successor.is_some() {
            return Err(TAKEN.to_owned());
        }
        Ok(())
    }
}
