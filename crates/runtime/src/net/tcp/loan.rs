//! Received data that a thread reads where it lies: the loan of event loops, for one connection.

use super::rounds::lend;
use super::stream::TcpStream;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::io;
use tailwater_tcp::Buffer;

/// Received data on loan, without a copy: see [`TcpStream::recv_loan`]. It derefs to the bytes that
/// are not [consumed](Self::consume).
///
/// While the loan exists its bytes belong to it: a thread that reads the stream gets the bytes
/// behind them, and a second loan is refused. Threads can still write to the stream. When the loan
/// is dropped, the consumed bytes free their room in the receive window, and the next read returns
/// those that were not consumed.
///
/// # Examples
/// See [`TcpStream::recv_loan`].
/// ```
/// fn take_number(loan: &mut tailwater::net::Loan<'_>) -> Option<u32> {
///     let number = u32::from_be_bytes(*loan.first_chunk()?);
///     loan.consume(4);
///     Some(number)
/// }
/// ```
pub struct Loan<'a> {
    stream: &'a TcpStream,
    lent: Buffer,
    /// The newest bytes received, which still occupy the receive window.
    open: usize,
}

impl TcpStream {
    /// Waits for data as [`Read::read`](io::Read::read) does, and returns all received bytes in one
    /// piece, in the buffer in which the stack assembled them: nothing is copied, and no buffer has
    /// to be zeroed. An empty loan is the end of the stream.
    ///
    /// What is not [consumed](Loan::consume) can be read again. To wait for the rest of a request,
    /// call [`Loan::extend`]: another `recv_loan` returns the same bytes at once.
    ///
    /// # Errors
    /// As [`Read::read`](io::Read::read). And [`ResourceBusy`](io::ErrorKind::ResourceBusy) if the
    /// connection has a loan, or a thread waits for one: the bytes that two loans return to the
    /// stream could come back in the wrong order.
    ///
    /// # Examples
    /// A service that answers lines of up to 4 KiB, which arrive in any number of pieces:
    /// ```standalone_crate
    /// use std::io::{Read, Write};
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// fn serve(stream: TcpStream) -> std::io::Result<()> {
    ///     loop {
    ///         let mut data = stream.recv_loan()?;
    ///         while !data.contains(&b'\n') {
    ///             if data.len() > 4096 || data.extend()? == 0 {
    ///                 return Ok(());
    ///             }
    ///         }
    ///         while let Some(end) = data.iter().position(|&byte| byte == b'\n') {
    ///             (&stream).write_all(&data[..=end].to_ascii_uppercase())?;
    ///             data.consume(end + 1);
    ///         }
    ///     }
    /// }
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     tailwater::thread::spawn(move || serve(listener.accept().unwrap().0));
    ///     client.write_all(b"first\nsec").unwrap();
    ///     client.write_all(b"ond\n").unwrap();
    ///     client.shutdown(std::net::Shutdown::Write).unwrap();
    ///     let mut answers = String::new();
    ///     client.read_to_string(&mut answers).unwrap();
    ///     assert_eq!(answers, "FIRST\nSECOND\n");
    /// }
    /// ```
    pub fn recv_loan(&self) -> io::Result<Loan<'_>> {
        // Acquire: pairs with the release in `Loan::drop`: the previous loan has returned its
        // bytes.
        if self.socket().settings.lent.swap(true, Acquire) {
            let message = "the connection has a loan, or a thread waits for one: drop that first";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        }
        let mut loan = Loan { stream: self, lent: Buffer::default(), open: 0 };
        loan.open = self.receive(|inner| lend(inner, &mut loan.lent))?;
        Ok(loan)
    }
}

impl Loan<'_> {
    /// Waits for more data, as [`TcpStream::recv_loan`] does, and adds it at the end; returns how
    /// many bytes these are, and zero at the end of the stream. They are copied unless everything
    /// is consumed.
    ///
    /// Bytes on loan occupy the receive window, so a peer whose data is kept stops. `extend` frees
    /// the room of the bytes lent so far, as a copy would; the caller must bound the length of a
    /// request.
    ///
    /// # Errors
    /// As [`Read::read`](io::Read::read). The loan stays as it is.
    pub fn extend(&mut self) -> io::Result<usize> {
        let Self { stream, lent, open } = self;
        stream.end_loan(core::mem::take(open));
        *open = stream.receive(|inner| lend(inner, lent))?;
        Ok(*open)
    }

    /// Removes the first `bytes`, at most all: they were read.
    pub fn consume(&mut self, bytes: usize) {
        self.lent.consume(bytes);
    }

    /// Removes all bytes: they were read.
    pub fn consume_all(mut self) {
        self.consume(usize::MAX);
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.lent.as_slice()
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let read = self.open.saturating_sub(self.len());
        self.stream.return_loan(read, &mut self.lent);
        self.stream.socket().settings.lent.store(false, Release);
    }
}

/// Prints the length in place of the bytes.
impl fmt::Debug for Loan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("stream", self.stream).field("len", &self.len()).finish()
    }
}
