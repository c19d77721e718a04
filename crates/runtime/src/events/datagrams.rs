//! A UDP socket of a loop.
//!
//! Owns the queue that was exchanged for the socket's: its datagrams are read where they lie. It is
//! exchanged again, in a later round, when all were reported.

use super::condition::CommandError;
use super::inbox::Link;
use crate::net::UdpSocket;
use core::net::SocketAddr;
use core::ops::Range;
use std::io;
use std::sync::Arc;
use tailwater_net::Progress;
use tailwater_net::udp::DatagramRing;

/// What a visit reports.
#[derive(Debug)]
pub enum Arrival {
    Datagram(SocketAddr, Range<usize>),
    Undelivered(io::ErrorKind),
}

/// When a socket is visited again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// After its next change.
    Change,
    /// In this round, after the sockets that wait.
    Turn,
    /// In the next round.
    Round,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    link: Arc<Link>,
    lent: DatagramRing,
    /// The round in which a datagram was reported last.
    reported: u64,
}

impl Datagrams {
    /// Returns the loop's side of a socket.
    pub fn new(socket: UdpSocket, link: Arc<Link>) -> Self {
        socket.with_watchers(|watchers, _| {
            // SAFETY: 1. each socket has its own link and watches once; `drop` ends the watch. 2.
            // The socket's lock is held.
            unsafe { link.watch_reads(watchers) };
        });
        Self { lent: socket.spare_queue(), socket, link, reported: 0 }
    }

    /// Returns the next datagram or error, and when to come again.
    pub fn visit(&mut self, round: u64) -> (Option<Arrival>, Next) {
        if self.lent.count() == 0 {
            if self.reported == round {
                // What was reported in this round lies in the queue.
                return (None, Next::Round);
            }
            if let Err(kind) = self.socket.exchange_queue(&mut self.lent) {
                return (Some(Arrival::Undelivered(kind)), Next::Round);
            }
        }
        let Some((from, range)) = self.lent.take() else { return (None, Next::Change) };
        self.reported = round;
        // An empty queue may have been filled since it was exchanged.
        let next = if self.lent.count() > 0 { Next::Turn } else { Next::Round };
        (Some(Arrival::Datagram(self.socket.shown(from), range)), next)
    }

    /// Returns the data of a datagram of this round.
    pub fn data(&self, range: Range<usize>) -> &[u8] {
        self.lent.data(range)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`CommandError::Full`], [`CommandError::Refused`].
    pub fn send(&self, to: Option<SocketAddr>, data: &[u8]) -> Result<(), CommandError> {
        match self.socket.try_transmit(data, to, &mut Progress::default()) {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(CommandError::Refused(error.kind())),
            None => Err(CommandError::Full),
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        // SAFETY: it watches these.
        self.socket.with_watchers(|watchers, _| unsafe { self.link.ignore_reads(watchers) });
        self.link.leave();
    }
}
