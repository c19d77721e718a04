//! An IOKernel takes the place of another one: what passes from the old process to the new.
//!
//! Owns the side of the old one; [`predecessor`](super::predecessor) has that of the new one. The
//! new process connects to the control socket of the old one and is handed copies of two kinds of
//! descriptors: the listening socket, and the devices of the ports; and the list of the programs
//! ([`Control::hand_over`]). The old one serves as before while the new one makes all that it
//! needs, and looks whether it could take each of the programs. Only when nothing of that can fail
//! any more does the new one request that the old one end ([`Control::leave`]). The old one
//! promises that, ends all registrations, and closes the connection, upon which the new one polls
//! the ports. From the promise on the old one's control thread writes no line to its log until the
//! connection is closed: whatever reads the log may have stopped.
//!
//! The devices and the listening socket are worth as much as all rights of the old process: who
//! listens there gets the programs of all its users. So the old one hands them to a process of its
//! own user, of its namespaces and with at least its capabilities only ([`standing`]).
//!
//! The new one looks at its stop flag in every wait, last directly before it requests the end of
//! the old one. A stop after the promise comes too late: both end. If the old one has not ended by
//! then, the new one names its process.
//!
//! Programs find the same socket: connections wait in it until the new one accepts them, as frames
//! wait in a TAP device. Regions, counters and the ledger of cores do not pass. Programs register
//! again, as after a restart; the new one keeps the name, the address and all else that each had
//! for it, for [`REUNION`] ([`Directory::expect`](super::directory::Directory::expect)).
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
//! | new: has received `Leaving` | the connection ends: it serves | the connection stays: it kills the old one after [`END_TIMEOUT`], and serves; or, if Linux refuses that, ends |
//!
//! Two processes never serve one device: each frame would reach one of them by chance.
//!
//! The promise is all or nothing although the new process waits for it with a time-out and a stop
//! flag: it first shuts its receiving end, after which the old one cannot send, then looks for the
//! message once more.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::sync::Arc;
use std::time::Duration;
use tailwater_ports::PortInterface;
use tailwater_shm::Version;
use tailwater_shm::control::{
    self, Handover, HandoverPort, MAX_FDS, ServerMessage, SocketFile, TAKEOVER_STEPS, Takeover,
};

use super::client::ClientSocket;
use super::session::State;
use super::{Command, Control, standing};

/// Maximum time from one step to the next. Each takes milliseconds, but on a machine that other
/// programs keep busy a process may wait long for a core.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time from the promise of the old one until it has ended all registrations, which takes
/// milliseconds: programs wait for the new one meanwhile, by default for 60 s.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which addresses and other claims of the previous IOKernel's programs are kept for them.
/// It is half of the time that programs wait by default, so that the claims of a program that is
/// gone are free before another program that needs them gives up.
pub(super) const REUNION: Duration = Duration::from_secs(30);

/// Why a second takeover is refused.
const TAKEN: &str = "another IOKernel takes over from it already";

/// The descriptors of a port.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) port: String,
    pub(crate) files: Vec<OwnedFd>,
    /// A service manager may keep them.
    pub(crate) last: bool,
}

impl Control {
    /// Returns the file in which the polling thread records events.
    pub(crate) fn record(&self) -> &OwnedFd {
        &self.parts.record
    }

    /// Returns the devices of the ports.
    pub(crate) fn devices(&self) -> &[Devices] {
        &self.parts.devices
    }

