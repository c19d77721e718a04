//! Sockets, and the calls that make them and change their state.
//!
//! # States
//! | state | made by | holds |
//! |---|---|---|
//! | new | `tw_socket` | what was set: address, options |
//! | [`Kind::Udp`] | `tw_bind`, `tw_connect`, or the first datagram | the runtime's socket |
//! | [`Kind::Listener`] | `tw_listen` | the same |
//! | [`Kind::Stream`] | `tw_connect`, `tw_accept` | the same |
//!
//! A socket leaves the first state once, so calls that move bytes find the kind without a lock.

use super::{address, error, posix, table};
use crate::run;
use core::ffi::c_int;
use libc::{sockaddr, socklen_t};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;
use tailwater::internals::SpinLock;
use tailwater::net::{TcpListener, TcpOptions, TcpStream, UdpSocket};

/// The runtime's socket behind a descriptor.
#[derive(Debug)]
pub enum Kind {
    /// A UDP socket.
    Udp(UdpSocket),
    /// A TCP connection.
    Stream(TcpStream),
    /// A TCP listener.
    Listener(TcpListener),
}

/// What was set on a socket before the runtime's exists, and is given to that then.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub(super) nonblocking: bool,
    pub(super) bound: Option<SocketAddr>,
    pub(super) nodelay: bool,
    pub(super) broadcast: bool,
    pub(super) ttl: Option<u32>,
    pub(super) read_timeout: Option<Duration>,
    pub(super) write_timeout: Option<Duration>,
    pub(super) receive_buffer: Option<usize>,
    pub(super) send_buffer: Option<usize>,
}

/// A socket of C.
#[derive(Debug)]
pub struct Socket {
    kind: OnceLock<Kind>,
    pub(super) settings: SpinLock<Settings>,
    pub(super) is_tcp: bool,
    is_v6: bool,
}

impl Socket {
    fn of(kind: Kind, is_v6: bool) -> Self {
        let is_tcp = !matches!(kind, Kind::Udp(_));
        Self { kind: kind.into(), settings: SpinLock::default(), is_tcp, is_v6 }
    }

    /// Returns the runtime's socket, if there is one yet.
    #[inline]
    pub fn kind(&self) -> Option<&Kind> {
        self.kind.get()
    }

    /// Returns the runtime's socket of one that moves datagrams or bytes. Binds a new UDP socket to
    /// a free port.
    ///
    /// # Errors
    /// `ENOTCONN` for a TCP socket that has no connection.
    #[inline]
    pub fn transfers(&self) -> io::Result<&Kind> {
        match self.kind() {
            Some(kind) => Ok(kind),
            None => self.begin_transfers(),
        }
    }

    #[cold]
    fn begin_transfers(&self) -> io::Result<&Kind> {
        if self.is_tcp { Err(error(libc::ENOTCONN)) } else { self.bind_udp(self.any()) }
    }

