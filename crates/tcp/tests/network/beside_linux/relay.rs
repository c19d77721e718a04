//! The path in real time, and who is at its ends.

use super::family::Family;
use super::ours::Ours;
use crate::link::{Link, LinkPlan, Packet};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, write};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tailwater_tcp::{Config, EcnCodepoint, Instant};

pub const PORT: u16 = 5001;
/// How long anything may take to begin.
pub const PATIENCE: Duration = Duration::from_secs(900);
/// How often the ends look whether it is over.
const LOOK: Duration = Duration::from_millis(20);
/// The stream repeats after so many bytes, which no segment size divides.
const PERIOD: u64 = 251;

/// Who sends.
pub enum Peer {
    /// Linux, with the congestion control of this name.
    Linux(&'static str),
    /// A connection of this crate.
    Ours(Box<Config>),
}

/// What lies between the two ends.
#[derive(Clone)]
pub struct Path {
    pub family: Family,
    /// From the sender, and back.
    pub links: [LinkPlan; 2],
    /// Of the losses.
    pub seed: u64,
}

/// When a transfer ends: after `time`, the handshake included, or when a program on the other end
/// has read `bytes`.
#[derive(Clone, Copy)]
pub struct Limit {
    pub time: Duration,
    pub bytes: u64,
}

/// What the two ends and the relay have in common. Relaxed: nothing is read by way of them.
#[derive(Default)]
struct Shared {
    received: AtomicU64,
    over: AtomicBool,
}

/// Returns the stream from a position on.
pub fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|at| (at % PERIOD) as u8).collect()
}

/// Sends until `limit`; returns how many bytes a program on the other end has read.
///
/// # Errors
/// What this machine does not have.
pub fn transfer(peer: &Peer, path: &Path, limit: Limit) -> Result<u64, String> {
    let shared = &Shared::default();
    let (family, seed) = (path.family, path.seed);
    std::thread::scope(|scope| {
        let (to_relay, devices) = channel();
        let device = || devices.recv_timeout(PATIENCE).map_err(|error| error.to_string())?;
        let (go, start) = channel();
        let connect = || -> Result<Relay, String> {
            let for_receiver = to_relay.clone();
            scope.spawn(move || receive(family, &for_receiver, shared));
            let [forth, back] = path.links.clone();
            let links = [Link::new(forth, seed), Link::new(back, seed ^ 0xB)];
            let mut relay = Relay::new(family, device()?, links);
            match peer {
                &Peer::Linux(algorithm) => {
                    scope.spawn(move || send(family, algorithm, &to_relay, &start, shared));
                    relay.sender = End::Linux(device()?);
                    go.send(()).map_err(|error| error.to_string())?;
                }
                Peer::Ours(config) => {
                    relay.sender = End::Ours(Box::new(Ours::new(config, family, seed, relay.now())));
                }
            }
            Ok(relay)
        };
        let run = |mut relay: Relay| relay.run(limit, &shared.received).map_err(|error| error.to_string());
        let result = connect().and_then(run);
        let received = shared.received.load(Ordering::Relaxed);
        shared.over.store(true, Ordering::Relaxed);
        result.map(|()| received)
    })
}

/// Reads all that comes, in a namespace of its own, and looks at each byte.
fn receive(family: Family, ready: &Sender<Result<OwnedFd, String>>, shared: &Shared) {
    let listener = family.enter(1).and_then(|device| {
        let listener = TcpListener::bind((family.address(1), PORT));
        Ok((device, listener.map_err(|error| error.to_string())?))
    });
    let listener = match listener {
        Ok((device, listener)) => {
            let _ = ready.send(Ok(device));
            listener
        }
        Err(why) => return drop(ready.send(Err(why))),
    };
    listener.set_nonblocking(true).expect("an option");
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if shared.over.load(Ordering::Relaxed) => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    stream.set_nonblocking(false).expect("an option");
    stream.set_read_timeout(Some(LOOK)).expect("an option");
    let (mut at, mut buffer) = (0, vec![0; 64 << 10]);
    while !shared.over.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                assert!(
                    buffer[..len] == pattern(at, len),
                    "what arrives after {at} bytes is not what was sent"
                );
                at += len as u64;
                shared.received.store(at, Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("after {at} bytes: {error}"),
        }
    }
    let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Linux sends, in a namespace of its own.