    /// Hands the client what it needs to take this IOKernel's place.
    ///
    /// # Errors
    /// Why it is refused; a client that does not take the answer is dropped, which is no error.
    pub(super) fn hand_over(
        &mut self,
        token: u64,
        socket: &ClientSocket,
        request: &Takeover,
    ) -> Result<(), String> {
        self.may_take_over(socket, request)?;
        let devices = &self.parts.devices;
        let files = devices.iter().flat_map(|port| &port.files).map(AsFd::as_fd);
        let programs = self.parts.directory.registered().to_file();
        let programs =
            programs.map_err(|error| format!("it cannot write the list of its programs ({error})"))?;
        // Without a descriptor of this process the other one does not kill it if it hangs.
        let process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        let first =
            [Some(self.parts.listener.as_fd()), Some(programs.as_fd()), process.as_ref().map(AsFd::as_fd)];
        let first: Vec<BorrowedFd<'_>> = first.into_iter().flatten().collect();
        let fds: Vec<BorrowedFd<'_>> = first.iter().copied().chain(files).collect();
        if fds.len() > MAX_FDS {
            return Err(format!(
                "its ports have {} descriptors, and {} can be handed over at most: stop it, then start the other one \
                 without --takeover; its programs wait for it",
                fds.len() - first.len(),
                MAX_FDS - first.len()
            ));
        }
        let ports = devices
            .iter()
            .map(|Devices { port, files, .. }| HandoverPort {
                name: port.clone(),
                descriptors: files.len() as u16,
            })
            .collect();
        let process = process.is_some().then(|| getpid().as_raw_nonzero().get());
        match control::send(socket, &ServerMessage::Handover(Handover { process, ports }), &fds) {
            Ok(()) => {
                tracing::info!("another IOKernel prepares to take over");
                self.set_state(token, State::Succeeding);
            }
            Err(error) => {
                tracing::info!(%error, "another IOKernel was not handed the ports");
                self.drop_session(token);
            }
        }
        Ok(())
    }

    /// Ends this IOKernel, unless the client that takes its place is gone.
    pub(super) fn leave(&mut self, token: u64, socket: Arc<ClientSocket>) {
        if self.successor.is_some() {
            return self.deny(token, "a takeover", TAKEN.to_owned());
        }
        if let Err(error) = control::send(&*socket, &ServerMessage::Leaving, &[]) {
            tracing::info!(%error, "the other IOKernel does not take over");
            return self.drop_session(token);
        }
        if let Some(file) = self.parts.socket_file.take() {
            file.leave();
        }
        self.parts.interfaces.iter_mut().for_each(PortInterface::leave);
        for watched in [self.parts.listener.as_fd(), socket.as_fd()] {
            // Fails for a listener that is out already.
            let _ = rustix::event::epoll::delete(&self.epoll, watched);
        }
        self.sessions.remove(&token);
        // Closed with this value, when all registrations have ended.
        self.successor = Some(socket);
        self.tell(Command::Leave);
    }

    /// Ends the connection to the IOKernel that takes over, which serves from then on.
    pub(super) fn give_way(mut self) {
        if self.successor.take().is_some() {
            // After that: whatever reads the log may take its time.
            tracing::info!("another IOKernel has taken over");
        }
    }

    /// Removes the socket's file at the end: the previous IOKernel has left it to this one.
    pub(crate) fn own_socket_file(&mut self) {
        self.parts.socket_file = SocketFile::of(&self.parts.config.socket);
    }

    fn may_take_over(&self, socket: &ClientSocket, request: &Takeover) -> Result<(), String> {
        standing::check(socket)?;
        let (own, other) = (Version::OWN, Version(request.version));
        // Its programs may be as new as this one.
        if !other.serves(own) {
            return Err(format!(
                "it speaks version {own} of the protocol and this one version {other}, with which its programs cannot go \
                 on: stop that one and its programs, then start this one, and the programs built with it"
            ));
        }
        if request.steps != TAKEOVER_STEPS {
            return Err("its build has other steps of a takeover: stop it, then start this one without --takeover; its \
                 programs wait for it"
                .to_owned());
        }
        if request.network != self.parts.network {
            return Err(format!(
                "its programs have addresses in network {}, and this one would serve {}: take over with the same \
                 network, prefix-len, ipv6, network6, mtu and port, or stop that one and its programs first",
                self.parts.network, request.network
            ));
        }
        let config = &self.parts.config;
        if request.macs != config.macs.clone().into() {
            return Err(
                "its programs have the MAC addresses of its `macs`, and this one would give them others: take over with \
                 the same `macs`, or stop that one and its programs first"
                    .to_owned(),
            );
        }
        if request.max_kthreads < config.max_kthreads {
            return Err(format!(
                "its programs may have {} kthreads, and this one permits {}: take over with a max-kthreads of no less, \
                 or stop that one and its programs first",
                config.max_kthreads, request.max_kthreads
            ));
        }
        if self.successor.is_some() {
            return Err(TAKEN.to_owned());
        }
        Ok(())
    }
}
