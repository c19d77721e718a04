//! A client that keeps many TCP connections and a UDP service busy, and reports what each of them
//! noticed of an event.
//!
//! Owns the exchanges: each connection sends a request of several segments, waits for its echo and
//! checks it. Over UDP one more request is sent every [`REPEAT`] until one is answered: the client
//! itself adds no more than that to a pause. Requests have numbers, so that late answers are told
//! from lost ones.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater::net::{TcpStream, UdpSocket, local_ip};
use tailwater::sync::{Mutex, MutexGuard};
use tailwater::thread;
use tailwater_shm::Clock;
use tailwater_shm::clock::{self, Cycles};

use super::window::{Event, Lane, Window};

/// Busy TCP connections.
const CONNECTIONS: u64 = 64;
/// Bytes of a request over TCP, which are three segments, and over UDP.
const TCP_REQUEST: usize = 3_000;
const UDP_REQUEST: usize = 1_000;
/// Time without an answer after which the next request is sent over UDP.
const REPEAT: Duration = Duration::from_millis(1);
/// Shorter gaps are not kept: they are ordinary round trips, of which there are many.
const SHORTEST_GAP_NS: u64 = 100_000;
/// Time within which a lane has to go on: a busy machine may not run it for so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(150);
/// Time between two looks whether all lanes go on.
const LOOK: Duration = Duration::from_millis(2);
/// Rest of a window once all lanes go on: a second pause shows in it, as of a retransmission, and
/// late answers arrive.
const SETTLE: Duration = Duration::from_millis(300);

type Shared = Arc<Mutex<Lane>>;

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the connections to `tcp` and a socket to `udp` busy. For each line of input, `AFTER
/// STARTED` as in [`Event`], it prints the [`Window`] that ends with this event. The end of input
/// ends it.
///
/// # Errors
/// If its input is something else.
pub(super) fn run(tcp: SocketAddrV4, udp: SocketAddrV4, clock: Clock) -> anyhow::Result<()> {
    let shortest = clock.from_ns(SHORTEST_GAP_NS);
    let mut lanes: Vec<Shared> = (0..CONNECTIONS)
        .map(|number| start(shortest, move |lane| exchange(number, tcp, lane)))
        .chain([start(shortest, move |lane| ask(udp, lane))])
        .collect();
    loop {
        let mut line = String::new();
        if tailwater::blocking(|| io::stdin().read_line(&mut line))? == 0 {
            return Ok(());
        }
        let window = end_window(&mut lanes, parse(&line)?);
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&window)?).and_then(|()| out.flush())?;
    }
}

fn parse(line: &str) -> anyhow::Result<Event> {
    let times = line.trim().split_once(' ').context("not two times")?;
    Ok(Event { after: times.0.parse()?, started: times.1.parse()? })
}

/// Starts a thread with a lane of its own, which fails if the thread ends.
fn start(shortest: Cycles, work: impl FnOnce(&Mutex<Lane>) -> io::Result<()> + Send + 'static) -> Shared {
    let lane = Arc::new(Mutex::new(Lane::new(shortest, clock::now())));
    let own = Arc::clone(&lane);
    thread::spawn(move || {
        if let Err(error) = work(&own) {
            lock(&own).fail(error.to_string());
        }
    });
    lane
}

/// Waits until all lanes go on after the event, and a while longer. Removes those that do not.
fn end_window(lanes: &mut Vec<Shared>, event: Event) -> Window {
    let deadline = Instant::now() + PATIENCE;
    while lanes.iter().any(|lane| lock(lane).waits(event.after)) && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    let resumed = clock::now();
    thread::sleep(SETTLE);
    let mut window = Window::default();
    lanes.retain(|lane| lock(lane).end_window(event, resumed, &mut window));
    window
}

/// Exchanges requests over one connection until it fails.
fn exchange(connection: u64, service: SocketAddrV4, lane: &Mutex<Lane>) -> io::Result<()> {
    let mut stream = TcpStream::connect(service)?;
    stream.set_nodelay(true)?;
    let (mut request, mut answer) = ([0; TCP_REQUEST], [0; TCP_REQUEST]);
    for number in 0.. {
        fill(&mut request, connection, number);
        lock(lane).ask(number, clock::now());
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        if answer != request {
            return Err(damaged());
        }
        lock(lane).answer(number, clock::now());
    }
    Ok(())
}

/// Asks the UDP service until the socket fails.
fn ask(service: SocketAddrV4, lane: &Mutex<Lane>) -> io::Result<()> {
    let socket = UdpSocket::bind((local_ip(), 0))?;
    socket.connect(service)?;
    socket.set_read_timeout(Some(REPEAT))?;
    let mut request = [0; UDP_REQUEST];
    for number in 0.. {
        fill(&mut request, CONNECTIONS, number);
        lock(lane).ask(number, clock::now());
        match socket.send(&request) {
            Ok(_) => await_answer(&socket, number, lane)?,
            Err(error) if is_absence(&error) => thread::sleep(REPEAT),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes answers until that of a request comes, or none for [`REPEAT`].
fn await_answer(socket: &UdpSocket, number: u64, lane: &Mutex<Lane>) -> io::Result<()> {
    let (mut answer, mut expected) = ([0; UDP_REQUEST + 1], [0; UDP_REQUEST]);
    loop {
        let len = match socket.recv(&mut answer) {
            Ok(len) => len,
            Err(error) if is_absence(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let answered = number_of(&answer);
        fill(&mut expected, CONNECTIONS, answered);
        if answered > number || answer[..len] != expected {
            return Err(damaged());
        }
        lock(lane).answer(answered, clock::now());
        if answered == number {
            return Ok(());
        }
    }
}

/// Returns whether the error says that there is no answer: in time, or because the service has not
/// started yet.
fn is_absence(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, HostUnreachable, TimedOut, WouldBlock};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | TimedOut | WouldBlock)
}

fn damaged() -> io::Error {
    io::Error::other("other bytes came back than were sent")
}

/// Fills a request with its number, and bytes that no other request of any lane has.
fn fill(request: &mut [u8], lane: u64, number: u64) {
    let mut x = lane << 48 ^ number ^ 1 << 63;
    let (head, body) = request.split_at_mut(size_of::<u64>());
    head.copy_from_slice(&number.to_be_bytes());
    for word in body.chunks_mut(size_of::<u64>()) {
        // Marsaglia, "Xorshift RNGs", 2003: the 64-bit generator with shifts 13, 7, 17.
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_be_bytes()[..word.len()]);
    }
}

fn number_of(request: &[u8]) -> u64 {
    request.first_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_its_number_and_bytes_of_its_own() {
        let requests = [(0, 0), (0, 1), (1, 0), (CONNECTIONS, 1)].map(|(lane, number)| {
            let mut request = [0; UDP_REQUEST];
            fill(&mut request, lane, number);
            assert_eq!(number_of(&request), number);
            request
        });
        for (index, request) in requests.iter().enumerate() {
            assert!(requests[..index].iter().all(|other| other[8..] != request[8..]));
        }
    }

    #[test]
    fn an_event_is_two_times() {
        let event = parse("12 34\n").unwrap();
        assert_eq!((event.after, event.started), (12, 34));
        assert!(parse("12\n").is_err() && parse("12 x\n").is_err());
    }
}
