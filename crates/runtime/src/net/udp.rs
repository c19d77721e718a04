//! The UDP socket that programs use: blocking calls over the stack's queues.
//!
//! Owns waiting, timeouts, and the translation to `std::io`. Errors have the
//! [`ErrorKind`](io::ErrorKind) and errno that `std` reports.

use super::addr::{self, ToSocketAddrs, bindable, no_addresses, try_each};
use super::driver::{self, KthreadOutlet, stack};
use super::error::{IntoIo, would_block};
use super::platform::{Endpoint, Inbound, Stack};
use super::settings::{CUT_OFF_PAUSE, deadline_in, set_timeout, timeout, valid_ttl};
use crate::ground::spin::SpinGuard;
use crate::records::runtime::deadline_after;
use crate::verbs::wait::{WaitOutcome, wait};
use crate::verbs::watch::Watchers;
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::io;
use std::sync::Arc;
#[cfg(feature = "tcp")]
use tailwater_net::udp::DatagramRing;
use tailwater_net::udp::{Binding, Take};
use tailwater_net::{Progress, SendError};
use tailwater_shm::clock;

/// A UDP socket, as `std::net::UdpSocket`.
///
/// A call that has to wait gives its core to other user threads. Several threads may wait in
/// `recv_from` on one socket: each datagram wakes the one that has waited longest, and is received
/// once. A running thread may take a datagram before the thread woken for it gets a core; that one
/// continues to wait.
///
/// A socket buffers 256 KiB of unread datagrams (8 bytes of each are bookkeeping, 24 of one from
/// IPv6); what does not fit is dropped and counted in
/// [`NetCounters::udp_overflows`](crate::net::NetCounters).
///
/// # Differences from `std`
/// * There is one link: scope and flow label of IPv6 addresses are ignored, and reported as zero.
///
/// # Both families
/// A socket bound to `[::]` receives IPv4 too, as by default on Linux: IPv4 peers have IPv4-mapped
/// addresses there (`[::ffff:10.77.0.2]:7`). A socket bound to an IPv4 address sends to IPv4 only.
///
/// # Long datagrams
/// A datagram longer than the path's MTU is sent in fragments, as by default on Linux, and received
/// fragments are reassembled.
///
/// # Examples
/// An echo server, as many threads as there are cores:
/// ```no_run
/// use tailwater::net::UdpSocket;
///
/// fn serve() -> std::io::Result<()> {
///     let socket = UdpSocket::bind("0.0.0.0:7")?;
///     for _ in 0..tailwater::thread::available_parallelism()?.get() {
///         let socket = socket.try_clone()?;
///         tailwater::thread::spawn(move || {
///             let mut buf = [0; 1500];
///             while let Ok((len, from)) = socket.recv_from(&mut buf) {
///                 let _ = socket.send_to(&buf[..len], from);
///             }
///         });
///     }
///     Ok(())
/// }
/// ```
pub struct UdpSocket {
    pub(super) shared: Arc<Shared>,
}

/// The stack's socket, which a later `UdpSocket` may use once this one is closed.
#[derive(Debug)]
pub(crate) struct UdpEndpoint(pub(crate) &'static Endpoint);

/// What clones of a socket share; the last clone closes it.
pub(super) struct Shared {
    pub(super) stack: &'static Stack,
    pub(super) endpoint: &'static Endpoint,
    /// The address as bound.
    bound: SocketAddr,
    /// Bound to an IPv6 address: IPv4 ones are reported as IPv4-mapped.
    mapped: bool,
    // Settings. Relaxed: a call sees the settings made before it on its own thread.
    nonblocking: AtomicBool,
    /// Nanoseconds; zero means unlimited.
    read_timeout: AtomicU64,
    /// Nanoseconds; zero means unlimited.
    write_timeout: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The next socket may use the endpoint again, and must not notify watchers of this one.
        self.endpoint.inbound().readers().watchers().close();
        self.stack.close_udp(self.endpoint);
    }
}

