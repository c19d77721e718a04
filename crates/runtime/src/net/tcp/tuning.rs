//! Socket options of Linux that `std` does not have, and the state of a connection.

use super::options::valid_segment;
use super::stream::TcpStream;
use crate::net::driver::KthreadOutlet;
use crate::net::platform::Stack;
use std::io;
use tailwater_tcp::Info;

impl TcpStream {
    /// Sends full segments only, until it is set to false (`TCP_CORK`): for replies that are put
    /// together from several writes. A rest smaller than a segment is sent when the cork is
    /// removed, when the direction is closed, or after 200 ms with nothing in flight. Removing the
    /// cork leaves [`set_nodelay`](Self::set_nodelay) in force as it was.
    ///
    /// For two writes, [`corked`](Self::corked) is simpler; a `BufWriter` does the same without the
    /// kernel's habits.
    ///
    /// # Errors
    /// None; the result is that of `std`'s settings.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::Write;
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_cork(true).unwrap();
    ///     stream.write_all(b"head, ").unwrap();
    ///     stream.write_all(b"body").unwrap();
    ///     stream.set_cork(false).unwrap(); // both leave in one segment
    ///     assert!(!stream.cork().unwrap());
    /// }
    /// ```
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.change(|connection| connection.set_cork(cork));
        Ok(())
    }

    /// Returns whether full segments only are sent.
    ///
    /// # Errors
    /// None; the result is that of `std`'s settings.
    pub fn cork(&self) -> io::Result<bool> {
        Ok(self.socket.lock().connection.cork())
    }

    /// Sets a low-water mark for unsent data (`TCP_NOTSENT_LOWAT`); `None` is no mark, the default.
    ///
    /// With so many bytes written and not yet sent, writing waits (or fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock)); below, at least a segment is taken. Waiting
    /// writers, futures and pollers are woken when less than half of the mark is unsent. So what is
    /// written leaves soon, and a program that has something more urgent to send is not behind
    /// megabytes of its own.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a mark of zero.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_notsent_lowat(Some(16 * 1024)).unwrap();
    ///     assert_eq!(stream.notsent_lowat().unwrap(), Some(16 * 1024));
    /// }
    /// ```
    pub fn set_notsent_lowat(&self, bytes: Option<usize>) -> io::Result<()> {
        if bytes == Some(0) {
            let why = "a low-water mark of zero: use None for no mark";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let bytes = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let now = Stack::tcp_now(&KthreadOutlet);
        let mut inner = self.socket.lock();
        let events = inner.connection.set_notsent_lowat(bytes);
        self.stack.settle(&mut KthreadOutlet, &self.socket, &mut inner, events, now);
        Ok(())
    }

    /// Returns the low-water mark for unsent data.
    ///
    /// # Errors
    /// None; the result is that of `std`'s settings.
    pub fn notsent_lowat(&self) -> io::Result<Option<usize>> {
        Ok(self.socket.lock().connection.notsent_lowat().map(|bytes| bytes as usize))
    }

    /// Limits the segments that are sent from now on to `bytes` behind the fixed header
    /// (`TCP_MAXSEG`), 88 to 32,767. The path's and the peer's limits hold besides. To announce it
    /// to the peer too, use [`TcpOptions::max_segment`](crate::net::TcpOptions::max_segment).
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) outside that range.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.set_max_segment(1012).unwrap();
    ///     assert_eq!(stream.max_segment().unwrap(), 1000, "12 bytes are timestamps");
    /// }
    /// ```
    pub fn set_max_segment(&self, bytes: usize) -> io::Result<()> {
        let bytes = valid_segment(bytes)?;
        self.change(|connection| connection.set_max_segment(Some(bytes)));
        Ok(())
    }

    /// Returns the bytes of data in a full segment now, as Linux's `TCP_MAXSEG`.
    ///
    /// # Errors
    /// None; the result is that of `std`'s settings.
    pub fn max_segment(&self) -> io::Result<usize> {
        Ok(self.socket.lock().connection.max_segment() as usize)
    }

    /// Returns the state of the connection with Linux's names and meanings (`TCP_INFO`).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::Write;
    /// use tailwater::net::{TcpListener, TcpState, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     stream.write_all(b"hello").unwrap();
    ///     let info = stream.info();
    ///     assert_eq!((info.state, info.bytes_sent), (TcpState::Established, 5));
    /// }
    /// ```
    pub fn info(&self) -> Info {
        let now = Stack::tcp_now(&KthreadOutlet);
        let ip_header = if self.socket.peer_addr().is_ipv4() { 20 } else { 40 };
        self.socket.lock().connection.info(ip_header, now)
    }
}