    /// Returns the address that means any, of the socket's family.
    fn any(&self) -> SocketAddr {
        if self.is_v6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() }
    }

    /// Puts the runtime's socket in its place.
    ///
    /// # Errors
    /// `EINVAL` if another thread was first.
    fn become_(&self, kind: Kind) -> io::Result<&Kind> {
        self.kind.set(kind).map_err(|_| error(libc::EINVAL))?;
        let kind = self.kind.get().expect("it was set");
        let settings = self.settings.lock().clone();
        kind.adopt(&settings)?;
        Ok(kind)
    }

    fn bind_udp(&self, address: SocketAddr) -> io::Result<&Kind> {
        self.become_(Kind::Udp(UdpSocket::bind(address)?))
    }

    fn bind(&self, address: SocketAddr) -> io::Result<()> {
        if self.kind().is_some() || self.settings.lock().bound.is_some() {
            return Err(error(libc::EINVAL));
        }
        if !self.is_tcp {
            return self.bind_udp(address).map(drop);
        }
        self.settings.lock().bound = Some(address);
        Ok(())
    }

    fn listen(&self, backlog: c_int) -> io::Result<()> {
        if !self.is_tcp {
            return Err(error(libc::EOPNOTSUPP));
        }
        if let Some(kind) = self.kind() {
            // A listener that listens again keeps its backlog.
            return if matches!(kind, Kind::Listener(_)) { Ok(()) } else { Err(error(libc::EINVAL)) };
        }
        let address = self.settings.lock().bound.unwrap_or_else(|| self.any());
        let backlog = u32::try_from(backlog).unwrap_or(0).max(1);
        let listener = self.options().backlog(backlog).listen(address)?;
        self.become_(Kind::Listener(listener)).map(drop)
    }

    /// Returns the options that a connection has from its first segment on.
    fn options(&self) -> TcpOptions {
        let settings = self.settings.lock();
        let mut options = TcpOptions::new().nodelay(settings.nodelay);
        if let Some(bytes) = settings.receive_buffer {
            options = options.receive_buffer(bytes);
        }
        if let Some(bytes) = settings.send_buffer {
            options = options.send_buffer(bytes);
        }
        options
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match self.kind() {
            Some(Kind::Udp(udp)) => return udp.connect(to),
            Some(Kind::Stream(stream)) => return connecting(stream),
            Some(Kind::Listener(_)) => return Err(error(libc::EISCONN)),
            None if !self.is_tcp => {
                let Kind::Udp(udp) = self.transfers()? else { unreachable!("it is no TCP socket") };
                return udp.connect(to);
            }
            None => {}
        }
        if self.settings.lock().bound.is_some() {
            // The runtime chooses the port of a connection.
            return Err(error(libc::EOPNOTSUPP));
        }
        if self.settings.lock().nonblocking {
            self.become_(Kind::Stream(TcpStream::begin_connect(&to)?))?;
            return Err(error(libc::EINPROGRESS));
        }
        let stream = self.options().connect(to)?;
        self.become_(Kind::Stream(stream)).map(drop)
    }

    /// Returns the socket's own address.
    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        match self.kind() {
            Some(Kind::Udp(udp)) => udp.local_addr(),
            Some(Kind::Stream(stream)) => stream.local_addr(),
            Some(Kind::Listener(listener)) => listener.local_addr(),
            None => Ok(self.settings.lock().bound.unwrap_or_else(|| self.any())),
        }
    }
}

/// Returns how a handshake that was begun stands, as a further `connect` on Linux.
fn connecting(stream: &TcpStream) -> io::Result<()> {
    if let Some(failure) = stream.take_error()? {
        return Err(failure);
    }
    Err(error(if stream.peer_addr().is_ok() { libc::EISCONN } else { libc::EALREADY }))
}

impl Kind {
    /// Takes over what was set before.
    fn adopt(&self, settings: &Settings) -> io::Result<()> {
        match self {
            Self::Udp(udp) => {
                udp.set_nonblocking(settings.nonblocking)?;
                udp.set_broadcast(settings.broadcast)?;
                udp.set_read_timeout(settings.read_timeout)?;
                udp.set_write_timeout(settings.write_timeout)?;
                settings.ttl.map_or(Ok(()), |ttl| udp.set_ttl(ttl))
            }
            Self::Stream(stream) => {
                stream.set_nonblocking(settings.nonblocking)?;
                stream.set_nodelay(settings.nodelay)?;
                stream.set_read_timeout(settings.read_timeout)?;
                stream.set_write_timeout(settings.write_timeout)?;
                settings.ttl.map_or(Ok(()), |ttl| stream.set_ttl(ttl))
            }
            Self::Listener(listener) => {
                listener.set_nonblocking(settings.nonblocking)?;
                settings.ttl.map_or(Ok(()), |ttl| listener.set_ttl(ttl))
            }
        }
    }

    /// Sets whether calls wait.
    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Udp(udp) => udp.set_nonblocking(nonblocking),
            Self::Stream(stream) => stream.set_nonblocking(nonblocking),
            Self::Listener(listener) => listener.set_nonblocking(nonblocking),
        }
    }
}

fn open(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<c_int> {
    let is_v6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return Err(error(libc::EAFNOSUPPORT)),
    };
    let (is_tcp, expected) = match kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        libc::SOCK_STREAM => (true, libc::IPPROTO_TCP),
        libc::SOCK_DGRAM => (false, libc::IPPROTO_UDP),
        _ => return Err(error(libc::EINVAL)),
    };
    if protocol != 0 && protocol != expected {
        return Err(error(libc::EPROTONOSUPPORT));
    }
    if !run::is_running() {
        return Err(error(libc::ENXIO));
    }
    let settings = Settings { nonblocking: kind & libc::SOCK_NONBLOCK != 0, ..Settings::default() };
    table::insert(Socket { kind: OnceLock::new(), settings: SpinLock::new(settings), is_tcp, is_v6 })
}

