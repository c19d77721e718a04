//! Memory that clients may make the service hold: a budget for all connections, and an allowance
//! for each.
//!
//! A request takes room for itself and for the longest reply it can have before its body is read.
//! When the reply is complete, the unneeded room is returned; the rest is when the reply is
//! written. Only the readers of connections wait for room, neither the dispatcher nor writers, so
//! every holder of room makes progress without taking more, and a wait ends at the latest when
//! clients that do not read are closed.
//!
//! One client cannot hold up another: its allowance is a small part of the budget. [`MEMORY`] /
//! [`PER_CONNECTION`] clients together can, for at most [`Limits::idle`](crate::request::Limits).

use std::sync::Arc;

use tailwater::sync::Semaphore;
use tailwater_workload::rocks::{HEADER_LEN, Header, Operation, SCAN_BODY};

use crate::request::MAX_MESSAGE;

/// Maximum number of requests of a connection that are read but whose replies are not written yet.
pub const IN_FLIGHT: usize = 32;

/// Maximum bytes of requests and replies of a connection: four of the longest.
pub const PER_CONNECTION: usize = 4 * (MAX_MESSAGE + HEADER_LEN);

/// Maximum bytes of requests and replies of all connections: 256 MiB and 16 KiB.
pub const MEMORY: usize = 64 * PER_CONNECTION;

/// Minimum that a request and its reply take of a connection's allowance.
const LEAST: usize = PER_CONNECTION / IN_FLIGHT;

/// The budget of a service.
#[derive(Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

/// The part of a budget that a connection may take.
#[derive(Debug)]
pub(crate) struct Allowance {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

/// Room for a request and its reply; returned on drop.
#[derive(Debug)]
pub(crate) struct Room {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
    bytes: usize,
}

impl Budget {
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(MEMORY)))
    }

    /// Returns the allowance of a new connection.
    pub fn allowance(&self) -> Allowance {
        Allowance { all: Arc::clone(&self.0), own: Arc::new(Semaphore::new(PER_CONNECTION)) }
    }

    /// Returns the number of bytes taken.
    pub fn held(&self) -> usize {
        MEMORY - self.0.available_permits()
    }
}

impl Allowance {
    /// Waits for room for the request of `header` and its reply.
    pub fn take(&self, header: &Header) -> Room {
        let bytes = HEADER_LEN + header.body_len as usize + longest_reply(header);
        self.own.acquire_many(of_connection(bytes)).forget();
        self.all.acquire_many(bytes).forget();
        Room { all: Arc::clone(&self.all), own: Arc::clone(&self.own), bytes }
    }

    /// Returns whether nothing is held: all replies are written.
    pub fn is_whole(&self) -> bool {
        self.own.available_permits() == PER_CONNECTION
    }
}

impl Room {
    /// Returns the room that is not needed for `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.own.add_permits(of_connection(self.bytes) - of_connection(bytes));
        self.all.add_permits(self.bytes - bytes);
        self.bytes = bytes;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.own.add_permits(of_connection(self.bytes));
        self.all.add_permits(self.bytes);
    }
}

/// Returns what this many bytes take of a connection's allowance.
fn of_connection(bytes: usize) -> usize {
    bytes.max(LEAST)
}

/// Returns the length of the longest reply that a request can have.
fn longest_reply(header: &Header) -> usize {
    match header.operation {
        Operation::Get if header.body_len == 0 => MAX_MESSAGE,
        Operation::Scan => HEADER_LEN + SCAN_BODY,
        Operation::Get | Operation::Put => HEADER_LEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::rocks::MAX_BODY;

    fn request(operation: Operation, body_len: usize) -> Header {
        Header { body_len: body_len as u32, ..Header::request(operation, 1, 2, 0) }
    }

    #[test]
    fn any_request_fits_a_connection_and_so_many_small_ones() {
        let budget = Budget::new();
        let allowance = budget.allowance();
        for operation in [Operation::Get, Operation::Scan, Operation::Put] {
            // Nothing returns room here, so taking more than this would wait for ever.
            let rooms = [(); 3].map(|()| allowance.take(&request(operation, MAX_BODY)));
            assert!(!allowance.is_whole() && budget.held() > 3 * MAX_BODY);
            drop(rooms);
            assert!(allowance.is_whole() && budget.held() == 0);
        }
        let mut rooms = Vec::new();
        for _ in 0..IN_FLIGHT - 8 {
            let mut room = allowance.take(&request(Operation::Get, 0));
            room.shrink(100);
            rooms.push(room);
        }
        assert_eq!(budget.held(), rooms.len() * 100);
        rooms.extend((0..8).map(|_| allowance.take(&request(Operation::Scan, 0))));
        assert_eq!(rooms.len(), IN_FLIGHT);
        drop(rooms);
        assert!(allowance.is_whole() && budget.held() == 0);
    }

    #[test]
    fn a_connection_that_gives_nothing_back_leaves_most_to_others() {
        let budget = Budget::new();
        let greedy = budget.allowance();
        let rooms = [(); 4].map(|()| greedy.take(&request(Operation::Get, 0)));
        assert!(greedy.own.try_acquire().is_none(), "its allowance is used up");
        assert!(budget.held() <= PER_CONNECTION && PER_CONNECTION * 64 <= MEMORY);
        drop(budget.allowance().take(&request(Operation::Get, 0)));
        drop(rooms);
    }
}
