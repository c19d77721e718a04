//! The server on kernel sockets and ordinary threads: the baseline for Tailwater, and a server for
//! machines without it.
//!
//! Owns a pool of threads for each address, each with a UDP socket of its own (SO_REUSEPORT spreads
//! the clients over them), which holds as many queries as one of Tailwater's as far as the system
//! allows ([`tailwater_placement::buffer`]), a thread that accepts connections, one thread for each
//! connection, and their termination.
//!
//! Termination: a flag, then `shutdown(2)` of the receiving side, which wakes threads that are
//! blocked in it. On an unconnected UDP socket Linux returns ENOTCONN and wakes them all the same
//! (`inet_shutdown` in net/ipv4/af_inet.c). Connections end on their own, within the idle time.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, bind, shutdown, socket_with, sockopt};

use tailwater_placement::buffer::hold_as_many;

use crate::serve::tcp::Permit;
use crate::serve::{Shared, udp};

/// Stack of a connection's thread: its buffers are on the heap.
const CONNECTION_STACK: usize = 128 * 1024;

/// Number of ports tried if any is acceptable.
const PORT_TRIES: u32 = 8;

/// Pause after a connection could not be accepted: without descriptors the next attempt would fail
/// as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A running server; [`Server::stop`] ends it, and so does dropping it.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    sockets: Vec<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Binds UDP and TCP at each address and starts the threads, `threads` for each address's
    /// datagrams, at least 1.
    ///
    /// # Errors
    /// The kernel's error, with what was attempted: the address is taken or not ours, or threads
    /// cannot be started.
    pub fn start(listen: &[SocketAddr], threads: usize, shared: &Arc<Shared>) -> io::Result<Self> {
        // On failure, dropping `server` ends the threads that did start.
        let mut server =
            Self { addresses: Vec::new(), stop: Arc::default(), sockets: Vec::new(), threads: Vec::new() };
        for address in listen {
            server
                .listen(*address, threads.max(1), shared)
                .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))?;
        }
        Ok(server)
    }

    fn listen(&mut self, address: SocketAddr, threads: usize, shared: &Arc<Shared>) -> io::Result<()> {
        let (first, listener) = bind_both(address)?;
        let address = first.local_addr()?;
        let mut sockets = vec![first];
        for _ in 1..threads {
            sockets.push(reusable(address)?);
        }
        for socket in sockets {
            self.sockets.push(socket.as_fd().try_clone_to_owned()?);
            let (shared, stop) = (Arc::clone(shared), Arc::clone(&self.stop));
            self.spawn("dns-udp", move || {
                udp::serve(&socket, &shared, || match stop.load(Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                });
            })?;
        }
        self.sockets.push(listener.as_fd().try_clone_to_owned()?);
        let (shared, stop) = (Arc::clone(shared), Arc::clone(&self.stop));
        self.spawn("dns-tcp", move || accept(&listener, &shared, &stop))?;
        self.addresses.push(address);
        Ok(())
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Returns the addresses it listens at, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends the threads, each after its current query.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for socket in &self.sockets {
            // ENOTCONN is the expected answer, see the module's header.
            let _: Result<(), Errno> = shutdown(socket, Shutdown::Read);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Binds sockets for both protocols to one port. If the kernel chooses the port, it chooses it for
/// TCP, where no port is given twice; for UDP it may choose a port that another server shares among
/// its own threads. If the chosen port is taken for UDP, another one is tried.
fn bind_both(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let listener = TcpListener::bind(address)?;
        match reusable(listener.local_addr()?) {
            Ok(socket) => return Ok((socket, listener)),
            Err(error) if tries == 1 => return Err(error),
            Err(_) => tries -= 1,
        }
    }
}

/// Returns a UDP socket whose port other sockets may share.
fn reusable(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    hold_as_many(&socket)?;
    bind(&socket, &address)?;
    Ok(socket.into())
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        // The error concerns a connection that is gone already, or a lack of descriptors, which
        // passes when other connections end.
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let Some(permit) = Permit::take(shared) else { continue };
        let thread =
            std::thread::Builder::new().name("dns-connection".to_owned()).stack_size(CONNECTION_STACK);
        // Without a thread the connection is closed; how it ends is the client's concern.
        drop(thread.spawn(move || permit.serve(&mut stream)));
    }
}
