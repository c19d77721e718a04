//! A dispatcher behind a UDP socket: one datagram is one request, and one its reply.
//!
//! Owns the threads that receive, which classify requests before they are queued. The bytes of a
//! request are untrusted: a panic of the service's code costs that request only.

use super::dispatcher::{Dispatcher, Request};
use super::permits::{QueuePermit, QueuePermits};
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

    /// As [`classify`](Self::classify), of a request that came as a datagram, which has no length
    /// before it. What is provided calls that.
    fn classify_datagram(&self, request: &[u8]) -> usize {
        self.classify(request)
    }

    /// Returns how long a request takes, if that can be told: for
    /// [`Policy::shortest_remaining`](super::Policy::shortest_remaining).
    fn work(&self, request: &[u8]) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Returns how long the reply may become, as far as can be told from the first bytes of a
    /// request: those from which its length is known. So many bytes count from then on as held by
    /// its connection (`Framing::held`, `Framing::budget`). What is provided is 0: replies count
    /// when they are made. If this panics, the connection is closed.
    fn reply_len(&self, head: &[u8]) -> usize {
        let _ = head;
        0
    }

    /// Executes a request. An empty `reply` is not sent, and none is after a panic.
    fn handle(&self, request: &[u8], reply: &mut Vec<u8>);

    /// Executes a request that came as a datagram, where longer replies than a datagram holds
    /// (65,507 bytes) are not sent. What is provided calls [`handle`](Self::handle).
    fn handle_datagram(&self, request: &[u8], reply: &mut Vec<u8>) {
        self.handle(request, reply);
    }
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
    counted: Arc<dyn Counted>,
    endpoint: Arc<Endpoint>,
}

/// What counts requests by class.
trait Counted: core::fmt::Debug + Send + Sync {
    fn stats(&self) -> Vec<ClassStats>;
}

impl<P: Send> Counted for Dispatcher<P> {
    fn stats(&self) -> Vec<ClassStats> {
        Self::stats(self)
    }
}

/// A socket, and what became of its datagrams beside those that were accepted.
#[derive(Debug)]
pub(super) struct Endpoint {
    socket: UdpSocket,
    unclassified: AtomicU64,
    unsent: AtomicU64,
}

impl Endpoint {
    /// Sends a reply, unless it is empty. One that cannot be sent is lost, as one that the network
    /// loses.
    pub fn reply(&self, reply: &[u8], to: SocketAddr) {
        if !reply.is_empty() && self.socket.send_to(reply, to).is_err() {
            self.unsent.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Debug)]
struct Datagram {
    bytes: Box<[u8]>,
    from: SocketAddr,
    permit: QueuePermit,
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
        let service = Arc::new(service);
        let (endpoint, receivers) = receivers(socket, &service)?;
        let (handler, initial) = (Arc::clone(&service), service);
        let permits = Arc::new(QueuePermits::new(settings.queue, settings.classes.len()));
        let given_back = Arc::clone(&permits);
        // Set after the start: one that fails does not keep the socket's port.
        let replies = Arc::new(OnceLock::<Arc<Endpoint>>::new());
        let set_later = Arc::clone(&replies);
        let dispatcher = Dispatcher::start(
            settings,
            move |core| initial.init_per_core(core),
            move |request: Datagram| {
                given_back.give_back(request.permit);
                let mut reply = Vec::new();
                handler.handle_datagram(&request.bytes, &mut reply);
                if let Some(endpoint) = replies.get() {
                    endpoint.reply(&reply, request.from);
                }
            },
        )?;
        set_later.get_or_init(|| Arc::clone(&endpoint));
        Ok(Self::begin(dispatcher, endpoint, receivers, move |request, bytes, from| {
            let Some(permit) = permits.try_take(request.class()) else {
                return dispatcher.drop_unsubmitted(&request);
            };
            // With a permit, it is not refused.
            let _ = dispatcher.submit(request, Datagram { bytes, from, permit });
        }))
    }

    /// Lets receivers pass what they receive to `submit`, the way to `dispatcher`.
    pub(super) fn begin<P: Send>(
        dispatcher: Dispatcher<P>,
        endpoint: Arc<Endpoint>,
        receivers: Receivers,
        submit: impl Fn(Request, Box<[u8]>, SocketAddr) + Send + Sync + 'static,
    ) -> Self {
        let submit: Arc<Submit> = Arc::new(submit);
        for receiver in receivers {
            receiver.send(Arc::clone(&submit)).expect("a receiver waits for it");
        }
        Self { counted: Arc::new(dispatcher), endpoint }
    }

    /// Returns the socket's address.
    ///
    /// # Errors
    /// As [`UdpSocket::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.socket.local_addr()
    }

    /// Returns what became of the requests of each class.
    pub fn stats(&self) -> Vec<ClassStats> {
        self.counted.stats()
    }

    /// Returns how many requests were dropped because [`Service::classify`] or [`Service::work`]
    /// panicked.
    pub fn unclassified(&self) -> u64 {
        self.endpoint.unclassified.load(Relaxed)
    }

    /// Returns how many replies could not be sent.
    pub fn unsent(&self) -> u64 {
        self.endpoint.unsent.load(Relaxed)
    }
}

/// Passes a request on.
type Submit = dyn Fn(Request, Box<[u8]>, SocketAddr) + Send + Sync;
/// Threads that wait for what they pass datagrams to, and end if there will be nothing.
pub(super) type Receivers = Vec<mpsc::Sender<Arc<Submit>>>;

/// Makes a thread for each kthread that receives from `socket`.
///
/// # Errors
/// If there is no memory for them. None runs then.
pub(super) fn receivers<S: Service + ?Sized>(
    socket: UdpSocket,
    service: &Arc<S>,
) -> io::Result<(Arc<Endpoint>, Receivers)> {
    // A receiver would poll it otherwise.
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(None)?;
    let endpoint = Arc::new(Endpoint { socket, unclassified: AtomicU64::new(0), unsent: AtomicU64::new(0) });
    let mut receivers = Vec::new();
    for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
        let (start, started) = mpsc::channel::<Arc<Submit>>();
        let (endpoint, service) = (Arc::clone(&endpoint), Arc::clone(service));
        drop(thread::Builder::new().name("dispatch-udp".to_owned()).spawn(move || {
            if let Ok(submit) = started.recv() {
                receive(&endpoint, &*service, &*submit);
            }
        })?);
        receivers.push(start);
    }
    Ok((endpoint, receivers))
}

fn receive<S: Service + ?Sized>(endpoint: &Endpoint, service: &S, submit: &Submit) {
    let mut buffer = vec![0; LONGEST].into_boxed_slice();
    let mut errors: u32 = 0;
    loop {
        let Ok((len, from)) = endpoint.socket.recv_from(&mut buffer) else {
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
        match catch(|| request(service, service.classify_datagram(bytes), bytes, flow_of(from))) {
            Some(request) => submit(request, bytes.into(), from),
            None => drop(endpoint.unclassified.fetch_add(1, Relaxed)),
        }
    }
}

/// Returns the request of a class that `bytes` are.
pub fn request<S: Service + ?Sized>(service: &S, class: usize, bytes: &[u8], flow: u32) -> Request {
    Request::new(class).work(service.work(bytes).unwrap_or_default()).flow(flow)
}

/// Returns the flow of a sender.
pub fn flow_of(from: SocketAddr) -> u32 {
    let mut hasher = DefaultHasher::new();
    from.hash(&mut hasher);
    hasher.finish() as u32
}