fn send(
    family: Family,
    algorithm: &str,
    ready: &Sender<Result<OwnedFd, String>>,
    start: &Receiver<()>,
    shared: &Shared,
) {
    let _ = ready.send(family.enter(0));
    if start.recv_timeout(PATIENCE).is_err() {
        return;
    }
    let mut stream = connect(family, algorithm).expect("a connection over the path");
    stream.set_write_timeout(Some(LOOK)).expect("an option");
    let mut at = 0;
    while !shared.over.load(Ordering::Relaxed) {
        match stream.write(&pattern(at, 16 << 10)) {
            Ok(len) => at += len as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("after {at} bytes: {error}"),
        }
    }
    let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Returns a socket whose congestion control is `algorithm` from its SYN on.
fn connect(family: Family, algorithm: &str) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let socket = socket_with(domain, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_congestion(&socket, algorithm)?;
    connect(&socket, &SocketAddr::from((family.address(1), PORT)))?;
    Ok(TcpStream::from(socket))
}

enum End {
    None,
    Linux(OwnedFd),
    Ours(Box<Ours>),
}

struct Relay {
    family: Family,
    sender: End,
    receiver: OwnedFd,
    /// From the sender, and back.
    links: [Link; 2],
    began: std::time::Instant,
}

impl Relay {
    fn new(family: Family, receiver: OwnedFd, links: [Link; 2]) -> Self {
        Self { family, sender: End::None, receiver, links, began: std::time::Instant::now() }
    }

    /// Not zero at the start: the state machines' clocks have run before.
    fn now(&self) -> Instant {
        Instant(1_000_000_000) + self.began.elapsed()
    }

    fn run(&mut self, limit: Limit, received: &AtomicU64) -> std::io::Result<()> {
        let time = self.began.elapsed() + limit.time;
        while self.began.elapsed() < time && received.load(Ordering::Relaxed) < limit.bytes {
            self.carry()?;
            self.drive();
            self.wait(time)?;
        }
        Ok(())
    }

    /// Takes what was sent, and hands over what has arrived.
    fn carry(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 2048];
        let (family, now) = (self.family, self.now());
        if let End::Linux(device) = &self.sender {
            read_all(family, device, &mut buffer, |segment| {
                drop(self.links[0].send(now, segment, EcnCodepoint::NotEct));
            })?;
        }
        read_all(family, &self.receiver, &mut buffer, |segment| {
            drop(self.links[1].send(now, segment, EcnCodepoint::NotEct));
        })?;
        while let Some(packet) = self.links[0].arrive(now) {
            deliver(&self.receiver, &packet, family, 0)?;
        }
        while let Some(packet) = self.links[1].arrive(now) {
            match &mut self.sender {
                End::None => {}
                End::Linux(device) => deliver(device, &packet, family, 1)?,
                End::Ours(ours) => {
                    let Packet::Segment { bytes, .. } = &packet else { continue };
                    ours.hear(bytes, now);
                }
            }
        }
        Ok(())
    }

    fn drive(&mut self) {
        let now = self.now();
        let End::Ours(ours) = &mut self.sender else { return };
        if ours.connection.next_timeout().is_some_and(|at| at <= now) {
            let _ = ours.connection.handle_timeout(now);
        }
        ours.write().expect("the connection lives");
        while let Some(segment) = ours.say(now) {
            self.links[0].send(now, &segment, EcnCodepoint::NotEct);
        }
    }

    /// Until the next arrival, timer or packet.
    fn wait(&self, time: Duration) -> std::io::Result<()> {
        let mut next = self.links.iter().filter_map(Link::next_arrival).min();
        let mut fds = vec![PollFd::new(&self.receiver, PollFlags::IN)];
        match &self.sender {
            End::None => {}
            End::Linux(device) => fds.push(PollFd::new(device, PollFlags::IN)),
            End::Ours(ours) => next = next.into_iter().chain(ours.connection.next_timeout()).min(),
        }
        let end = Instant(1_000_000_000) + time;
        let left = next.unwrap_or(end).min(end) - self.now();
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn read_all(
    family: Family,
    device: &OwnedFd,
    buffer: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    loop {
        match read(device, &mut *buffer) {
            Ok(len) => {
                if let Some(segment) = family.unwrap(&buffer[..len]) {
                    each(segment);
                }
            }
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Hands a packet of the end `from` to a device.
fn deliver(device: &OwnedFd, packet: &Packet, family: Family, from: usize) -> std::io::Result<()> {
    let Packet::Segment { bytes, .. } = packet else { return Ok(()) };
    match write(device, &family.wrap(bytes, from)) {
        // A full queue of the device's is a loss like any other.
        Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
