//! Accepting.

use super::TcpStream;
use crate::future::operation::{Operation, Wait};
use crate::net;
use crate::net::ToSocketAddrs;
use crate::net::tcp::closed;
use crate::verbs::watch::Watchers;
use std::io;
use std::net::SocketAddr;

/// A listening socket, as [`net::TcpListener`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, net::{TcpListener, TcpStream}};
///
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     block_on(async {
///         let client = TcpStream::connect(listener.local_addr()?).await?;
///         let (_, peer) = listener.accept().await?;
///         assert_eq!(peer, client.local_addr()?);
///         Ok(())
///     })
/// }
/// ```
#[derive(Debug)]
pub struct TcpListener(net::TcpListener);

impl From<net::TcpListener> for TcpListener {
    fn from(listener: net::TcpListener) -> Self {
        Self(listener)
    }
}

struct Accept<'a>(&'a net::TcpListener);

impl Operation for Accept<'_> {
    type Output = io::Result<net::TcpStream>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Self::Output> {
        let mut is_closed = false;
        let stream = self.0.accept_or(|mut inner| {
            is_closed = inner.is_closed();
            if !is_closed {
                arm(inner.acceptors().watchers());
            }
        });
        stream.map(Ok).or_else(|| is_closed.then(|| Err(closed())))
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.0.with_watchers(change);
    }
}

impl TcpListener {
    /// Listens; as [`net::TcpListener::bind`], which never waits.
    ///
    /// # Errors
    /// As [`net::TcpListener::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        net::TcpListener::bind(address).map(Self)
    }

    /// Waits for a connection; returns it and its peer.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the listener was
    /// [closed](net::TcpListener::close) and no client waits.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let stream = Wait::new(Accept(&self.0)).await?;
        let peer = stream.peer();
        Ok((stream.into(), peer))
    }

    /// Returns where it listens.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the blocking socket, for its settings.
    pub fn get_ref(&self) -> &net::TcpListener {
        &self.0
    }

    /// Returns the blocking socket.
    pub fn into_inner(self) -> net::TcpListener {
        self.0
    }
}
