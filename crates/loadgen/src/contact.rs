//! The phase before the schedule starts: whether the server answers, and the storing of what is
//! read later, over any blocking socket.
//!
//! Owns the requests, their repetition and the time limits. Kernel sockets and Tailwater's are used
//! alike; waiting between two tries lets other user threads run if there are any.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::protocol::{Ids, MAX_ANSWER, Medium, Protocol, Request, Verdict};
use crate::target::{Load, Target, TcpLoadError, UdpError, WrongAnswer};

/// Interval at which an unanswered request is repeated; it is also the sockets' read timeout.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// Id of the first contact.
const CONTACT_ID: u64 = 0;

/// Longest datagram received as a whole; a longer one is cut and so wrong.
pub(crate) const MAX_DATAGRAM: usize = 1 << 16;

/// Bytes of one read of a stream.
const READ: usize = 64 << 10;

/// Preloads in datagrams sent before their answers are awaited.
const DATAGRAM_WINDOW: u64 = 16;

/// Times a window of preloads in datagrams is answered, but not as it must be, before the preload
/// fails.
const TRIES: usize = 100;

/// Longest silence during preloads in datagrams: a server that has answered before may lack a core
/// for long on a busy machine.
const SILENCE: Duration = Duration::from_secs(60);

/// Longest time for one request on a stream before the measurement.
pub(crate) const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// Preloads on a stream sent before their answers are awaited.
const STREAM_WINDOW: u64 = 64;

/// A connected datagram socket that blocks, for [`INTERVAL`] at most.
pub(crate) trait Datagrams {
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
    fn recv(&self, bytes: &mut [u8]) -> io::Result<usize>;
}

/// A connected stream that blocks.
pub(crate) trait Stream: Read + Write {
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Datagrams for UdpSocket {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::send(self, bytes)
    }

    fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Self::recv(self, bytes)
    }
}

impl Datagrams for tailwater::net::UdpSocket {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::send(self, bytes)
    }

    fn recv(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Self::recv(self, bytes)
    }
}

impl Stream for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

