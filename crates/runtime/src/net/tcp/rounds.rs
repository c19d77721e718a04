//! The side of a stream for event loops, loans and the reading halves of futures: its locked state,
//! the beginning of a loan, and one step at the end of a round or a loan.

use super::stream::TcpStream;
use crate::net::driver::KthreadOutlet;
use crate::net::error::IntoIo;
use crate::net::platform::Stack;
use crate::net::tcp::Inner;
use std::io;
use tailwater_net::tcp::{Failure, Refusal};
use tailwater_tcp::{Buffer, Connection, Events};

impl TcpStream {
    /// Calls `look` with the locked state. A call that changes the connection is followed by
    /// [`complete_round`](Self::complete_round).
    #[inline]
    pub(crate) fn with_inner<R>(&self, look: impl FnOnce(&mut Inner) -> R) -> R {
        look(&mut self.socket.lock())
    }

    /// Ends the loan of `done` bytes, and sends what is due after a round in which `sent` bytes
    /// were handed over.
    #[inline]
    pub(crate) fn complete_round(&self, sent: usize, done: usize) {
        self.transmit_what_is_due(done, |connection| {
            connection.await_peer();
            sent > 0 || connection.is_flushing()
        });
    }

    /// Ends the loan of `bytes`, in the middle of what was lent: sends a window update if it is
    /// due, and releases nothing that waits for more.
    #[inline]
    pub(crate) fn end_loan(&self, bytes: usize) {
        self.transmit_what_is_due(bytes, |_| false);
    }

    /// Ends the loan of `done` bytes, and transmits if `has_data` returns true or the connection
    /// has something else to send.
    #[inline]
    fn transmit_what_is_due(&self, done: usize, has_data: impl FnOnce(&mut Connection) -> bool) {
        let now = Stack::tcp_now(&KthreadOutlet);
        let mut inner = self.socket.lock();
        if done > 0 {
            inner.connection.recv_done(done);
        }
        if has_data(&mut inner.connection) || inner.connection.wants_transmit(now) {
            self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, Events::empty(), now);
        } else {
            inner.note_awaited();
        }
    }

    /// Ends the loan of `done` bytes, and takes `lent`, the rest, back; a thread that waits for
    /// data finds it.
    pub(crate) fn return_loan(&self, done: usize, lent: &mut Buffer) {
        let now = Stack::tcp_now(&KthreadOutlet);
        let events = if lent.is_empty() { Events::empty() } else { Events::READABLE };
        let mut inner = self.socket.lock();
        inner.connection.recv_done(done);
        inner.return_loan(lent);
        if !events.is_empty() || inner.connection.wants_transmit(now) {
            self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, events, now);
        }
    }

    /// Returns the kind of error that a call would report for `failure`.
    pub(crate) fn kind_of(failure: Failure) -> io::ErrorKind {
        failure.into_io().kind()
    }
}

/// Moves received data to the end of `into`, on loan; where there is none, releases a small segment
/// that waits for the peer, as a read does.
pub(crate) fn lend(inner: &mut Inner, into: &mut Buffer) -> Result<usize, Refusal> {
    let lent = inner.lend(into);
    if lent.is_err() {
        inner.connection.await_peer();
    }
    lent
}
