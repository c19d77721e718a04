//! The generator over kernel UDP sockets: one thread that spins.
//!
//! Owns the sockets and the loop. It never blocks between start and end of a run: sockets are
//! non-blocking, and a request that the kernel refuses counts as lost.
//!
//! With one flow the loop reads its socket directly (150 ns per try on an AMD EPYC virtual CPU,
//! Linux 6.18); with several it polls one epoll instance, so that the time to notice a reply does
//! not grow with the number of flows.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::epoll;

use crate::clock::Clock;
use crate::contact::{self, MAX_DATAGRAM};
use crate::control::Control;
use crate::generator::{Generator, ReplyOutcome};
use crate::pin::PinnedThread;
use crate::plan::Plan;
use crate::protocol::{Medium, Protocol, Spin};
use crate::report::Measurement;
pub use crate::target::{Load, Target, UdpError};

/// Maximum number of requests sent before replies are read again: behind schedule, neither
/// direction starves the other.
const SEND_BATCH: usize = 16;

/// Maximum number of datagrams read from a socket before the schedule is checked again.
const RECEIVE_BATCH: usize = 16;

/// Receive buffer requested from the kernel, which may grant less: room for the replies of several
/// ms in which the generator's core was taken away.
const RECEIVE_BUFFER: usize = 4 << 20;

pub(crate) fn system(attempt: &'static str) -> impl Fn(io::Error) -> UdpError {
    move |reason| UdpError::System { attempt, reason }
}

/// Runs `plan` against a spin server on the calling thread until it is over or `stop` is set.
/// `seed` fixes every request.
///
/// # Errors
/// As [`run_under`].
pub fn run(plan: &Plan, seed: u64, target: &Target, stop: &AtomicBool) -> Result<Measurement, UdpError> {
    let protocol = Arc::new(Spin::new(plan.service.clone()));
    run_protocol(plan, &Load { protocol, seed, preload: false }, target, stop)
}

/// Runs `plan` against any server on the calling thread until it is over or `stop` is set.
///
/// # Errors
/// As [`run_under`].
pub fn run_protocol(
    plan: &Plan,
    load: &Load,
    target: &Target,
    stop: &AtomicBool,
) -> Result<Measurement, UdpError> {
    run_under(plan, load, target, &Control::new(stop))
}

/// Runs `plan` against any server on the calling thread until it is over, under `control`.
///
/// # Errors
/// A [`UdpError`]: an unusable plan, no server, or a refusal of the kernel or of the control before
/// the schedule started. Later failures are not errors but are counted in the measurement.
pub fn run_under(
    plan: &Plan,
    load: &Load,
    target: &Target,
    control: &Control<'_>,
) -> Result<Measurement, UdpError> {
    plan.check()?;
    let _pinned =
        target.core.map(PinnedThread::new).transpose().map_err(system("use the generator's core"))?;
    contact_server(&*load.protocol, target.server, target.wait, control.stop)?;
    if load.preload {
        preload_server(&*load.protocol, target.server, control.stop)?;
    }
    let mut flows = Flows::new(target.server, plan.flows)?;
    let clock = Clock::start();
    let start_ns = control.start_ns(&clock).map_err(system("start together with the others"))?;
    let protocol = Arc::clone(&load.protocol);
    let mut generator =
        Generator::with_protocol(plan.clone(), protocol, Medium::Datagram, load.seed, start_ns)?;
    let mut bytes = Vec::with_capacity(MAX_DATAGRAM);
    while control.turn(&mut generator, clock.now_ns()) {
        for _ in 0..SEND_BATCH {
            let Some(outgoing) = generator.poll_due(clock.now_ns()) else { break };
            bytes.clear();
            generator.encode(&outgoing, &mut bytes);
            if flows.sockets[usize::from(outgoing.flow)].send(&bytes).is_err() {
                generator.handle_send_failure(&outgoing, clock.now_ns());
            }
        }
        flows.receive(&clock, &mut generator);
    }
    Ok(generator.finish(clock.now_ns()))
}

