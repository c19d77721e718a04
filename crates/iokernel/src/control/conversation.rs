//! One conversation on the control socket: a state machine from connection to registered runtime.
//!
//! | state | message | next |
//! |---|---|---|
//! | `Fresh` | `Register`, granted | `Offered`: the place is reserved, `Welcome` and the files are sent |
//! | `Fresh` | `Register`, its name or address is on the way out | `Waiting`: tried again when a runtime leaves |
//! | `Offered` | `Kthreads`, all of the peer's process | `Registered`: the polling thread attaches it, then `Ready` is sent |
//! | `Fresh` | `Capture`, of the same user or root | `Capturing`: the polling thread copies frames until the connection ends |
//! | `Fresh` | `Trace`, likewise | `Tracing`: the polling thread traces requests until the connection ends |
//! | `Fresh` | `Recorded`, from those who may trace | the same: the file of recorded events is sent |
//! | `Fresh` | `RequestCores`, of the runtime's user, the IOKernel's, or root | `Fresh`: the polling thread enters the request, `CoresRequested` is sent |
//! | `Fresh` | `Takeover`, of a process with the same rights | `Succeeding`: `Handover` and the descriptors are sent |
//! | `Succeeding` | `Succeed` | `Leaving` is sent, and the IOKernel ends |
//! | `Registered` | `EndEarlier` | the same: the [earlier instance](super::directory) of the program is sent `End` |
//! | any | `Stats`, `Rights` | the same: the answer is sent |
//! | any | anything else, or end of file | gone (`Registered`: the polling thread ends it first) |
//!
//! How a connection begins, and what is charged for it, is in [`accept`](super::accept); the steps
//! from `Register` to `Ready` are in [`registration`](super::registration).

use rustix::fd::AsFd;
use rustix::process::geteuid;
use std::sync::Arc;
use std::time::Instant;
use tailwater_ports::pcap::unix_ns;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::{
    self, CaptureRequest, Capturing, ClientMessage, ControlError, CoreRequest, Peer, ServerMessage,
    TraceRequest,
};

use super::client::ClientSocket;
use super::directory::{Named, Refusal};
use super::gate::{Wait, Work};
use super::session::{Caller, State};
use super::takeover::STEP_TIMEOUT;
use super::user::{is_trusted, user_of};
use super::{Command, Control, PATIENCE, process};
use crate::capture::{MAX_CAPTURES, Tap};
use crate::config::PolicyName;
use crate::machine::processor_time;
use crate::runtime::EndReason;
use crate::trace::Tracer;

impl Control {
    /// Serves an event on a connection, and charges the time to the client's user.
    pub(super) fn serve(&mut self, token: u64) {
        let (caller, began) = (self.caller_of(token), processor_time());
        let is_fresh = self.sessions.get(&token).is_some_and(|session| matches!(session.state, State::Fresh));
        let work = match self.check(caller) {
            Err(Wait { in_silence: true, .. }) if is_fresh => {
                self.parts.stats.polling.refused.add(1);
                return self.drop_session(token);
            }
            Err(_) if is_fresh => Work::Refusal,
            // What has begun is charged to its end.
            _ => Work::Service,
        };
        self.serve_message(token);
        self.charge(caller, work, began);
    }

    fn serve_message(&mut self, token: u64) {
        let Some(session) = self.sessions.get(&token) else { return };
        let socket = Arc::clone(&session.socket);
        let message = match control::receive_bare::<ClientMessage>(&*socket) {
            Ok(message) => message,
            Err(ControlError::WouldBlock) => return,
            Err(error) => return self.end(token, &error),
        };
        use ClientMessage::{Capture, Recorded, RequestCores, Rights, Stats, Takeover, Trace};
        if matches!(message, Stats | Rights | Recorded | RequestCores(_)) && !self.may_ask(token) {
            return;
        }
        let session = self.sessions.get_mut(&token).expect("looked up above");
        let state = core::mem::replace(&mut session.state, State::Fresh);
        let (what, served) = match (message, state) {
            (Capture(request), State::Fresh) => ("a capture", self.capture(token, &socket, &request)),
            (Trace(request), State::Fresh) => ("a trace", self.trace(token, &socket, &request)),
            (Recorded, State::Fresh) => {
                let begun = may_watch(&socket).and_then(|()| self.begin_reading(token, &socket));
                ("the record of events", begun)
            }
            (RequestCores(request), State::Fresh) => ("cores", self.request_cores(token, &socket, &request)),
            (Takeover(request), State::Fresh) => ("a takeover", self.hand_over(token, &socket, &request)),
            (message, state) => return self.go_on(token, socket, message, state),
        };
        served.unwrap_or_else(|why| self.deny(token, what, why));
    }

