//! Writes of shared bytes.

use super::stream::TcpStream;
use std::io;
use tailwater_tcp::SharedBytes;

impl TcpStream {
    /// Writes as much of `bytes` as there is room for, as [`Write::write`](io::Write::write) does,
    /// but without a copy into the send buffer: the connection keeps a reference until the peer has
    /// acknowledged what was taken, or the connection is over. The bytes take up room in the
    /// send buffer meanwhile. Less than 2 KiB is copied: a reference would cost more.
    ///
    /// [`SharedBytes`] keep all of their memory, however small the part that is sent. A peer that
    /// keeps its window closed and answers probes holds it until the stream is dropped, whatever
    /// the [user timeout](Self::set_user_timeout) is; then that timeout counts, from the last
    /// acknowledgment. Drop a stream that makes no progress, with a [linger time](Self::set_linger)
    /// of zero to have the memory back at once.
    ///
    /// # Errors
    /// As [`Write::write`](io::Write::write).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::io::Read;
    /// use tailwater::net::{SharedBytes, TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let page = SharedBytes::from(vec![b'x'; 100_000]);
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     tailwater::thread::spawn(move || {
    ///         let (stream, _) = listener.accept().unwrap();
    ///         let mut rest = page.clone();
    ///         while !rest.is_empty() {
    ///             let written = stream.write_shared(&rest).unwrap();
    ///             rest.advance(written);
    ///         }
    ///     });
    ///     let mut all = Vec::new();
    ///     client.read_to_end(&mut all).unwrap();
    ///     assert_eq!(all.len(), 100_000);
    /// }
    /// ```
    pub fn write_shared(&self, bytes: &SharedBytes) -> io::Result<usize> {
        self.send(|inner| inner.send_shared(bytes))
    }
}
