//! A connection and its state; [`super::conversation`] has the transitions.

use rustix::fd::OwnedFd;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Register;
use tailwater_shm::layout::{IoKernelEnds, Region};

use super::client::ClientSocket;
use super::directory::Assignment;
use super::gate;
use super::owed::Owed;
use super::user::is_trusted;
use crate::tenant::Key;

/// The client of a connection, as of when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) uid: u32,
    /// The user for whom it counts: the owner of a subordinate id.
    pub(super) owner: u32,
    /// The grant that covers its user without naming it, whose other such users pay with it.
    pub(super) unnamed_by: Option<usize>,
}

impl Caller {
    /// The client of a connection that is gone: root, to whom nothing is charged.
    pub(super) const GONE: Self = Self { uid: 0, owner: 0, unnamed_by: None };

    /// Returns the user who is limited; `None` for root and the IOKernel's own.
    pub(super) fn limited(self) -> Option<u32> {
        (!is_trusted(self.uid)).then_some(self.owner)
    }

    /// Returns the accounts that pay for it.
    pub(super) fn payers(self) -> impl Iterator<Item = Key> {
        let common = self.unnamed_by.map(|grant| Key { user: None, grant: Some(grant) });
        self.limited().map(gate::user).into_iter().chain(common)
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) socket: Arc<ClientSocket>,
    pub(super) caller: Caller,
    pub(super) state: State,
    /// What the next IOKernel is to know of its program; `None` before it has sent its threads.
    pub(super) owed: Option<Owed>,
    /// Its program was sent that it replaces an earlier instance, and has not asked that to end.
    pub(super) ends_earlier: Cell<bool>,
    /// Time at which the connection is dropped for silence; `None` once registered.
    pub(super) deadline: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum State {
    Fresh,
    /// A registration that can be granted once a leaving runtime has left.
    Waiting(Register),
    Offered(Box<Offer>),
    Registered(RuntimeId),
    Capturing,
    Tracing,
    /// The client has been handed what it needs to take the place of this IOKernel.
    Succeeding,
}

/// What was sent with `Welcome`.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) place: Assignment,
    pub(super) request: Register,
    pub(super) region: Region,
    pub(super) ends: Vec<IoKernelEnds>,
    /// The memory of the region, which the program has, too.
    pub(super) file: OwnedFd,
    pub(super) doorbell: OwnedFd,
    /// The program was sent the board of its user.
    pub(super) has_board: bool,
    pub(super) pid: i32,
    /// The process itself: its number may come to belong to another one.
    pub(super) process: OwnedFd,
}

impl Session {
    pub(super) fn new(socket: ClientSocket, caller: Caller, deadline: Instant) -> Self {
        Self {
            socket: Arc::new(socket),
            caller,
            state: State::Fresh,
            owed: None,
            ends_earlier: Cell::new(false),
            deadline: Some(deadline),
        }
    }
}
