//! A TCP connection for futures: two halves, each with a handle to the connection and a node that
//! watches its direction. An asynchronous method takes its waker out when it ends or is dropped;
//! the polling functions, which have no future to drop, leave it until the next call or the half's
//! end.
//!
//! Owns the polling functions that all traits are built on ([`io`](super::io) has the traits of
//! other crates). A half is polled by one task at a time; the last waker of a half counts, as in
//! every `AsyncRead`.
//!
//! A reading half may have received data on loan ([`ReadHalf::fill_buf`]): the next read takes it
//! first, and what is left goes back to the connection with the half's end.

use crate::future::operation::{Armed, Operation, Wait, WakerNode};
use crate::net;
use crate::net::tcp::{Inner, each, lend};
use crate::net::{TcpOptions, ToSocketAddrs};
use crate::verbs::watch::Watchers;
use core::future::poll_fn;
use core::mem::MaybeUninit;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use tailwater_net::tcp::Refusal;
use tailwater_tcp::Buffer;

/// Memory of a loan up to this size is kept for the next one.
const MAX_SPARE_BYTES: usize = 16 << 10;

/// A handle to a connection, and what watches one of its directions.
#[derive(Debug)]
struct Half {
    stream: net::TcpStream,
    /// On the heap, so that a half can be moved while it watches.
    node: Box<WakerNode>,
    reads: bool,
    /// True if the node may be linked.
    watches: bool,
}

impl Half {
    fn new(stream: net::TcpStream, reads: bool) -> Self {
        Self { stream, node: Box::new(WakerNode::new()), reads, watches: false }
    }

    /// Returns the watchers of this half's direction.
    fn watchers(reads: bool, inner: &mut Inner) -> &mut Watchers {
        if reads { inner.readers().watchers() } else { inner.writers().watchers() }
    }

    /// Runs `attempt`, which calls the function it gets, under the connection's lock, if it would
    /// wait.
    fn poll<T>(
        &mut self,
        context: &Context<'_>,
        attempt: impl FnOnce(&net::TcpStream, &mut dyn FnMut(&mut Inner)) -> Option<T>,
    ) -> Poll<T> {
        crate::poll();
        let mut armed = Some(Armed::new(context));
        let mut replaced = None;
        let (node, reads) = (&self.node, self.reads);
        let result = attempt(&self.stream, &mut |inner| {
            let watchers = Self::watchers(reads, inner);
            // SAFETY: 1. always the same watchers, locked. 2. `drop` disarms the node.
            replaced = armed.take().and_then(|armed| unsafe { node.arm(watchers, armed) });
        });
        self.watches |= armed.is_none();
        result.map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_write(&mut self, context: &Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, arm| {
            stream.send_or(|inner| inner.send(data), |mut inner| arm(&mut inner))
        })
    }

    fn poll_write_more(&mut self, context: &Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.note_more();
        self.poll(context, |stream, arm| {
            stream.send_or(|inner| inner.send_more(data), |mut inner| arm(&mut inner))
        })
    }

    fn poll_read(&mut self, context: &Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, arm| {
            stream.receive_or(|inner| inner.receive(buf, false), |mut inner| arm(&mut inner))
        })
    }

    fn poll_lend(&mut self, context: &Context<'_>, into: &mut Buffer) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, arm| {
            stream.receive_or(|inner| lend(inner, into), |mut inner| arm(&mut inner))
        })
    }

    /// Takes the node out of the connection.
    fn disarm(&mut self) {
        if core::mem::take(&mut self.watches) {
            let mut inner = self.stream.socket().lock();
            // SAFETY: as in `poll`.
            let armed = unsafe { self.node.disarm(Self::watchers(self.reads, &mut inner)) };
            drop(inner);
            drop(armed);
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// A half during one asynchronous method: neither a method that has returned nor one whose future
/// is dropped leaves a waker behind.
struct Call<'a>(&'a mut Half);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.disarm();
    }
}

