//! What a descriptor is: a connection, a listener, a UDP socket, or an epoll set.
//!
//! Owns the descriptions, which several descriptors may share. The runtime's sockets never wait:
//! [`ready`](crate::ready) does, for both networks and for signals.

use crate::datagrams::Datagrams;
use crate::set::Set;
use crate::start::{self, Transport};
use core::sync::atomic::{AtomicBool, AtomicU64};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_int, c_short};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tailwater::net::{TcpListener, TcpOptions, TcpStream};
use tailwater::readiness::{self, Nested};
use tailwater::sync::{Mutex, OnceLock};

/// A failed call: what `errno` becomes.
pub type Errno = c_int;

/// The description behind a descriptor.
pub struct File {
    /// `O_NONBLOCK`.
    pub nonblocking: AtomicBool,
    pub what: What,
}

/// See the module documentation.
pub enum What {
    Stream(Stream),
    Listener(Listener),
    Datagrams(Datagrams),
    Set(Arc<Set>),
}

impl File {
    pub fn new(what: What, nonblocking: bool) -> Arc<Self> {
        Arc::new(Self { nonblocking: AtomicBool::new(nonblocking), what })
    }

    pub fn stream(&self) -> Option<&Stream> {
        if let What::Stream(stream) = &self.what { Some(stream) } else { None }
    }

    /// Returns what poll(2) reports of the Tailwater side, all that is so.
    pub fn readiness(&self) -> c_short {
        match &self.what {
            What::Stream(stream) => of_event(readiness::of(&stream.tcp)),
            What::Listener(listener) => listener.tailwater().map_or(0, |tcp| of_event(readiness::of(tcp))),
            What::Datagrams(datagrams) => datagrams.udp().map_or(0, |udp| of_event(readiness::of(udp))),
            What::Set(set) => of_event(readiness::of(&Nested(set.poller()))),
        }
    }
}

/// Returns the bits of poll(2) for an event; epoll's are the same.
pub fn of_event(event: readiness::Readiness) -> c_short {
    let when = |condition, bits| if condition { bits } else { 0 };
    when(event.is_readable(), POLLIN | POLLRDNORM)
        | when(event.is_writable(), POLLOUT | POLLWRNORM)
        | when(event.is_read_closed(), POLLRDHUP)
        | when(event.is_failed(), POLLERR)
        | when(event.is_hung_up(), POLLHUP)
}

/// A connection.
pub struct Stream {
    pub tcp: TcpStream,
    /// Longest waits in nanoseconds (`SO_RCVTIMEO`, `SO_SNDTIMEO`); zero is for ever.
    pub receive_ns: AtomicU64,
    pub send_ns: AtomicU64,
    /// False until a `connect` that did not wait was seen to be over.
    pub connected: AtomicBool,
}

impl Stream {
    pub fn new(tcp: TcpStream, connected: bool) -> Self {
        // It cannot fail.
        let _ = tcp.set_nonblocking(true);
        Self {
            tcp,
            receive_ns: AtomicU64::new(0),
            send_ns: AtomicU64::new(0),
            connected: AtomicBool::new(connected),
        }
    }
}

/// A listening socket: the kernel's has the port, Tailwater's follows when it is first used.
pub struct Listener {
    address: SocketAddr,
    /// An IPv6 socket that takes IPv4, too: without IPv6 on the IOKernel's network, IPv4 is what
    /// there is.
    takes_both: bool,
    backlog: u32,
    /// Held by a call that looks for a client of Linux and accepts it: a second call would wait for
    /// the next one in the kernel.
    pub accepts: Mutex<()>,
    /// Written by the first user; `None` if Tailwater does not listen there.
    tcp: OnceLock<Option<TcpListener>>,
}

impl Listener {
    pub fn new(address: SocketAddr, takes_both: bool, backlog: u32) -> Self {
        Self { address, takes_both, backlog, accepts: Mutex::new(()), tcp: OnceLock::new() }
    }

    /// Returns Tailwater's listener, which listens from the first call on.
    pub fn tailwater(&self) -> Option<&TcpListener> {
        if let Some(tcp) = self.tcp.get() {
            return tcp.as_ref();
        }
        if !start::ensure() {
            return None;
        }
        let _call = start::Call::within()?;
        self.tcp.get_or_init(|| self.listen()).as_ref()
    }

    /// Returns where Tailwater's listener is.
    fn place(&self, tcp: &TcpListener) -> SocketAddr {
        tcp.local_addr().unwrap_or(self.address)
    }

    fn listen(&self) -> Option<TcpListener> {
        let options = TcpOptions::new().backlog(self.backlog).only_v6(!self.takes_both);
        let any4 = SocketAddr::from(([0; 4], self.address.port()));
        let result = options.listen(self.address);
        match if self.takes_both { result.or_else(|_| options.listen(any4)) } else { result } {
            Ok(tcp) => {
                // It cannot fail.
                let _ = tcp.set_nonblocking(true);
                start::note_listening(Transport::Tcp, self.place(&tcp), self.takes_both);
                Some(tcp)
            }
            // The program's other listener of the port takes all clients (`SO_REUSEPORT`).
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && start::listens_on(Transport::Tcp, self.address) =>
            {
                None
            }
            Err(error) => {
                let address = self.address;
                start::say(&format!("{address} is served by Linux's network alone: {error}"));
                None
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(Some(tcp)) = self.tcp.get() {
            start::forget_listening(Transport::Tcp, self.place(tcp));
        }
    }
}

/// Returns the number of an error of the runtime.
pub fn errno(error: &io::Error) -> Errno {
    use io::ErrorKind as Kind;
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        Kind::WouldBlock => libc::EAGAIN,
        Kind::AddrInUse => libc::EADDRINUSE,
        Kind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        Kind::QuotaExceeded | Kind::OutOfMemory => libc::ENOBUFS,
        Kind::PermissionDenied => libc::EACCES,
        Kind::AlreadyExists => libc::EEXIST,
        Kind::NotFound => libc::ENOENT,
        Kind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EINVAL,
    })
}
