//! `TcpStream`: opening, reading, writing, closing.

use super::options::TcpOptions;
use crate::ground::spin::SpinGuard;
use crate::net::addr::{ToSocketAddrs, shown, try_each};
use crate::net::driver::{self, KthreadOutlet, stack};
use crate::net::error::{IntoIo, errno, would_block};
use crate::net::platform::Stack;
use crate::net::settings::{deadline_in, timeout};
use crate::net::tcp::{Inner, Socket};
use crate::records::runtime::deadline_after;
use crate::verbs::wait::{WaitOutcome, wait};
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use tailwater_net::tcp::Refusal;
use tailwater_shm::{Cycles, clock};
use tailwater_tcp::{Events, State};

/// A TCP connection, as `std::net::TcpStream`.
///
/// A call that has to wait gives its core to other user threads. One handle can be read and written
/// at the same time by different threads, through `&TcpStream` or a [clone](Self::try_clone); the
/// connection may be processed on any kthread.
///
/// # Small writes
/// Write a request or a reply in one call, or see [`set_nodelay`](Self::set_nodelay): a part that
/// is written later may wait for the peer's acknowledgment of the first, which Linux delays by 40
/// ms.
///
/// # Dropping
/// Dropping the last handle closes the connection as `std` does: written data is sent in the
/// background, followed by a FIN. If received data was never read, the peer gets a reset instead.
/// [`set_linger`](Self::set_linger) changes that.
///
/// # Differences from `std`
/// * A failure is reported by the first call that encounters it, as on Linux; the addresses can be
///   read even after it.
/// * [`TcpOptions`] sets what must be set before the handshake; [`info`](Self::info) and
///   [`stats`](Self::stats) return the connection's state and counters.
///
/// # Examples
/// ```standalone_crate
/// use std::io::{Read, Write};
/// use tailwater::net::{TcpListener, TcpStream};
///
/// #[tailwater::main]
/// fn main() {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let address = listener.local_addr().unwrap();
///     let server = tailwater::thread::spawn(move || {
///         let (mut stream, _) = listener.accept().unwrap();
///         let mut request = String::new();
///         stream.read_to_string(&mut request).unwrap();
///         stream.write_all(request.to_uppercase().as_bytes()).unwrap();
///     });
///     let mut stream = TcpStream::connect(address).unwrap();
///     stream.write_all(b"hello").unwrap();
///     stream.shutdown(std::net::Shutdown::Write).unwrap();
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer).unwrap();
///     assert_eq!(answer, "HELLO");
///     server.join().unwrap();
/// }
/// ```
pub struct TcpStream {
    pub(super) stack: &'static Stack,
    pub(super) socket: Arc<Socket>,
    /// From a listener bound to an IPv6 address: IPv4 addresses are reported as IPv4-mapped.
    mapped: bool,
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if !self.socket.drop_handle() {
            return;
        }
        let mut inner = self.socket.lock();
        inner.readers().watchers().close();
        inner.writers().watchers().close();
        drop(inner);
        match self.lingers_for() {
            Some(Duration::ZERO) => self.stack.abort_tcp(&mut KthreadOutlet, &self.socket),
            linger => {
                self.stack.release_tcp(&mut KthreadOutlet, &self.socket);
                if let Some(linger) = linger {
                    self.wait_until_acknowledged(deadline_after(linger));
                }
            }
        }
    }
}

impl TcpStream {
    /// Returns a stream for a handle that is counted already.
    pub(super) fn new(stack: &'static Stack, socket: Arc<Socket>, mapped: bool) -> Self {
        Self { stack, socket, mapped }
    }