/// As `socket`, with `AF_INET` or `AF_INET6` and `SOCK_STREAM` or `SOCK_DGRAM`, also with
/// `SOCK_NONBLOCK`. Returns a descriptor, `TW_FD_BASE` or more, which only functions of Tailwater
/// know. Never switches threads.
///
/// Errors, as -1 and `errno`: `EAFNOSUPPORT`, `EINVAL`, `EPROTONOSUPPORT`, `EMFILE`; `ENXIO` if
/// there is no runtime.
#[unsafe(no_mangle)]
pub extern "C" fn tw_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    posix(open(domain, kind, protocol))
}

/// As `close`. A call that waits on the descriptor ends as if it had not been closed; the
/// connection is closed after it. Never switches threads.
///
/// Errors: `EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_close(fd: c_int) -> c_int {
    posix(table::remove(fd).map(|()| 0))
}

/// As `bind`. May switch threads.
///
/// Errors: `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL`, `EAFNOSUPPORT`, `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_bind(fd: c_int, own: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: by C's contract.
    let own = unsafe { address::read(own, len) };
    posix(own.and_then(|own| table::find(fd)?.bind(own)).map(|()| 0))
}

/// As `listen`. The address given to `tw_bind` is taken here, not there. May switch threads.
///
/// Errors: `EADDRINUSE`, `EADDRNOTAVAIL`, `EOPNOTSUPP`, `EINVAL`, `EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_listen(fd: c_int, backlog: c_int) -> c_int {
    posix(table::find(fd).and_then(|socket| socket.listen(backlog)).map(|()| 0))
}

/// As `connect`. Switches threads until the connection is established. A TCP socket that was bound
/// cannot be connected: the runtime chooses the port.
///
/// Errors: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETDOWN`, `EISCONN`, `EINVAL`, `EBADF`,
/// `EOPNOTSUPP` for a bound TCP socket; on a socket that does not block `EINPROGRESS` and
/// `EALREADY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_connect(fd: c_int, peer: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: by C's contract.
    let peer = unsafe { address::read(peer, len) };
    posix(peer.and_then(|peer| table::find(fd)?.connect(peer)).map(|()| 0))
}

fn accept(fd: c_int, flags: c_int) -> io::Result<(c_int, SocketAddr)> {
    let socket = table::find(fd)?;
    let Some(Kind::Listener(listener)) = socket.kind() else { return Err(error(libc::EINVAL)) };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(error(libc::EINVAL));
    }
    let (stream, peer) = listener.accept()?;
    stream.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0)?;
    if socket.settings.lock().nodelay {
        stream.set_nodelay(true)?;
    }
    let fd = table::insert(Socket::of(Kind::Stream(stream), peer.is_ipv6()))?;
    Ok((fd, peer))
}

/// As `accept4`, with `SOCK_NONBLOCK` or 0 as flags. `peer` and `len` may be NULL. Switches threads
/// until there is a connection.
///
/// Errors: `EAGAIN` on a socket that does not block, `EINVAL` if it does not listen and for other
/// flags, `EMFILE`, `EBADF`, `ENETDOWN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_accept(
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    posix(accept(fd, flags).map(|(fd, from)| {
        // SAFETY: by C's contract.
        unsafe { address::write(from, peer, len) };
        fd
    }))
}

fn shutdown(fd: c_int, how: c_int) -> io::Result<c_int> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(error(libc::EINVAL)),
    };
    match table::find(fd)?.kind() {
        Some(Kind::Stream(stream)) => stream.shutdown(how).map(|()| 0),
        _ => Err(error(libc::ENOTCONN)),
    }
}

/// As `shutdown`. May switch threads.
///
/// Errors: `ENOTCONN`, `EINVAL`, `EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_shutdown(fd: c_int, how: c_int) -> c_int {
    posix(shutdown(fd, how))
}

/// As `getsockname`. Never switches threads.
///
/// Errors: `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_getsockname(fd: c_int, own: *mut sockaddr, len: *mut socklen_t) -> c_int {
    posix(table::find(fd).and_then(|socket| socket.local()).map(|found| {
        // SAFETY: by C's contract.
        unsafe { address::write(found, own, len) };
        0
    }))
}

/// As `getpeername`. Never switches threads.
///
/// Errors: `ENOTCONN`, `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_getpeername(fd: c_int, peer: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let found = table::find(fd).and_then(|socket| match socket.kind() {
        Some(Kind::Udp(udp)) => udp.peer_addr(),
        Some(Kind::Stream(stream)) => stream.peer_addr(),
        _ => Err(error(libc::ENOTCONN)),
    });
    posix(found.map(|found| {
        // SAFETY: by C's contract.
        unsafe { address::write(found, peer, len) };
        0
    }))
}
