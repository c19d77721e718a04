//! Datagrams around either protocol (protocol.txt, "UDP protocol").
//!
//! Each datagram is a complete conversation: its commands are carried out, and all their answers together are one message
//! in as many datagrams as it takes. Requests of several datagrams are dropped without an answer, as memcached 1.6 does, and so
//! are datagrams too short for a header, and commands that are not complete.

use std::sync::Arc;

use super::connection::{Connection, Step};
use crate::service::Service;
use crate::store::Now;

/// Longest datagram sent: with its headers it fits an Ethernet frame.
pub const MAX_DATAGRAM: usize = 1400;
const HEADER: usize = 8;
const PAYLOAD: usize = MAX_DATAGRAM - HEADER;
/// Answers beyond an item of the largest size: the rest of what a datagram asks for.
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
    /// For `service`.
    #[must_use]
    pub fn new(service: &Arc<Service>) -> Self {
        let most = (usize::from(u16::MAX) - 1) * PAYLOAD;
        let limit = (service.store.config().max_item + BESIDES).min(most);
        let connection = Connection::with_limits(Arc::clone(service), limit, limit);
        Self { connection, datagram: Vec::with_capacity(MAX_DATAGRAM), limit }
    }

    /// Carries out what is in `request` and hands the datagrams to be sent back to `send`, in their order. An answer longer
    /// than the largest item and 64 KiB is replaced by an error.
    pub fn handle(&mut self, request: &[u8], now: Now, mut send: impl FnMut(&[u8])) {
        let Some((header, commands)) = request.split_first_chunk::<HEADER>() else { return };
        let [id0, id1, _, _, total0, total1, _, _] = *header;
        if [total0, total1] != [0, 1] {
            return;
        }
        let complete = self.carry_out(commands, now) && self.connection.output().len() <= self.limit;
        let answer = if complete { self.connection.output() } else { TOO_LONG };
        Self::send(&mut self.datagram, answer, [id0, id1], &mut send);
        // At once: what an incomplete command keeps of the store is not kept until the next datagram.
        self.connection.reset();
    }

    /// Hands the commands to the connection, which is as new. False if they are answered with more than it gathers.
    fn carry_out(&mut self, mut commands: &[u8], now: Now) -> bool {
        while !commands.is_empty() {
            let space = self.connection.space();
            if space.is_empty() {
                // A command that waits for more than there is room for: not complete.
                break;
            }
            let len = commands.len().min(space.len());
            space[..len].copy_from_slice(&commands[..len]);
            commands = &commands[len..];
            self.connection.received(len);
            match self.connection.process(now) {
                Step::Read => {}
                Step::Close => break,
                Step::Continue => return false,
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
