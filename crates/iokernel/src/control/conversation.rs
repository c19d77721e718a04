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

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::geteuid;
use std::sync::Arc;
use std::time::Instant;
use tailwater_host::control_groups;
use tailwater_ports::frame::PREFIX_LEN6;
use tailwater_ports::pcap::unix_ns;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::{
    self, CaptureRequest, Capturing, ClientMessage, ControlError, CoreRequest, Ipv6Place, Peer, Register,
    ServerMessage, TraceRequest, Welcome,
};
use tailwater_shm::layout::{REGION_NAME, Region};
use tailwater_shm::memory::{self, MemoryError};

use super::client::ClientSocket;
use super::directory::{Named, Place, Refusal};
use super::gate::{Wait, Work};
use super::owed::Owed;
use super::process::Folder;
use super::session::{Caller, Offer, Session, State};
use super::takeover::STEP_TIMEOUT;
use super::{Command, Control, Notice, PATIENCE, is_trusted, numbers, process, rank, too_often, user_of};
use crate::capture::{MAX_CAPTURES, Tap};
use crate::config::PolicyName;
use crate::firewall::Guard;
use crate::machine::processor_time;
use crate::runtime::{Admission, EndReason, Runtime, knows_board};
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
        let (request, served) = match (message, state) {
            (Capture(request), State::Fresh) => ("a capture", self.capture(token, &socket, &request)),
            (Trace(request), State::Fresh) => ("a trace", self.trace(token, &socket, &request)),
            (Recorded, State::Fresh) => {
                let begun = may_watch(&socket).and_then(|()| self.begin_reading(token, &socket));
                ("the record of events", begun)
            }
            (RequestCores(request), State::Fresh) => ("cores", self.request_cores(token, &socket, &request)),
            (Takeover(wish), State::Fresh) => ("a takeover", self.hand_over(token, &socket, &wish)),
            (message, state) => return self.go_on(token, socket, message, state),
        };
        served.unwrap_or_else(|why| self.deny(token, request, why));
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
            (ClientMessage::Register(wish), State::Fresh) => self.register(token, &socket, wish),
            (ClientMessage::Succeed, State::Succeeding) => self.leave(token, socket),
            (ClientMessage::EndEarlier, State::Registered(id)) => {
                self.put_back(token, State::Registered(id));
                self.end_earlier(token, id);
            }
            (ClientMessage::Kthreads { tids }, State::Offered(offer)) => {
                self.enlist(token, &socket, offer, &tids);
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
    fn uid_of(&self, token: u64) -> u32 {
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
        let clock = &self.parts.surroundings.clock;
        let (tap, file) = Tap::new(token, request, port.transpose()?, clock)?;
        let (cycles, unix_ns) = (tailwater_shm::clock::now(), unix_ns());
        let welcome = ServerMessage::Capturing(Capturing { id: token, cycles, unix_ns });
        control::send(socket, &welcome, &[file.as_fd()]).map_err(|e| e.to_string())?;
        Ok(tap)
    }

    pub(super) fn tell(&self, command: Command) {
        self.parts.commands.send(command);
    }

    /// Retries a registration that waits.
    pub(super) fn retry(&mut self, token: u64) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        let (socket, deadline) = (Arc::clone(&session.socket), session.deadline);
        if let State::Waiting(wish) = core::mem::replace(&mut session.state, State::Fresh) {
            self.register(token, &socket, wish);
        }
        // One that goes on waiting waits no longer for that.
        if let Some(session) = self.sessions.get_mut(&token)
            && matches!(session.state, State::Waiting(_))
        {
            session.deadline = deadline;
        }
    }

    fn register(&mut self, token: u64, socket: &Arc<ClientSocket>, wish: Register) {
        let caller = self.caller_of(token);
        match self.offer(caller, socket, &wish) {
            Ok(offer) => self.set_state(token, State::Offered(offer)),
            Err(refusal) if is_about_others(&refusal) && self.a_runtime_leaves() => {
                self.set_state(token, State::Waiting(wish));
            }
            Err(refusal) => {
                self.parts.stats.note_refusal(&wish.name, caller.uid, &refusal.to_string());
                self.refuse(caller, &**socket, &refusal);
                self.drop_session(token);
            }
        }
    }

    /// Returns the number of the grant that a program counts to, from 1; 0 without one.
    pub(super) fn grant_number(&self, id: RuntimeId) -> u64 {
        self.parts.directory.grant(id).map_or(0, |grant| grant as u64 + 1)
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

    /// Returns whether a registered runtime has hung up and is not yet released.
    fn a_runtime_leaves(&self) -> bool {
        let hangs_up = |session: &Session| {
            matches!(session.state, State::Registered(_))
                && process::has_event(&*session.socket, PollFlags::RDHUP) == Ok(true)
        };
        self.sessions.values().any(hangs_up)
    }

    /// Reserves a place, makes the memory and sends the welcome.
    fn offer(
        &mut self,
        caller: Caller,
        socket: &ClientSocket,
        wish: &Register,
    ) -> Result<Box<Offer>, Refusal> {
        let peer = Peer::of(socket).map_err(Refusal::Peer)?;
        process::check_control(peer.uid)?;
        let pid = peer.pid.ok_or(Refusal::Unseen)?;
        let process = process::at(socket, pid).map_err(Refusal::Peer)?;
        let user = user_of(socket, &self.owners).map_err(Refusal::Peer)?;
        let uid = user.uid;
        self.check(caller).map_err(|wait| too_often(caller, wait.time))?;
        self.parts.directory.forgive(Owed::lives);
        let place = self.parts.directory.admit(&user, wish)?;
        let id = place.id;
        let ports = self.claim_ports(&user, wish, &place);
        let offer =
            ports.and_then(|ports| self.make_offer(socket, wish, (place, ports), (uid, pid, process)));
        offer.inspect_err(|_| self.release(id))
    }

    /// Enters a program that is ready in the list for the next IOKernel.
    fn list_ready(&mut self, id: RuntimeId, program: Option<Owed>) {
        if let (Some(list), Some(program)) = (&mut self.list, program) {
            list.add(id, program, self.parts.directory.owed());
        }
    }

    fn make_offer(
        &mut self,
        socket: &ClientSocket,
        wish: &Register,
        (place, outgoing): (Place, Option<(u16, u16)>),
        (uid, pid, process): (u32, i32, OwnedFd),
    ) -> Result<Box<Offer>, Refusal> {
        let hz = self.parts.surroundings.clock.hz();
        let (region, ends, file) = Region::create_sparse(REGION_NAME, place.region, hz)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = eventfd(0, flags).map_err(Refusal::Doorbell)?;
        let has_place = knows_board(wish.version) && place.first_place.is_some();
        let directory = &self.parts.directory;
        let board =
            if has_place { self.boards.of(uid, |user| directory.has_programs_of(user)) } else { None };
        let welcome = Welcome {
            ip: place.ip,
            prefix_len: self.parts.config.prefix_len,
            gateway: self.parts.surroundings.gateway,
            ipv6: place.ip6.map(|ip| Ipv6Place {
                ip,
                prefix_len: PREFIX_LEN6,
                gateway: self
                    .parts
                    .surroundings
                    .gateway
                    .and_then(|gateway| self.parts.config.ip6_of(gateway)),
            }),
            mac: place.mac.0,
            mtu: self.parts.config.mtu,
            managed_cores: self.parts.surroundings.managed_cores.clone(),
            raise: self.parts.config.is_dedicated() || crate::machine::may_rank(),
            place: board.as_ref().and(place.first_place),
            outgoing,
        };
        let files = [Some(file.as_fd()), Some(doorbell.as_fd()), board.as_deref().map(AsFd::as_fd)];
        let files: Vec<BorrowedFd<'_>> = files.into_iter().flatten().collect();
        control::send(socket, &ServerMessage::Welcome(welcome), &files)?;
        let has_board = board.is_some();
        Ok(Box::new(Offer {
            place,
            wish: wish.clone(),
            region,
            ends,
            file,
            doorbell,
            has_board,
            pid,
            process,
        }))
    }

    fn enlist(&mut self, token: u64, socket: &Arc<ClientSocket>, offer: Box<Offer>, tids: &[i32]) {
        let (id, pid) = (offer.place.id, offer.pid);
        let uid = self.uid_of(token);
        let checked = Folder::open(pid, uid).and_then(|folder| {
            let found = self.parts.directory.enlist(id, tids, |tids| numbers::find(&folder, tids))?;
            // After all that was read: the folder was opened while the process lived that still
            // does.
            process::check(&offer.process, &folder)?;
            process::check_binding(pid, &found).map(|()| (folder, found))
        });
        let (folder, tids) = match checked {
            Ok(checked) => checked,
            Err(refusal) => {
                self.parts.stats.note_refusal(&offer.wish.name, uid, &refusal.to_string());
                self.refuse(self.caller_of(token), &**socket, &refusal);
                self.set_state(token, State::Offered(offer));
                return self.drop_session(token);
            }
        };
        let stat = folder.read("stat");
        let owed = Owed::new(&offer.wish.name, offer.place.ip, uid, (pid, &stat));
        if let Some(session) = self.sessions.get_mut(&token) {
            session.owed = owed;
        }
        self.set_state(token, State::Registered(id));
        let Offer { place, wish, region, ends, file, doorbell, has_board, pid, process } = *offer;
        let process = Some(process);
        let (served, socket) = (socket, Arc::clone(socket));
        let (config, hz) = (&self.parts.config, self.parts.surroundings.clock.hz());
        let guard = Guard::compile(&config.firewall, &wish.name, hz);
        let rules = self.parts.stats.firewall();
        let user = uid;
        let admission =
            Admission { place, wish, region, ends, doorbell, pid, user, socket, process, guard, rules };
        let mut runtime = Runtime::new(admission, &tids);
        runtime.stats.grant.set(self.grant_number(id));
        if !is_trusted(uid) {
            // Cores that no grant permits its user cannot be requested either.
            runtime.may_request = runtime.spec.guaranteed;
            runtime.key = Some(self.key_of(uid, id));
        }
        let groups = folder.read("cgroup");
        runtime.group = rank::group(&folder, &groups);
        runtime.board = has_board.then_some(uid);
        let group = self.parts.keeper.group_of(&groups).map(str::to_owned);
        runtime.confined = group.is_some();
        if let Some(group) = group.filter(|_| self.may_log_for(token)) {
            tracing::info!(
                name = runtime.stats.name,
                group,
                "is in a control group that is kept off requested cores (reserve.keep-off): it is lent none of others, \
                 and ordinary threads run on its own; start it in another group"
            );
        }
        self.note_quota(token, &runtime, &groups);
        let class = runtime.stats.class;
        runtime._session = rank::session(&folder, &stat, class, self.parts.config.is_dedicated());
        runtime.folder = Some(folder);
        if self.may_log_for(token) {
            tracing::info!(%id, name = runtime.stats.name, ip = %runtime.ip, ip6 = runtime.stats.ip6.map(tracing::field::display), kthreads = tids.len(), "registered");
        }
        self.parts.stats.polling.registered.add(1);
        self.parts.stats.add_runtime(Arc::clone(&runtime.stats));
        if let Err(error) = self.populate_and_attach(runtime, file) {
            self.parts.stats.remove_runtime(id);
            self.refuse(self.caller_of(token), &**served, &Refusal::Thread(error.to_string()));
            self.sessions.remove(&token);
            self.release(id);
        }
    }

    /// Logs that a control group limits the processor time of a program, whose groups are `groups`,
    /// to less than that of its kthreads.
    fn note_quota(&mut self, token: u64, runtime: &Runtime, groups: &str) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let quota = control_groups::lowest_quota(control_groups::folders_of(&mounts, groups));
        let kthreads = runtime.spec.kthreads;
        let Some(quota) = quota.filter(|quota| quota.cores < f64::from(kthreads)) else { return };
        if self.may_log_for(token) {
            tracing::warn!(
                name = runtime.stats.name,
                kthreads,
                quota = format!("{:.2} cores", quota.cores),
                file = %quota.file.display(),
                "has a CPU quota below its kthreads, which poll: when it is used up, all its threads stand still for the \
                 rest of the period; remove it (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=) and limit \
                 cores by --kthreads"
            );
        }
    }

    /// Has a thread of its own seal and make the memory of an accepted runtime, which takes up to a
    /// second for a program that has not touched it, and then pass the runtime to the polling
    /// thread, or back to this one with the reason why not.
    fn populate_and_attach(&self, runtime: Box<Runtime>, file: OwnedFd) -> std::io::Result<()> {
        let (commands, notices) = (self.parts.commands.clone(), self.parts.own_notices.clone());
        // A runtime that has hung up meanwhile is ended by the polling thread.
        let populate = move || match make_memory(&runtime, &file) {
            Ok(()) => commands.send(Command::Attach(runtime)),
            Err(reason) => notices.send(Notice::Retired(runtime, reason)),
        };
        std::thread::Builder::new().name("tailwater-memory".to_owned()).spawn(populate).map(drop)
    }

    /// Sends `Ready`, then lets the runtime have cores: the switch has its address, so a runtime is
    /// reachable once it is ready.
    pub(super) fn greet(&mut self, id: RuntimeId) {
        let Some(session) = self.session_of(id) else { return };
        // Fails if the peer is gone, which the polling thread notices itself. What is kept for it
        // stays so then.
        let expected = self.parts.directory.expects();
        if control::send(&*session.socket, &ServerMessage::Ready, &[]).is_ok() {
            let program = session.owed.clone();
            self.parts.directory.settle(id);
            if let Some(program) = &program {
                self.parts.directory.repay(program);
            }
            self.list_ready(id, program);
        }
        // It may have been on its way to the polling thread when rules or grants changed.
        if self.rules_changed {
            self.replace_rules(|other| other == id);
        }
        if self.grants_changed {
            self.replace_keys(|other| other == id);
        }
        self.tell(Command::Begin(id));
        self.tell_instances(id);
        if expected && !self.parts.directory.expects() {
            // Last: from then on the polling thread may leave this one no time.
            self.tell(Command::Reunited);
        }
    }
}

