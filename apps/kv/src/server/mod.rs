//! Servers: one thread per connection, on [Tailwater](user_threads) or on the
//! [kernel's sockets](kernel).
//!
//! Owns what both share: the threads, the life of a connection, and the crawler's pace, over the
//! few calls that the two kinds of threads and sockets have in common (`System`). A connection that
//! misbehaves, or whose client is gone, ends alone. On Tailwater a dispatcher may execute what
//! connections ask for ([`Turns`]), or event loops serve them without threads (`events`).

mod events;
pub mod kernel;
mod turns;
pub mod user_threads;

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clock::Clock;
use crate::protocol::{Connection, Step, UdpServer};
use crate::replicate;
use crate::service::{Registered, Service};
use crate::store::Crawl;
use crate::system::System;
pub use turns::{LARGE_SLO, SHORT_SLO, Turns};

/// Answer to a client that exceeds the connection limit, in memcached's words.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// Size of the receive buffer: the longest possible datagram.
const MAX_REQUEST: usize = 64 << 10;
/// Pause after a failure to accept, which is a lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Pause of the crawler between two pieces of work.
const CRAWL_PAUSE: Duration = Duration::from_millis(100);
/// Time for a round over all items.
const CRAWL_ROUND: Duration = Duration::from_secs(60);

/// A running server: addresses on which it listens, and who executes its requests.
#[derive(Debug, Clone)]
pub struct Running {
    /// The TCP address, with the port that the system chose if none was given.
    pub tcp: SocketAddr,
    /// The UDP address, if there is one.
    pub udp: Option<SocketAddr>,
    /// Where a backup takes copies of its primary.
    pub backup: Option<SocketAddr>,
    /// The dispatcher, if the settings ask for one.
    pub turns: Option<Arc<Turns>>,
}

/// Opens the other ports that the service's settings name beside `tcp`, where connections are
/// served, and serves on them until the process ends.
fn start<S: System>(
    service: &Arc<Service>,
    clock: Clock,
    tcp: SocketAddr,
    turns: Option<Arc<Turns>>,
) -> io::Result<Running> {
    let settings = &service.settings;
    let listen = settings.listen.as_str();
    let replication = service.replication.get();
    let backup = replication.map(|it| replicate::start::<S>(it, clock)).transpose()?.flatten();
    let mut listening = Running { tcp, udp: None, backup, turns };
    if settings.udp_port != 0 {
        let (socket, udp) = S::bind((listen, settings.udp_port))?;
        listening.udp = Some(udp);
        let socket = Arc::new(socket);
        for _ in 0..settings.threads.max(1) {
            let (service, socket) = (Arc::clone(service), Arc::clone(&socket));
            S::spawn("kv-udp", move || serve_udp::<S>(&service, &socket, clock))?;
        }
    }
    let crawled = Arc::clone(service);
    S::spawn("kv-crawler", move || crawl(&crawled, clock, S::sleep))?;
    Ok(listening)
}

/// Opens the TCP port that the settings name, with a thread for each connection. A dispatcher
/// executes the requests, if there is one.
fn serve_by_threads<S: System>(
    service: &Arc<Service>,
    clock: Clock,
    turns: Option<Arc<Turns>>,
) -> io::Result<SocketAddr> {
    let settings = &service.settings;
    let (listener, address) = S::listen((settings.listen.as_str(), settings.tcp_port))?;
    let service = Arc::clone(service);
    S::spawn("kv-accept", move || accept::<S>(&service, turns.as_ref(), &listener, clock))?;
    Ok(address)
}

