//! What a server needs of threads and sockets, Tailwater's or the kernel's.
//!
//! Owns no behaviour: each function is the call of the same name. Waiting in one blocks the thread that called it, whichever
//! kind that is.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Threads, and sockets that block them.
pub trait System: Sized + 'static {
    /// Listens for connections.
    type Listener: Send;
    /// A TCP connection.
    type Stream: Read + Write + Send;
    /// A UDP socket.
    type Datagrams: Send + Sync;

    /// Starts a thread that nobody waits for.
    fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> io::Result<()>;

    /// Waits.
    fn sleep(time: Duration);

    /// A listener there, and its address with the port that the system chose if it was to.
    fn listen(address: (&str, u16)) -> io::Result<(Self::Listener, SocketAddr)>;

    /// The next connection, and whose it is.
    fn accept(listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Has a connection send at once what is written, and a read or write of it fail after `timeout` without a byte.
    fn prepare(stream: &Self::Stream, timeout: Option<Duration>) -> io::Result<()>;

    /// A socket there, and its address.
    fn bind(address: (&str, u16)) -> io::Result<(Self::Datagrams, SocketAddr)>;

    /// The next datagram, and from whom.
    fn recv_from(socket: &Self::Datagrams, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends a datagram.
    fn send_to(socket: &Self::Datagrams, data: &[u8], to: SocketAddr) -> io::Result<usize>;
}

/// A [`System`] of the `net` and the `thread` of a crate, whose threads are built as said.
macro_rules! systems {
    ($($(#[$doc:meta])* $name:ident: $root:ident, $builder:expr;)*) => {$(
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

            fn prepare(stream: &Self::Stream, timeout: Option<Duration>) -> io::Result<()> {
                stream.set_nodelay(true)?;
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
    Tailwater: tailwater, tailwater::thread::Builder::new();
    /// The kernel's threads and sockets.
    Kernel: std, std::thread::Builder::new().stack_size(super::kernel::STACK);
}
