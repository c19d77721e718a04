//! A port whose other end is an object in the same process: for tests, and for programs that embed
//! an IOKernel.
//!
//! Owns two bounded queues and an event descriptor that lets the loop sleep. Frames are copied into
//! heap buffers: this port is built for convenience, not for speed. A full queue drops frames, as a
//! wire would.

use super::{Attachment, Context, Inject, Port, PortError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;
use tailwater_shm::Cycles;

/// Capacity of each direction, in frames.
pub const QUEUE: usize = 4096;

/// The IOKernel's end.
#[derive(Debug)]
pub struct MemoryPort {
    name: String,
    attachment: Attachment,
    incoming: Receiver<Vec<u8>>,
    outgoing: SyncSender<Vec<u8>>,
    bell: Arc<Bell>,
}

/// The program's end. After it is dropped, the port delivers no more frames.
#[derive(Debug)]
pub struct MemoryPeer {
    incoming: Receiver<Vec<u8>>,
    outgoing: SyncSender<Vec<u8>>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    /// Frames queued for the IOKernel. The peer adds one before it sends; the port subtracts what
    /// it took.
    waiting: AtomicUsize,
}

/// Returns a connected pair.
///
/// # Errors
/// If the kernel has no event descriptor left.
pub fn pair(name: &str, attachment: Attachment) -> Result<(MemoryPort, MemoryPeer), PortError> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| PortError {
        port: name.to_owned(),
        why: format!("cannot make an event descriptor: {e}"),
    })?;
    let bell = Arc::new(Bell { fd, waiting: AtomicUsize::new(0) });
    let (to_port, from_peer) = sync_channel(QUEUE);
    let (to_peer, from_port) = sync_channel(QUEUE);
    let port = MemoryPort {
        name: name.to_owned(),
        attachment,
        incoming: from_peer,
        outgoing: to_peer,
        bell: Arc::clone(&bell),
    };
    Ok((port, MemoryPeer { incoming: from_port, outgoing: to_port, bell }))
}

impl MemoryPeer {
    /// Sends a frame into the IOKernel; returns false if the queue is full or the IOKernel is gone.
    pub fn send(&self, frame: &[u8]) -> bool {
        // In the order count, ring, send: if the count came after the send, the port could take the
        // frame first and leave the event descriptor readable. AcqRel: pairs with the port's
        // subtraction; the side that raises the count from zero rings.
        if self.bell.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            // Fails only if the counter is at its maximum, and then the descriptor is readable
            // already.
            let _ = rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes());
        }
        let sent = self.outgoing.try_send(frame.to_vec()).is_ok();
        if !sent {
            self.bell.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        sent
    }

    /// Returns the next frame that was sent to the port, if there is one.
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.incoming.try_recv().ok()
    }

    /// Waits up to `timeout` for the next frame.
    pub fn receive_timeout(&self, timeout: Duration) -> Option<Vec<u8>> {
        self.incoming.recv_timeout(timeout).ok()
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn attachment(&self) -> Attachment {
        self.attachment
    }

    fn start(&mut self, _context: &Context) -> Result<(), PortError> {
        Ok(())
    }

    fn poll(&mut self, _now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        let mut taken = 0;
        while taken < budget && (taken == 0 || switch.may_go_on(false)) {
            match self.incoming.try_recv() {
                Ok(frame) => {
                    switch.inject(&frame);
                    taken += 1;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        if taken > 0 {
            // The descriptor is cleared before the count goes down, so that a later ring is not
            // lost.
            let _ = rustix::io::read(&self.bell.fd, &mut [0u8; 8]);
            // AcqRel: pairs with the peer's addition.
            let left = self.bell.waiting.fetch_sub(taken, Ordering::AcqRel).wrapping_sub(taken);
            if left != 0 {
                let _ = rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes());
            }
        }
        Ok(taken)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        self.outgoing.try_send(frame.to_vec()).is_ok()
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.fd.as_fd())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Delivery;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::Ipv4Addr;
    use tailwater_wire::MacAddr;

    /// A switch that keeps all frames.
    pub(crate) struct Recorder(pub(crate) Vec<Vec<u8>>);

    impl Inject for Recorder {
        fn inject(&mut self, frame: &[u8]) -> Delivery {
            self.0.push(frame.to_vec());
            Delivery::Delivered
        }
        fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
            None
        }
    }

    fn readable(port: &MemoryPort) -> bool {
        let mut fds = [PollFd::new(&port.bell.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_bell_rings_exactly_while_frames_wait() {
        let (mut port, peer) = pair("m", Attachment::Uplink { gateway: None }).unwrap();
        let mut seen = Recorder(Vec::new());
        assert!(!readable(&port));
        for i in 0..5u8 {
            assert!(peer.send(&[i; 20]));
        }
        assert!(readable(&port));
        assert_eq!(port.poll(0, 3, &mut seen).unwrap(), 3);
        assert!(readable(&port), "two frames wait and the descriptor is not readable");
        assert_eq!(port.poll(0, 3, &mut seen).unwrap(), 2);
        assert!(!readable(&port));
        assert_eq!(seen.0, (0..5u8).map(|i| vec![i; 20]).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_queue_drops() {
        let (mut port, peer) = pair("m", Attachment::Uplink { gateway: None }).unwrap();
        let taken = (0..QUEUE + 10).filter(|_| port.transmit(0, &[0; 14])).count();
        assert_eq!(taken, QUEUE);
        assert!(peer.receive().is_some());
        assert!(port.transmit(0, &[0; 14]));
    }
}
