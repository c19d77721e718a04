//! The caller's side of a call into the stack: a way out for frames, the time, and the batch to
//! which a received frame belongs.

use crate::platform::Platform;
#[cfg(feature = "tcp")]
use crate::tcp::socket::Socket;
#[cfg(feature = "tcp")]
use alloc::sync::Arc;
use core::time::Duration;
use tailwater_wire::Checksums;

/// Why a frame did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutletError {
    /// There is no room at the moment.
    #[error("the egress ring is full")]
    Full,
    /// There is no way out.
    #[error("the network is down")]
    Down,
}

/// Time until a segment for which there was no room is tried again: rings and the loopback queue
/// are emptied within that time.
pub const RETRY: Duration = Duration::from_micros(50);

/// A way out for frames, and the time.
pub trait Outlet<P: Platform> {
    /// Sends a frame of `len` bytes; `fill` writes all of them.
    ///
    /// # Errors
    /// [`OutletError`]; then `fill` was not called.
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError>;

    /// As [`transmit`](Self::transmit), for a frame that may lack its TCP checksum. Called only if
    /// [`completes`](Self::completes) returns true, or for a frame that does not leave this host.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        self.transmit(len, fill)
    }

    /// Sends a frame that this host has received, and that is for the earlier
    /// [instance](crate::Instance) of it, to that one; `checksums` as it was received. Lost where
    /// there is no room.
    fn pass_on(&mut self, frame: &[u8], checksums: Checksums) {
        let _ = (frame, checksums);
    }

    /// Holds back the frames transmitted from now on until [`uncork`](Self::uncork), so that they
    /// leave together. True if this call did so; then the caller uncorks before it returns.
    #[inline]
    fn cork(&mut self) -> bool {
        false
    }

    /// Releases the frames held back since [`cork`](Self::cork).
    #[inline]
    fn uncork(&mut self) {}

    /// Returns the time after which to try again where there was no room for a TCP segment.
    fn retry_after(&self) -> Duration {
        RETRY
    }

    /// Returns whether a missing TCP checksum is filled in before a frame leaves the machine.
    #[inline]
    fn completes(&self) -> bool {
        false
    }

    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;

    /// Requests a call of [`Stack::poll_timers`](crate::Stack::poll_timers) at `deadline` at the
    /// latest.
    fn poll_by(&mut self, deadline: Duration);

    /// Requests that the packets of [`Stack::take_loopback`](crate::Stack::take_loopback) are
    /// processed soon, after this call: the caller may hold locks.
    fn poll_loopback(&mut self);
}

/// Frames that are processed one after the other.
pub trait InputBatch<P: Platform> {
    /// Keeps a socket that owes its peer only an acknowledgment, and passes it to
    /// [`Stack::flush_tcp`](crate::Stack::flush_tcp) after the frames at hand, of which more may be
    /// for it. False if it does not; then the acknowledgment leaves at once.
    #[cfg(feature = "tcp")]
    fn defer(&mut self, socket: &Arc<Socket<P>>) -> bool;

    /// Returns the traced request in the frame being processed, if it is one.
    fn traced(&self) -> Option<P::Request>;
}

/// A frame that is processed by itself, and is no traced request.
#[derive(Debug)]
pub struct NoBatch;

impl<P: Platform> InputBatch<P> for NoBatch {
    #[cfg(feature = "tcp")]
    #[inline]
    fn defer(&mut self, _: &Arc<Socket<P>>) -> bool {
        false
    }

    #[inline]
    fn traced(&self) -> Option<P::Request> {
        None
    }
}
