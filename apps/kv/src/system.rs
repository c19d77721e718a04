//! The threads and sockets that a server needs, Tailwater's or the kernel's.
//!
//! Owns no behaviour: each function is the call of the same name. A call that waits blocks the
//! calling thread, of either kind.

use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;
use tailwater::net::TcpKeepalive;

/// How a peer is probed that has sent nothing for long, so that a connection of one that is gone
/// does not stay: time without a segment, time between two probes, and unanswered probes.
const KEEPALIVE: (Duration, Duration, u8) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// Stack of a kernel thread, in bytes; a connection's uses a few kibibytes.
const STACK: usize = 128 << 10;

/// Threads, and sockets that block them.
pub trait System: Sized + 'static {
    /// A socket that listens for connections.
    type Listener: Send;
    /// A TCP connection.
    type Stream: Read + Write + Send;
    /// A UDP socket.
    type Datagrams: Send + Sync;

    /// Starts a detached thread.
    fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> io::Result<()>;

    /// Blocks the thread for `time`.
    fn sleep(time: Duration);

    /// Listens on `address`; returns the listener and its address, with the port that the system
    /// chose if none was given.
    fn listen(address: (&str, u16)) -> io::Result<(Self::Listener, SocketAddr)>;

    /// Returns the next connection and its client's address.
    fn accept(listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Connects to `address` within `limit`.
    fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self::Stream>;

    /// Returns another handle of a connection.
    fn handle_of(stream: &Self::Stream) -> io::Result<Self::Stream>;

    /// Ends a connection in both directions, for all its handles.
    fn end(stream: &Self::Stream);

    /// Configures a connection to send written bytes at once, to fail a read or write after
    /// `timeout` without a byte, and to end when the peer does not answer probes.
    fn prepare(stream: &Self::Stream, timeout: Option<Duration>) -> io::Result<()>;

    /// Binds a socket to `address`; returns the socket and its address.
    fn bind(address: (&str, u16)) -> io::Result<(Self::Datagrams, SocketAddr)>;

    /// Returns the length of the next datagram and its sender's address.
    fn recv_from(socket: &Self::Datagrams, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends a datagram.
    fn send_to(socket: &Self::Datagrams, data: &[u8], to: SocketAddr) -> io::Result<usize>;
}

/// Implements [`System`] by the `net` and `thread` modules of a crate, with threads from the given
/// builder and probes from the given function.
macro_rules! systems {
    ($($(#[$doc:meta])* $name:ident: $root:ident, $builder:expr, $probe:expr;)*) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl System for $name {
            type Listener = $root::net::TcpListener;
            type Stream = $root::net::TcpStream;
            type Datagrams = $root::net::UdpSocket;

            fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> io::Result<()> {
                $builder.name(name.to_owned()).spawn(main)?;
                Ok(())
            }

            fn sleep(time: Duration) {
                $root::thread::sleep(time);
            }

            fn listen(address: (&str, u16)) -> io::Result<(Self::Listener, SocketAddr)> {
                let listener = Self::Listener::bind(address)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            }

            fn accept(listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)> {
                listener.accept()
            }

            fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self::Stream> {
                Self::Stream::connect_timeout(&address, limit)
            }

            fn handle_of(stream: &Self::Stream) -> io::Result<Self::Stream> {
                stream.try_clone()
            }

            fn end(stream: &Self::Stream) {
                // Fails on a connection that has ended.
                let _ = stream.shutdown(Shutdown::Both);
            }

            fn prepare(stream: &Self::Stream, timeout: Option<Duration>) -> io::Result<()> {
                stream.set_nodelay(true)?;
                $probe(stream)?;
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }

            fn bind(address: (&str, u16)) -> io::Result<(Self::Datagrams, SocketAddr)> {
                let socket = Self::Datagrams::bind(address)?;
                let address = socket.local_addr()?;
                Ok((socket, address))
            }

            #[inline]
            fn recv_from(socket: &Self::Datagrams, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
                socket.recv_from(buf)
            }

            #[inline]
            fn send_to(socket: &Self::Datagrams, data: &[u8], to: SocketAddr) -> io::Result<usize> {
                socket.send_to(data, to)
            }
        }
    )*};
}

systems! {
    /// User threads on sockets of the runtime's own network stack.
    Tailwater: tailwater, tailwater::thread::Builder::new(), probe;
    /// The kernel's threads and sockets.
    Kernel: std, std::thread::Builder::new().stack_size(STACK), probe_by_kernel;
}

fn probe(stream: &tailwater::net::TcpStream) -> io::Result<()> {
    stream.set_keepalive(Some(keepalive()))
}

/// Returns how the runtime's sockets probe their peers.
pub(super) fn keepalive() -> TcpKeepalive {
    let (idle, interval, probes) = KEEPALIVE;
    TcpKeepalive::default().idle(idle).interval(interval).probes(probes)
}

fn probe_by_kernel(stream: &std::net::TcpStream) -> io::Result<()> {
    let (idle, interval, probes) = KEEPALIVE;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, probes.into())?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_testkit::own_process;

    #[test]
    fn a_client_on_tailwater_that_is_silent_is_asked_whether_it_is_there() {
        own_process(|| {
            let run = tailwater::RuntimeBuilder::new().kthreads(1).run(|| {
                let (listener, address) = Tailwater::listen(("127.0.0.1", 0)).unwrap();
                let _client = Tailwater::connect(address, Duration::from_secs(60)).unwrap();
                let (accepted, _) = Tailwater::accept(&listener).unwrap();
                Tailwater::prepare(&accepted, None).unwrap();
                let (idle, interval, probes) = KEEPALIVE;
                let set = accepted.keepalive().unwrap().unwrap();
                assert_eq!((set.idle, set.interval, set.probes), (idle, interval, probes));
            });
            run.unwrap();
        });
    }
}
