//! Calls of programs that open and close connections and listeners.

use crate::addressing::Route;
use crate::error::{SendError, destination};
use crate::outlet::Outlet;
use crate::platform::{Lock, Platform};
use crate::stack::Stack;
use crate::tcp::clock::instant;
use crate::tcp::cookies::Offer;
use crate::tcp::{Key, ListenError, Listening, Reach, Socket};
use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_tcp::isn::initial_numbers;
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Config, Connection, Events, Flow, Opening, default_mss};

/// Why a connection was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer cannot be reached.
    #[error(transparent)]
    Send(#[from] SendError),
    /// All ephemeral ports are taken by connections to this peer.
    #[error("no port is free for another connection to {0}: close some")]
    NoPort(SocketAddr),
    /// Too many connections.
    #[error("{0} TCP connections are open, which is the most there can be: close some")]
    TooMany(usize),
}

impl<P: Platform> Stack<P> {
    /// Begins a connection to `remote`: its SYN is sent, or waits for room. The socket has one
    /// handle.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_tcp(
        &self,
        outlet: &mut impl Outlet<P>,
        remote: SocketAddr,
        config: &Config,
    ) -> Result<Arc<Socket<P>>, ConnectError> {
        self.connect_tcp_with(outlet, remote, config, &[]).map(|(socket, _)| socket)
    }

    /// As [`connect_tcp`](Self::connect_tcp), and hands `data` over before the SYN leaves: with
    /// [`Config::fast_open`] and a cookie of the server the SYN carries it. Returns besides how
    /// many bytes were taken.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_tcp_with(
        &self,
        outlet: &mut impl Outlet<P>,
        remote: SocketAddr,
        config: &Config,
        data: &[u8],
    ) -> Result<(Arc<Socket<P>>, usize), ConnectError> {
        let remote = destination(remote)?;
        match self.addressing.route(remote.ip()) {
            Route::Local => {}
            Route::Via(_) if self.link_up.load(Relaxed) => {}
            Route::Via(_) => return Err(SendError::Down.into()),
            Route::Broadcast | Route::Group | Route::Unreachable => {
                return Err(SendError::NetworkUnreachable.into());
            }
        }
        if !self.tcp.has_room() {
            return Err(ConnectError::TooMany(self.tcp.limit));
        }
        let local = self.source_for(remote.ip());
        let now = instant(outlet.now());
        let mut flow = Flow { local, remote: remote.ip(), local_port: 0, remote_port: remote.port() };
        let mut ports = self.tcp.ports.lock();
        let taken = |port, reuse: bool| {
            let key = Key::from(&Flow { local_port: port, ..flow });
            let itself = port == remote.port() && local == remote.ip();
            let waits = &self.tcp.time_waits;
            let old = if reuse { waits.blocks(&key, now) } else { waits.contains(&key) };
            itself || old || self.tcp.table.contains(&key) || self.tcp.listeners.is_used(port)
        };
        // A port without a recent connection is preferred; with timestamps one in TIME-WAIT is
        // usable too (RFC 6191).
        let fresh = ports.choose(&flow, |port| taken(port, false));
        let port = fresh.or_else(|| ports.choose(&flow, |port| taken(port, true)));
        flow.local_port = port.ok_or(ConnectError::NoPort(remote))?;
        let numbers = initial_numbers(&self.tcp.secrets.numbers, &flow, now);
        let opening = Opening {
            local_port: flow.local_port,
            remote_port: flow.remote_port,
            numbers,
            path_mss: self.path_mss(flow.remote),
            default_mss: default_mss(flow.remote),
        };
        let mut connection = Connection::connect(config, &opening, now);
        if config.fast_open {
            match self.tcp.cookies.offer(flow.remote, now) {
                Offer::Nothing => {}
                Offer::Request => connection.offer_fast_open(None),
                Offer::Show(peer) => connection.offer_fast_open(Some(peer)),
            }
        }
        let taken = connection.send(data).unwrap_or(0);
        let socket = self.adopt(flow, connection);
        let key = Key::from(&flow);
        self.tcp.time_waits.remove(&key);
        if !self.tcp.table.insert(key, &socket) {
            self.tcp.connections.fetch_sub(1, Relaxed);
            return Err(ConnectError::NoPort(remote));
        }
        drop(ports);
        socket.add_handle();
        self.settle(outlet, &socket, &mut socket.lock(), Events::TRANSMIT, now);
        Ok((socket, taken))
    }

    /// Makes a socket for a connection that is about to enter the table, and counts it.
    pub(super) fn adopt(&self, flow: Flow, connection: Connection) -> Arc<Socket<P>> {
        self.tcp.connections.fetch_add(1, Relaxed);
        let id = self.tcp.next_id.fetch_add(1, Relaxed);
        Arc::new(Socket::new(id, flow, self.is_local(flow.remote), connection))
    }

    /// Listens at `reach`, whose address [is bindable](Self::is_bindable) and not IPv4-mapped; port
    /// zero stands for any. The listener has one handle.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_tcp(
        &self,
        reach: impl Into<Reach>,
        backlog: u32,
        config: ListenConfig,
    ) -> Result<Arc<Listening<P>>, ListenError> {
        let mut ports = self.tcp.ports.lock();
        let mut reach = reach.into();
        if reach.local.port() == 0 {
            let ip = reach.local.ip();
            let flow = Flow { local: ip, remote: ip, local_port: 0, remote_port: 0 };
            let at = |port| Reach { local: SocketAddr::new(ip, port), ..reach };
            let taken = |port| !self.tcp.listeners.is_free(at(port));
            reach = at(ports.choose(&flow, taken).ok_or(ListenError::NoPort(ip))?);
        }
        let id = self.tcp.next_id.fetch_add(1, Relaxed);
        let listening = Arc::new(Listening::new(id, reach, backlog, config, self.tcp.secrets.numbers));
        self.tcp.listeners.insert(&listening)?;
        Ok(listening)
    }

    /// Closes `socket`, of which the program has no handle any more: queued data is sent, or, if
    /// received data was never read, a reset.
    pub fn release_tcp(&self, outlet: &mut impl Outlet<P>, socket: &Arc<Socket<P>>) {
        let now = instant(outlet.now());
        let inner = &mut *socket.lock();
        let events = inner.connection.release(now);
        self.settle(outlet, socket, inner, events, now);
    }

    /// Ends a connection at once, with a reset.
    pub fn abort_tcp(&self, outlet: &mut impl Outlet<P>, socket: &Arc<Socket<P>>) {
        let now = instant(outlet.now());
        let inner = &mut *socket.lock();
        let events = inner.connection.abort();
        self.settle(outlet, socket, inner, events, now);
    }

    /// Returns the time in the unit of connections, for calls to one.
    #[inline]
    pub fn tcp_now(outlet: &impl Outlet<P>) -> tailwater_tcp::Instant {
        instant(outlet.now())
    }
}