    /// Serves a message that is no request to be granted or denied, in this state.
    fn go_on(&mut self, token: u64, socket: Arc<ClientSocket>, message: ClientMessage, state: State) {
        match (message, state) {
            (ClientMessage::Stats, state) => {
                self.put_back(token, state);
                self.reply(token, &socket, &ServerMessage::Stats(self.parts.stats.to_json()));
            }
            (ClientMessage::Rights, state) => {
                self.put_back(token, state);
                let may = self.rights(token, &socket);
                self.reply(token, &socket, &ServerMessage::Rights { may });
            }
            (ClientMessage::Register(request), State::Fresh) => self.register(token, &socket, request),
            (ClientMessage::Succeed, State::Succeeding) => self.leave(token, socket),
            (ClientMessage::EndEarlier, State::Registered(id)) => {
                self.put_back(token, State::Registered(id));
                self.end_earlier(token, id);
            }
            (ClientMessage::Kthreads { tids }, State::Offered(offer)) => {
                self.accept_kthreads(token, &socket, offer, &tids);
            }
            (_, state) => {
                self.put_back(token, state);
                let why = "the message has no place in this conversation".to_owned();
                self.end(token, &ControlError::Malformed { len: 0, why });
            }
        }
    }

    /// Gives a conversation the state back that it had before the message; its deadline stays.
    fn put_back(&mut self, token: u64, state: State) {
        if let Some(session) = self.sessions.get_mut(&token) {
            session.state = state;
        }
    }

    /// Returns whether a client's user is served now; if not, ends the conversation.
    pub(super) fn may_ask(&mut self, token: u64) -> bool {
        let may = self.check(self.caller_of(token)).is_ok();
        if !may {
            self.end(token, &ControlError::TooOften);
        }
        may
    }

    /// Returns in words what the client's user may register.
    fn rights(&self, token: u64, socket: &ClientSocket) -> String {
        match (process::check_control(self.uid_of(token)), user_of(socket, &self.owners)) {
            (Err(refusal), _) => refusal.to_string(),
            (_, Ok(user)) => self.parts.directory.rights(&user),
            (_, Err(error)) => Refusal::Peer(error).to_string(),
        }
    }

    /// Ends a conversation that cannot go on.
    fn end(&mut self, token: u64, error: &ControlError) {
        let Some(session) = self.sessions.get(&token) else { return };
        let State::Registered(id) = session.state else {
            if !Self::is_closed(error) {
                let (socket, caller) = (Arc::clone(&session.socket), session.caller);
                if self.may_log(caller) {
                    tracing::info!(user = caller.uid, %error, "dropped a connection");
                }
                let why = error.to_string();
                let _ = control::send(&*socket, &ServerMessage::Refused { why }, &[]);
            }
            return self.drop_session(token);
        };
        // The polling thread sees the hang-up itself; reporting it twice is harmless.
        let closed = Self::is_closed(error);
        let reason = if closed { EndReason::Departed } else { error.clone().into() };
        // Removed from epoll until the retired runtime comes back and the session ends: the same
        // event would be reported for ever.
        let _ = rustix::event::epoll::delete(&self.epoll, &*session.socket);
        self.tell(Command::End(id, reason));
    }

    /// Returns the client of a connection.
    pub(super) fn caller_of(&self, token: u64) -> Caller {
        self.sessions.get(&token).map_or(Caller::GONE, |session| session.caller)
    }

    /// Returns the user of a client: root's number if the connection is gone.
    pub(super) fn uid_of(&self, token: u64) -> u32 {
        self.caller_of(token).uid
    }

    /// As [`Control::may_log`], of the client of a connection.
    pub(super) fn may_log_for(&mut self, token: u64) -> bool {
        self.may_log(self.caller_of(token))
    }

    /// Starts a capture.
    ///
    /// # Errors
    /// Why it is refused, or that the client does not take the answer.
    fn capture(&mut self, token: u64, socket: &ClientSocket, request: &CaptureRequest) -> Result<(), String> {
        let tap = self.make_tap(token, socket, request)?;
        let CaptureRequest { runtime, port, direction, .. } = request;
        let direction = direction.map(tracing::field::debug);
        tracing::info!(runtime, port, direction, "a capture begins");
        self.parts.stats.add_capture(Arc::clone(&tap.stats));
        self.set_state(token, State::Capturing);
        self.tell(Command::Capture(tap));
        Ok(())
    }

    /// Requests cores for a runtime.
    ///
    /// # Errors
    /// Why it is refused; a client that does not take the answer is dropped, which is no error.
    fn request_cores(
        &mut self,
        token: u64,
        socket: &ClientSocket,
        request: &CoreRequest,
    ) -> Result<(), String> {
        let (id, limit) = self.check_core_request(self.uid_of(token), request)?;
        self.tell(Command::RequestCores(id, u64::from_le_bytes(request.cores)));
        self.reply(token, socket, &ServerMessage::CoresRequested { limit });
        Ok(())
    }

    /// Sends an answer; ends the conversation if the client does not take it.
    fn reply(&mut self, token: u64, socket: &ClientSocket, answer: &ServerMessage) {
        match control::send_encoded(socket, &control::encode(answer), &[]) {
            Ok(()) => {}
            Err(error @ ControlError::TooLong) => self.end(token, &error),
            Err(_) => self.end(token, &ControlError::Closed),
        }
    }

