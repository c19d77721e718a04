//! Accepting clients, and what is charged to them.
//!
//! Owns who a client is, by what Linux says of the socket, whether it is served at this time, by
//! the [`gate`], and what the control thread's work for it is charged to. A connection
//! that cannot even be refused, for lack of descriptors, waits.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::time::{Duration, Instant};
use tailwater_shm::control::{self, Peer, ServerMessage};

use super::client::{ClientSocket, Closer};
use super::directory::Refusal;
use super::gate::{self, Client, Round, Wait, Work};
use super::session::{Caller, Session};
use super::user::{is_trusted, user, user_of};
use super::{Control, LISTENER, PATIENCE};
use crate::machine::processor_time;

/// Maximum number of connections accepted at once; further ones wait for the next round.
const ACCEPTS: usize = 64;
/// How long no connection is accepted after the kernel could not even refuse one.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns a time in milliseconds, rounded up.
fn in_ms(time: Duration) -> u64 {
    time.as_micros().div_ceil(1_000) as u64
}

/// Returns the refusal of a client that has to wait for this time.
pub(super) fn too_often(caller: Caller, wait: Duration) -> Refusal {
    let ms = in_ms(wait);
    match caller.unnamed_by {
        Some(grant) => Refusal::GrantTooOften { grant: grant + 1, uid: caller.uid, ms },
        None => Refusal::TooOften { uid: caller.owner, ms },
    }
}

/// Returns a descriptor to close when there is no other.
pub(super) fn new_spare() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

impl Control {
    pub(super) fn accept(&mut self) {
        // Connections wait in the listener for the IOKernel that takes over.
        if self.successor.is_some() {
            return;
        }
        let mut round = Round::default();
        self.accept_round(&mut round);
        if let Some(pause) = round.pause()
            && self.accepts_again.is_none()
        {
            self.pause(pause);
        }
    }

