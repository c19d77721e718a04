//! Received data on loan: the application reads it in the buffer in which it was put together.
//!
//! The receive buffer changes places with an empty one of the application, so lending moves a
//! pointer and no bytes, and what arrives meanwhile goes into the other. Lent bytes are
//! acknowledged and keep their room in the window until [`Connection::recv_done`]: an application
//! that is slow to finish slows its peer down, as one that is slow to read does.
//!
//! Bytes are copied in two cases: the application's buffer still holds bytes that it has not
//! finished, or the connection holds data ahead of a gap, which stays where it is. Unfinished bytes
//! are themselves moved only when that frees at least as many; otherwise the buffer doubles. So a
//! peer that keeps a loan nearly full costs a bounded number of copies of each byte.

use super::{Connection, Set};
use crate::error::RecvError;
use crate::ring::Ring;

/// A buffer that [`Connection::lend`] fills.
#[derive(Debug, Default)]
pub struct Buffer(Ring);

impl Buffer {
    /// Returns the bytes on loan.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let (bytes, rest) = self.0.slices(0, self.0.len());
        debug_assert!(rest.is_empty(), "`lend` leaves one piece");
        bytes
    }

    /// Returns the number of bytes on loan.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no byte is on loan.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the first `bytes`, at most all.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.0.consume(bytes.min(self.len()));
    }

    /// Returns the bytes of memory held.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl Connection {
    /// Moves all received bytes to the end of `into`; returns their number, which is zero at the
    /// end of the stream. They are copied only if `into` holds bytes, or if data ahead of a gap was
    /// received. Each byte keeps its room in the window until [`recv_done`](Self::recv_done).
    ///
    /// # Errors
    /// [`RecvError`].
    #[inline]
    pub fn lend(&mut self, into: &mut Buffer) -> Result<usize, RecvError> {
        if self.receive.readable() == 0 {
            return self.nothing_to_read();
        }
        let len = self.receive.lend(&mut into.0);
        self.set.insert(Set::TOUCHED);
        Ok(len)
    }

    /// Ends the loan of `bytes`: they were read, and the peer may send as many more.
    #[inline]
    pub fn recv_done(&mut self, bytes: usize) {
        self.receive.end_loan(bytes);
        self.note_read();
    }

    /// Takes back what is on loan in `from`: it can be received again, before all other data. It is
    /// copied only if data has arrived since. The memory of an empty `from` serves for what arrives
    /// next, so an application that lends and returns one buffer at a time allocates none.
    pub fn return_loan(&mut self, from: &mut Buffer) {
        self.receive.return_loan(&mut from.0);
    }

    /// Releases a small segment that Nagle's algorithm holds, as [`recv`](Self::recv) does: the
    /// application has handled all there was and waits for the peer.
    #[inline]
    pub fn await_peer(&mut self) {
        if self.receive.readable() == 0 {
            self.flush();
        }
    }
}