    /// Returns for which runtime a user requests cores, and how many that may own by requests.
    fn check_core_request(&self, uid: u32, request: &CoreRequest) -> Result<(RuntimeId, u16), String> {
        let policy = self.parts.config.policy;
        if policy != PolicyName::Arbiter {
            return Err(format!(
                "requests for cores have no effect under policy = \"{}\"; set policy = \"arbiter\" in the \
                 configuration",
                policy.as_str()
            ));
        }
        let name = &request.runtime;
        let Some(Named { id, uid: owner, kthreads, guaranteed }) = self.parts.directory.named(name) else {
            return Err(format!(
                "no program \"{}\" is registered; `tailwater stats` lists those that are",
                control::printable(name)
            ));
        };
        if !is_trusted(uid) && uid != owner {
            return Err(format!(
                "user {uid} may not request cores for a program of user {owner}; run as root"
            ));
        }
        // As for what the program requests itself.
        Ok((id, if is_trusted(owner) { kthreads } else { guaranteed }))
    }

    /// Starts a trace.
    ///
    /// # Errors
    /// Why it is refused, or that the client does not take the answer.
    fn trace(&mut self, token: u64, socket: &ClientSocket, request: &TraceRequest) -> Result<(), String> {
        let tracer = self.make_tracer(token, socket, request)?;
        tracing::info!(every = request.every, runtime = request.runtime, "a trace begins");
        self.parts.stats.set_trace(Some(Arc::clone(&tracer.stats)));
        self.set_state(token, State::Tracing);
        self.tell(Command::Trace(tracer));
        Ok(())
    }

    /// Ends a conversation in which this was asked for, with the reason why it is refused.
    pub(super) fn deny(&mut self, token: u64, request: &str, why: String) {
        if self.may_log_for(token) {
            tracing::info!(why, "refused {request}");
        }
        if let Some(session) = self.sessions.get(&token) {
            // Fails if the peer is gone and needs no answer.
            let _ = control::send(&*session.socket, &ServerMessage::Refused { why }, &[]);
        }
        self.drop_session(token);
    }

    /// Sends a tracer the file in which events are recorded, and the present moment.
    fn begin_reading(&self, token: u64, socket: &ClientSocket) -> Result<(), String> {
        let (cycles, unix_ns) = (tailwater_shm::clock::now(), unix_ns());
        let answer = ServerMessage::Tracing(Capturing { id: token, cycles, unix_ns });
        control::send(socket, &answer, &[self.parts.record.as_fd()]).map_err(|e| e.to_string())
    }

    /// Returns a tracer, after sending the record of events to the peer.
    fn make_tracer(
        &self,
        token: u64,
        socket: &ClientSocket,
        request: &TraceRequest,
    ) -> Result<Box<Tracer>, String> {
        may_watch(socket)?;
        if self.parts.stats.trace().is_some() {
            return Err("a trace is going on already; end it".to_owned());
        }
        let tracer = Tracer::new(token, request)?;
        self.begin_reading(token, socket)?;
        Ok(tracer)
    }

    /// Returns a tap, after sending its ring to the watcher.
    fn make_tap(
        &self,
        token: u64,
        socket: &ClientSocket,
        request: &CaptureRequest,
    ) -> Result<Box<Tap>, String> {
        may_watch(socket)?;
        if self.parts.stats.captures().len() >= MAX_CAPTURES {
            return Err(format!("{MAX_CAPTURES} captures are going on already; end one"));
        }
        let ports = self.parts.stats.ports();
        let number = |name: &String| ports.iter().position(|port| port.name == *name).map(|n| n as u16);
        let port = request.port.as_ref().map(|name| {
            number(name).ok_or_else(|| {
                let there: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
                let name = control::printable(name);
                format!("there is no port `{name}`; the ports are: {}", there.join(", "))
            })
        });
        let clock = &self.parts.host.clock;
        let (tap, file) = Tap::new(token, request, port.transpose()?, clock)?;
        let (cycles, unix_ns) = (tailwater_shm::clock::now(), unix_ns());
        let welcome = ServerMessage::Capturing(Capturing { id: token, cycles, unix_ns });
        control::send(socket, &welcome, &[file.as_fd()]).map_err(|e| e.to_string())?;
        Ok(tap)
    }

    pub(super) fn tell(&self, command: Command) {
        self.parts.commands.send(command);
    }

    pub(super) fn set_state(&mut self, token: u64, state: State) {
        if let Some(session) = self.sessions.get_mut(&token) {
            session.deadline = match state {
                State::Registered(_) | State::Capturing | State::Tracing => None,
                State::Succeeding => Some(Instant::now() + STEP_TIMEOUT),
                _ => Some(Instant::now() + PATIENCE),
            };
            session.state = state;
        }
    }
}

/// Checks that the peer may see the traffic of this IOKernel.
fn may_watch(socket: &ClientSocket) -> Result<(), String> {
    let theirs = Peer::of(socket).map_err(|e| e.to_string())?.uid;
    if is_trusted(theirs) {
        return Ok(());
    }
    let ours = geteuid().as_raw();
    Err(format!("user {theirs} may not watch the traffic of user {ours}'s IOKernel; run as root"))
}
