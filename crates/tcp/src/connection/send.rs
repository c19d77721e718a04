//! Data handed over by the application: how much is accepted, and when there is room again.
//!
//! Two bounds hold. The send buffer bounds what is unacknowledged; it follows the congestion
//! window, since more buffered data would never be in flight. TCP_NOTSENT_LOWAT bounds what is
//! unsent, for applications that decide late what to send.

use super::{Connection, Events, Set};
use crate::config::FIRST_SEND_ROOM;
use crate::error::SendError;
use crate::shared::SharedBytes;

impl Connection {
    /// Queues as much of `data` as there is room for; returns the number of bytes, which is at
    /// least one unless `data` is empty. May be called before the handshake is complete.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, data: &[u8]) -> Result<usize, SendError> {
        let len = self.admit(data.len())?;
        self.unacked.push(&data[..len]);
        self.note_queued();
        Ok(len)
    }

    /// Queues data as [`send`](Self::send) does, but keeps a reference to it instead of a copy:
    /// each segment is gathered straight from it. The data takes up room in the send buffer all the
    /// same. The reference is dropped when the peer has acknowledged all that was taken, or the
    /// connection has ended ([`State::Closed`](crate::State::Closed)). Less than 2 KiB, be it all
    /// there is or all that has room, is copied.
    ///
    /// See [`SharedBytes`] for how long memory is held. A call that handles an acknowledgment may
    /// drop the last reference.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_shared(&mut self, data: &SharedBytes) -> Result<usize, SendError> {
        let len = self.admit(data.len())?;
        self.unacked.push_shared(data, len);
        self.note_queued();
        Ok(len)
    }

    /// Returns how many of `bytes` more there is room for.
    #[inline]
    fn admit(&mut self, bytes: usize) -> Result<usize, SendError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        if !self.state.sends() || self.set.contains(Set::FIN_QUEUED) {
            return Err(SendError::Closed);
        }
        self.set.remove(Set::MORE);
        let len = bytes.min(self.writable_bytes());
        if len == 0 && bytes > 0 {
            // There may have been room when the caller last asked, because the congestion window
            // has shrunk since.
            self.set.insert(Set::WANTS_ROOM);
            return Err(SendError::WouldBlock);
        }
        Ok(len)
    }

    /// Notes that data was queued: it may leave, and there is less room.
    #[inline]
    fn note_queued(&mut self) {
        self.set.insert(Set::TOUCHED);
        self.note_room();
    }

    /// Queues data as [`send`](Self::send) does, and announces that more follows (MSG_MORE): a rest
    /// that is smaller than a segment waits for it, as with [`set_cork`](Self::set_cork), until the
    /// next `send` or [`push`](Self::push).
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_more(&mut self, data: &[u8]) -> Result<usize, SendError> {
        let len = self.send(data)?;
        self.set.insert(Set::MORE);
        Ok(len)
    }

    /// Releases what [`send_more`](Self::send_more) holds.
    pub fn push(&mut self) {
        self.set.remove(Set::MORE);
    }

    /// Returns true if segments smaller than possible are held, whatever Nagle's algorithm allows.
    #[inline]
    pub(super) fn is_corked(&self) -> bool {
        self.set.intersects(Set::CORK.union(Set::MORE))
    }

    /// Requests [`Events::WRITABLE`] for later if there is no room.
    pub(super) fn note_room(&mut self) {
        if self.unacked.len() >= self.send_room() || self.unsent_room() == 0 {
            self.set.insert(Set::WANTS_ROOM);
        }
    }

    /// Returns how many bytes may be unacknowledged or unsent.
    fn send_room(&self) -> usize {
        self.send_limit.min(self.sender.cwnd().saturating_mul(2).max(FIRST_SEND_ROOM)) as usize
    }

    /// Returns the number of bytes handed over and never sent.
    #[inline]
    pub fn unsent_bytes(&self) -> usize {
        self.data_end().distance(self.sender.nxt().max(self.data_start)).max(0) as usize
    }

    /// Returns true if an acknowledgment may matter at once: data waits to leave, for the window or
    /// by Nagle's algorithm, room was requested, or more than a segment is in flight, so that
    /// acknowledgments may show the loss of one.
    #[inline]
    pub fn awaits_acks(&self) -> bool {
        self.unsent_bytes() > 0
            || self.sender.has_several()
            || (self.set.contains(Set::WANTS_ROOM) && self.unacked.len() > 0)
    }

    /// Returns how many bytes may be handed over before the unsent ones reach the low-water mark:
    /// none beyond it, else a segment at least.
    #[inline]
    fn unsent_room(&self) -> usize {
        if !self.set.contains(Set::LOWAT) {
            return usize::MAX;
        }
        let room = (self.low_water() as usize).saturating_sub(self.unsent_bytes());
        if room == 0 { 0 } else { room.max(self.segment_mss() as usize) }
    }

    /// Returns true if there is so much room that a waiting writer is worth waking: a quarter of
    /// the buffer, and, as in Linux, less unsent than half of the low-water mark.
    pub(super) fn has_room(&self) -> bool {
        self.unacked.len() <= self.send_room() / 4 * 3 && self.is_below_low_water()
    }

    #[inline]
    fn is_below_low_water(&self) -> bool {
        !self.set.contains(Set::LOWAT) || 2 * self.unsent_bytes() < self.low_water() as usize
    }

    /// Returns the number of bytes that [`send`](Self::send) would accept now.
    #[inline]
    pub fn writable_bytes(&self) -> usize {
        if !self.state.sends() || self.set.contains(Set::FIN_QUEUED) {
            return 0;
        }
        self.send_room().saturating_sub(self.unacked.len()).min(self.unsent_room())
    }

    /// Returns true if [`send`](Self::send) would return something other than
    /// [`SendError::WouldBlock`], and less than half of the low-water mark is unsent. If not,
    /// requests [`Events::WRITABLE`] for when that changes.
    pub fn poll_writable(&mut self) -> bool {
        let refuses = self.error.is_some() || !self.state.sends() || self.set.contains(Set::FIN_QUEUED);
        if refuses || (self.writable_bytes() > 0 && self.is_below_low_water()) {
            return true;
        }
        self.set.insert(Set::WANTS_ROOM);
        false
    }

    /// Requests [`Events::WRITABLE`] for the next acknowledgment that leaves room.
    pub fn await_acknowledgment(&mut self) {
        self.set.insert(Set::WANTS_ROOM);
    }

    /// Returns [`Events::WRITABLE`] if segments that left have made room for unsent data. Call it
    /// after [`poll_transmit`](Self::poll_transmit); without a low-water mark it does nothing.
    #[inline]
    pub fn take_writable(&mut self) -> Events {
        if self.set.contains(Set::LOWAT.union(Set::WANTS_ROOM)) && self.has_room() {
            self.set.remove(Set::WANTS_ROOM);
            return Events::WRITABLE;
        }
        Events::empty()
    }

    /// Returns the number of bytes handed over and not yet acknowledged by the peer.
    #[inline]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacked.len()
    }
}
