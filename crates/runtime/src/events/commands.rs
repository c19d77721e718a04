//! Commands of an event loop: adding sockets, sending, closing.

use super::condition::{CommandError, DatagramRange, Handle};
use super::datagrams::Datagrams;
use super::event_loop::EventLoop;
use super::inbox::Link;
use super::slots::{Kind, Listener};
use super::stream::Stream;
use crate::net::{SharedBytes, TcpListener, TcpOptions, TcpStream, UdpSocket};
use crate::token::Token;
use core::net::SocketAddr;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Commands. None of them waits.
impl EventLoop {
    /// Adds a listener: its clients are reported by
    /// [`Condition::Incoming`](super::Condition::Incoming). Several loops may have clones of one;
    /// each client is reported by one of them.
    pub fn listen(&mut self, listener: TcpListener, token: Token) -> Handle {
        let inbox = Arc::clone(&self.inbox);
        let make = |index| Kind::Listener(Listener::new(listener, Link::new(index, &inbox)));
        self.insert(token, make)
    }

    /// Adds a UDP socket: its datagrams are reported by
    /// [`Condition::Datagram`](super::Condition::Datagram). Threads that receive from a clone of it
    /// take datagrams away.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::IoSlice;
    /// use tailwater::events::{Batch, Condition, EventLoop, Token};
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let address = socket.local_addr().unwrap();
    ///     let handle = events.bind(socket, Token(1));
    ///     events.send_to(handle, Some(address), &[IoSlice::new(b"to myself")]).unwrap();
    ///     events.poll(&mut batch, None);
    ///     let Some(Condition::Datagram { from, range, .. }) = batch.iter().next() else {
    ///         panic!("{batch:?}");
    ///     };
    ///     assert_eq!(from, address);
    ///     assert_eq!(events.datagram(handle, range).unwrap(), b"to myself");
    /// }
    /// ```
    pub fn bind(&mut self, socket: UdpSocket, token: Token) -> Handle {
        let inbox = Arc::clone(&self.inbox);
        let make = |index| Kind::Datagrams(Datagrams::new(socket, Link::new(index, &inbox)));
        self.insert(token, make)
    }

    /// Adds an established connection. Threads that read a clone of it take data away.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::events::{EventLoop, Token};
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let mut events = EventLoop::new();
    ///     let handle = events.register(stream, Token(1));
    ///     assert!(events.data(handle).unwrap().is_empty());
    /// }
    /// ```
    pub fn register(&mut self, stream: TcpStream, token: Token) -> Handle {
        self.insert_stream(stream, token, false)
    }

    /// Begins a connection. [`Condition::Connected`](super::Condition::Connected) or
    /// [`Condition::Closed`](super::Condition::Closed) reports its outcome; what is sent before
    /// leaves when it is established.
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`] that are known before the peer answers.
    pub fn connect(&mut self, to: SocketAddr, token: Token) -> io::Result<Handle> {
        self.connect_with(to, &TcpOptions::default(), token)
    }

    /// As [`connect`](Self::connect), with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::events::{EventLoop, Token};
    /// use tailwater::net::{TcpListener, TcpOptions};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let options = TcpOptions::new().receive_buffer(1 << 20);
    ///     let mut events = EventLoop::new();
    ///     events.connect_with(listener.local_addr().unwrap(), &options, Token(1)).unwrap();
    /// }
    /// ```
    pub fn connect_with(&mut self, to: SocketAddr, options: &TcpOptions, token: Token) -> io::Result<Handle> {
        let stream = TcpStream::begin(to, options)?;
        stream.set_nodelay(true)?;
        Ok(self.insert_stream(stream, token, true))
    }

