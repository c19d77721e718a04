//! What a descriptor is: a connection, a listener, a UDP socket, or an epoll set.
//!
//! Owns the descriptions, which several descriptors may share. The runtime's sockets never wait:
//! [`ready`](crate::ready) does, for both networks and for signals.

use crate::datagrams::Datagrams;
use crate::set::Set;
use crate::start::{self, Transport};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_int, c_short};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tailwater::internals::SpinLock;
use tailwater::net::{TcpKeepalive, TcpListener, TcpOptions, TcpStream};
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

/// Options of a socket of Linux that connections of Tailwater have, too.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub nodelay: bool,
    pub cork: bool,
    pub keepalive: bool,
    pub probing: TcpKeepalive,
    pub user_timeout_ms: c_int,
    pub linger: Option<Duration>,
    pub receive: Option<Duration>,
    pub send: Option<Duration>,
}

/// A connection.
pub struct Stream {
    pub tcp: TcpStream,
    /// How the peer is probed while `SO_KEEPALIVE` is on.
    pub probing: SpinLock<TcpKeepalive>,
    /// `TCP_USER_TIMEOUT`; zero is the stack's own.
    pub user_timeout_ms: AtomicI32,
    /// Longest waits in nanoseconds (`SO_RCVTIMEO`, `SO_SNDTIMEO`); zero is for ever.
    pub receive_ns: AtomicU64,
    pub send_ns: AtomicU64,
    /// False until a `connect` that did not wait was seen to be over.
    pub connected: AtomicBool,
}

impl Stream {
    pub fn new(tcp: TcpStream, connected: bool, options: &Options) -> Self {
        let Options { nodelay, cork, keepalive, probing, user_timeout_ms, linger, receive, send } = *options;
        let stream = Self {
            tcp,
            probing: SpinLock::new(probing),
            user_timeout_ms: AtomicI32::new(0),
            receive_ns: AtomicU64::new(as_ns(receive)),
            send_ns: AtomicU64::new(as_ns(send)),
            connected: AtomicBool::new(connected),
        };
        // None of these fails: Linux has accepted the values.
        let _ = stream.tcp.set_nonblocking(true);
        if nodelay {
            let _ = stream.tcp.set_nodelay(true);
        }
        if cork {
            let _ = stream.tcp.set_cork(true);
        }
        if keepalive {
            let _ = stream.tcp.set_keepalive(Some(probing));
        }
        if user_timeout_ms > 0 {
            let _ = stream.set_user_timeout(user_timeout_ms);
        }
        if linger.is_some() {
            let _ = stream.tcp.set_linger(linger);
        }
        stream
    }

    /// Sets `TCP_USER_TIMEOUT`, which is not negative.
    pub fn set_user_timeout(&self, ms: c_int) -> io::Result<()> {
        self.user_timeout_ms.store(ms, Relaxed);
        self.tcp.set_user_timeout((ms > 0).then(|| Duration::from_millis(ms as u64)))
    }
}

/// Returns a limit of a wait as a connection has it.
pub fn as_ns(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// A listening socket: the kernel's has the port, Tailwater's follows when it is first used.
pub struct Listener {
    address: SocketAddr,
    /// An IPv6 socket that takes IPv4, too: without IPv6 on the IOKernel's network, IPv4 is what
    /// there is.
    takes_both: bool,
    backlog: u32,
    /// What the kernel's socket gives its connections.
    pub options: SpinLock<Options>,
    /// Held by a call that looks for a client of Linux and accepts it: a second call would wait for
    /// the next one in the kernel.
    pub accepts: Mutex<()>,
    /// Written by the first user; `None` if Tailwater does not listen there.
    tcp: OnceLock<Option<TcpListener>>,
}

impl Listener {
    pub fn new(address: SocketAddr, takes_both: bool, backlog: u32, options: Options) -> Self {
        let (options, accepts, tcp) = (SpinLock::new(options), Mutex::new(()), OnceLock::new());
        Self { address, takes_both, backlog, options, accepts, tcp }
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
