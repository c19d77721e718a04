//! A dispatcher behind a UDP socket: one datagram is one request, and one its reply.
//!
//! Owns the threads that receive, which classify requests before they are queued. The bytes of a
//! request are anybody's: code of the service that panics at them costs that request only.

use super::dispatcher::{Dispatcher, Request};
use super::server::catch;
use super::settings::Settings;
use super::stats::ClassStats;
use crate::net::UdpSocket;
use crate::sync::mpsc;
use crate::{thread, time};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest datagram.
const LONGEST: usize = 65_535;

/// Errors in a row after which a receiving thread pauses.
const MAX_ERRORS: u32 = 16;
/// The pause.
const PAUSE: Duration = Duration::from_millis(1);

/// A service of requests and replies. A request is a datagram, or over TCP the bytes that the
/// framing has measured, with their length prefix or line end; what `handle` leaves in `reply` is
/// sent as it is, so over TCP the service frames its replies.
///
/// Its own constructor is the place for what Shinjuku calls `init`.
///
/// # Examples
/// ```
/// use tailwater::dispatch::Service;
///
/// struct Upper;
///
/// impl Service for Upper {
///     fn classify(&self, request: &[u8]) -> usize {
///         usize::from(request.len() > 100)
///     }
///
///     fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
///         reply.extend(request.to_ascii_uppercase());
///     }
/// }
///
/// let mut reply = Vec::new();
/// Upper.handle(b"abc", &mut reply);
/// assert_eq!(reply, b"ABC");
/// ```
pub trait Service: Send + Sync + 'static {
    /// Called once by each lane's first thread, with the lane's number, before any request of the
    /// lane. If it panics, the lane serves all the same.
    fn init_per_core(&self, core: usize) {
        let _ = core;
    }

    /// Returns the number of a request's class. Called before the request is queued; must be short.
    /// If this or [`work`](Self::work) panics, the request is dropped and counted
    /// ([`UdpServer::unclassified`]); over TCP its connection is closed.
    fn classify(&self, request: &[u8]) -> usize;

    /// Returns how long a request takes, if that can be told: for
    /// [`Policy::shortest_remaining`](super::Policy::shortest_remaining).
    fn work(&self, request: &[u8]) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Executes a request. An empty `reply` is not sent, and none is after a panic.
    fn handle(&self, request: &[u8], reply: &mut Vec<u8>);
}

/// A service behind a socket. Runs until its process ends.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::dispatch::{Service, Settings, UdpServer};
/// use tailwater::net::UdpSocket;
///
/// struct Upper;
///
/// impl Service for Upper {
///     fn classify(&self, _request: &[u8]) -> usize {
///         0
///     }
///
///     fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
///         reply.extend(request.to_ascii_uppercase());
///     }
/// }
///
/// #[tailwater::main]
/// fn main() {
///     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
///     let settings = Settings::new("sq:5us".parse().unwrap());
///     let server = UdpServer::start(socket, Upper, settings).unwrap();
///
///     let client = UdpSocket::bind("127.0.0.1:0").unwrap();
///     client.send_to(b"abc", server.local_addr().unwrap()).unwrap();
///     let mut reply = [0; 3];
///     client.recv(&mut reply).unwrap();
///     assert_eq!(reply, *b"ABC");
/// }
/// ```
#[derive(Debug, Clone)]
pub struct UdpServer {
    dispatcher: Dispatcher<Datagram>,
    socket: Arc<UdpSocket>,
    unclassified: Arc<AtomicU64>,
    unsent: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Datagram {
    bytes: Box<[u8]>,
    from: SocketAddr,
}

impl UdpServer {
    /// Starts a dispatcher, and a thread for each kthread that receives from `socket`, which is set
    /// to block without a timeout.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for the threads. Nothing runs then.
    ///
    /// # Panics
    /// If there is no runtime.
    pub fn start(socket: UdpSocket, service: impl Service, settings: Settings) -> io::Result<Self> {
        // A receiver would poll it otherwise.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(None)?;
        let (socket, service) = (Arc::new(socket), Arc::new(service));
        let unsent = Arc::new(AtomicU64::new(0));
        let unclassified = Arc::new(AtomicU64::new(0));
        // Each waits for the dispatcher, and ends if there will be none.
        let mut receivers = Vec::new();
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (start, started) = mpsc::channel();
            let (socket, service) = (Arc::clone(&socket), Arc::clone(&service));
            let unclassified = Arc::clone(&unclassified);
            let receiver = thread::Builder::new().name("dispatch-udp");
            drop(receiver.spawn(move || {
                if let Ok(dispatcher) = started.recv() {
                    receive(&socket, &*service, dispatcher, &unclassified);
                }
            })?);
            receivers.push(start);
        }
        let (handler, initial) = (Arc::clone(&service), Arc::clone(&service));
        let failures = Arc::clone(&unsent);
        // Set after the start: one that fails does not keep the socket's port.
        let replies = Arc::new(OnceLock::<Arc<UdpSocket>>::new());
        let set_later = Arc::clone(&replies);
        let dispatcher = Dispatcher::start(
            settings,
            move |core| initial.init_per_core(core),
            move |request: Datagram| {
                let mut reply = Vec::new();
                handler.handle(&request.bytes, &mut reply);
                // A reply that cannot be sent is lost, as one that the network loses.
                let sent = |socket: &Arc<UdpSocket>| socket.send_to(&reply, request.from).is_ok();
                if !reply.is_empty() && !replies.get().is_some_and(sent) {
                    failures.fetch_add(1, Relaxed);
                }
            },
        )?;
        set_later.get_or_init(|| Arc::clone(&socket));
        for receiver in receivers {
            receiver.send(dispatcher).expect("a receiver waits for the dispatcher");
        }
        Ok(Self { dispatcher, socket, unclassified, unsent })
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

    /// Returns how many requests were dropped because [`Service::classify`] or [`Service::work`]
    /// panicked.
    pub fn unclassified(&self) -> u64 {
        self.unclassified.load(Relaxed)
    }

    /// Returns how many replies could not be sent.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed)
    }
}

fn receive(
    socket: &UdpSocket,
    service: &impl Service,
    dispatcher: Dispatcher<Datagram>,
    unclassified: &AtomicU64,
) {
    let mut buffer = vec![0; LONGEST].into_boxed_slice();
    let mut errors: u32 = 0;
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else {
            // It reports the fate of an earlier reply, which its client notices itself. One that
            // lasts does not take the core from the others.
            errors = errors.saturating_add(1);
            if errors < MAX_ERRORS {
                thread::yield_now();
            } else {
                time::sleep(PAUSE);
            }
            continue;
        };
        errors = 0;
        let bytes = &buffer[..len];
        let Some(request) = catch(|| classify(service, bytes, flow_of(from))) else {
            unclassified.fetch_add(1, Relaxed);
            continue;
        };
        // One too many is dropped, and counted.
        let _ = dispatcher.submit(request, Datagram { bytes: bytes.into(), from });
    }
}

/// Returns the request that `bytes` are.
pub fn classify(service: &impl Service, bytes: &[u8], flow: u32) -> Request {
    Request::new(service.classify(bytes)).work(service.work(bytes).unwrap_or_default()).flow(flow)
}

/// Returns the flow of a sender.
pub fn flow_of(from: SocketAddr) -> u32 {
    let mut hasher = DefaultHasher::new();
    from.hash(&mut hasher);
    hasher.finish() as u32
}