    /// Connects to a listener. Several addresses are tried in turn.
    ///
    /// # Errors
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused),
    /// [`TimedOut`](io::ErrorKind::TimedOut) after three minutes without an answer,
    /// [`HostUnreachable`](io::ErrorKind::HostUnreachable),
    /// [`NetworkUnreachable`](io::ErrorKind::NetworkUnreachable),
    /// [`NetworkDown`](io::ErrorKind::NetworkDown),
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) if all ephemeral ports are taken,
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if there are too many connections, or those
    /// of [`ToSocketAddrs`].
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     TcpStream::connect(address).unwrap();
    ///     drop(listener);
    ///     let error = TcpStream::connect(address).unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// }
    /// ```
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(address, &TcpOptions::default())
    }

    pub(super) fn connect_with(address: impl ToSocketAddrs, options: &TcpOptions) -> io::Result<Self> {
        Self::connect_sending(address, options, &[])
    }

    pub(super) fn connect_sending(
        address: impl ToSocketAddrs,
        options: &TcpOptions,
        data: &[u8],
    ) -> io::Result<Self> {
        let (mut stream, taken) = try_each(address, |to| {
            let (stream, taken) = Self::begin_sending(to, options, data)?;
            stream.wait_until_connected(None)?;
            Ok((stream, taken))
        })?;
        stream.write_all(&data[taken..])?;
        Ok(stream)
    }

    /// Connects to one address as [`connect`](Self::connect), and waits at most for `timeout`.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut), [`InvalidInput`](io::ErrorKind::InvalidInput) for a
    /// timeout of zero, or those of [`connect`](Self::connect).
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     TcpStream::connect_timeout(&address, Duration::from_secs(60)).unwrap();
    /// }
    /// ```
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        if timeout.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of zero: use connect to wait",
            ));
        }
        Self::open(*address, &TcpOptions::default(), Some(deadline_after(timeout)))
    }

    fn open(to: SocketAddr, options: &TcpOptions, deadline: Option<Cycles>) -> io::Result<Self> {
        let stream = Self::begin(to, options)?;
        stream.wait_until_connected(deadline)?;
        Ok(stream)
    }

    fn wait_until_connected(&self, deadline: Option<Cycles>) -> io::Result<()> {
        loop {
            let mut blocked = None;
            if let Some(result) = self.connected_or(|inner| blocked = Some(inner)) {
                return result;
            }
            let inner = blocked.expect("it would block");
            // SAFETY: `threads` always returns the same list, which stays in the state.
            let outcome = unsafe { wait(inner, |inner| inner.writers().threads(), deadline) };
            if outcome == WaitOutcome::TimedOut {
                self.abort();
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
            }
        }
    }

    /// Begins to connect to one address and returns at once a non-blocking stream, for a
    /// `readiness::Poller`: it becomes writable when the handshake is over, and
    /// [`take_error`](Self::take_error) then returns why it failed, if it did.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect) that need no answer of the peer.
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    /// use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::begin_connect(&listener.local_addr().unwrap()).unwrap();
    ///     let (poller, mut events) = (Poller::new(), Events::with_capacity(1));
    ///     poller.register(&stream, Token(0), Interest::WRITABLE, Mode::Level).unwrap();
    ///     poller.wait(&mut events, None);
    ///     assert!(stream.take_error().unwrap().is_none());
    /// }
    /// ```
    pub fn begin_connect(address: &SocketAddr) -> io::Result<Self> {
        let stream = Self::begin(*address, &TcpOptions::default())?;
        stream.socket.settings.nonblocking.store(true, Relaxed);
        Ok(stream)
    }

    /// Sends a SYN. Until the handshake is over, [`connected_or`](Self::connected_or) tells how it
    /// stands.
    pub(crate) fn begin(to: SocketAddr, options: &TcpOptions) -> io::Result<Self> {
        Self::begin_sending(to, options, &[]).map(|(stream, _)| stream)
    }

    /// Sends a SYN, with `data` if that is allowed; returns besides how much of it was taken.
    pub(crate) fn begin_sending(
        to: SocketAddr,
        options: &TcpOptions,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        crate::poll();
        let stack = stack();
        driver::start_timers(stack);
        let mapped = matches!(to, SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some());
        let begun = stack.connect_tcp_with(&mut KthreadOutlet, to, &options.config, data);
        let (socket, taken) = begun.map_err(IntoIo::into_io)?;
        Ok((Self::new(stack, socket, mapped), taken))
    }

    /// Returns how the handshake ended; while it is under way, calls `block` with the locked state
    /// and returns `None`.
    pub(crate) fn connected_or<'a>(
        &'a self,
        block: impl FnOnce(SpinGuard<'a, Inner>),
    ) -> Option<io::Result<()>> {
        let mut inner = self.socket.lock();
        if let Some(failure) = inner.take_failure() {
            return Some(Err(failure.into_io()));
        }
        if inner.is_connecting() {
            block(inner);
            return None;
        }
        Some(Ok(()))
    }

    /// Ends the connection with a reset.
    pub(crate) fn abort(&self) {
        self.stack.abort_tcp(&mut KthreadOutlet, &self.socket);
    }

    /// Returns the stack's socket.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        shown(self.socket.peer_addr(), self.mapped)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer())
    }

    /// Returns the address of this side.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(shown(self.socket.local_addr(), self.mapped))
    }

    /// Returns another handle to the same connection, settings included.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::{Read, Write};
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let mut writer = reader.try_clone().unwrap();
    ///     let echo = tailwater::thread::spawn(move || {
    ///         let (mut stream, _) = listener.accept().unwrap();
    ///         std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    ///     });
    ///     writer.write_all(b"there and back").unwrap();
    ///     writer.shutdown(std::net::Shutdown::Write).unwrap();
    ///     let mut all = String::new();
    ///     reader.read_to_string(&mut all).unwrap();
    ///     assert_eq!(all, "there and back");
    ///     echo.join().unwrap();
    /// }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.handle())
    }

    /// Returns another handle.
    pub(crate) fn handle(&self) -> Self {
        self.socket.add_handle();
        Self { stack: self.stack, socket: Arc::clone(&self.socket), mapped: self.mapped }
    }

    /// Closes one direction or both, for all handles. Data that was written before is sent; threads
    /// that wait in a read or write wake up.
    ///
    /// As on Linux, a closed reading direction ends the stream only where there is nothing to read:
    /// data that is there or still arrives can be read.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the connection is over.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::{Read, Write};
    /// use std::net::Shutdown;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let (mut server, _) = listener.accept().unwrap();
    ///     client.shutdown(Shutdown::Write).unwrap();
    ///     assert_eq!(client.write(b"more").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    ///     assert_eq!(server.read(&mut [0]).unwrap(), 0, "the end");
    ///     server.write_all(b"but this way is open").unwrap();
    ///     assert_eq!(client.read(&mut [0; 100]).unwrap(), 20);
    /// }
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        crate::poll();
        let now = Stack::tcp_now(&KthreadOutlet);
        let mut inner = self.socket.lock();
        if matches!(inner.connection.state(), State::Closed | State::TimeWait) {
            return Err(errno(libc::ENOTCONN));
        }
        let mut events = Events::empty();
        if how != Shutdown::Write {
            inner.connection.shutdown_read();
            events |= Events::READABLE;
        }
        if how != Shutdown::Read {
            events |= inner.connection.close() | Events::WRITABLE;
        }
        self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, events, now);
        Ok(())
    }

    /// Reads as [`Read::read`] does, and leaves the data for the next call.
    ///
    /// # Errors
    /// As [`Read::read`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::{Read, Write};
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let (mut server, _) = listener.accept().unwrap();
    ///     client.write_all(b"twice").unwrap();
    ///     let mut buf = [0; 5];
    ///     assert_eq!(server.peek(&mut buf).unwrap(), 5);
    ///     assert_eq!(server.read(&mut buf).unwrap(), 5);
    /// }
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(|inner| inner.receive(buf, true))
    }

    pub(super) fn receive(
        &self,
        mut take: impl FnMut(&mut Inner) -> Result<usize, Refusal>,
    ) -> io::Result<usize> {
        crate::poll();
        let (mut deadline, mut timed_out) = (None, false);
        loop {
            let mut blocked = None;
            if let Some(result) = self.receive_or(&mut take, |inner| blocked = Some(inner)) {
                return result;
            }
            let inner = blocked.expect("it would block");
            if timed_out || self.socket.settings.nonblocking.load(Relaxed) {
                return Err(would_block());
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_in(&self.socket.settings.read_timeout));
            // SAFETY: `threads` always returns the same list, which stays in the state.
            let outcome = unsafe { wait(inner, |inner| inner.readers().threads(), deadline) };
            timed_out = outcome == WaitOutcome::TimedOut;
        }
    }

    /// Receives by `take`; if that would wait, calls `block` with the locked state and returns
    /// `None`.
    #[inline]
    pub(crate) fn receive_or<'a>(
        &'a self,
        take: impl FnOnce(&mut Inner) -> Result<usize, Refusal>,
        block: impl FnOnce(SpinGuard<'a, Inner>),
    ) -> Option<io::Result<usize>> {
        let mut inner = self.socket.lock();
        match take(&mut inner) {
            Ok(len) => {
                self.open_window(&mut inner);
                Some(Ok(len))
            }
            Err(Refusal::WouldBlock) => {
                inner.end_traced();
                if inner.connection.is_flushing() {
                    let now = Stack::tcp_now(&KthreadOutlet);
                    self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, Events::empty(), now);
                }
                block(inner);
                None
            }
            Err(Refusal::Closed) => Some(Ok(0)),
            Err(Refusal::Failed(failure)) => Some(Err(failure.into_io())),
        }
    }

    /// Sends by `give`; if that would wait, calls `block` with the locked state and returns `None`.
    #[inline]
    pub(crate) fn send_or<'a>(
        &'a self,
        give: impl FnOnce(&mut Inner) -> Result<usize, Refusal>,
        block: impl FnOnce(SpinGuard<'a, Inner>),
    ) -> Option<io::Result<usize>> {
        let mut inner = self.socket.lock();
        match give(&mut inner) {
            Ok(len) => {
                let now = Stack::tcp_now(&KthreadOutlet);
                self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, Events::empty(), now);
                Some(Ok(len))
            }
            Err(Refusal::WouldBlock) => {
                inner.note_awaited();
                block(inner);
                None
            }
            Err(Refusal::Closed) => Some(Err(errno(libc::EPIPE))),
            Err(Refusal::Failed(failure)) => Some(Err(failure.into_io())),
        }
    }

    /// Announces the room that a read has made to the peer, if it is worth a segment.
    #[inline]
    fn open_window(&self, inner: &mut SpinGuard<'_, Inner>) {
        let now = Stack::tcp_now(&KthreadOutlet);
        if inner.connection.wants_transmit(now) {
            self.stack.settle(&mut KthreadOutlet, &self.socket, inner, Events::empty(), now);
        }
    }

    pub(super) fn send(
        &self,
        mut give: impl FnMut(&mut Inner) -> Result<usize, Refusal>,
    ) -> io::Result<usize> {
        crate::poll();
        let (mut deadline, mut timed_out) = (None, false);
        loop {
            let mut blocked = None;
            if let Some(result) = self.send_or(&mut give, |inner| blocked = Some(inner)) {
                return result;
            }
            let inner = blocked.expect("it would block");
            if timed_out || self.socket.settings.nonblocking.load(Relaxed) {
                return Err(would_block());
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_in(&self.socket.settings.write_timeout));
            // SAFETY: as above.
            let outcome = unsafe { wait(inner, |inner| inner.writers().threads(), deadline) };
            timed_out = outcome == WaitOutcome::TimedOut;
        }
    }

    /// Waits until the peer has acknowledged everything, or the connection is over; returns false
    /// if neither is so at the deadline.
    pub(crate) fn wait_until_acknowledged(&self, deadline: Cycles) -> bool {
        loop {
            let mut inner = self.socket.lock();
            let done = inner.is_acknowledged();
            inner.set_lingers(!done);
            if done || clock::now() >= deadline {
                return done;
            }
            // SAFETY: as above.
            unsafe { wait(inner, |inner| inner.writers().threads(), Some(deadline)) };
        }
    }

    fn lingers_for(&self) -> Option<Duration> {
        timeout(&self.socket.settings.linger).map(|it| it - LINGER_NONE)
    }
}

