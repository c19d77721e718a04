//! Serving queries over sockets of either kind.
//!
//! Owns the loops over [datagrams](udp) and [connections](tcp), and their [counters]. They use only
//! the few calls that Tailwater's sockets and the kernel's have in common ([`Datagrams`],
//! [`Stream`]), so both servers run the same code. The threads are the callers': [`crate::service`]
//! and [`crate::linux`].

pub mod counters;
pub mod tcp;
pub mod udp;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::{RecvFlags, recvfrom};

use crate::store::Store;
use counters::{Counters, Counts, Set};

/// A UDP socket.
pub trait Datagrams {
    /// Receives the next datagram; what does not fit into `buf` is lost.
    ///
    /// # Errors
    /// The socket's error.
    fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends a datagram.
    ///
    /// # Errors
    /// The socket's error.
    fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize>;

    /// Sets how long [`recv_from`](Self::recv_from) may wait.
    ///
    /// # Errors
    /// The socket's error; `timeout` must not be zero.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;
}

/// A TCP connection.
pub trait Stream: Read + Write {
    /// Sets how long a read may wait.
    ///
    /// # Errors
    /// The socket's error; `timeout` must not be zero.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Sets how long a write may wait.
    ///
    /// # Errors
    /// As [`set_read_timeout`](Self::set_read_timeout).
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Makes writes send without delay.
    ///
    /// # Errors
    /// The socket's error.
    fn set_nodelay(&self) -> io::Result<()>;
}

impl Datagrams for tailwater::net::UdpSocket {
    #[inline]
    fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buf)
    }

    #[inline]
    fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(data, to)
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

impl Datagrams for std::net::UdpSocket {
    /// Not `std`'s, which panics if there is no sender: that is the case after a shutdown, by which
    /// [`crate::linux`] ends its threads. Here it is [`NotConnected`](io::ErrorKind::NotConnected).
    #[inline]
    fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (len, _, from) = recvfrom(self, buf, RecvFlags::empty())?;
        let from =
            from.and_then(|from| SocketAddr::try_from(from).ok()).ok_or(io::ErrorKind::NotConnected)?;
        Ok((len, from))
    }

    #[inline]
    fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(data, to)
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

macro_rules! streams {
    ($($tcp:ty),*) => {$(
        impl Stream for $tcp {
            fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(timeout))
            }

            fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(timeout))
            }

            fn set_nodelay(&self) -> io::Result<()> {
                self.set_nodelay(true)
            }
        }
    )*};
}

streams!(tailwater::net::TcpStream, std::net::TcpStream);

/// Bounds on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections at a time; further ones are closed at once.
    pub connections: usize,
    /// Maximum time from one query on a connection to the end of the next, and for the client to
    /// read an answer.
    pub idle: Duration,
}

impl Default for Limits {
    /// 1,000 connections; 10 s, one of the "few seconds" that RFC 7766, section 6.2.3, recommends.
    fn default() -> Self {
        Self { connections: 1_000, idle: Duration::from_secs(10) }
    }
}

/// The state that all threads of a server share.
#[derive(Debug)]
pub struct Shared {
    /// The zones.
    pub store: Store,
    /// Bounds on connections.
    pub limits: Limits,
    connections: AtomicUsize,
    counters: Counters,
}

impl Shared {
    /// Returns a server of these zones, without threads yet.
    pub fn new(store: Store, limits: Limits) -> Self {
        Self { store, limits, connections: AtomicUsize::new(0), counters: Counters::default() }
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        // Relaxed: the number guards nothing but itself.
        self.connections.load(Relaxed)
    }

    /// Returns the limits of connections.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the counters that all connections and dispatchers share.
    pub fn counters(&self) -> &Set {
        self.counters.shared()
    }

    /// Returns the present values of all counters.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }
}
