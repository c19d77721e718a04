//! Writes that announce more data (`MSG_MORE`).

use super::stream::{TcpStream, each};
use core::sync::atomic::Ordering::Relaxed;
use std::io::{self, IoSlice, Write};

/// A writer whose data waits for more: see [`TcpStream::corked`].
///
/// # Examples
/// See [`TcpStream::corked`].
/// ```
/// # fn writes(writer: tailwater::net::Corked<'_>) -> impl std::io::Write + '_ { writer }
/// ```
#[derive(Debug)]
pub struct Corked<'a>(&'a TcpStream);

impl TcpStream {
    /// Returns a writer that announces with each write that more data follows (`MSG_MORE`).
    ///
    /// Full segments are sent; a smaller rest waits for the next write to the stream itself, so a
    /// header and a body that are written one after the other share a segment. [`flush`](Write)
    /// sends the rest, and so does the end of the direction. After 200 ms with nothing in flight
    /// it is sent in any case.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::{Read, Write};
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let (mut server, _) = listener.accept().unwrap();
    ///     write!(client.corked(), "length: {}\n", 4).unwrap();
    ///     client.write_all(b"body").unwrap();
    ///     let mut all = [0; 14];
    ///     server.read_exact(&mut all).unwrap();
    ///     assert_eq!(&all, b"length: 4\nbody");
    /// }
    /// ```
    pub fn corked(&self) -> Corked<'_> {
        Corked(self)
    }

    /// Records that a write announces more, so that a flush has something to do.
    pub(crate) fn note_more(&self) {
        self.socket.settings.holds_more.store(true, Relaxed);
    }

    /// Sends what [`Corked`] holds.
    pub(crate) fn push(&self) {
        if self.socket.settings.holds_more.swap(false, Relaxed) {
            self.change(tailwater_tcp::Connection::push);
        }
    }
}

/// As [`Write`] for [`TcpStream`], but a flush sends what is held.
impl Write for Corked<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.note_more();
        self.0.send(|inner| inner.send_more(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.note_more();
        self.0.send(|inner| each(bufs.iter(), |buf| buf.len(), |buf| inner.send_more(buf)))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.push();
        Ok(())
    }
}
