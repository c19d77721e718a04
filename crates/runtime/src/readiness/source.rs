//! Sources that can be registered, and the reading of their state.

use super::interest::{Interest, Ready};
use crate::net::UdpSocket;
use crate::sync::channel::{Channel, Receiver, Sender};
use crate::sync::{Event, Notify, mpsc};
use crate::verbs::watch::Watchers;
use std::sync::Arc;
#[cfg(feature = "tcp")]
use {
    crate::net::tcp::{Listening, Socket},
    crate::net::{TcpListener, TcpStream},
    tailwater_tcp::State,
};

/// A direction of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Read,
    Write,
}

impl Side {
    /// Returns whether changes of this side matter to `interest`.
    pub fn concerns(self, interest: Interest) -> bool {
        match self {
            // The end of a connection, however it comes, is a change for readers.
            Self::Read => {
                interest.contains(Interest::READABLE)
                    || interest.contains(Interest::READ_CLOSED)
                    || interest.contains(Interest::HANGUP)
            }
            Self::Write => interest.contains(Interest::WRITABLE),
        }
    }

    /// Returns the bit of this side in a set of sides.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What a registration watches. Implementors call `change` with their lock held.
pub trait Object: Send + Sync {
    /// Calls `change` with the watchers of one direction, locked; does nothing if the source has no
    /// such direction, or is always ready for it.
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers));

    /// Returns what the source is ready for.
    fn ready(&self) -> Ready;
}

/// Tells sources apart: the address of what their handles share, and the direction if the two ends
/// of one object are different sources.
pub type Key = (usize, Option<Direction>);

/// See [`Key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Receives,
    Sends,
}

/// The parts of [`Source`] that programs do not see.
pub trait Sealed {
    fn key(&self) -> Key;
    fn object(&self) -> Arc<dyn Object>;
}

/// What a [`Poller`](super::Poller) can watch: TCP streams and listeners, UDP sockets, both ends of
/// channels, and an [`Event`] or [`Notify`] in an `Arc`.
///
/// An [`Event`] is readable while it is set, a [`Notify`] while a notification is stored. A UDP
/// socket is always writable, also while a program waits for another IOKernel: a loop that gets
/// `WouldBlock` from a send pauses before it tries again. A connection is writable when its
/// handshake is over.
///
/// # Examples
/// ```
/// use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
/// use tailwater::sync::channel;
///
/// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
/// let (sender, receiver) = channel::unbounded();
/// poller.register(&receiver, Token(1), Interest::READABLE, Mode::Level).unwrap();
/// sender.send("ready").unwrap();
/// assert_eq!(poller.wait(&mut events, None), 1);
/// assert_eq!(receiver.try_recv(), Ok("ready"));
/// ```
pub trait Source: Sealed {}

impl<S: Sealed> Source for S {}

fn address<T: ?Sized>(shared: &T) -> usize {
    core::ptr::from_ref(shared).cast::<()>() as usize
}

#[cfg(feature = "tcp")]
impl Object for Socket {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        let mut inner = self.lock();
        change(match side {
            Side::Read => inner.readers().watchers(),
            Side::Write => inner.writers().watchers(),
        });
    }

    fn ready(&self) -> Ready {
        let mut inner = self.lock();
        let readable = inner.connection.is_readable();
        let writable = !inner.is_connecting() && inner.connection.poll_writable();
        inner.note_awaited();
        let end = readable && inner.connection.readable_bytes() == 0;
        let state = inner.connection.state();
        let hung_up = matches!(state, State::LastAck | State::Closing | State::TimeWait | State::Closed);
        Ready::READ_CLOSED.when(end || hung_up || state == State::CloseWait)
            | Ready::HUNG_UP.when(hung_up)
            | Ready::READABLE.when(readable)
            | Ready::WRITABLE.when(writable)
            | Ready::END.when(end)
            | Ready::FAILED.when(inner.has_failed())
    }
}

#[cfg(feature = "tcp")]
impl Sealed for TcpStream {
    fn key(&self) -> Key {
        (address(&**self.socket()), None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::clone(self.socket()) as _
    }
}

#[cfg(feature = "tcp")]
impl Object for Listening {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            change(self.lock().acceptors().watchers());
        }
    }

    fn ready(&self) -> Ready {
        Ready::READABLE.when(self.lock().is_ready())
    }
}

#[cfg(feature = "tcp")]
impl Sealed for TcpListener {
    fn key(&self) -> Key {
        (address(&**self.listening()), None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::clone(self.listening()) as _
    }
}

impl Object for crate::net::UdpEndpoint {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            change(self.0.inbound().readers().watchers());
        }
    }

    fn ready(&self) -> Ready {
        Ready::READABLE.when(self.0.inbound().is_readable()) | Ready::WRITABLE
    }
}

impl Sealed for UdpSocket {
    fn key(&self) -> Key {
        (address(self.endpoint().0), None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::new(self.endpoint())
    }
}

/// The receiving end of a channel.
struct Receives<T>(Arc<Channel<T>>);

impl<T: Send> Object for Receives<T> {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            self.0.with_readable(|watchers, _, _| change(watchers));
        }
    }

    fn ready(&self) -> Ready {
        self.0.with_readable(|_, ready, over| Ready::READABLE.when(ready) | Ready::END.when(over))
    }
}

impl<T: Send + 'static> Sealed for Receiver<T> {
    fn key(&self) -> Key {
        (address(&**self.channel()), Some(Direction::Receives))
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::new(Receives(Arc::clone(self.channel())))
    }
}

impl<T: Send + 'static> Sealed for mpsc::Receiver<T> {
    fn key(&self) -> Key {
        self.shared().key()
    }

    fn object(&self) -> Arc<dyn Object> {
        self.shared().object()
    }
}

/// The sending end of a channel.
struct Sends<T>(Arc<Channel<T>>);

impl<T: Send> Object for Sends<T> {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Write {
            self.0.with_writable(|watchers, _, _| change(watchers));
        }
    }

    fn ready(&self) -> Ready {
        self.0.with_writable(|_, ready, over| Ready::WRITABLE.when(ready) | Ready::END.when(over))
    }
}

impl<T: Send + 'static> Sealed for Sender<T> {
    fn key(&self) -> Key {
        (address(&**self.channel()), Some(Direction::Sends))
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::new(Sends(Arc::clone(self.channel())))
    }
}

impl Object for Event {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            self.with_watchers(|watchers, _| change(watchers));
        }
    }

    fn ready(&self) -> Ready {
        Ready::READABLE.when(self.is_set())
    }
}

impl Sealed for Arc<Event> {
    fn key(&self) -> Key {
        (address(&**self), None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::clone(self) as _
    }
}

impl Object for Notify {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            self.with_watchers(|watchers, _| change(watchers));
        }
    }

    fn ready(&self) -> Ready {
        Ready::READABLE.when(self.with_watchers(|_, stored| stored))
    }
}

impl Sealed for Arc<Notify> {
    fn key(&self) -> Key {
        (address(&**self), None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::clone(self) as _
    }
}