    /// Accepts connections; counts them by what is done with them.
    fn accept_round(&mut self, round: &mut Round) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS {
            let socket = match accept_with(&self.parts.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    match self.refuse_for_descriptors() {
                        Ok(()) => continue,
                        Err(Errno::AGAIN) => return,
                        Err(_) => {
                            if self.pause(PAUSE) {
                                tracing::warn!("no descriptors are left to accept connections with");
                            }
                            return;
                        }
                    }
                }
                // No connection waits, or the one that did is gone.
                Err(_) => return,
            };
            // A Unix socket that was accepted has the credentials of its peer.
            let Ok(Peer { uid, .. }) = Peer::of(&socket) else { continue };
            let socket = ClientSocket::new(socket, self.closer.clone());
            let began = processor_time();
            let caller = self.caller(uid, &socket);
            let ruling = self.check(caller);
            round.count(ruling);
            match ruling {
                Ok(()) => {
                    self.admit(caller, socket);
                    self.charge(caller, Work::Service, began);
                }
                // It takes little and is not charged; the pauses bound it.
                Err(Wait { in_silence: true, .. }) => self.parts.stats.polling.refused.add(1),
                Err(Wait { time, .. }) => {
                    self.refuse(caller, &socket, &too_often(caller, time));
                    self.charge(caller, Work::Refusal, began);
                }
            }
        }
    }

    /// Returns who the client of user `uid` is. Its groups are not read if the user owes too much,
    /// for there may be tens of thousands, nor if programs of the user return to this IOKernel:
    /// these do not wait for others.
    pub(super) fn caller(&self, uid: u32, socket: &ClientSocket) -> Caller {
        let directory = &self.parts.directory;
        let owner = directory.authority().counts_for(&user(uid, Vec::new(), &self.owners));
        let mut caller = Caller { uid, owner, unnamed_by: None };
        if !is_trusted(uid)
            && directory.authority().covers_unnamed()
            && self.check(caller).is_ok()
            && directory.expected(owner).0 == 0
        {
            let user = user_of(socket, &self.owners).ok();
            caller.unnamed_by = user.and_then(|user| directory.authority().unnamed_by(&user));
        }
        caller
    }

    /// Begins a conversation with a client, if there is room for one.
    fn admit(&mut self, caller: Caller, socket: ClientSocket) {
        let strangers = self.sessions.values().filter(|session| session.deadline.is_some());
        let closing = self.closer.as_ref().map_or(0, Closer::waiting);
        let expected = self.parts.directory.expected(caller.owner);
        let client = Client { user: caller.limited(), most: self.most_connections(&socket), expected };
        if !gate::have_room(client, strangers.map(|session| session.caller.limited()), closing) {
            return self.refuse(caller, &socket, &Refusal::TooManyConnections);
        }
        let token = self.next_token;
        self.next_token += 1;
        let watched = EventFlags::IN | EventFlags::RDHUP;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(token), watched).is_ok() {
            self.sessions.insert(token, Session::new(socket, caller, Instant::now() + PATIENCE));
        }
    }

    /// Charges the processor time of this thread since `began` to a client.
    pub(super) fn charge(&mut self, caller: Caller, work: Work, began: Duration) {
        let (took, now) = (processor_time().saturating_sub(began), Instant::now());
        caller.payers().for_each(|payer| self.gate.charge(payer, work, took, now));
    }

    /// Returns whether a client is served.
    ///
    /// # Errors
    /// If it is not for now.
    pub(super) fn check(&self, caller: Caller) -> Result<(), Wait> {
        let now = Instant::now();
        caller.payers().try_for_each(|payer| self.gate.check(payer, now))
    }

    /// Returns how many connections the client's user may have.
    fn most_connections(&self, socket: &ClientSocket) -> usize {
        let authority = self.parts.directory.authority();
        let user = if authority.limits_connections() { user_of(socket, &self.owners).ok() } else { None };
        user.and_then(|user| authority.connections(&user)).unwrap_or(gate::PER_USER)
    }

    /// Refuses a connection with the spare descriptor.
    ///
    /// # Errors
    /// If no connection waits, or the spare is gone.
    fn refuse_for_descriptors(&mut self) -> Result<(), Errno> {
        let Some(spare) = self.spare.take() else { return Err(Errno::MFILE) };
        drop(spare);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = accept_with(&self.parts.listener, flags).map(|socket| {
            let uid = Peer::of(&socket).map_or(0, |peer| peer.uid);
            let socket = ClientSocket::new(socket, self.closer.clone());
            self.refuse(self.caller(uid, &socket), &socket, &Refusal::NoDescriptors);
        });
        self.spare = Some(new_spare()?);
        accepted
    }

    /// Accepts nothing for this time: connections that wait would be reported again at once.
    /// Returns whether it did before.
    fn pause(&mut self, time: Duration) -> bool {
        // Fails only if it is out already.
        let _ = epoll::delete(&self.epoll, &self.parts.listener);
        self.accepts_again.replace(Instant::now() + time).is_none()
    }

    pub(super) fn end_pause(&mut self) {
        if self.successor.is_some() || self.accepts_again.is_none_or(|time| Instant::now() < time) {
            return;
        }
        if self.spare.is_none() {
            self.spare = new_spare().ok();
        }
        let watched =
            epoll::add(&self.epoll, &self.parts.listener, EventData::new_u64(LISTENER), EventFlags::IN);
        if self.spare.is_some() && watched.is_ok() {
            self.accepts_again = None;
        } else {
            self.pause(PAUSE);
        }
    }

    /// Returns whether a client may cause a line of the log; if not, counts it. None may while
    /// another IOKernel waits for the end of this one.
    pub(super) fn may_log(&mut self, caller: Caller) -> bool {
        let payer = caller.payers().last();
        let may = |payer| self.gate.take_line(payer, Instant::now());
        self.successor.is_none() && payer.is_none_or(may)
    }

    /// Logs how many lines were left out of the log, where that is due.
    pub(super) fn log_left_out(&mut self) {
        if let Some(lines) = self.gate.take_left_out(Instant::now()) {
            tracing::info!(lines, "left out of the log, of users who cause too many");
        }
    }

    /// Refuses a client.
    pub(super) fn refuse(&mut self, caller: Caller, socket: impl AsFd, refusal: &Refusal) {
        self.parts.stats.polling.refused.add(1);
        if self.may_log(caller) {
            tracing::info!(user = caller.uid, %refusal, "refused a registration");
        }
        // Fails if the peer is gone and needs no answer.
        let _ = control::send(socket, &ServerMessage::Refused { why: refusal.to_string() }, &[]);
    }
}
