//! The generator over kernel TCP sockets: one thread that spins, many connections, any server.
//!
//! Owns the sockets and the loop. It never blocks between start and end of a run: sockets are
//! non-blocking, one epoll instance (level-triggered) reports the ready ones, and a connection that
//! ends is opened again without a wait. [`Lanes`] assigns requests to connections.
//!
//! A request is sent with its own `send`, unless several go to one connection in the same turn of
//! the loop. `TCP_NODELAY` is set.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::clock::Clock;
use crate::contact;
use crate::control::Control;
use crate::descriptors;
use crate::generator::Generator;
pub use crate::kernel_udp::{Load, Target};
use crate::lanes::{LaneId, Lanes, MAX_CONNECTIONS};
use crate::pin::PinnedThread;
use crate::plan::Plan;
use crate::protocol::{Medium, Protocol};
use crate::report::Measurement;
pub use crate::target::TcpLoadError;

/// Maximum number of requests sent before answers are read again.
const SEND_BATCH: usize = 16;

/// Connections handled in one turn of the loop.
const EVENTS: usize = 64;

/// Reads from one connection in one turn, so that a server that floods one does not keep the others
/// waiting.
const READS: usize = 4;

/// Bytes of one read.
const READ: usize = 64 << 10;

/// Time after its end, or a failure to open it, at which a connection is opened again, unless the
/// server ended it behind its answers.
const RETRY_NS: u64 = 20_000_000;

/// The use of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Their number, 1 to [`MAX_CONNECTIONS`].
    pub count: u32,
    /// Maximum number of requests unanswered on one, 1 to
    /// [`MAX_PIPELINE`](crate::lanes::MAX_PIPELINE).
    pub pipeline: usize,
}

impl Connections {
    /// Checks the number of connections.
    pub(crate) fn check(self) -> Result<(), TcpLoadError> {
        if (1..=MAX_CONNECTIONS).contains(&self.count) {
            Ok(())
        } else {
            Err(TcpLoadError::Count { count: self.count })
        }
    }
}

pub(crate) fn system(attempt: &'static str) -> impl Fn(io::Error) -> TcpLoadError {
    move |reason| TcpLoadError::System { attempt, reason }
}

/// Runs `plan` against any server on the calling thread until it is over or `stop` is set. The
/// plan's flows are not used.
///
/// # Errors
/// As [`run_under`].
pub fn run(
    plan: &Plan,
    load: &Load,
    connections: Connections,
    target: &Target,
    stop: &AtomicBool,
) -> Result<Measurement, TcpLoadError> {
    run_under(plan, load, connections, target, &Control::new(stop))
}

/// Runs `plan` as [`run`] does, under `control`.
///
/// # Errors
/// A [`TcpLoadError`]: an unusable plan, no server, or a refusal of the kernel or of the control
/// before the schedule started. Later failures are not errors but are counted in the measurement.
pub fn run_under(
    plan: &Plan,
    load: &Load,
    connections: Connections,
    target: &Target,
    control: &Control<'_>,
) -> Result<Measurement, TcpLoadError> {
    plan.check()?;
    connections.check()?;
    let _pinned =
        target.core.map(PinnedThread::new).transpose().map_err(system("use the generator's core"))?;
    descriptors::raise_limit();
    contact::prepare_by_stream(load, |patience| open(target.server, patience), target, control.stop)?;
    let ids = load.protocol.ids(Medium::Stream);
    let lanes = Lanes::new(connections.count, connections.pipeline, ids);
    let pool = Pool::new(target.server, lanes).map_err(descriptors::explain);
    let mut pool = pool.map_err(system("open the connections"))?;
    let clock = Clock::start();
    let start_ns = control.start_ns(&clock).map_err(system("start together with the others"))?;
    let shared = Arc::clone(&load.protocol);
    let mut generator = Generator::with_protocol(plan.clone(), shared, Medium::Stream, load.seed, start_ns)?;
    loop {
        let now_ns = clock.now_ns();
        if !control.turn(&mut generator, now_ns) {
            return Ok(generator.finish(clock.now_ns()));
        }
        pool.send_due(&clock, &mut generator, now_ns);
        pool.receive(&clock, &mut generator);
        pool.look_after_one(&mut generator, now_ns);
    }
}

