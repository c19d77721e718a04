//! A program registers: from `Register` to `Ready`.
//!
//! Owns the steps of [one conversation](super::conversation) that make a runtime: its place, memory
//! and welcome; the check of its threads; the thread that makes its memory; and the moment at which
//! it may have cores. Every step that is refused takes the place back.

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tailwater_host::control_groups;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::{self, Ipv6Place, Peer, Register, ServerMessage, Welcome};
use tailwater_shm::layout::{REGION_NAME, Region};
use tailwater_shm::memory::{self, MemoryError};
use tailwater_wire::frame::PREFIX_LEN6;

use super::accept::too_often;
use super::client::ClientSocket;
use super::directory::{Assignment, Refusal};
use super::owed::Owed;
use super::process::Folder;
use super::session::{Caller, Offer, Session, State};
use super::user::{is_trusted, user_of};
use super::{Command, Control, Notice, numbers, process, rank};
use crate::firewall::Guard;
use crate::runtime::{Admission, EndReason, Runtime, knows_board};

impl Control {
    /// Retries a registration that waits.
    pub(super) fn retry(&mut self, token: u64) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        let (socket, deadline) = (Arc::clone(&session.socket), session.deadline);
        if let State::Waiting(request) = core::mem::replace(&mut session.state, State::Fresh) {
            self.register(token, &socket, request);
        }
        // One that goes on waiting waits no longer for that.
        if let Some(session) = self.sessions.get_mut(&token)
            && matches!(session.state, State::Waiting(_))
        {
            session.deadline = deadline;
        }
    }

    pub(super) fn register(&mut self, token: u64, socket: &Arc<ClientSocket>, request: Register) {
        let caller = self.caller_of(token);
        match self.offer(caller, socket, &request) {
            Ok(offer) => self.set_state(token, State::Offered(offer)),
            Err(refusal) if is_about_others(&refusal) && self.a_runtime_leaves() => {
                self.set_state(token, State::Waiting(request));
            }
            Err(refusal) => {
                self.parts.stats.note_refusal(&request.name, caller.uid, &refusal.to_string());
                self.refuse(caller, &**socket, &refusal);
                self.drop_session(token);
            }
        }
    }

    /// Returns the number of the grant that a program counts to, from 1; 0 without one.
    pub(super) fn grant_number(&self, id: RuntimeId) -> u64 {
        self.parts.directory.grant(id).map_or(0, |grant| grant as u64 + 1)
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
        request: &Register,
    ) -> Result<Box<Offer>, Refusal> {
        let peer = Peer::of(socket).map_err(Refusal::Peer)?;
        process::check_control(peer.uid)?;
        let pid = peer.pid.ok_or(Refusal::Unseen)?;
        let process = process::at(socket, pid).map_err(Refusal::Peer)?;
        let user = user_of(socket, &self.owners).map_err(Refusal::Peer)?;
        let uid = user.uid;
        self.check(caller).map_err(|wait| too_often(caller, wait.time))?;
        self.parts.directory.forgive(Owed::lives);
        let place = self.parts.directory.admit(&user, request)?;
        let id = place.id;
        let ports = self.claim_ports(&user, request, &place);
        let offer =
            ports.and_then(|ports| self.make_offer(socket, request, (place, ports), (uid, pid, process)));
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
        request: &Register,
        (place, outgoing): (Assignment, Option<(u16, u16)>),
        (uid, pid, process): (u32, i32, OwnedFd),
    ) -> Result<Box<Offer>, Refusal> {
        let hz = self.parts.host.clock.hz();
        let (region, ends, file) = Region::create_sparse(REGION_NAME, place.region, hz)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = eventfd(0, flags).map_err(Refusal::Doorbell)?;
        let has_place = knows_board(request.version) && place.first_place.is_some();
        let directory = &self.parts.directory;
        let board =
            if has_place { self.boards.of(uid, |user| directory.has_programs_of(user)) } else { None };
        let welcome = Welcome {
            ip: place.ip,
            prefix_len: self.parts.config.prefix_len,
            gateway: self.parts.host.gateway,
            ipv6: place.ip6.map(|ip| Ipv6Place {
                ip,
                prefix_len: PREFIX_LEN6,
                gateway: self.parts.host.gateway.and_then(|gateway| self.parts.config.ip6_of(gateway)),
            }),
            mac: place.mac.0,
            mtu: self.parts.config.mtu,
            managed_cores: self.parts.host.managed_cores.clone(),
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
            request: request.clone(),
            region,
            ends,
            file,
            doorbell,
            has_board,
            pid,
            process,
        }))
    }

    pub(super) fn accept_kthreads(
        &mut self,
        token: u64,
        socket: &Arc<ClientSocket>,
        offer: Box<Offer>,
        tids: &[i32],
    ) {
        let (id, pid) = (offer.place.id, offer.pid);
        let uid = self.uid_of(token);
        let checked = Folder::open(pid, uid).and_then(|folder| {
            let found =
                self.parts.directory.accept_kthreads(id, tids, |tids| numbers::find(&folder, tids))?;
            // After all that was read: the folder was opened while the process lived that still
            // does.
            process::check(&offer.process, &folder)?;
            process::check_binding(pid, &found)?;
            // The polling thread reads these files later, of best-effort programs alone. As a rule
            // Linux finds them then without waiting for a thread of the program that holds the lock
            // of their folder.
            if offer.request.class == control::ProgramClass::BestEffort {
                for &tid in &found {
                    let _ = tailwater_batch::proc::thread_ns(pid, tid);
                }
            }
            Ok((folder, found))
        });
        let (folder, tids) = match checked {
            Ok(checked) => checked,
            Err(refusal) => {
                self.parts.stats.note_refusal(&offer.request.name, uid, &refusal.to_string());
                self.refuse(self.caller_of(token), &**socket, &refusal);
                self.set_state(token, State::Offered(offer));
                return self.drop_session(token);
            }
        };
        let stat = folder.read("stat");
        let owed = Owed::new(&offer.request.name, offer.place.ip, uid, (pid, &stat));
        if let Some(session) = self.sessions.get_mut(&token) {
            session.owed = owed;
        }
        self.set_state(token, State::Registered(id));
        let Offer { place, request, region, ends, file, doorbell, has_board, pid, process } = *offer;
        let process = Some(process);
        let (served, socket) = (socket, Arc::clone(socket));
        let (config, hz) = (&self.parts.config, self.parts.host.clock.hz());
        let guard = Guard::compile(&config.firewall, &request.name, hz);
        let rules = self.parts.stats.firewall();
        let user = uid;
        let admission =
            Admission { place, request, region, ends, doorbell, pid, user, socket, process, guard, rules };
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
        runtime.confined = self.is_kept_off(token, &runtime, &groups);
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

    /// Returns, and logs, whether one of a program's control groups is kept off requested cores.
    fn is_kept_off(&mut self, token: u64, runtime: &Runtime, groups: &str) -> bool {
        let Some(group) = self.parts.keeper.group_of(groups).map(str::to_owned) else { return false };
        if self.may_log_for(token) {
            tracing::info!(
                name = runtime.stats.name,
                group,
                "is in a control group that is kept off requested cores (reserve.keep-off): it is lent none of others, \
                 and ordinary threads run on its own; start it in another group"
            );
        }
        true
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
