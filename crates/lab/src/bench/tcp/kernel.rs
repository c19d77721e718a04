//! The baseline: TCP over the kernel's loopback device, with client and server each on a thread
//! bound to its core.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use tailwater_loadgen::pin::PinnedThread;
use tailwater_loadgen::tcp::Outcome;

use super::bulk;

/// Cores of client and server.
pub(super) type Pair = [usize; 2];

/// A peer that sends nothing for so long counts as dead.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts a server thread on a core; returns the thread and its address.
fn serve(
    core: usize,
    server: impl FnOnce(&TcpListener) -> std::io::Result<()> + Send + 'static,
) -> Result<(SocketAddr, JoinHandle<std::io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
    let address = listener.local_addr()?;
    let thread = std::thread::spawn(move || {
        let _pinned = PinnedThread::new(core)?;
        server(&listener)
    });
    Ok((address, thread))
}

fn end(thread: JoinHandle<std::io::Result<()>>) -> Result<()> {
    match thread.join() {
        Ok(result) => result.context("the baseline's server failed"),
        Err(_) => anyhow::bail!("the baseline's server panicked"),
    }
}

/// Fills `buffer`, by blocking or by polling as the stream is set; false at the end of the stream.
fn read_full(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<bool> {
    let mut have = 0;
    while have < buffer.len() {
        match stream.read(&mut buffer[have..]) {
            Ok(0) => return Ok(false),
            Ok(len) => have += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes all of `buffer`, by blocking or by polling as the stream is set.
fn write_full(stream: &mut TcpStream, mut buffer: &[u8]) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match stream.write(buffer) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => buffer = &buffer[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn prepare(stream: &TcpStream, spins: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nonblocking(spins)
}

/// Measures one connection with one request at a time; both sides poll non-blocking sockets, or
/// both block.
pub(super) fn request_response(
    pair: Pair,
    spins: bool,
    bytes: usize,
    warm_up: Duration,
    lasts: Duration,
) -> Result<Outcome> {
    let (address, thread) = serve(pair[1], move |listener| {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream, spins)?;
        let mut buffer = vec![0; bytes];
        while read_full(&mut stream, &mut buffer)? {
            write_full(&mut stream, &buffer)?;
        }
        Ok(())
    })?;
    let pinned = PinnedThread::new(pair[0])?;
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream, spins)?;
    let mut buffer = vec![0x5a; bytes];
    let mut count = Count::new(warm_up, lasts);
    while let Some(began) = count.next() {
        write_full(&mut stream, &buffer)?;
        anyhow::ensure!(read_full(&mut stream, &mut buffer)?, "the baseline's server is gone");
        count.answered(began);
    }
    drop((stream, pinned));
    end(thread)?;
    Ok(count.outcome(bytes))
}

/// Counts answers between the end of the warm-up and the end of the measurement.
pub(super) struct Count {
    from: Instant,
    until: Instant,
    latency: Histogram<u64>,
}

impl Count {
    pub(super) fn new(warm_up: Duration, lasts: Duration) -> Self {
        let from = Instant::now() + warm_up;
        let latency = Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range");
        Self { from, until: from + lasts, latency }
    }

    /// Returns the time at which the next request begins; `None` at the end of the measurement.
    pub(super) fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        (now < self.until).then_some(now)
    }

    /// Counts an answer to a request of time `began`; returns the time now.
    pub(super) fn answered(&mut self, began: Instant) -> Instant {
        let now = Instant::now();
        if began >= self.from && now <= self.until {
            self.latency.saturating_record((now - began).as_nanos() as u64);
        }
        now
    }

    pub(super) fn outcome(self, bytes: usize) -> Outcome {
        Outcome {
            completed: self.latency.len(),
            failed: 0,
            bytes: self.latency.len() * bytes as u64,
            elapsed: self.until - self.from,
            latency: self.latency,
            retransmissions: 0,
            stages: None,
        }
    }
}

/// Non-blocking streams under one epoll instance, numbered.
pub(super) struct Polled {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
    events: Vec<epoll::Event>,
}

impl Polled {
    pub(super) fn new(streams: Vec<TcpStream>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, stream) in streams.iter().enumerate() {
            prepare(stream, true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, stream, data, epoll::EventFlags::IN)?;
        }
        let events = Vec::with_capacity(streams.len());
        Ok(Self { epoll, streams, events })
    }

    /// Waits for at most `wait`, and calls `ready` for each readable stream, until that returns
    /// false.
    fn each(
        &mut self,
        wait: Duration,
        mut ready: impl FnMut(&mut [TcpStream], usize) -> std::io::Result<bool>,
    ) -> std::io::Result<bool> {
        let timeout = Timespec::try_from(wait).map_err(std::io::Error::other)?;
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout))?;
        for event in self.events.drain(..) {
            let number = event.data.u64() as usize;
            if !ready(&mut self.streams, number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Accepts `connections`, and echoes requests of `bytes` bytes on one epoll thread until the first
/// connection ends.
pub(super) fn serve_echo(listener: &TcpListener, connections: u32, bytes: usize) -> std::io::Result<()> {
    let streams: std::io::Result<Vec<_>> =
        (0..connections).map(|_| listener.accept().map(|(stream, _)| stream)).collect();
    let mut polled = Polled::new(streams?)?;
    let mut buffer = vec![0; bytes];
    while polled.each(PATIENCE, |streams, number| {
        let more = read_full(&mut streams[number], &mut buffer)?;
        if more {
            write_full(&mut streams[number], &buffer)?;
        }
        Ok(more)
    })? {}
    Ok(())
}

/// How often each connection is asked, and until when.
trait Course {
    /// The longest time to wait for answers; `None` when there is nothing to wait for.
    fn left(&self) -> Option<Duration>;
    /// Handles the answer to a request of time `began`; true if its connection is asked again.
    fn answered(&mut self, began: Instant) -> bool;
}

/// Requests between two times, over all connections again and again.
impl Course for Count {
    fn left(&self) -> Option<Duration> {
        self.next().map(|now| self.until - now)
    }

    fn answered(&mut self, began: Instant) -> bool {
        self.answered(began);
        true
    }
}

/// One request over each connection.
struct Once {
    unanswered: usize,
    until: Instant,
}

impl Course for Once {
    fn left(&self) -> Option<Duration> {
        self.until.checked_duration_since(Instant::now()).filter(|_| self.unanswered > 0)
    }

    fn answered(&mut self, _began: Instant) -> bool {
        self.unanswered -= 1;
        false
    }
}

/// Sends requests of `bytes` bytes over the connections in turn, one on each and at most
/// `outstanding` at a time.
fn ask(polled: &mut Polled, outstanding: u32, bytes: usize, course: &mut impl Course) -> Result<()> {
    let mut buffer = vec![0x5a; bytes];
    let mut began = vec![Instant::now(); polled.streams.len()];
    let mut waiting: VecDeque<usize> = (0..polled.streams.len()).collect();
    for _ in 0..outstanding {
        let Some(number) = waiting.pop_front() else { break };
        began[number] = Instant::now();
        write_full(&mut polled.streams[number], &buffer)?;
    }
    while let Some(wait) = course.left() {
        let open = polled.each(wait, |streams, number| {
            if !read_full(&mut streams[number], &mut buffer)? {
                return Ok(false);
            }
            if course.answered(began[number]) {
                waiting.push_back(number);
            }
            if let Some(next) = waiting.pop_front() {
                began[next] = Instant::now();
                write_full(&mut streams[next], &buffer)?;
            }
            Ok(true)
        })?;
        anyhow::ensure!(open, "the baseline's server is gone");
    }
    Ok(())
}

/// Asks each connection once, as [`ask_in_turn`] does; fails if one does not answer within `wait`.
///
/// A connection that is established for its client may still be unknown to the server: without room
/// in the listener's queue the kernel accepts it a second or more later (listen(2)). The server
/// answers none before it has accepted all.
pub(super) fn ask_once(polled: &mut Polled, outstanding: u32, bytes: usize, wait: Duration) -> Result<()> {
    let all = polled.streams.len();
    let mut once = Once { unanswered: all, until: Instant::now() + wait };
    ask(polled, outstanding, bytes, &mut once)?;
    let answered = all - once.unanswered;
    anyhow::ensure!(
        answered == all,
        "{answered} of {all} connections to the baseline answered within {wait:?}"
    );
    Ok(())
}

/// Measures requests of `bytes` bytes over the connections in turn, one on each and at most
/// `outstanding` at a time.
pub(super) fn ask_in_turn(
    polled: &mut Polled,
    outstanding: u32,
    bytes: usize,
    (warm_up, lasts): (Duration, Duration),
) -> Result<Outcome> {
    let mut count = Count::new(warm_up, lasts);
    ask(polled, outstanding, bytes, &mut count)?;
    Ok(count.outcome(bytes))
}

/// Measures many connections with one request outstanding on each, with one epoll thread on either
/// side.
pub(super) fn echo(
    pair: Pair,
    connections: u32,
    bytes: usize,
    warm_up: Duration,
    lasts: Duration,
) -> Result<Outcome> {
    let (address, thread) = serve(pair[1], move |listener| serve_echo(listener, connections, bytes))?;
    let pinned = PinnedThread::new(pair[0])?;
    let streams: std::io::Result<Vec<_>> = (0..connections).map(|_| TcpStream::connect(address)).collect();
    let mut polled = Polled::new(streams?)?;
    ask_once(&mut polled, connections, bytes, PATIENCE)?;
    let outcome = ask_in_turn(&mut polled, connections, bytes, (warm_up, lasts))?;
    // The server ends with the first stream that ends: its answers are no longer needed.
    drop((polled, pinned));
    // Unsent answers may meet a reset connection.
    let _ = thread.join();
    Ok(outcome)
}

/// Measures the rate of connections that are opened, used for one request and closed by the client,
/// `lanes` at a time, by as many blocking threads on either side.
pub(super) fn churn(pair: Pair, lanes: u32, bytes: usize, lasts: Duration) -> Result<f64> {
    let done = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&done);
    let (address, thread) = serve(pair[1], move |listener| {
        let lane = || -> std::io::Result<()> {
            let mut buffer = vec![0; bytes];
            loop {
                let (mut stream, _) = listener.accept()?;
                prepare(&stream, false)?;
                if read_full(&mut stream, &mut buffer)? {
                    stream.write_all(&buffer)?;
                    read_full(&mut stream, &mut buffer)?;
                } else if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        };
        // Threads inherit the core of the thread that starts them.
        std::thread::scope(|scope| join_all((0..lanes).map(|_| scope.spawn(lane)).collect()).map(drop))
    })?;
    let _pinned = PinnedThread::new(pair[0])?;
    let until = Instant::now() + lasts;
    let lane = || -> std::io::Result<u64> {
        let (mut buffer, mut count) = (vec![0x5a; bytes], 0);
        while Instant::now() < until {
            let mut stream = TcpStream::connect(address)?;
            prepare(&stream, false)?;
            stream.write_all(&buffer)?;
            count += u64::from(read_full(&mut stream, &mut buffer)?);
        }
        Ok(count)
    };
    let counts =
        std::thread::scope(|scope| join_all((0..lanes).map(|_| scope.spawn(lane)).collect::<Vec<_>>()));
    let elapsed = (Instant::now() - until) + lasts;
    // Relaxed: the kernel orders the connections below after it.
    done.store(true, Ordering::Relaxed);
    for _ in 0..lanes {
        drop(TcpStream::connect(address)?);
    }
    end(thread)?;
    Ok(counts?.iter().sum::<u64>() as f64 / elapsed.as_secs_f64())
}

fn join_all<T>(
    threads: Vec<std::thread::ScopedJoinHandle<'_, std::io::Result<T>>>,
) -> std::io::Result<Vec<T>> {
    let panicked = |_| Err(std::io::Error::other("a thread of the baseline panicked"));
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
}

/// Measures the rate of one connection in Gbit/s.
pub(super) fn bulk(pair: Pair, warm_up: Duration, lasts: Duration) -> Result<f64> {
    let (address, thread) = serve(pair[1], |listener| {
        let (mut stream, _) = listener.accept()?;
        bulk::discard(&mut stream)
    })?;
    let _pinned = PinnedThread::new(pair[0])?;
    let mut stream = TcpStream::connect(address)?;
    let gbps = bulk::send(&mut stream, warm_up, lasts)?;
    drop(stream);
    end(thread)?;
    Ok(gbps)
}