impl Stream for tailwater::net::TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// Waits until a server answers on `socket`, which is connected to `server`, repeating the request
/// for at most `wait`, or until `stop`.
///
/// # Errors
/// [`UdpError::NoServer`], also when stopped; [`UdpError::WrongAnswer`] if only wrong answers
/// arrived.
pub(crate) fn find_by_datagram(
    protocol: &dyn Protocol,
    socket: &impl Datagrams,
    server: SocketAddr,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<(), UdpError> {
    let request = Request { id: CONTACT_ID, ticket: protocol.contact(), due_ns: 0 };
    let (mut asked, mut bytes) = (Vec::new(), vec![0; MAX_DATAGRAM]);
    protocol.encode(&request, Medium::Datagram, &mut asked);
    let (start, mut wrong) = (Instant::now(), false);
    while !stop.load(Relaxed) {
        let sent = socket.send(&asked);
        match sent.and_then(|_| socket.recv(&mut bytes)) {
            Ok(len) if protocol.check(&request, &bytes[..len], Medium::Datagram) != Verdict::Wrong => {
                return Ok(());
            }
            // No answer arrived within the timeout.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The error comes at once while no server listens or is attached, so wait before the
            // next try.
            Err(_) => tailwater::thread::sleep(INTERVAL),
            Ok(_) => {
                wrong = true;
                // A server that answers at once is not asked without a pause.
                tailwater::thread::sleep(INTERVAL);
            }
        }
        if start.elapsed() >= wait {
            break;
        }
    }
    let protocol = protocol.name();
    Err(match wrong {
        true => WrongAnswer { protocol, server }.into(),
        false => UdpError::NoServer { protocol, server, waited: start.elapsed() },
    })
}

/// Stores everything that the protocol reads, a window at a time; repeats lost requests. Ends early
/// on `stop`.
///
/// # Errors
/// [`UdpError::Preload`] if the server does not store it.
pub(crate) fn preload_by_datagram(
    protocol: &dyn Protocol,
    socket: &impl Datagrams,
    stop: &AtomicBool,
) -> Result<(), UdpError> {
    let all = protocol.preloads();
    let (mut first, mut asked, mut bytes) = (0, Vec::new(), vec![0; MAX_DATAGRAM]);
    while first < all && !stop.load(Relaxed) {
        let mut window: Vec<Request> = (first..all.min(first + DATAGRAM_WINDOW))
            .map(|index| Request { id: index & 0xffff, ticket: protocol.preload(index), due_ns: 0 })
            .collect();
        first += window.len() as u64;
        let (mut tries, mut heard) = (0, Instant::now());
        while !window.is_empty() && tries < TRIES && heard.elapsed() < SILENCE {
            if stop.load(Relaxed) {
                return Ok(());
            }
            for request in &window {
                asked.clear();
                protocol.encode(request, Medium::Datagram, &mut asked);
                // A request that is not sent is not answered, and is repeated.
                let _ = socket.send(&asked);
            }
            let sent = Instant::now();
            while !window.is_empty()
                && let Ok(len) = socket.recv(&mut bytes)
            {
                heard = Instant::now();
                let answer = &bytes[..len];
                let id = protocol.id(answer, Medium::Datagram);
                let right =
                    |request: &Request| protocol.check(request, answer, Medium::Datagram) == Verdict::Right;
                window.retain(|request| id != Some(request.id) || !right(request));
            }
            tries += usize::from(heard >= sent);
        }
        if !window.is_empty() {
            return Err(UdpError::Preload { missing: window.len() as u64 + all - first, all });
        }
    }
    Ok(())
}

/// Waits until the server answers a request on a stream that `open` opens, repeating it for at most
/// `wait`; returns the stream. `open` is given its time limit.
///
/// # Errors
/// [`TcpLoadError::NoServer`], also when stopped; [`TcpLoadError::WrongAnswer`] if only wrong
/// answers arrived.
pub(crate) fn find_by_stream<S: Stream>(
    protocol: &dyn Protocol,
    open: impl Fn(Duration) -> io::Result<S>,
    server: SocketAddr,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<S, TcpLoadError> {
    let start = Instant::now();
    let (mut reason, mut wrong) = (io::Error::from(io::ErrorKind::Interrupted), false);
    while !stop.load(Relaxed) {
        let patience = wait.saturating_sub(start.elapsed()).max(INTERVAL);
        match open(patience).and_then(|stream| first_answer(protocol, stream, patience)) {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) => wrong = true,
            Err(error) => reason = error,
        }
        if start.elapsed() >= wait {
            break;
        }
        tailwater::thread::sleep(INTERVAL);
    }
    let protocol = protocol.name();
    Err(match wrong {
        true => WrongAnswer { protocol, server }.into(),
        false => TcpLoadError::NoServer { protocol, server, waited: start.elapsed(), reason },
    })
}

/// Waits until the server answers on a stream that `open` opens, and stores what the protocol reads
/// if `load` says so.
///
/// # Errors
/// As [`find_by_stream`], or [`TcpLoadError::Preload`].
pub(crate) fn prepare_by_stream<S: Stream>(
    load: &Load,
    open: impl Fn(Duration) -> io::Result<S>,
    target: &Target,
    stop: &AtomicBool,
) -> Result<(), TcpLoadError> {
    let mut first = find_by_stream(&*load.protocol, open, target.server, target.wait, stop)?;
    if load.preload {
        preload_by_stream(&*load.protocol, &mut first, stop)?;
    }
    Ok(())
}

/// Returns the address to bind a socket to that will be connected to `server`.
pub(crate) fn unspecified(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns the stream if the first request was answered on it; `None` if wrongly.
fn first_answer<S: Stream>(
    protocol: &dyn Protocol,
    mut stream: S,
    patience: Duration,
) -> io::Result<Option<S>> {
    stream.set_patience(patience)?;
    let request = Request { id: CONTACT_ID, ticket: protocol.contact(), due_ns: 0 };
    let verdicts = ask(protocol, &mut stream, &[request])?;
    Ok(verdicts.iter().all(|verdict| *verdict != Verdict::Wrong).then_some(stream))
}

/// Stores everything that the protocol reads. Ends early on `stop`.
///
/// # Errors
/// [`TcpLoadError::Preload`] if the server does not store it.
pub(crate) fn preload_by_stream(
    protocol: &dyn Protocol,
    stream: &mut impl Stream,
    stop: &AtomicBool,
) -> Result<(), TcpLoadError> {
    let all = protocol.preloads();
    let failed = |index, reason| TcpLoadError::Preload { index, all, reason };
    stream.set_patience(STREAM_PATIENCE).map_err(|reason| failed(0, reason))?;
    let mut index = 0;
    while index < all && !stop.load(Relaxed) {
        let window: Vec<Request> = (index..all.min(index + STREAM_WINDOW))
            .map(|id| Request { id, ticket: protocol.preload(id), due_ns: 0 })
            .collect();
        let verdicts = ask(protocol, stream, &window).map_err(|reason| failed(index, reason))?;
        if let Some(place) = verdicts.iter().position(|verdict| *verdict != Verdict::Right) {
            let reason = io::Error::other(format!("the answer is {:?}", verdicts[place]));
            return Err(failed(index + place as u64, reason));
        }
        index += window.len() as u64;
    }
    Ok(())
}

/// Number of bytes shown of what is no answer.
const SHOWN: usize = 40;

/// Returns the error about bytes that are no answer, with the first of them.
fn no_answer(bytes: &[u8]) -> io::Error {
    let shown = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    let text = format!("the bytes received are not an answer of this protocol: they begin with `{shown}`");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Sends `requests`, whose ids are consecutive, and awaits their answers.
fn ask(protocol: &dyn Protocol, stream: &mut impl Stream, requests: &[Request]) -> io::Result<Vec<Verdict>> {
    let mut bytes = Vec::new();
    for request in requests {
        protocol.encode(request, Medium::Stream, &mut bytes);
    }
    stream.write_all(&bytes)?;
    let mut verdicts = vec![Verdict::Wrong; requests.len()];
    let (mut input, mut piece, mut answered, mut ended) = (Vec::new(), vec![0; READ], 0, false);
    while answered < requests.len() {
        let len = match protocol.split(&input).map_err(|_| no_answer(&input))? {
            Some(len) => len,
            None if ended => protocol.split_at_end(&input).ok_or_else(|| ended_early(&input))?,
            None => {
                match stream.read(&mut piece).map_err(|error| silent(error, &input))? {
                    0 => ended = true,
                    len => input.extend_from_slice(&piece[..len]),
                }
                if input.len() > 2 * MAX_ANSWER {
                    return Err(no_answer(&input));
                }
                continue;
            }
        };
        let answer: Vec<u8> = input.drain(..len).collect();
        let unknown = || no_answer(&answer);
        let mask = if protocol.ids(Medium::Stream) == Ids::Short { 0xffff } else { u64::MAX };
        let place = match protocol.ids(Medium::Stream) {
            Ids::Order => answered,
            _ => {
                let id = protocol.id(&answer, Medium::Stream).ok_or_else(unknown)?;
                requests.iter().position(|request| request.id & mask == id).ok_or_else(unknown)?
            }
        };
        let request = requests.get(place).ok_or_else(unknown)?;
        verdicts[place] = protocol.check(request, &answer, Medium::Stream);
        answered += 1;
    }
    Ok(verdicts)
}

/// Returns the error of a connection that ended before the answer.
fn ended_early(bytes: &[u8]) -> io::Error {
    match bytes.is_empty() {
        true => io::ErrorKind::UnexpectedEof.into(),
        false => no_answer(bytes),
    }
}

/// Replaces the error of a read that timed out, which would read "temporarily unavailable"; `bytes`
/// arrived before.
fn silent(error: io::Error, bytes: &[u8]) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock if bytes.is_empty() => {
            io::Error::new(io::ErrorKind::TimedOut, "nothing came back")
        }
        io::ErrorKind::WouldBlock => {
            let shown = bytes[..bytes.len().min(SHOWN)].escape_ascii();
            let text = format!("only the beginning of an answer came back, `{shown}`");
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}