/// The reading half of a [`TcpStream`].
///
/// # Examples
/// ```no_run
/// use tailwater::future::net::TcpStream;
///
/// async fn relay(from: TcpStream, to: TcpStream) -> std::io::Result<()> {
///     let (mut reader, _back) = from.into_split();
///     let (_back, mut writer) = to.into_split();
///     let mut buf = [0; 4096];
///     loop {
///         match reader.read(&mut buf).await? {
///             0 => return writer.shutdown(),
///             len => writer.write_all(&buf[..len]).await?,
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct ReadHalf {
    half: Half,
    lent: Buffer,
}

/// The writing half of a [`TcpStream`]. Dropping it does not end the direction: see
/// [`shutdown`](Self::shutdown).
///
/// # Examples
/// See [`ReadHalf`].
/// ```
/// # fn moves(half: tailwater::future::net::WriteHalf) -> impl Send { half }
/// ```
#[derive(Debug)]
pub struct WriteHalf(Half);

/// A TCP connection, as [`net::TcpStream`].
///
/// With the features `futures-io`, `tokio-io` and `hyper` it implements the traits of those crates;
/// without them it has the methods below.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, net::TcpStream};
///
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     let listener = tailwater::net::TcpListener::bind("127.0.0.1:0")?;
///     block_on(async {
///         let mut client = TcpStream::connect(listener.local_addr()?).await?;
///         let mut server = TcpStream::from(listener.accept()?.0);
///         client.write_all(b"hello").await?;
///         let mut buf = [0; 5];
///         assert_eq!(server.read(&mut buf).await?, 5);
///         Ok(())
///     })
/// }
/// ```
#[derive(Debug)]
pub struct TcpStream {
    pub(super) reader: ReadHalf,
    pub(super) writer: WriteHalf,
}

impl From<net::TcpStream> for TcpStream {
    fn from(stream: net::TcpStream) -> Self {
        let reader = ReadHalf { half: Half::new(stream.handle(), true), lent: Buffer::default() };
        Self { reader, writer: WriteHalf(Half::new(stream, false)) }
    }
}

/// A handshake. Dropped before it is over, it ends the connection.
struct Connect(net::TcpStream);

impl Operation for Connect {
    type Output = io::Result<()>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<io::Result<()>> {
        self.0.connected_or(|mut inner| arm(inner.writers().watchers()))
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        change(self.0.socket().lock().writers().watchers());
    }
}

impl Drop for Connect {
    fn drop(&mut self) {
        let is_connecting = self.0.socket().lock().is_connecting();
        if is_connecting {
            self.0.abort();
        }
    }
}

impl TcpStream {
    /// Connects. Several addresses are tried in turn. To limit the time, use
    /// [`timeout`](crate::future::timeout).
    ///
    /// # Errors
    /// As [`net::TcpStream::connect`].
    ///
    /// # Panics
    /// If no runtime has been started.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(address, &TcpOptions::new()).await
    }

    /// As [`connect`](Self::connect), with options.
    ///
    /// # Errors
    /// As [`net::TcpStream::connect`].
    ///
    /// # Panics
    /// If no runtime has been started.
    pub async fn connect_with(address: impl ToSocketAddrs, options: &TcpOptions) -> io::Result<Self> {
        Self::connect_with_data(address, options, &[]).await
    }

    /// Connects and writes all of `data`, as [`TcpOptions::connect_with_data`].
    ///
    /// # Errors
    /// As [`net::TcpStream::connect`], or those of writing.
    ///
    /// # Panics
    /// If no runtime has been started.
    pub async fn connect_with_data(
        address: impl ToSocketAddrs,
        options: &TcpOptions,
        data: &[u8],
    ) -> io::Result<Self> {
        let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, "no addresses to connect to"));
        for to in address.to_socket_addrs()? {
            result = Self::connect_one(to, options, data).await;
            if result.is_ok() {
                break;
            }
        }
        let (mut stream, taken) = result?;
        stream.write_all(&data[taken..]).await?;
        Ok(stream)
    }

    async fn connect_one(to: SocketAddr, options: &TcpOptions, data: &[u8]) -> io::Result<(Self, usize)> {
        let (stream, taken) = net::TcpStream::begin_sending(to, options, data)?;
        Wait::new(Connect(stream.handle())).await?;
        Ok((stream.into(), taken))
    }

    /// Reads; zero is the end of the stream.
    ///
    /// # Errors
    /// As `Read` of [`net::TcpStream`].
    pub async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buf).await
    }

    /// As [`ReadHalf::fill_buf`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf().await
    }

    /// As [`ReadHalf::consume`].
    pub fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }

    /// Writes a part of `data`, or all; returns how much.
    ///
    /// # Errors
    /// As `Write` of [`net::TcpStream`].
    pub async fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.writer.write(data).await
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        self.writer.write_all(data).await
    }

    /// Writes all of `data` and announces more: see [`WriteHalf::write_all_more`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all_more(&mut self, data: &[u8]) -> io::Result<()> {
        self.writer.write_all_more(data).await
    }

    /// Returns the two halves, for two tasks.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Closes one direction or both; as [`net::TcpStream::shutdown`], which never waits.
    ///
    /// # Errors
    /// As [`net::TcpStream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.get_ref().shutdown(how)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.get_ref().peer_addr()
    }

    /// Returns the address of this side.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.get_ref().local_addr()
    }

    /// Returns the blocking socket, for its settings.
    pub fn get_ref(&self) -> &net::TcpStream {
        &self.writer.0.stream
    }

    /// Returns the blocking socket. Data that [`fill_buf`](Self::fill_buf) has returned and that
    /// was not consumed is read from it first.
    pub fn into_inner(self) -> net::TcpStream {
        self.get_ref().handle()
    }
}

