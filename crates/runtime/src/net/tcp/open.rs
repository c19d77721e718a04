//! Sockets that are opened with options of their own.

use super::listener::TcpListener;
use super::options::TcpOptions;
use super::stream::TcpStream;
use crate::net::addr::ToSocketAddrs;
use std::io;

impl TcpOptions {
    /// Connects as [`connect`](Self::connect) and writes all of `data`, which is handed over first:
    /// with [`fast_open`](Self::fast_open) and a cookie of the server the SYN carries its
    /// beginning.
    ///
    /// # Errors
    /// As [`TcpStream::connect`], or those of writing.
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::Read;
    /// use tailwater::net::TcpOptions;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let options = TcpOptions::new().fast_open(true);
    ///     let listener = options.listen("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     for _ in 0..2 {
    ///         // The first connection brings the cookie, the second shows it.
    ///         let client = options.connect_with_data(address, b"request").unwrap();
    ///         let (mut server, _) = listener.accept().unwrap();
    ///         server.read_exact(&mut [0; 7]).unwrap();
    ///         println!("data on the SYN: {}", client.info().syn_data);
    ///     }
    /// }
    /// ```
    pub fn connect_with_data(&self, address: impl ToSocketAddrs, data: &[u8]) -> io::Result<TcpStream> {
        TcpStream::connect_sending(address, self, data)
    }

    /// As [`TcpStream::connect`].
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpOptions};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     let stream = TcpOptions::new().nodelay(true).connect(address).unwrap();
    ///     assert!(stream.nodelay().unwrap());
    /// }
    /// ```
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        TcpStream::connect_with(address, self)
    }

    /// As [`TcpListener::bind`].
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::TcpOptions;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpOptions::new().backlog(16).listen("127.0.0.1:0").unwrap();
    ///     assert_ne!(listener.local_addr().unwrap().port(), 0);
    /// }
    /// ```
    pub fn listen(&self, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with(address, self)
    }
}
