//! Settings of a `TcpStream` that can change while the connection lives.

use super::stream::{LINGER_NONE, TcpStream};
use crate::net::driver::KthreadOutlet;
use crate::net::error::IntoIo;
use crate::net::platform::Stack;
use crate::net::settings::{set_timeout, timeout, valid_ttl};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io;
use tailwater_tcp::{Connection, Events, Keepalive, Stats};

impl TcpStream {
    /// Returns the number of bytes that were received and not yet read (`FIONREAD`).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     assert_eq!(stream.unread(), 0);
    /// }
    /// ```
    pub fn unread(&self) -> usize {
        self.socket.lock().connection.readable_bytes()
    }

    /// Applies `change` to the connection, then sends the segments that are allowed now.
    pub(super) fn change(&self, change: impl FnOnce(&mut Connection)) {
        let now = Stack::tcp_now(&KthreadOutlet);
        let mut inner = self.socket.lock();
        change(&mut inner.connection);
        self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, Events::empty(), now);
    }

    /// Sends small segments at once (`TCP_NODELAY`), instead of waiting for the acknowledgment of
    /// those before (Nagle; RFC 9293 section 3.7.4).
    ///
    /// Without it, the second part of a reply written in two calls waits for the peer to
    /// acknowledge the first, unless the thread reads next: a read that finds nothing sends what is
    /// held. Linux may delay that acknowledgment by 40 ms, Tailwater by 2 ms. Write a reply in one
    /// call (`write_vectored`, or a `BufWriter` and `flush`); set this if its parts are sent as
    /// they are ready.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     assert!(!stream.nodelay().unwrap());
    ///     stream.set_nodelay(true).unwrap();
    ///     assert!(stream.nodelay().unwrap());
    /// }
    /// ```
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.change(|connection| connection.set_nodelay(nodelay));
        Ok(())
    }

    /// Returns whether small segments are sent at once.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.socket.lock().connection.nodelay())
    }

    /// Sets the time to live (hop limit) of segments sent from now on, 1 to 255.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) outside that range.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_ttl(3).unwrap();
    ///     assert_eq!(stream.ttl().unwrap(), 3);
    ///     assert!(stream.set_ttl(0).is_err());
    /// }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.settings.ttl.store(valid_ttl(ttl)?, Relaxed);
        Ok(())
    }

    /// Returns the time to live of segments sent.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.socket.settings.ttl.load(Relaxed).into())
    }

    /// Makes calls that would wait fail with [`WouldBlock`](io::ErrorKind::WouldBlock) instead.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_nonblocking(true).unwrap();
    ///     let error = stream.peek(&mut [0]).unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.settings.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Limits how long reading calls wait; `None` waits for ever.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::time::Duration;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     assert_eq!(stream.read_timeout().unwrap(), None);
    ///     stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    ///     assert_eq!(stream.read_timeout().unwrap(), Some(Duration::from_millis(1)));
    /// }
    /// ```
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket.settings.read_timeout, limit)
    }

    /// Returns how long reading calls wait.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.socket.settings.read_timeout))
    }

    /// Limits how long writing calls wait; `None` waits for ever.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::time::Duration;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     assert_eq!(stream.write_timeout().unwrap(), None);
    ///     stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
    ///     assert_eq!(stream.write_timeout().unwrap(), Some(Duration::from_millis(1)));
    /// }
    /// ```
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket.settings.write_timeout, limit)
    }

    /// Returns how long writing calls wait.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.socket.settings.write_timeout))
    }

    /// Sets what dropping the last handle does (`SO_LINGER`): `None`, the default, closes in the
    /// background; zero resets the connection and discards unsent data; any other value waits at
    /// most so long until the peer has acknowledged everything. A handle that waits must not be
    /// dropped within [`no_preempt`](crate::no_preempt).
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::time::Duration;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_linger(Some(Duration::ZERO)).unwrap();
    ///     assert_eq!(stream.linger().unwrap(), Some(Duration::ZERO));
    ///     drop(stream); // resets the connection
    /// }
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.socket.settings.linger, linger.map(|linger| linger.saturating_add(LINGER_NONE)))
    }

    /// Returns what dropping the last handle does.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.socket.settings.linger).map(|linger| linger - LINGER_NONE))
    }

    /// Sets whether and how the peer is probed while the connection is idle (RFC 9293 section
    /// 3.8.4); it is not by default.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream, TcpKeepalive};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_keepalive(Some(TcpKeepalive::default())).unwrap();
    ///     assert_eq!(stream.keepalive().unwrap().unwrap().probes, 9);
    /// }
    /// ```
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.change(|connection| connection.set_keepalive(keepalive));
        Ok(())
    }

    /// Returns how the peer is probed, if it is.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        Ok(self.socket.lock().connection.keepalive())
    }

    /// Sets how long data may stay unacknowledged before the connection fails with
    /// [`TimedOut`](io::ErrorKind::TimedOut) (`TCP_USER_TIMEOUT`, RFC 5482), in whole milliseconds;
    /// `None` is the default, five minutes. A peer that keeps its window closed and answers probes
    /// is given up only once the stream is dropped (RFC 9293 section 3.8.6.1).
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::time::Duration;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_user_timeout(Some(Duration::from_secs(10))).unwrap();
    ///     assert_eq!(stream.user_timeout().unwrap(), Duration::from_secs(10));
    /// }
    /// ```
    pub fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.change(|connection| connection.set_user_timeout(limit));
        Ok(())
    }

    /// Returns how long data may stay unacknowledged.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn user_timeout(&self) -> io::Result<Duration> {
        Ok(self.socket.lock().connection.user_timeout_limit())
    }

    /// Sets the maximum of bytes received and not yet read, clamped to 1 KiB to 1 GiB. Values
    /// beyond the window's scale, which the handshake fixed, have no further effect: see
    /// [`TcpOptions`](crate::net::TcpOptions).
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_receive_buffer(64 * 1024).unwrap();
    ///     assert_eq!(stream.receive_buffer().unwrap(), 64 * 1024);
    /// }
    /// ```
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.change(|connection| connection.set_receive_buffer(bytes));
        Ok(())
    }

    /// Returns the maximum of bytes received and not yet read.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        Ok(self.socket.lock().connection.receive_buffer() as usize)
    }

    /// Sets the maximum of bytes written and not yet acknowledged, clamped to 1 KiB to 1 GiB.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_send_buffer(64 * 1024).unwrap();
    ///     assert_eq!(stream.send_buffer().unwrap(), 64 * 1024);
    /// }
    /// ```
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.change(|connection| connection.set_send_buffer(bytes));
        Ok(())
    }

    /// Returns the maximum of bytes written and not yet acknowledged.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn send_buffer(&self) -> io::Result<usize> {
        Ok(self.socket.lock().connection.send_buffer() as usize)
    }

    /// Returns and clears the reason why the connection failed, if that has not been reported yet.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.socket.lock().take_failure().map(IntoIo::into_io))
    }

    /// Returns what the connection has sent, received and measured.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     assert_eq!(stream.stats().retransmissions, 0);
    /// }
    /// ```
    pub fn stats(&self) -> Stats {
        self.socket.lock().connection.stats()
    }
}
