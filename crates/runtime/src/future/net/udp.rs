//! Datagrams.

use crate::future::operation::{Operation, Wait};
use crate::net;
use crate::net::ToSocketAddrs;
use crate::verbs::watch::Watchers;
use std::io;
use std::net::SocketAddr;
use tailwater_net::Progress;
use tailwater_net::udp::Take;

/// A UDP socket, as [`net::UdpSocket`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, net::UdpSocket};
///
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
///     block_on(async {
///         one.send_to(b"hello", other.local_addr()?).await?;
///         let mut buf = [0; 100];
///         let (len, from) = other.recv_from(&mut buf).await?;
///         assert_eq!((&buf[..len], from), (&b"hello"[..], one.local_addr()?));
///         Ok(())
///     })
/// }
/// ```
#[derive(Debug)]
pub struct UdpSocket(net::UdpSocket);

impl From<net::UdpSocket> for UdpSocket {
    fn from(socket: net::UdpSocket) -> Self {
        Self(socket)
    }
}

struct Receive<'a> {
    socket: &'a net::UdpSocket,
    buf: &'a mut [u8],
    take: Take,
}

impl Operation for Receive<'_> {
    type Output = io::Result<(usize, SocketAddr)>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Self::Output> {
        self.socket.receive_or(self.buf, self.take, |mut inbound| arm(inbound.readers().watchers()))
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.socket.with_watchers(|watchers, _| change(watchers));
    }
}

impl UdpSocket {
    /// Opens a socket; as [`net::UdpSocket::bind`], which never waits.
    ///
    /// # Errors
    /// As [`net::UdpSocket::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        net::UdpSocket::bind(address).map(Self)
    }

    /// Sets the socket's only peer; as [`net::UdpSocket::connect`], which never waits.
    ///
    /// # Errors
    /// As [`net::UdpSocket::connect`].
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        self.0.connect(address)
    }

    /// Receives a datagram; returns its length and its sender. Dropped before it is ready, it has
    /// received none.
    ///
    /// # Errors
    /// As [`net::UdpSocket::recv_from`], without [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Wait::new(Receive { socket: &self.0, buf, take: Take::Remove }).await
    }

    /// As [`recv_from`](Self::recv_from), without the sender.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf).await?.0)
    }

    /// As [`recv_from`](Self::recv_from), and leaves the datagram for the next call.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Wait::new(Receive { socket: &self.0, buf, take: Take::Peek }).await
    }

    /// Sends a datagram to the first of the addresses; returns its length. Waits while the egress
    /// ring is full.
    ///
    /// # Errors
    /// As [`net::UdpSocket::send_to`], without [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub async fn send_to(&self, data: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to");
        let to = address.to_socket_addrs()?.next().ok_or_else(none)?;
        self.transmit(data, Some(to)).await
    }

    /// Sends a datagram to the peer; returns its length. Waits while the egress ring is full.
    ///
    /// # Errors
    /// As [`net::UdpSocket::send`], without [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data, None).await
    }

    async fn transmit(&self, data: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        crate::poll();
        let mut progress = Progress::default();
        loop {
            if let Some(result) = self.0.try_transmit(data, to, &mut progress) {
                return result;
            }
            match crate::egress::pause() {
                Some(time) => crate::future::sleep(time).await,
                // The IOKernel empties the ring within microseconds.
                None => crate::future::yield_now().await,
            }
        }
    }

    /// Returns the address of this socket.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the blocking socket, for its settings.
    pub fn get_ref(&self) -> &net::UdpSocket {
        &self.0
    }

    /// Returns the blocking socket.
    pub fn into_inner(self) -> net::UdpSocket {
        self.0
    }
}
