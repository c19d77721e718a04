//! What the two instances of a program are sent about each other.
//!
//! Owns the messages, and that to the polling thread about which of two gets their frames; who may
//! stand beside whom, and which of two is the later one, is decided in the
//! [`directory`](super::directory::instances) alone: memory is made by a thread for each program,
//! so two of them are attached in either order.

use tailwater_sched::RuntimeId;
use tailwater_shm::control::{self, Instance, ServerMessage};

use super::{Command, Control};

impl Control {
    /// Sends a program that is ready, and the other instance of it, how they stand to each other.
    pub(super) fn tell_instances(&mut self, id: RuntimeId) {
        let Some(name) = self.parts.directory.name_of(id).map(str::to_owned) else { return };
        // Until then the other instance may come back.
        if self.reunion_ends.is_none() {
            self.parts.directory.note_alone(&name);
        }
        self.send_instances(&name);
    }

    /// Sends the one program of this name that it has no counterpart, if that is so.
    pub(super) fn tell_alone(&mut self, name: &str) {
        self.parts.directory.note_alone(name);
        self.send_instances(name);
    }

    /// Releases the place of a program that the polling thread does not have, or no longer. Another
    /// instance is sent that it is alone again.
    pub(super) fn release(&mut self, id: RuntimeId) {
        self.parts.interfaces.iter_mut().for_each(|interface| interface.release(id));
        if let Some(name) = self.parts.directory.release(id) {
            self.send_instances(&name);
        }
    }

    /// Sends the registered instances of this name, and the polling thread, how they stand to each
    /// other.
    fn send_instances(&self, name: &str) {
        let there = self.parts.directory.instances(name);
        for &(id, instance) in &there {
            self.send_to(id, &ServerMessage::Instance(instance));
            if let Some(session) = self.session_of(id) {
                session.ends_earlier.set(instance == Instance::Replaces);
            }
        }
        let of = |wanted| there.iter().find(|(_, instance)| *instance == wanted).map(|&(id, _)| id);
        if let (Some(earlier), Some(later)) = (of(Instance::Replaced), of(Instance::Replaces)) {
            self.tell(Command::Pair { earlier, later });
        }
    }

    /// Sends the earlier instance of the program of this connection that it is to end. The first
    /// request for each such instance is served whatever its user owes, since the registration may
    /// have cost more than that user had.
    pub(super) fn end_earlier(&mut self, token: u64, id: RuntimeId) {
        let first = self.sessions.get(&token).is_some_and(|session| session.ends_earlier.take());
        if !first && !self.may_ask(token) {
            return;
        }
        let Some(earlier) = self.parts.directory.earlier(id) else { return };
        if self.may_log_for(token)
            && let Some(name) = self.parts.directory.name_of(id)
        {
            tracing::info!(%id, %earlier, name, "serves in the place of an earlier instance, which is to end");
        }
        self.send_to(earlier, &ServerMessage::End);
    }

    /// Sends a message to a registered program. It is lost if the program is gone, or reads none.
    fn send_to(&self, id: RuntimeId, message: &ServerMessage) {
        if let Some(session) = self.session_of(id) {
            let _ = control::send(&*session.socket, message, &[]);
        }
    }
}