/// Waits until a server answers at `server`, repeating the request every 50 ms for at most `wait`,
/// or until `stop`.
///
/// # Errors
/// [`TcpLoadError::NoServer`], also when stopped.
pub fn contact_server(
    protocol: &dyn Protocol,
    server: SocketAddr,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<(), TcpLoadError> {
    contact::find_by_stream(protocol, |patience| open(server, patience), server, wait, stop).map(drop)
}

/// Stores everything that the protocol reads, over a connection of its own, which may take ten
/// seconds to open. Ends early on `stop`.
///
/// # Errors
/// [`TcpLoadError::NoServer`] or [`TcpLoadError::Preload`].
pub fn preload_server(
    protocol: &dyn Protocol,
    server: SocketAddr,
    stop: &AtomicBool,
) -> Result<(), TcpLoadError> {
    let open = |patience| open(server, patience);
    let mut stream = contact::find_by_stream(protocol, open, server, contact::STREAM_PATIENCE, stop)?;
    contact::preload_by_stream(protocol, &mut stream, stop)
}

/// Opens a connection of the first contact.
fn open(server: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, patience).map_err(descriptors::explain)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The state of a connection.
#[derive(Debug)]
enum Socket {
    /// To be opened at this clock reading.
    Closed { retry_at_ns: u64 },
    /// The handshake is under way.
    Opening(OwnedFd),
    /// In use; `blocked` while the kernel has no room to send.
    Open { fd: OwnedFd, blocked: bool },
}

/// The connections of a run.
struct Pool {
    server: SocketAddr,
    lanes: Lanes,
    sockets: Vec<Socket>,
    epoll: OwnedFd,
    touched: Vec<LaneId>,
    bytes: Box<[u8]>,
    /// The connection that is checked next.
    next: LaneId,
}

impl Pool {
    fn new(server: SocketAddr, mut lanes: Lanes) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut sockets = Vec::with_capacity(lanes.count() as usize);
        for id in 0..lanes.count() {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let fd = OwnedFd::from(stream);
            epoll::add(&epoll, &fd, epoll::EventData::new_u64(id.into()), epoll::EventFlags::IN)?;
            sockets.push(Socket::Open { fd, blocked: false });
            lanes.handle_up(id);
        }
        let (touched, bytes) = (Vec::with_capacity(2 * SEND_BATCH), vec![0; READ].into_boxed_slice());
        Ok(Self { server, lanes, sockets, epoll, touched, bytes, next: 0 })
    }

    /// Sends what is due, at most [`SEND_BATCH`] requests and as many held back.
    #[inline]
    fn send_due(&mut self, clock: &Clock, generator: &mut Generator, mut now_ns: u64) {
        // Connections take turns, so with this many no two requests of a batch could leave
        // together. A send takes some microseconds on the loopback device: each request is then
        // held against its own due time, and counts as late if the sends before it made it so.
        let apart = self.lanes.count() as usize >= SEND_BATCH;
        let (rounds, each) = if apart { (SEND_BATCH, 1) } else { (1, SEND_BATCH) };
        for _ in 0..rounds {
            let touched = &mut self.touched;
            self.lanes.poll_due(generator, now_ns, each, |id| {
                // Requests of one turn leave a connection together.
                if touched.last() != Some(&id) {
                    touched.push(id);
                }
            });
            if self.touched.is_empty() {
                return;
            }
            while let Some(id) = self.touched.pop() {
                self.flush(id, generator, now_ns);
            }
            now_ns = clock.now_ns();
        }
    }

    /// Writes the bytes of connection `id` that wait.
    fn flush(&mut self, id: LaneId, generator: &mut Generator, now_ns: u64) {
        let Socket::Open { fd, blocked } = &mut self.sockets[id as usize] else { return };
        // Each turn sends something or is the last.
        while !self.lanes.to_send(id).is_empty() {
            match rustix::net::send(&*fd, self.lanes.to_send(id), SendFlags::NOSIGNAL) {
                Ok(sent) => self.lanes.handle_sent(id, sent),
                Err(Errno::AGAIN) => {
                    if !*blocked {
                        *blocked = true;
                        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
                        // Cannot fail for a descriptor that was added; if it did, the timeout would
                        // end the connection.
                        let _ = epoll::modify(&self.epoll, &*fd, epoll::EventData::new_u64(id.into()), flags);
                    }
                    return;
                }
                Err(Errno::INTR) => {}
                Err(_) => return self.end(id, generator, now_ns),
            }
        }
        if *blocked {
            *blocked = false;
            let data = epoll::EventData::new_u64(id.into());
            // As above.
            let _ = epoll::modify(&self.epoll, &*fd, data, epoll::EventFlags::IN);
        }
    }

    /// Reads the bytes that arrived, on at most [`EVENTS`] connections.
    #[inline]
    fn receive(&mut self, clock: &Clock, generator: &mut Generator) {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; EVENTS];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted or empty poll is repeated by the loop; level-triggered readiness is not
        // lost.
        let ready = epoll::wait(&self.epoll, &mut events, Some(&now)).unwrap_or(0);
        for event in &events[..ready] {
            // The number of a connection.
            let id = event.data.u64() as LaneId;
            let flags = event.flags;
            if matches!(self.sockets[id as usize], Socket::Opening(_)) {
                self.finish_opening(id, generator, clock.now_ns());
                continue;
            }
            if flags.intersects(epoll::EventFlags::OUT) {
                self.flush(id, generator, clock.now_ns());
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.read(id, clock, generator);
            }
        }
    }

    #[inline]
    fn read(&mut self, id: LaneId, clock: &Clock, generator: &mut Generator) {
        for _ in 0..READS {
            let Socket::Open { fd, .. } = &self.sockets[id as usize] else { return };
            match rustix::io::read(fd, &mut *self.bytes) {
                Ok(0) => return self.end_by_server(id, generator, clock.now_ns()),
                Ok(len) => {
                    let now_ns = clock.now_ns();
                    if self.lanes.handle_bytes(id, now_ns, &self.bytes[..len], generator).is_err() {
                        return self.end(id, generator, now_ns);
                    }
                    if len < READ {
                        // Nothing is left; had it come meanwhile, the next look would say so.
                        return;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.end(id, generator, clock.now_ns()),
            }
        }
    }

    /// Ends connection `id`, which the server has ended. One that was answered is opened again at
    /// once: the server may end each after its answer.
    #[cold]
    fn end_by_server(&mut self, id: LaneId, generator: &mut Generator, now_ns: u64) {
        let at_once = self.lanes.handle_end(id, now_ns, generator);
        self.end(id, generator, now_ns);
        if at_once {
            self.sockets[id as usize] = Socket::Closed { retry_at_ns: now_ns };
        }
    }

    /// Ends connection `id`: its requests in flight are lost, and it is opened again later.
    #[cold]
    fn end(&mut self, id: LaneId, generator: &mut Generator, now_ns: u64) {
        generator.count_reconnect();
        self.lanes.handle_down(id, now_ns, generator);
        // Closing the descriptor takes it out of the epoll set.
        self.sockets[id as usize] = Socket::Closed { retry_at_ns: now_ns + RETRY_NS };
    }

    /// Opens one connection again if it is time, or ends it if it is stuck; takes connections in
    /// turn.
    #[inline]
    fn look_after_one(&mut self, generator: &mut Generator, now_ns: u64) {
        let id = self.next;
        self.next = if id + 1 == self.lanes.count() { 0 } else { id + 1 };
        match &self.sockets[id as usize] {
            Socket::Closed { retry_at_ns } if *retry_at_ns <= now_ns => {
                self.sockets[id as usize] = match begin_opening(self.server, &self.epoll, id) {
                    Ok(fd) => Socket::Opening(fd),
                    Err(_) => Socket::Closed { retry_at_ns: now_ns + RETRY_NS },
                };
            }
            Socket::Open { .. } if self.lanes.is_stuck(id, now_ns, generator) => {
                self.end(id, generator, now_ns);
            }
            _ => {}
        }
    }

    #[cold]
    fn finish_opening(&mut self, id: LaneId, generator: &mut Generator, now_ns: u64) {
        let closed = Socket::Closed { retry_at_ns: now_ns + RETRY_NS };
        let Socket::Opening(fd) = std::mem::replace(&mut self.sockets[id as usize], closed) else { return };
        if !matches!(sockopt::socket_error(&fd), Ok(Ok(()))) {
            return;
        }
        // Without it small requests would wait for acknowledgements; the connection works all the
        // same.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        let data = epoll::EventData::new_u64(id.into());
        if epoll::modify(&self.epoll, &fd, data, epoll::EventFlags::IN).is_ok() {
            self.sockets[id as usize] = Socket::Open { fd, blocked: false };
            self.lanes.handle_up(id);
            self.flush(id, generator, now_ns);
        }
    }
}

/// Starts a handshake whose end epoll reports.
fn begin_opening(server: SocketAddr, epoll: &OwnedFd, id: LaneId) -> io::Result<OwnedFd> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&fd, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    epoll::add(epoll, &fd, epoll::EventData::new_u64(id.into()), epoll::EventFlags::OUT)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
