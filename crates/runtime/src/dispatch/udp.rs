//! A dispatcher behind a UDP socket: one datagram is one request, and one its reply.
//!
//! Owns the threads that receive, which classify requests before they are queued.

use super::dispatcher::{Dispatcher, Request};
use super::settings::Settings;
use super::stats::ClassStats;
use crate::net::UdpSocket;
use crate::thread;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longest datagram.
const LONGEST: usize = 65_535;

/// A service of requests and replies. Its own constructor is the place for what Shinjuku calls
/// `init`.
pub trait Service: Send + Sync + 'static {
    /// Called once by each lane's first thread, with the lane's number, before any request.
    fn init_per_core(&self, core: usize) {
        let _ = core;
    }

    /// Returns the number of a request's class. Called before the request is queued; must be short.
    fn classify(&self, request: &[u8]) -> usize;

    /// Returns how long a request takes, if that can be told: for
    /// [`Policy::shortest_remaining`](super::Policy::shortest_remaining).
    fn work(&self, request: &[u8]) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Executes a request. An empty `reply` is not sent.
    fn handle(&self, request: &[u8], reply: &mut Vec<u8>);
}

/// A service behind a socket. Runs until its process ends.
#[derive(Debug, Clone)]
pub struct UdpServer {
    dispatcher: Dispatcher<Datagram>,
    socket: Arc<UdpSocket>,
}

#[derive(Debug)]
struct Datagram {
    bytes: Box<[u8]>,
    from: SocketAddr,
}

impl UdpServer {
    /// Starts a dispatcher, and a thread for each kthread that receives from `socket`.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for the threads.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(socket: UdpSocket, service: impl Service, settings: Settings) -> io::Result<Self> {
        let (socket, service) = (Arc::new(socket), Arc::new(service));
        let (replies, handler, initial) = (Arc::clone(&socket), Arc::clone(&service), Arc::clone(&service));
        let dispatcher = Dispatcher::start(
            settings,
            move |core| initial.init_per_core(core),
            move |request: Datagram| {
                let mut reply = Vec::new();
                handler.handle(&request.bytes, &mut reply);
                if !reply.is_empty() {
                    // A reply that cannot be sent is lost, as one that the network loses.
                    let _ = replies.send_to(&reply, request.from);
                }
            },
        )?;
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (socket, service) = (Arc::clone(&socket), Arc::clone(&service));
            let receiver = thread::Builder::new().name("dispatch-udp");
            drop(receiver.spawn(move || receive(&socket, &*service, dispatcher))?);
        }
        Ok(Self { dispatcher, socket })
    }

    /// Returns the socket's address.
    ///
    /// # Errors
    /// As [`UdpSocket::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        self.dispatcher.stats()
    }
}

fn receive(socket: &UdpSocket, service: &impl Service, dispatcher: Dispatcher<Datagram>) {
    let mut buffer = vec![0; LONGEST].into_boxed_slice();
    loop {
        // An error reports the fate of an earlier reply, which its client notices itself.
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let bytes = &buffer[..len];
        let mut hasher = DefaultHasher::new();
        from.hash(&mut hasher);
        let request = Request::new(service.classify(bytes))
            .work(service.work(bytes).unwrap_or_default())
            .flow(hasher.finish() as u32);
        // One too many is dropped, and counted.
        let _ = dispatcher.submit(request, Datagram { bytes: bytes.into(), from });
    }
}
