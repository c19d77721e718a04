//! The IOKernel's end of a client's connection, and how it is closed.
//!
//! The thread that closes a socket also closes the descriptors in its unread messages. That can
//! take as long as their sender likes: a TCP socket with `SO_LINGER` waits for its peer. Since
//! Linux 6.16 no descriptor gets into the socket (`sys::peer::refuse_descriptors`). Before that, a
//! socket with unread messages is closed by a thread of its own, which nothing waits for.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, recvmsg, shutdown};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    /// `None` only while it is dropped.
    socket: Option<OwnedFd>,
    closer: Option<Closer>,
}

impl ClientSocket {
    /// `closer` closes the socket if messages are left in it; `None` where those cannot have
    /// descriptors.
    pub(crate) fn new(socket: OwnedFd, closer: Option<Closer>) -> Self {
        Self { socket: Some(socket), closer }
    }

    /// Ends the receiving of messages, then returns whether one is left unread.
    fn has_unread(socket: &OwnedFd) -> bool {
        // Fails for a peer that is gone, from which nothing more comes either.
        let _ = shutdown(socket, Shutdown::Both);
        // With this option each message has control data, for which the peek has no space: that
        // tells an empty message from the end.
        let _ = set_socket_passcred(socket, true);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut RecvAncillaryBuffer::default(), flags)
            .is_ok_and(|message| message.flags.contains(ReturnFlags::CTRUNC))
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("taken on drop only").as_fd()
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if let Some(closer) = &self.closer
            && Self::has_unread(&socket)
        {
            // Relaxed: a count, which publishes nothing.
            closer.waiting.fetch_add(1, Ordering::Relaxed);
            // Fails if the thread has ended; the socket is then closed here.
            let _ = closer.sender.send(socket);
        }
    }
}

/// Sends sockets to the thread that closes them.
#[derive(Debug, Clone)]
pub(crate) struct Closer {
    sender: Sender<OwnedFd>,
    /// Number of sockets that were sent and are not closed yet.
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    fn new() -> (Self, Receiver<OwnedFd>) {
        let (sender, sockets) = channel();
        (Self { sender, waiting: Arc::default() }, sockets)
    }

    /// Returns the number of sockets that it has yet to close.
    pub(super) fn waiting(&self) -> usize {
        // Relaxed: see `drop`.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Starts the thread, which ends with the last `Closer`. Returns `None` if that fails.
    pub(crate) fn start() -> Option<Self> {
        let (closer, sockets) = Self::new();
        let waiting = Arc::clone(&closer.waiting);
        let close = move || {
            for socket in sockets {
                drop(socket);
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("tailwater-close".to_owned()).spawn(close);
        thread.is_ok().then_some(closer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    #[test]
    fn only_sockets_with_unread_messages_go_to_the_closer() {
        let messages: [(&[&[u8]], bool); 3] = [(&[], false), (&[b"x"], true), (&[b"", b"x"], true)];
        for hung_up in [false, true] {
            for (messages, handed_over) in messages {
                let (closer, closing) = Closer::new();
                let flags = SocketFlags::CLOEXEC;
                let (ours, theirs) =
                    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                for message in messages {
                    send(&theirs, message, SendFlags::empty()).unwrap();
                }
                let theirs = (!hung_up).then_some(theirs);
                drop(ClientSocket::new(ours, Some(closer)));
                assert_eq!(closing.try_recv().is_ok(), handed_over, "{messages:?}, hung up: {hung_up}");
                drop(theirs);
            }
        }
    }
}
