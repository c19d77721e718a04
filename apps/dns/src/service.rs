//! The server on Tailwater: user threads and the runtime's own network.
//!
//! Owns the threads: several on each UDP socket, one that accepts connections, one for each
//! connection. It runs until the process ends.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use tailwater::net::{TcpListener, UdpSocket};
use tailwater::thread::{self, JoinHandle};

use crate::serve::tcp::Permit;
use crate::serve::{Shared, udp};

/// User threads on a UDP socket for each kthread: one receives while another's core is being taken
/// away.
const THREADS_PER_KTHREAD: usize = 2;

/// A server whose sockets are bound and whose threads run.
#[derive(Debug)]
pub struct Service {
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<Infallible>>,
}

impl Service {
    /// Binds UDP and TCP at each address and starts the threads. Call it on a user thread.
    ///
    /// # Errors
    /// If an address is taken or not this runtime's.
    ///
    /// # Panics
    /// Without a runtime.
    pub fn start(listen: &[SocketAddr], shared: &Arc<Shared>) -> io::Result<Self> {
        let mut service = Self { addresses: Vec::new(), threads: Vec::new() };
        for address in listen {
            let explain = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
            let socket = Arc::new(UdpSocket::bind(address).map_err(explain)?);
            let address = socket.local_addr()?;
            let listener = TcpListener::bind(address).map_err(explain)?;
            service.addresses.push(address);
            let kthreads = thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..kthreads * THREADS_PER_KTHREAD {
                let (socket, shared) = (Arc::clone(&socket), Arc::clone(shared));
                service.threads.push(thread::spawn(move || {
                    loop {
                        udp::serve(&*socket, &shared, || ControlFlow::Continue(()));
                    }
                }));
            }
            let shared = Arc::clone(shared);
            service.threads.push(thread::spawn(move || accept(&listener, &shared)));
        }
        Ok(service)
    }

    /// Returns the addresses it listens at, with the ports that the runtime chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Waits for ever, unless a thread panicked.
    ///
    /// # Errors
    /// If a serving thread panicked.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            if thread.join().is_err() {
                return Err(io::Error::other("a serving thread panicked"));
            }
        }
        Ok(())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) -> ! {
    loop {
        // The error concerns a connection that is gone already.
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let Some(permit) = Permit::take(shared) else { continue };
        // How the connection ends is the client's concern.
        drop(thread::spawn(move || permit.serve(&mut stream)));
    }
}