/// Seals the memory of a runtime, which has mapped it, and makes what pages are missing. Those of a
/// user without rights are the program's to make: the pages are charged to the control group of the
/// process that touches them first, and stay for as long as the program keeps the file.
fn make_memory(runtime: &Runtime, file: &OwnedFd) -> Result<(), EndReason> {
    let no_memory = |error: MemoryError| EndReason::NoMemory(error.to_string());
    memory::freeze(file).map_err(|error| EndReason::Sealed(error.to_string()))?;
    if !runtime.is_trusted() {
        // After the seal: from then on no page is taken out again.
        let (hole, len) = (memory::first_hole(file).map_err(no_memory)?, runtime.region.spec().region_len());
        if hole < len {
            return Err(EndReason::Unpopulated { hole, len });
        }
    }
    runtime.region.populate().map_err(no_memory)
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

/// Returns whether the refusal would go away if another runtime left.
fn is_about_others(refusal: &Refusal) -> bool {
    if let Refusal::Denied(denial) = refusal {
        return denial.is_about_others();
    }
    matches!(
        refusal,
        Refusal::NameTaken(_)
            | Refusal::NotBeside { .. }
            | Refusal::AddressTaken { .. }
            | Refusal::MacTaken { .. }
            | Refusal::GuaranteeOversubscribed { .. }
            | Refusal::PoolExhausted
            | Refusal::Ports(_)
            | Refusal::TooManyRuntimes(_)
            | Refusal::NoKthreads { .. }
            | Refusal::RegionBytes { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::NotBeside;

    #[test]
    fn a_registration_waits_for_the_end_of_an_instance_that_leaves() {
        let name = "web".to_owned();
        assert!(is_about_others(&Refusal::NotBeside { name, why: NotBeside::Replaced }));
        assert!(!is_about_others(&Refusal::TooManyConnections));
    }
}
