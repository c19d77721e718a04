//! `TcpListener`.

use super::options::TcpOptions;
use super::stream::TcpStream;
use crate::ground::spin::SpinGuard;
use crate::net::addr::{ToSocketAddrs, bindable, shown, try_each};
use crate::net::driver::{self, KthreadOutlet, stack};
use crate::net::error::{IntoIo, would_block};
use crate::net::platform::Stack;
use crate::net::settings::{CUT_OFF_PAUSE, valid_ttl};
use crate::net::tcp::{ListenInner, Listening};
use crate::records::runtime::deadline_after;
use crate::verbs::wait::{WaitOutcome, wait};
use crate::verbs::watch::Watchers;
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use tailwater_net::SendError;
use tailwater_net::tcp::Reach;
use tailwater_shm::Cycles;
use tailwater_tcp::listen::ListenConfig;

/// A socket that clients connect to, as `std::net::TcpListener`.
///
/// Any number of threads may wait in [`accept`](Self::accept) on one listener, or on clones of it,
/// whichever kthreads they run on: each connection wakes the one that has waited longest.
///
/// # Small writes
/// Write a reply in one call, or see [`TcpStream::set_nodelay`]: a part that is written later may
/// wait for the client's acknowledgment of the first, which Linux delays by 40 ms.
///
/// # Examples
/// An echo server:
/// ```no_run
/// use std::io::{Read, Write};
/// use tailwater::net::TcpListener;
///
/// fn serve() -> std::io::Result<()> {
///     for stream in TcpListener::bind("0.0.0.0:7")?.incoming() {
///         let mut stream = stream?;
///         tailwater::thread::spawn(move || {
///             let mut buf = [0; 4096];
///             while let Ok(len @ 1..) = stream.read(&mut buf) {
///                 if stream.write_all(&buf[..len]).is_err() {
///                     break;
///                 }
///             }
///         });
///     }
///     Ok(())
/// }
/// ```
pub struct TcpListener {
    stack: &'static Stack,
    listening: Arc<Listening>,
    /// Bound to an IPv6 address: IPv4 ones are reported as IPv4-mapped.
    mapped: bool,
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if self.listening.drop_handle() {
            self.listening.lock().acceptors().watchers().close();
            self.stack.close_listening(&mut KthreadOutlet, &self.listening);
        }
    }
}

