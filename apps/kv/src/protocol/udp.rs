//! Datagrams around either protocol (protocol.txt, "UDP protocol").
//!
//! Each datagram is a complete conversation: its commands are executed, and all their answers form
//! one message in as many datagrams as necessary. Requests of several datagrams are dropped without
//! an answer, as in memcached 1.6, and so are datagrams too short for a header, and incomplete
//! commands.

use std::sync::Arc;

use super::connection::{Connection, Step};
use crate::service::Service;
use crate::store::Now;

/// Longest datagram sent: with its headers it fits an Ethernet frame.
pub const MAX_DATAGRAM: usize = 1400;
const HEADER: usize = 8;
const PAYLOAD: usize = MAX_DATAGRAM - HEADER;
/// Bytes of answers beyond an item of the largest size.
const BESIDES: usize = 64 << 10;
const TOO_LONG: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// Answers datagrams, one at a time.
#[derive(Debug)]
pub struct UdpServer {
    connection: Connection,
    datagram: Vec<u8>,
    limit: usize,
}

impl UdpServer {
    /// Creates a server for `service`.
    #[must_use]
    pub fn new(service: &Arc<Service>) -> Self {
        let most = (usize::from(u16::MAX) - 1) * PAYLOAD;
        let limit = (service.store.config().max_item + BESIDES).min(most);
        let connection = Connection::with_limits(Arc::clone(service), limit, limit);
        Self { connection, datagram: Vec::with_capacity(MAX_DATAGRAM), limit }
    }

    /// Executes the commands in `request` and passes the answer's datagrams to `send` in order. An
    /// answer longer than the largest item and 64 KiB is replaced by an error.
    pub fn handle(&mut self, request: &[u8], now: Now, mut send: impl FnMut(&[u8])) {
        let Some((header, commands)) = request.split_first_chunk::<HEADER>() else { return };
        let [id0, id1, _, _, total0, total1, _, _] = *header;
        if [total0, total1] != [0, 1] {
            return;
        }
        let complete = self.carry_out(commands, now) && self.connection.output().len() <= self.limit;
        let answer = if complete { self.connection.output() } else { TOO_LONG };
        Self::send(&mut self.datagram, answer, [id0, id1], &mut send);
        // Reset now, so that an incomplete command does not hold memory of the store until the next
        // datagram.
        self.connection.reset();
    }

    /// Passes the commands to the connection, which is in its initial state. Returns false if the
    /// answers exceed its limit.
    fn carry_out(&mut self, mut commands: &[u8], now: Now) -> bool {
        while !commands.is_empty() {
            let space = self.connection.space();
            if space.is_empty() {
                // A command that needs more than there is room for is not complete.
                break;
            }
            let len = commands.len().min(space.len());
            space[..len].copy_from_slice(&commands[..len]);
            commands = &commands[len..];
            self.connection.received(len);
            loop {
                match self.connection.process(now) {
                    Step::Read => break,
                    Step::Close => return true,
                    Step::Continue if self.connection.output().len() >= self.limit => return false,
                    // A list, which is sent as a whole here.
                    Step::Continue => {}
                }
            }
        }
        true
    }

    fn send(datagram: &mut Vec<u8>, answer: &[u8], id: [u8; 2], send: &mut impl FnMut(&[u8])) {
        let total = answer.len().div_ceil(PAYLOAD) as u16;
        for (number, payload) in answer.chunks(PAYLOAD).enumerate() {
            datagram.clear();
            datagram.extend_from_slice(&id);
            datagram.extend_from_slice(&(number as u16).to_be_bytes());
            datagram.extend_from_slice(&total.to_be_bytes());
            datagram.extend_from_slice(&[0, 0]);
            datagram.extend_from_slice(payload);
            send(datagram);
        }
    }
}