fn accept<S: System>(
    service: &Arc<Service>,
    turns: Option<&Arc<Turns>>,
    listener: &S::Listener,
    clock: Clock,
) -> ! {
    loop {
        let Ok((mut stream, address)) = S::accept(listener) else {
            S::sleep(ACCEPT_PAUSE);
            continue;
        };
        let Some(registered) = service.register(address, clock.now()) else {
            // The answer fits the buffer of a new connection, so this does not wait; a client that
            // does not read it has gone.
            let _ = stream.write_all(TOO_MANY);
            continue;
        };
        let (of_thread, turns) = (Arc::clone(service), turns.cloned());
        let started = S::spawn("kv-connection", move || {
            // Fails only on a connection that is gone.
            if S::prepare(&stream, idle_timeout(&of_thread)).is_ok() {
                serve(&mut stream, &of_thread, turns.as_deref(), &registered, clock);
            }
        });
        if started.is_err() {
            service.rejected_connections.fetch_add(1, Relaxed);
        }
    }
}

fn serve_udp<S: System>(service: &Arc<Service>, socket: &S::Datagrams, clock: Clock) -> ! {
    let (mut server, mut request) = (UdpServer::new(service), vec![0; MAX_REQUEST]);
    loop {
        // Errors report earlier answers that were not delivered.
        let Ok((len, client)) = S::recv_from(socket, &mut request) else { continue };
        service.bytes_read.fetch_add(len as u64, Relaxed);
        server.handle(&request[..len], clock.now(), |datagram| {
            if let Ok(len) = S::send_to(socket, datagram, client) {
                service.bytes_written.fetch_add(len as u64, Relaxed);
            }
        });
    }
}

/// Serves one connection to its end.
fn serve(
    stream: &mut (impl Read + Write),
    service: &Arc<Service>,
    turns: Option<&Turns>,
    registered: &Registered,
    clock: Clock,
) {
    let mut connection = Box::new(Connection::new(Arc::clone(service)));
    let mut turns = turns.map(|turns| (turns, turns.prepare(&mut connection)));
    loop {
        let len = match stream.read(connection.space()) {
            Ok(len @ 1..) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) => return,
            Err(error) => return count_end(&error, service),
        };
        connection.received(len);
        service.bytes_read.fetch_add(len as u64, Relaxed);
        let now = clock.now();
        registered.peer.last.store(now.seconds, Relaxed);
        loop {
            let step;
            (connection, step, turns) = match turns.take() {
                None => {
                    let step = connection.process(now);
                    (connection, step, None)
                }
                Some((turns, ends)) => {
                    // A turn that panicked ends its own connection.
                    let Some(done) = turns.process(connection, now, ends) else { return };
                    let (connection, step, ends) = done;
                    (connection, step, Some((turns, ends)))
                }
            };
            if let Some(replication) = service.replication.get() {
                // Without an answer its client does not know the outcome, and nor does this one.
                if replication.wait(connection.horizon()).is_err() {
                    return;
                }
            }
            if !connection.output().is_empty() {
                if let Err(error) = stream.write_all(connection.output()) {
                    return count_end(&error, service);
                }
                service.bytes_written.fetch_add(connection.output().len() as u64, Relaxed);
                connection.sent();
            }
            match step {
                Step::Continue => {}
                Step::Read => break,
                Step::Close => return,
            }
        }
    }
}

/// Counts a connection that ends with `error`: the client was idle for too long, or is gone.
fn count_end(error: &io::Error, service: &Service) {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        service.idle_kicks.fetch_add(1, Relaxed);
    }
}

/// Returns the time after which a connection is closed that sends nothing, or does not read its
/// answers.
fn idle_timeout(service: &Service) -> Option<Duration> {
    let seconds = service.settings.idle_timeout;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Removes dead items for ever: a little at a time, everything within [`CRAWL_ROUND`].
fn crawl(service: &Service, clock: Clock, sleep: impl Fn(Duration)) -> ! {
    let pauses = (CRAWL_ROUND.as_millis() / CRAWL_PAUSE.as_millis()) as usize;
    let steps = service.store.crawl_steps().div_ceil(pauses);
    let mut progress = Crawl::default();
    loop {
        sleep(CRAWL_PAUSE);
        for _ in 0..steps {
            service.store.crawl(&mut progress, clock.now());
        }
    }
}