impl UdpSocket {
    /// Opens a socket. Port 0 means any free port; several addresses are tried in turn.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse),
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) for an address that is not this
    /// runtime's, or those of [`ToSocketAddrs`].
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("0.0.0.0:7").unwrap();
    ///     assert!(UdpSocket::bind("0.0.0.0:7").is_err(), "taken");
    ///     assert_eq!(socket.local_addr().unwrap().port(), 7);
    /// }
    /// ```
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stack = stack();
        try_each(address, |local| {
            let (local, mapped) = bindable(stack, local)?;
            let endpoint = stack.bind_udp(local).map_err(IntoIo::into_io)?;
            driver::note_bound(local);
            driver::start_timers(stack);
            let shared = Shared {
                stack,
                endpoint,
                bound: endpoint.binding().local,
                mapped,
                nonblocking: AtomicBool::new(false),
                read_timeout: AtomicU64::new(0),
                write_timeout: AtomicU64::new(0),
            };
            Ok(Self { shared: Arc::new(shared) })
        })
    }

    /// Sets the socket's only peer: `send` sends to it, and only its datagrams are received from
    /// now on.
    ///
    /// # Errors
    /// [`NetworkUnreachable`](io::ErrorKind::NetworkUnreachable), or those of [`ToSocketAddrs`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let one = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     one.connect(other.local_addr().unwrap()).unwrap();
    ///     one.send(b"to my only peer").unwrap();
    ///     assert_eq!(other.recv(&mut [0; 100]).unwrap(), 15);
    /// }
    /// ```
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        let Shared { stack, endpoint, .. } = *self.shared;
        try_each(address, |peer| stack.connect_udp(endpoint, peer).map_err(IntoIo::into_io))
    }

    /// Sends a datagram to the first of the addresses; returns its length.
    ///
    /// Waits while the egress ring is full, at most for the write timeout.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and those of [`ToSocketAddrs`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let one = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     one.send_to(b"hello", other.local_addr().unwrap()).unwrap();
    ///     let mut buf = [0; 100];
    ///     let (len, from) = other.recv_from(&mut buf).unwrap();
    ///     assert_eq!((&buf[..len], from), (&b"hello"[..], one.local_addr().unwrap()));
    /// }
    /// ```
    pub fn send_to(&self, data: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let to = address.to_socket_addrs()?.next().ok_or_else(no_addresses)?;
        self.transmit(data, self.shared.bound, to)
    }

    /// Sends a datagram to the peer; returns its length.
    ///
    /// # Errors
    /// * `EDESTADDRREQ` if the socket is not connected;
    /// * [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) or
    ///   [`HostUnreachable`](io::ErrorKind::HostUnreachable) if that happened to an earlier
    ///   datagram of a connected socket; then nothing is sent;
    /// * [`WouldBlock`](io::ErrorKind::WouldBlock) if the egress ring stayed full;
    /// * [`NetworkUnreachable`](io::ErrorKind::NetworkUnreachable),
    ///   [`NetworkDown`](io::ErrorKind::NetworkDown),
    ///   [`HostUnreachable`](io::ErrorKind::HostUnreachable) if the neighbour does not answer;
    /// * `EMSGSIZE` if the datagram has more than 65 507 bytes, `EAFNOSUPPORT` for an address of
    ///   the other family on a socket bound to an IPv4 address or to one of IPv6's other than
    ///   `[::]`, [`PermissionDenied`](io::ErrorKind::PermissionDenied) for a broadcast that is not
    ///   allowed, [`InvalidInput`](io::ErrorKind::InvalidInput).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     socket.connect(socket.local_addr().unwrap()).unwrap();
    ///     socket.send(b"to myself").unwrap();
    ///     assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 9);
    /// }
    /// ```
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let Binding { local, peer } = self.shared.endpoint.binding();
        let peer = peer.ok_or_else(|| io::Error::from_raw_os_error(libc::EDESTADDRREQ))?;
        self.transmit(data, local, peer)
    }

    fn transmit(&self, data: &[u8], local: SocketAddr, to: SocketAddr) -> io::Result<usize> {
        crate::poll();
        let Shared { stack, endpoint, .. } = *self.shared;
        if let Some(error) = endpoint.take_error() {
            return Err(error.into_io());
        }
        let (mut deadline, mut progress) = (None, Progress::default());
        loop {
            match stack.send_udp_from(&mut KthreadOutlet, endpoint, local, to, data, &mut progress) {
                Ok(()) => return Ok(data.len()),
                Err(SendError::Full) if !self.shared.nonblocking.load(Relaxed) => {}
                Err(error) => return Err(error.into_io()),
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_in(&self.shared.write_timeout));
            if deadline.is_some_and(|at| clock::now() >= at) {
                return Err(would_block());
            }
            crate::egress::wait_for_room();
        }
    }

    /// Receives a datagram; returns its length and its sender. A datagram longer than `buf` is
    /// truncated.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none came within the read timeout, or at once
    /// on a non-blocking socket; [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) or
    /// [`HostUnreachable`](io::ErrorKind::HostUnreachable) if that happened to an earlier datagram
    /// of a connected socket; [`NetworkDown`](io::ErrorKind::NetworkDown) while the program goes on
    /// without an IOKernel that it has lost, unless the socket is bound to a loopback address.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buf, Take::Remove)
    }

    /// As [`recv_from`](Self::recv_from), without the sender.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(buf, Take::Remove).map(|(len, _)| len)
    }

    /// As [`recv_from`](Self::recv_from), and leaves the datagram for the next call.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     socket.send_to(b"twice", socket.local_addr().unwrap()).unwrap();
    ///     let mut buf = [0; 100];
    ///     assert_eq!(socket.peek_from(&mut buf).unwrap(), socket.recv_from(&mut buf).unwrap());
    /// }
    /// ```
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buf, Take::Peek)
    }

    /// As [`recv`](Self::recv), and leaves the datagram for the next call.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     socket.send_to(b"twice", socket.local_addr().unwrap()).unwrap();
    ///     let mut buf = [0; 100];
    ///     assert_eq!(socket.peek(&mut buf).unwrap(), socket.recv(&mut buf).unwrap());
    /// }
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.receive(buf, Take::Peek).map(|(len, _)| len)
    }

    fn receive(&self, buf: &mut [u8], take: Take) -> io::Result<(usize, SocketAddr)> {
        crate::poll();
        let mut deadline = None;
        let (mut timed_out, mut waited) = (false, false);
        loop {
            let mut blocked = None;
            if let Some(result) = self.receive_or(buf, take, |inbound| blocked = Some(inbound)) {
                return result;
            }
            let inbound = blocked.expect("it would block");
            let cut_off = self.shared.stack.is_cut_off(self.shared.bound);
            if cut_off && waited {
                return Err(SendError::Down.into_io());
            }
            if timed_out || self.shared.nonblocking.load(Relaxed) {
                return Err(would_block());
            }
            let deadline = *deadline.get_or_insert_with(|| deadline_in(&self.shared.read_timeout));
            let pause = cut_off.then(|| deadline_after(CUT_OFF_PAUSE));
            let first = pause.into_iter().chain(deadline).min();
            waited = true;
            // SAFETY: `threads` always returns the same list, which stays in the state.
            let outcome = unsafe { wait(inbound, |inbound| inbound.readers().threads(), first) };
            timed_out = outcome == WaitOutcome::TimedOut && first == deadline;
        }
    }

    /// Receives; if that would wait, calls `block` with the locked state and returns `None`.
    pub(crate) fn receive_or<'a>(
        &'a self,
        buf: &mut [u8],
        take: Take,
        block: impl FnOnce(SpinGuard<'a, Inbound>),
    ) -> Option<io::Result<(usize, SocketAddr)>> {
        let mut inbound = self.shared.endpoint.inbound();
        match inbound.receive(buf, take) {
            Ok(Some(received)) => {
                drop(inbound);
                Some(Ok((received.len.min(buf.len()), self.shown(received.source))))
            }
            Ok(None) => {
                block(inbound);
                None
            }
            Err(error) => Some(Err(error.into_io())),
        }
    }

    /// Returns the stack's socket.
    pub(crate) fn endpoint(&self) -> UdpEndpoint {
        UdpEndpoint(self.shared.endpoint)
    }

    /// Sends without waiting; `None` if the egress ring is full. `progress` is that of the call so
    /// far.
    pub(crate) fn try_transmit(
        &self,
        data: &[u8],
        to: Option<SocketAddr>,
        progress: &mut Progress,
    ) -> Option<io::Result<usize>> {
        let Shared { stack, endpoint, bound, .. } = *self.shared;
        if let Some(error) = endpoint.take_error() {
            return Some(Err(error.into_io()));
        }
        let (local, to) = match to {
            Some(to) => (bound, to),
            None => match endpoint.binding() {
                Binding { local, peer: Some(peer) } => (local, peer),
                Binding { peer: None, .. } => {
                    return Some(Err(io::Error::from_raw_os_error(libc::EDESTADDRREQ)));
                }
            },
        };
        match stack.send_udp_from(&mut KthreadOutlet, endpoint, local, to, data, progress) {
            Ok(()) => Some(Ok(data.len())),
            Err(SendError::Full) => None,
            Err(error) => Some(Err(error.into_io())),
        }
    }

    /// Returns an empty queue as large as the socket's.
    #[cfg(feature = "tcp")]
    pub(crate) fn spare_queue(&self) -> DatagramRing {
        let bytes = self.shared.endpoint.inbound().queue_bytes();
        DatagramRing::new(bytes)
    }

    /// Exchanges the queue for `spare`, which is empty: see [`Inbound::exchange`].
    ///
    /// # Errors
    /// The kind of the pending error, which this clears.
    #[cfg(feature = "tcp")]
    pub(crate) fn exchange_queue(&self, spare: &mut DatagramRing) -> Result<(), io::ErrorKind> {
        let exchanged = self.shared.endpoint.inbound().exchange(spare);
        exchanged.map_err(|error| error.into_io().kind())
    }

    /// Calls `change` with the watchers of datagrams, locked, and whether one waits.
    pub(crate) fn with_watchers<R>(&self, change: impl FnOnce(&mut Watchers, bool) -> R) -> R {
        let mut inbound = self.shared.endpoint.inbound();
        let ready = inbound.is_readable();
        change(inbound.readers().watchers(), ready)
    }

    /// Returns an address in the notation of this socket's family.
    pub(crate) fn shown(&self, address: SocketAddr) -> SocketAddr {
        addr::shown(address, self.shared.mapped)
    }

    /// Returns the address of this socket; the unspecified address if it was bound to that and is
    /// not connected.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shown(self.shared.endpoint.binding().local))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.shared.endpoint.binding().peer;
        peer.map(|peer| self.shown(peer)).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    /// Returns another handle to the same socket, settings included.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let clone = socket.try_clone().unwrap();
    ///     drop(socket);
    ///     assert_ne!(clone.local_addr().unwrap().port(), 0, "still open");
    /// }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { shared: Arc::clone(&self.shared) })
    }

    /// Returns and clears the error that the next call would report.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.shared.endpoint.take_error().map(IntoIo::into_io))
    }

    /// Makes calls that would wait fail with [`WouldBlock`](io::ErrorKind::WouldBlock) instead.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     socket.set_nonblocking(true).unwrap();
    ///     let error = socket.recv(&mut [0; 100]).unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Limits how long receiving calls wait; `None` waits for ever.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     socket.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
    ///     let error = socket.recv(&mut [0; 100]).unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// }
    /// ```
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.shared.read_timeout, timeout)
    }

    /// Limits how long sending calls wait; `None` waits for ever.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    ///     let limit = std::time::Duration::from_millis(1);
    ///     assert_eq!(socket.write_timeout().unwrap(), None);
    ///     socket.set_write_timeout(Some(limit)).unwrap();
    ///     assert_eq!(socket.write_timeout().unwrap(), Some(limit));
    /// }
    /// ```
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.shared.write_timeout, timeout)
    }

    /// Returns how long receiving calls wait.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.shared.read_timeout))
    }

    /// Returns how long sending calls wait.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.shared.write_timeout))
    }

    /// Allows or forbids (the default) sending to broadcast addresses. This host's own sockets do
    /// not receive its broadcasts.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     assert!(!socket.broadcast().unwrap());
    ///     socket.set_broadcast(true).unwrap();
    ///     assert!(socket.broadcast().unwrap());
    /// }
    /// ```
    pub fn set_broadcast(&self, allowed: bool) -> io::Result<()> {
        self.shared.endpoint.broadcast.store(allowed, Relaxed);
        Ok(())
    }

    /// Returns whether sending to broadcast addresses is allowed.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.shared.endpoint.broadcast.load(Relaxed))
    }

    /// Sets the time to live of datagrams sent from now on, 1 to 255.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) outside that range.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     socket.set_ttl(3).unwrap();
    ///     assert_eq!(socket.ttl().unwrap(), 3);
    ///     assert!(socket.set_ttl(0).is_err());
    /// }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.shared.endpoint.ttl.store(valid_ttl(ttl)?, Relaxed);
        Ok(())
    }

    /// Returns the time to live of datagrams sent.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.shared.endpoint.ttl.load(Relaxed).into())
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { local, peer } = self.shared.endpoint.binding();
        let mut out = f.debug_struct("UdpSocket");
        out.field("addr", &self.shown(local));
        if let Some(peer) = peer {
            out.field("peer", &self.shown(peer));
        }
        out.finish()
    }
}
