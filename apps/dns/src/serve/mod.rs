//! Answering over sockets, of either kind.
//!
//! Owns the loops over [datagrams](udp) and [connections](tcp), and the counts of what they did. They are written against the few
//! calls that Tailwater's sockets and the kernel's have in common ([`Datagrams`], [`Stream`]), so both servers run the same
//! code. The threads are the callers': [`crate::service`] and [`crate::linux`].

pub mod tcp;
pub mod udp;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::{RecvFlags, recvfrom};

use crate::store::Store;

/// A UDP socket.
pub trait Datagrams {
    /// The next datagram; what does not fit into `buf` is lost.
    ///
    /// # Errors
    /// The socket's.
    fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends a datagram.
    ///
    /// # Errors
    /// The socket's.
    fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize>;

    /// How long [`recv_from`](Self::recv_from) may wait.
    ///
    /// # Errors
    /// The socket's; `timeout` must not be zero.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;
}

/// A TCP connection.
pub trait Stream: Read + Write {
    /// How long a read may wait.
    ///
    /// # Errors
    /// The socket's; `timeout` must not be zero.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// How long a write may wait.
    ///
    /// # Errors
    /// As [`set_read_timeout`](Self::set_read_timeout).
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Sends what is written at once.
    ///
    /// # Errors
    /// The socket's.
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
    /// Not `std`'s, which panics where there is no sender: so after a shutdown, by which [`crate::linux`] ends its threads. That
    /// is [`NotConnected`](io::ErrorKind::NotConnected) here.
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
    /// Most connections at a time; one more is closed at once.
    pub connections: usize,
    /// Longest time from one query on a connection to the end of the next, and for an answer to be taken.
    pub idle: Duration,
}

impl Default for Limits {
    /// 1,000 connections; 10 s, of the "few seconds" that RFC 7766, section 6.2.3, wants.
    fn default() -> Self {
        Self { connections: 1_000, idle: Duration::from_secs(10) }
    }
}

/// What all threads of a server share.
#[derive(Debug)]
pub struct Shared {
    /// The zones.
    pub store: Store,
    /// Bounds on connections.
    pub limits: Limits,
    connections: AtomicUsize,
    counters: Counters,
}

/// Written by whoever answers, with relaxed additions; read at any time.
#[derive(Debug, Default)]
struct Counters {
    udp: AtomicU64,
    tcp: AtomicU64,
    ignored: AtomicU64,
    unsent: AtomicU64,
    refused: AtomicU64,
}

/// What a server did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries answered over UDP.
    pub udp: u64,
    /// Queries answered over TCP.
    pub tcp: u64,
    /// Messages that get no answer.
    pub ignored: u64,
    /// Answers that could not be sent.
    pub unsent: u64,
    /// Connections closed at once, because there were too many.
    pub refused: u64,
}

impl Shared {
    /// A server of these zones, without threads yet.
    pub fn new(store: Store, limits: Limits) -> Self {
        Self { store, limits, connections: AtomicUsize::new(0), counters: Counters::default() }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let Counters { udp, tcp, ignored, unsent, refused } = &self.counters;
        Counts {
            udp: udp.load(Relaxed),
            tcp: tcp.load(Relaxed),
            ignored: ignored.load(Relaxed),
            unsent: unsent.load(Relaxed),
            refused: refused.load(Relaxed),
        }
    }
}