impl ReadHalf {
    /// Reads; zero is the end of the stream.
    ///
    /// # Errors
    /// As `Read` of [`net::TcpStream`].
    pub async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.lent.is_empty() {
            return Ok(self.take_lent(buf));
        }
        let call = Call(&mut self.half);
        poll_fn(|context| call.0.poll_read(context, buf)).await
    }

    /// Returns received data without a copy, as much as there is; none is the end of the stream.
    /// It stays until [`consume`](Self::consume) has removed it: until then the same bytes are
    /// returned again, and keep their room in the window. What a program reads from
    /// [`get_ref`](TcpStream::get_ref) meanwhile lies behind them.
    ///
    /// With `futures-io` and `tokio-io` this is their `AsyncBufRead`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn first_line(reader: &mut tailwater::future::net::ReadHalf) -> std::io::Result<String> {
    /// let mut line = Vec::new();
    /// loop {
    ///     let data = reader.fill_buf().await?;
    ///     let end = data.iter().position(|&byte| byte == b'\n');
    ///     let len = end.map_or(data.len(), |end| end + 1);
    ///     line.extend_from_slice(&data[..len]);
    ///     reader.consume(len);
    ///     if end.is_some() || len == 0 {
    ///         return Ok(String::from_utf8_lossy(&line).into_owned());
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.lent.is_empty() {
            let (call, lent) = (Call(&mut self.half), &mut self.lent);
            poll_fn(|context| call.0.poll_lend(context, lent)).await?;
        }
        Ok(self.lent.as_slice())
    }

    /// Removes the first `bytes` of what [`fill_buf`](Self::fill_buf) has returned, at most all.
    pub fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.lent.len());
        if bytes == 0 {
            return;
        }
        self.lent.consume(bytes);
        if self.lent.is_empty() && self.lent.capacity() > MAX_SPARE_BYTES {
            self.lent = Buffer::default();
        }
        self.half.stream.end_loan(bytes);
    }

    /// Copies what is on loan to `buf`, as much as fits; returns how much.
    fn take_lent(&mut self, buf: &mut [u8]) -> usize {
        let len = buf.len().min(self.lent.len());
        buf[..len].copy_from_slice(&self.lent.as_slice()[..len]);
        self.consume(len);
        len
    }

    #[cfg_attr(
        not(any(feature = "tokio-io", feature = "futures-io")),
        allow(dead_code, reason = "for the traits of other crates")
    )]
    pub(super) fn poll_read(&mut self, context: &Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.lent.is_empty() {
            return Poll::Ready(Ok(self.take_lent(buf)));
        }
        self.half.poll_read(context, buf)
    }

    #[cfg_attr(
        not(any(feature = "tokio-io", feature = "futures-io")),
        allow(dead_code, reason = "for the traits of other crates")
    )]
    pub(super) fn poll_fill_buf(&mut self, context: &Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.lent.is_empty() {
            match self.half.poll_lend(context, &mut self.lent) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => {}
            }
        }
        Poll::Ready(Ok(self.lent.as_slice()))
    }

    /// Reads into memory that may not be initialised; initialises the returned number of bytes.
    #[cfg_attr(not(feature = "hyper"), allow(dead_code, reason = "hyper's buffers are the only such"))]
    pub(super) fn poll_read_uninit(
        &mut self,
        context: &Context<'_>,
        buf: &mut [MaybeUninit<u8>],
    ) -> Poll<io::Result<usize>> {
        if !self.lent.is_empty() {
            let len = buf.len().min(self.lent.len());
            return Poll::Ready(Ok(self.take_lent(initialised(&mut buf[..len]))));
        }
        self.half.poll(context, |stream, arm| {
            stream.receive_or(|inner| receive_uninit(inner, buf), |mut inner| arm(&mut inner))
        })
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if !self.lent.is_empty() {
            self.half.stream.return_loan(0, &mut self.lent);
        }
    }
}