    /// Accepts a connection that was reported as [incoming](super::Condition::Incoming), and names
    /// it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn accept(&mut self, handle: Handle, token: Token) -> Result<(), CommandError> {
        self.slots.stream_mut(handle)?.accept()?;
        self.slots.get_mut(handle)?.token = token;
        // Data may be there already.
        self.visit_later(handle);
        Ok(())
    }

    /// Returns the data of a connection that is on loan and not consumed, oldest first, in one
    /// piece. Until the next [`poll`](Self::poll) only [`consume`](Self::consume) changes it, which
    /// takes bytes off its beginning.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`], [`CommandError::WrongKind`].
    #[inline]
    pub fn data(&self, handle: Handle) -> Result<&[u8], CommandError> {
        self.slots.stream(handle).map(Stream::data)
    }

    /// Returns whether [`Condition::Eof`](super::Condition::Eof) or
    /// [`Condition::Closed`](super::Condition::Closed) was reported of a connection.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`], [`CommandError::WrongKind`].
    pub fn is_eof(&self, handle: Handle) -> Result<bool, CommandError> {
        self.slots.stream(handle).map(Stream::is_eof)
    }

    /// Ends the loan of the first `bytes` of [`data`](Self::data): the peer may send as many more
    /// after this round.
    ///
    /// # Errors
    /// [`CommandError::NotLent`] if fewer are lent, and those of `data`.
    #[inline]
    pub fn consume(&mut self, handle: Handle, bytes: usize) -> Result<(), CommandError> {
        let stream = self.slots.stream_mut(handle)?;
        stream.consume(bytes)?;
        if stream.list() {
            self.commanded.get_mut().push(handle);
        }
        Ok(())
    }

    /// Sends as much of the slices as the send buffer has room for; returns the number of bytes,
    /// which the caller owns again. If those are not all,
    /// [`Condition::Window`](super::Condition::Window) reports when there is room. They leave at
    /// the end of the round.
    ///
    /// # Errors
    /// [`CommandError`].
    #[inline]
    pub fn send(&self, handle: Handle, slices: &[IoSlice<'_>]) -> Result<usize, CommandError> {
        self.hand_over(handle, |stream| stream.send(slices))
    }

    /// Sends as much of `bytes` as the send buffer has room for, as [`send`](Self::send) does, but
    /// without a copy: the connection keeps a reference until the peer has acknowledged what was
    /// taken, or the connection is over, and gathers each segment from the bytes themselves. The
    /// bytes take up room in the send buffer meanwhile. Less than 2 KiB is copied: a reference
    /// would cost more.
    ///
    /// [`SharedBytes`] keep all of their memory, however small the part that is sent. A peer that
    /// keeps its window closed and answers probes holds it until the program [closes](Self::close)
    /// the connection, whatever the [user timeout](TcpStream::set_user_timeout) is; then that
    /// timeout counts, from the last acknowledgment. Close a connection that makes no progress;
    /// with a linger time of zero the memory is back at once.
    ///
    /// Bytes of both commands leave in the order of the commands, and share segments. If not all
    /// were taken, the program keeps the rest: see [`SharedBytes::advance`].
    ///
    /// # Errors
    /// [`CommandError`].
    ///
    /// # Examples
    /// A header that is made for each answer, and a body that all answers share:
    /// ```standalone_crate
    /// use std::io::{IoSlice, Read};
    /// use tailwater::events::{Batch, Condition, EventLoop, Token};
    /// use tailwater::net::{SharedBytes, TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let body = SharedBytes::from(vec![b'x'; 16 << 10]);
    ///     let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     events.listen(listener, Token(0));
    ///     events.poll(&mut batch, None);
    ///     let Some(Condition::Incoming { handle, .. }) = batch.iter().next() else {
    ///         panic!("{batch:?}");
    ///     };
    ///     events.accept(handle, Token(1)).unwrap();
    ///     let header = format!("length: {}\n", body.len());
    ///     events.send(handle, &[IoSlice::new(header.as_bytes())]).unwrap();
    ///     assert_eq!(events.send_shared(handle, &body), Ok(body.len()));
    ///     events.close(handle).unwrap();
    ///     let mut all = String::new();
    ///     client.read_to_string(&mut all).unwrap();
    ///     assert_eq!(all.len(), header.len() + body.len());
    /// }
    /// ```
    #[inline]
    pub fn send_shared(&self, handle: Handle, bytes: &SharedBytes) -> Result<usize, CommandError> {
        self.hand_over(handle, |stream| stream.send_shared(bytes))
    }

    /// Sets whether each acknowledgment of a connection is reported as a
    /// [`Condition::Window`](super::Condition::Window), also while every `send` has room: IX's
    /// `sent`. For programs that count what has arrived, such as one that has a bounded number of
    /// replies on the way. Several acknowledgments may share a condition, and while more than three
    /// quarters of the send buffer are in use they wait.
    ///
    /// # Errors
    /// [`CommandError`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::IoSlice;
    /// use tailwater::events::{Batch, Condition, EventLoop, Token};
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    ///     let handle = events.connect(listener.local_addr().unwrap(), Token(1)).unwrap();
    ///     events.report_acknowledged(handle, true).unwrap();
    ///     events.send(handle, &[IoSlice::new(b"all of this")]).unwrap();
    ///     let mut arrived = 0;
    ///     while arrived < 11 {
    ///         events.poll(&mut batch, None);
    ///         for condition in batch.iter() {
    ///             if let Condition::Window { acknowledged, .. } = condition {
    ///                 arrived += acknowledged;
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    pub fn report_acknowledged(&mut self, handle: Handle, report: bool) -> Result<(), CommandError> {
        self.slots.stream_mut(handle)?.report_acknowledged(report);
        self.visit_later(handle);
        Ok(())
    }

    /// Has `give` hand bytes over to a connection, which is listed to transmit if it took any.
    #[inline]
    fn hand_over(
        &self,
        handle: Handle,
        give: impl FnOnce(&Stream) -> Result<usize, CommandError>,
    ) -> Result<usize, CommandError> {
        let stream = self.slots.stream(handle)?;
        let sent = give(stream)?;
        if sent > 0 && stream.list() {
            self.commanded.borrow_mut().push(handle);
        }
        Ok(sent)
    }

    /// Returns the data of a datagram that was reported in this round.
    ///
    /// # Errors
    /// [`CommandError::Returned`] for one of an earlier round,
    /// [`CommandError::OtherSocket`] for one that another socket has received.
    pub fn datagram(&self, handle: Handle, range: DatagramRange) -> Result<&[u8], CommandError> {
        match self.slots.get(handle)? {
            Kind::Datagrams(_) if range.generation != handle.generation => Err(CommandError::OtherSocket),
            Kind::Datagrams(_) if !self.lends_round(range.round) => Err(CommandError::Returned),
            Kind::Datagrams(datagrams) => Ok(datagrams.data(range.bytes())),
            _ => Err(CommandError::WrongKind),
        }
    }

    /// Sends a datagram, at once: to the socket's own peer, or to `to`.
    ///
    /// # Errors
    /// [`CommandError::Full`] if it does not fit the egress ring, [`CommandError::Refused`] as
    /// [`UdpSocket::send_to`] fails.
    pub fn send_to(
        &self,
        handle: Handle,
        to: Option<SocketAddr>,
        slices: &[IoSlice<'_>],
    ) -> Result<(), CommandError> {
        let Kind::Datagrams(datagrams) = self.slots.get(handle)? else {
            return Err(CommandError::WrongKind);
        };
        if let [slice] = slices {
            return datagrams.send(to, slice);
        }
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        slices.iter().for_each(|slice| scratch.extend_from_slice(slice));
        datagrams.send(to, &scratch)
    }

    /// Closes the sending direction of a connection behind what was sent. When the peer has closed
    /// its own, the connection is reported as closed.
    ///
    /// # Errors
    /// [`CommandError`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::IoSlice;
    /// use tailwater::events::{CommandError, EventLoop, Token};
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut events = EventLoop::new();
    ///     let handle = events.connect(listener.local_addr().unwrap(), Token(1)).unwrap();
    ///     events.send(handle, &[IoSlice::new(b"all there is")]).unwrap();
    ///     events.shutdown(handle).unwrap();
    ///     let more = events.send(handle, &[IoSlice::new(b"more")]);
    ///     assert_eq!(more, Err(CommandError::ShutDown));
    /// }
    /// ```
    pub fn shutdown(&mut self, handle: Handle) -> Result<(), CommandError> {
        self.slots.stream_mut(handle)?.shutdown()?;
        self.visit_later(handle);
        Ok(())
    }

    /// Closes a socket, or rejects an incoming connection; nothing more is reported of it,
    /// except what a [`Batch`](super::Batch) has already: its conditions keep the handle, which is
    /// invalid, and the token. A program whose tokens find state that it frees here must look at
    /// the handle first. [`run`](Self::run) drops such conditions.
    ///
    /// What was sent is delivered in the background, as by a dropped
    /// [`TcpStream`]. If data was received and is not
    /// [consumed](Self::consume), the peer gets a reset instead. A linger time
    /// ([`TcpStream::set_linger`]) of zero resets as well; a longer one is cleared, so that nothing
    /// waits here.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`].
    pub fn close(&mut self, handle: Handle) -> Result<(), CommandError> {
        self.slots.remove(handle).map(drop)
    }

    /// Adds a connection that waits to be accepted.
    pub(super) fn insert_incoming(&mut self, stream: TcpStream) -> Handle {
        // Fails for a connection that is over already, which is reported once it is accepted.
        let _ = stream.set_nodelay(true);
        let inbox = &self.inbox;
        let make = |index| Kind::Stream(Stream::incoming(stream, Link::new(index, inbox)));
        self.slots.insert(Token::default(), make)
    }

    fn insert_stream(&mut self, stream: TcpStream, token: Token, connecting: bool) -> Handle {
        let inbox = Arc::clone(&self.inbox);
        let make = |index| Kind::Stream(Stream::watched(stream, Link::new(index, &inbox), connecting));
        self.insert(token, make)
    }

    /// Adds a socket, which is visited in the next round for what it has already.
    fn insert(&mut self, token: Token, make: impl FnOnce(u32) -> Kind) -> Handle {
        let handle = self.slots.insert(token, make);
        self.visit_later(handle);
        handle
    }
}