impl TcpListener {
    /// Listens at an address. Port 0 means any free port; several addresses are tried in turn.
    /// `[::]` accepts both families, unless [`TcpOptions::only_v6`] says otherwise.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse),
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) for an address that is not this
    /// runtime's, or those of [`ToSocketAddrs`].
    ///
    /// # Panics
    /// If no runtime has been started.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("0.0.0.0:80").unwrap();
    ///     let error = TcpListener::bind("127.0.0.1:80").unwrap_err();
    ///     assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    ///     drop(listener);
    ///     TcpListener::bind("127.0.0.1:80").unwrap();
    /// }
    /// ```
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(address, &TcpOptions::default())
    }

    pub(super) fn bind_with(address: impl ToSocketAddrs, options: &TcpOptions) -> io::Result<Self> {
        let stack = stack();
        try_each(address, |local| {
            let (local, mapped) = bindable(stack, local)?;
            let config = ListenConfig {
                connection: options.config.clone(),
                syn_queue: options.syn_queue as usize,
                fast_open: if options.config.fast_open { options.fast_open_pending as usize } else { 0 },
                ..ListenConfig::default()
            };
            let reach = Reach { local, only_v6: options.only_v6 };
            let listening = stack.listen_tcp(reach, options.backlog, config).map_err(IntoIo::into_io)?;
            driver::note_bound(local);
            driver::start_timers(stack);
            Ok(Self { stack, listening, mapped })
        })
    }

    /// Waits for a client; returns the connection and the client's address.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the listener is non-blocking and no client
    /// waits; [`InvalidInput`](io::ErrorKind::InvalidInput) if the listener was
    /// [closed](Self::close) and no client waits; [`NetworkDown`](io::ErrorKind::NetworkDown) if
    /// none waits and the program goes on without an IOKernel that it has lost, unless the address
    /// is a loopback address.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    ///     let (_server, from) = listener.accept().unwrap();
    ///     assert_eq!(from, client.local_addr().unwrap());
    /// }
    /// ```
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_by(None).and_then(|stream| stream.map(with_peer).ok_or_else(closed))
    }

    /// As [`accept`](Self::accept), but waits no longer than `timeout`.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if no client came, and those of
    /// [`accept`](Self::accept).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::{io::ErrorKind, time::Duration};
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let error = listener.accept_timeout(Duration::from_millis(1)).unwrap_err();
    ///     assert_eq!(error.kind(), ErrorKind::TimedOut);
    /// }
    /// ```
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<(TcpStream, SocketAddr)> {
        let deadline = deadline_after(timeout);
        self.accept_by(Some(deadline)).and_then(|stream| stream.map(with_peer).ok_or_else(closed))
    }

    /// Waits for a client until `deadline`; `None` if the listener was closed.
    fn accept_by(&self, deadline: Option<Cycles>) -> io::Result<Option<TcpStream>> {
        crate::poll();
        let (mut waited, mut timed_out) = (false, false);
        loop {
            let mut blocked = None;
            if let Some(stream) = self.accept_or(|inner| blocked = Some(inner)) {
                return Ok(Some(stream));
            }
            let inner = blocked.expect("it would block");
            if inner.is_closed() {
                return Ok(None);
            }
            if self.listening.settings.nonblocking.load(Relaxed) {
                return Err(would_block());
            }
            if timed_out {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let cut_off = self.stack.is_cut_off(self.listening.local_addr());
            if cut_off && waited {
                return Err(SendError::Down.into_io());
            }
            let pause = cut_off.then(|| deadline_after(CUT_OFF_PAUSE));
            let first = pause.into_iter().chain(deadline).min();
            waited = true;
            // SAFETY: `threads` always returns the same list, which stays in the state.
            let outcome = unsafe { wait(inner, |inner| inner.acceptors().threads(), first) };
            timed_out = outcome == WaitOutcome::TimedOut && first == deadline;
        }
    }

    /// Ends listening, for all clones too. New clients are refused; connections made before are
    /// still accepted, and after them [`accept`](Self::accept) fails and
    /// [`incoming`](Self::incoming) ends. Threads that wait there are woken. The port is free at
    /// once. Accepted connections go on. Closing again has no effect.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     let handle = listener.try_clone().unwrap();
    ///     let server = tailwater::thread::spawn(move || handle.incoming().count());
    ///     let _client = TcpStream::connect(address).unwrap();
    ///     listener.close();
    ///     assert_eq!(server.join().unwrap(), 1);
    ///     assert!(TcpStream::connect(address).is_err());
    /// }
    /// ```
    pub fn close(&self) {
        self.stack.stop_listening(&self.listening);
    }

    /// Returns an iterator over the connections, which waits for each and ends when the listener is
    /// [closed](Self::close).
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let address = listener.local_addr().unwrap();
    ///     let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    ///     for (client, server) in clients.iter().zip(listener.incoming()) {
    ///         assert_eq!(server.unwrap().peer_addr().unwrap(), client.local_addr().unwrap());
    ///     }
    /// }
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(shown(self.listening.local_addr(), self.mapped))
    }

    /// Returns another handle to the same listener, settings included. Dropping the last one closes
    /// the listener.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::{TcpListener, TcpStream};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     let clone = listener.try_clone().unwrap();
    ///     drop(listener);
    ///     let _client = TcpStream::connect(clone.local_addr().unwrap()).unwrap();
    ///     clone.accept().unwrap();
    /// }
    /// ```
    pub fn try_clone(&self) -> io::Result<Self> {
        self.listening.add_handle();
        Ok(Self { stack: self.stack, listening: Arc::clone(&self.listening), mapped: self.mapped })
    }

    /// Makes [`accept`](Self::accept) fail with [`WouldBlock`](io::ErrorKind::WouldBlock) where it
    /// would wait. Accepted connections are blocking all the same.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     listener.set_nonblocking(true).unwrap();
    ///     assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// }
    /// ```
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.listening.settings.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Sets the initial time to live of accepted connections, 1 to 255.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) outside that range.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::TcpListener;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ///     listener.set_ttl(3).unwrap();
    ///     assert_eq!(listener.ttl().unwrap(), 3);
    /// }
    /// ```
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.listening.settings.ttl.store(valid_ttl(ttl)?, Relaxed);
        Ok(())
    }

    /// Returns the initial time to live of accepted connections.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.listening.settings.ttl.load(Relaxed).into())
    }

    /// Returns an error of the listener itself: there are none.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// Accepts a connection; if that would wait, calls `block` with the locked state and returns
    /// `None`.
    pub(crate) fn accept_or<'a>(
        &'a self,
        block: impl FnOnce(SpinGuard<'a, ListenInner>),
    ) -> Option<TcpStream> {
        let mut inner = self.listening.lock();
        let Some(socket) = inner.accept() else {
            block(inner);
            return None;
        };
        drop(inner);
        Some(TcpStream::new(self.stack, socket, self.mapped))
    }

    /// Returns the stack's socket.
    pub(crate) fn listening(&self) -> &Arc<Listening> {
        &self.listening
    }

    /// Calls `change` with the watchers of connections to accept, locked.
    pub(crate) fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        change(self.listening.lock().acceptors().watchers());
    }
}

/// Returns a connection with its client's address.
fn with_peer(stream: TcpStream) -> (TcpStream, SocketAddr) {
    let peer = stream.peer();
    (stream, peer)
}

/// Returns the error of accepting at a closed listener: Linux's for one that was shut down.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the listener was closed: it accepts no more connections")
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("addr", &shown(self.listening.local_addr(), self.mapped)).finish()
    }
}

/// Iterator over the connections of a listener: see [`TcpListener::incoming`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::net::{TcpListener, TcpStream};
///
/// #[tailwater::main]
/// fn main() {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
///     let server = listener.incoming().next().unwrap().unwrap();
///     assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
/// }
/// ```
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        self.listener.accept_by(None).transpose()
    }
}

impl core::iter::FusedIterator for Incoming<'_> {}
