//! A queue with which another process goes on.
//!
//! Socket and frame memory are descriptors, and all positions are in the rings, so a process that
//! is handed both ([`Queue::files`], [`Queue::adopt`]) continues where the previous one has
//! stopped. Until then frames wait in the receive ring. It reads the positions when it first uses
//! the queue, and not before the other process has ended:
//!
//! | the other process ended | receive chunks | send chunks |
//! |---|---|---|
//! | between two calls | all are in the rings or the kernel's | the kernel may have some of them: none is used before all that were sent have been completed, or for [`SENDS_LIMIT`] |
//! | anywhere (SIGKILL) | those of one batch may be lost for good | the same |
//!
//! If sends are still open after that time (the interface is down), the chunks of the last ones are
//! taken for the kernel's, which completes in order, except with drivers that take pages from the
//! frame memory.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tailwater_shm::memory::{Mapping, MemoryError};

use super::{OpenError, Queue, RING, frame_memory};

/// Maximum time for which a queue that another process had before sends nothing. The kernel
/// completes a frame on veth within microseconds, a card within milliseconds.
const SENDS_LIMIT: Duration = Duration::from_millis(100);

/// How far a queue is known that another process had before.
#[derive(Debug, Clone, Copy)]
pub(super) enum Known {
    /// All of it; always so for a queue of this process's own.
    All,
    /// Nothing: it was not used yet.
    Nothing,
    /// The positions. Until then, sends of the process before may be open.
    Positions(Instant),
}

impl Queue {
    /// Returns a queue that another process has opened with the same `chunk` and bound, by its
    /// [`files`](Self::files). Until it is used that process may go on with it; then it must have
    /// ended.
    ///
    /// # Errors
    /// [`OpenError`] names the step that failed. Linux before 6.4 does not map the rings of a bound
    /// socket.
    pub(crate) fn adopt(socket: OwnedFd, file: OwnedFd, chunk: u32) -> Result<Self, OpenError> {
        let memory = Mapping::new(&file, "frame memory")?;
        if memory.len() != frame_memory(chunk) {
            let (expected, found) = (frame_memory(chunk), memory.len());
            return Err(MemoryError::WrongSize { what: "frame memory", expected, found }.into());
        }
        let queue = Self::map(socket, memory, file, chunk)?;
        // Until the sends of the process before are accounted for, a ring of them counts as open.
        Ok(Self { known: Known::Nothing, sent: u64::from(RING), ..queue })
    }

    /// Returns the descriptors with which another process goes on with this queue.
    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.file.as_fd()]
    }

    /// Reads the positions at which the process before has stopped. Returns until when its sends
    /// may be open.
    #[cold]
    pub(super) fn take_up(&mut self) -> Instant {
        self.receive.resume_reading();
        self.completion.resume_reading();
        self.fill.resume_writing();
        self.send.resume_writing();
        // The process before may have ended between the two steps of a flush.
        self.pending = true;
        let until = Instant::now() + SENDS_LIMIT;
        self.known = Known::Positions(until);
        until
    }

    /// Frees the send chunks that the kernel does not have, once that is known.
    #[cold]
    pub(super) fn account_for_sends(&mut self) {
        let until = match self.known {
            Known::All => return,
            Known::Nothing => self.take_up(),
            Known::Positions(until) => until,
        };
        let completed = self.completion.written();
        let open = self.send.position.wrapping_sub(completed);
        if open > 0 && Instant::now() < until {
            return;
        }
        let chunk = |descriptor: libc::xdp_desc| descriptor.addr & !u64::from(self.chunk - 1);
        let taken: HashSet<u64> = self.send.last(open).map(chunk).collect();
        self.free = self.send_chunks().filter(|chunk| !taken.contains(chunk)).collect();
        self.completion.position = completed;
        self.completion.release();
        self.known = Known::All;
    }
}