/// Waits until a server answers at `server`, repeating the request every 50 ms for at most `wait`,
/// or until `stop`.
///
/// # Errors
/// [`UdpError::NoServer`], also when stopped; [`UdpError::WrongAnswer`]; [`UdpError::System`] if no
/// socket can be created.
pub fn contact_server(
    protocol: &dyn Protocol,
    server: SocketAddr,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<(), UdpError> {
    contact::find_by_datagram(protocol, &connect_patient(server)?, server, wait, stop)
}

/// Stores everything that the protocol reads, a window at a time; repeats lost requests. Ends early
/// on `stop`.
///
/// # Errors
/// [`UdpError::Preload`] if the server does not store it, [`UdpError::System`] if no socket can be
/// created.
pub fn preload_server(
    protocol: &dyn Protocol,
    server: SocketAddr,
    stop: &AtomicBool,
) -> Result<(), UdpError> {
    contact::preload_by_datagram(protocol, &connect_patient(server)?, stop)
}

/// Returns a blocking socket for use before the measurement.
fn connect_patient(server: SocketAddr) -> Result<UdpSocket, UdpError> {
    let socket = connect(server)?;
    socket.set_read_timeout(Some(contact::INTERVAL)).map_err(system("set a socket's timeout"))?;
    Ok(socket)
}

fn connect(server: SocketAddr) -> Result<UdpSocket, UdpError> {
    let socket = UdpSocket::bind(contact::unspecified(server)).map_err(system("open a UDP socket"))?;
    socket.connect(server).map_err(system("connect a UDP socket to the server"))?;
    Ok(socket)
}

/// One connected socket per flow.
struct Flows {
    sockets: Vec<UdpSocket>,
    /// Present with several flows; its data are indices into `sockets`.
    poll: Option<OwnedFd>,
    /// Buffer for a datagram.
    bytes: Box<[u8]>,
}

impl Flows {
    fn new(server: SocketAddr, count: u16) -> Result<Self, UdpError> {
        let sockets = (0..count).map(|_| connect(server)).collect::<Result<Vec<_>, _>>()?;
        for socket in &sockets {
            socket.set_nonblocking(true).map_err(system("make a socket non-blocking"))?;
            rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)
                .map_err(|e| system("size a socket's buffer")(e.into()))?;
        }
        let poll = if count > 1 { Some(watch(&sockets).map_err(system("watch the sockets"))?) } else { None };
        Ok(Self { sockets, poll, bytes: vec![0; MAX_DATAGRAM].into_boxed_slice() })
    }

    /// Reads the datagrams that arrived, at most [`RECEIVE_BATCH`], fewer if a request falls due
    /// meanwhile.
    fn receive(&mut self, clock: &Clock, generator: &mut Generator) {
        let Some(poll) = &self.poll else {
            drain(&self.sockets[0], 0, &mut self.bytes, clock, generator);
            return;
        };
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 4];
        // An interrupted or empty poll is repeated by the loop; level-triggered readiness is not
        // lost.
        let ready = epoll::wait(poll, &mut events, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
            .unwrap_or(0);
        for event in &events[..ready] {
            // An index into `sockets`, of which there are at most `MAX_FLOWS`.
            let flow = event.data.u64() as u16;
            drain(&self.sockets[usize::from(flow)], flow, &mut self.bytes, clock, generator);
        }
    }
}

fn watch(sockets: &[UdpSocket]) -> io::Result<OwnedFd> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, socket) in sockets.iter().enumerate() {
        epoll::add(&poll, socket, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
    }
    Ok(poll)
}

fn drain(socket: &UdpSocket, flow: u16, bytes: &mut [u8], clock: &Clock, generator: &mut Generator) {
    for _ in 0..RECEIVE_BATCH {
        // Errors other than "nothing there" report the fate of an earlier request, which its
        // timeout settles.
        let Ok(len) = socket.recv(bytes) else { return };
        let now_ns = clock.now_ns();
        let _: ReplyOutcome = generator.handle_reply(now_ns, flow, &bytes[..len]);
        if generator.next_due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