/// A linger time is stored with this added, so that zero can mean "none".
pub(super) const LINGER_NONE: Duration = Duration::from_nanos(1);

/// Calls `one` with each buffer until one is not used up. An error after the first bytes is not
/// reported.
pub(crate) fn each<B>(
    bufs: impl Iterator<Item = B>,
    len: impl Fn(&B) -> usize,
    mut one: impl FnMut(B) -> Result<usize, Refusal>,
) -> Result<usize, Refusal> {
    let mut total = 0;
    for buf in bufs {
        let wanted = len(&buf);
        if wanted == 0 {
            continue;
        }
        match one(buf) {
            Ok(done) => {
                total += done;
                if done < wanted {
                    break;
                }
            }
            Err(_) if total > 0 => break,
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(total)
}

/// Waits for data, at most for the read timeout ([`WouldBlock`](io::ErrorKind::WouldBlock)); zero
/// is the end of the stream. [`ConnectionReset`](io::ErrorKind::ConnectionReset) and
/// [`TimedOut`](io::ErrorKind::TimedOut) report a failed connection.
impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(|inner| inner.receive(buf, false))
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(|inner| each(bufs.iter_mut(), |buf| buf.len(), |buf| inner.receive(buf, false)))
    }
}

/// Waits for room, at most for the write timeout ([`WouldBlock`](io::ErrorKind::WouldBlock)); a
/// closed direction is a [`BrokenPipe`](io::ErrorKind::BrokenPipe). Written data is sent without a
/// flush; flushing only sends what [`Corked`](crate::net::Corked) holds. A second small write may
/// wait for the peer's acknowledgment of the first: see [`set_nodelay`](TcpStream::set_nodelay).
impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(|inner| inner.send(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(|inner| each(bufs.iter(), |buf| buf.len(), |buf| inner.send(buf)))
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.socket.settings.holds_more.load(Relaxed) {
            self.push();
        }
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("addr", &shown(self.socket.local_addr(), self.mapped))
            .field("peer", &self.peer())
            .finish()
    }
}