/// Returns the memory, filled with zeros.
fn initialised(buf: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    buf.fill(MaybeUninit::new(0));
    // SAFETY: all bytes were just written.
    unsafe { core::slice::from_raw_parts_mut(buf.as_mut_ptr().cast::<u8>(), buf.len()) }
}

/// Receives into `buf`, of which only the bytes that will be written are initialised first.
fn receive_uninit(inner: &mut Inner, buf: &mut [MaybeUninit<u8>]) -> Result<usize, Refusal> {
    let len = inner.connection.readable_bytes().min(buf.len());
    if len == 0 && !buf.is_empty() {
        // There is nothing to read: the end, a failure, or a reason to wait.
        return inner.receive(&mut [0], false);
    }
    inner.receive(initialised(&mut buf[..len]), false)
}

impl WriteHalf {
    /// Writes a part of `data`, or all; returns how much.
    ///
    /// # Errors
    /// As `Write` of [`net::TcpStream`].
    pub async fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let call = Call(&mut self.0);
        poll_fn(|context| call.0.poll_write(context, data)).await
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let len = self.write(data).await?;
            data = &data[len..];
        }
        Ok(())
    }

    /// Writes all of `data` and announces more (`MSG_MORE`): a rest smaller than a segment waits
    /// for the next [`write`](Self::write), as with [`net::TcpStream::corked`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all_more(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let call = Call(&mut self.0);
            let len = poll_fn(|context| call.0.poll_write_more(context, data)).await?;
            data = &data[len..];
        }
        Ok(())
    }

    /// Sends a FIN after what was written.
    ///
    /// # Errors
    /// As [`net::TcpStream::shutdown`].
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.0.stream.shutdown(Shutdown::Write)
    }

    #[cfg_attr(
        not(any(feature = "hyper", feature = "tokio-io", feature = "futures-io")),
        allow(dead_code, reason = "for the traits of other crates")
    )]
    pub(super) fn poll_write(&mut self, context: &Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, data)
    }

    #[cfg_attr(
        not(any(feature = "hyper", feature = "tokio-io", feature = "futures-io")),
        allow(dead_code, reason = "for the traits of other crates")
    )]
    pub(super) fn poll_write_vectored(
        &mut self,
        context: &Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll(context, |stream, arm| {
            let give = |inner: &mut Inner| each(bufs.iter(), |buf| buf.len(), |buf| inner.send(buf));
            stream.send_or(give, |mut inner| arm(&mut inner))
        })
    }

    /// Closes the direction; a connection that is over has been closed already.
    #[cfg_attr(
        not(any(feature = "hyper", feature = "tokio-io", feature = "futures-io")),
        allow(dead_code, reason = "for the traits of other crates")
    )]
    pub(super) fn close(&mut self) -> io::Result<()> {
        match self.shutdown() {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}
