//! The baseline: TCP over the kernel's loopback, client and server each a thread bound to a core of its own.

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

/// A peer that is silent for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server thread on a core of its own, and where it listens.
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

/// Reads `buffer` full, by blocking or by asking again and again; false at the end of the stream.
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

fn prepare(stream: &TcpStream, spins: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nonblocking(spins)
}

/// One connection, one request at a time; both sides spin on non-blocking sockets, or both block.
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
            stream.write_all(&buffer)?;
        }
        Ok(())
    })?;
    let pinned = PinnedThread::new(pair[0])?;
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream, spins)?;
    let mut buffer = vec![0x5a; bytes];
    let mut count = Count::new(warm_up, lasts);
    while let Some(began) = count.next() {
        stream.write_all(&buffer)?;
        anyhow::ensure!(read_full(&mut stream, &mut buffer)?, "the baseline's server is gone");
        count.answered(began);
    }
    drop((stream, pinned));
    end(thread)?;
    Ok(count.outcome(bytes))
}

/// Counts answers between the end of a warm-up and the end.
struct Count {
    from: Instant,
    until: Instant,
    latency: Histogram<u64>,
}

impl Count {
    fn new(warm_up: Duration, lasts: Duration) -> Self {
        let from = Instant::now() + warm_up;
        let latency = Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range");
        Self { from, until: from + lasts, latency }
    }

    /// The time at which the next request begins; `None` when it is over.
    fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        (now < self.until).then_some(now)
    }

    fn answered(&mut self, began: Instant) {
        let now = Instant::now();
        if began >= self.from && now <= self.until {
            self.latency.saturating_record((now - began).as_nanos() as u64);
        }
    }

    fn outcome(self, bytes: usize) -> Outcome {
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

    /// Waits, and calls `ready` for each stream that has something, until that says false.
    fn each(
        &mut self,
        mut ready: impl FnMut(&mut [TcpStream], usize) -> std::io::Result<bool>,
    ) -> std::io::Result<bool> {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
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

/// Accepts `connections`, and sends back requests of `bytes` bytes until the first of them ends: one epoll thread.
pub(super) fn serve_echo(listener: &TcpListener, connections: u32, bytes: usize) -> std::io::Result<()> {
    let streams: std::io::Result<Vec<_>> =
        (0..connections).map(|_| listener.accept().map(|(stream, _)| stream)).collect();
    let mut polled = Polled::new(streams?)?;
    let mut buffer = vec![0; bytes];
    while polled.each(|streams, number| {
        let more = read_full(&mut streams[number], &mut buffer)?;
        if more {
            streams[number].write_all(&buffer)?;
        }
        Ok(more)
    })? {}
    Ok(())
}

/// Sends requests of `bytes` bytes, at most `outstanding` at a time and one on each connection; connections take turns.
pub(super) fn ask_in_turn(
    polled: &mut Polled,
    outstanding: u32,
    bytes: usize,
    (warm_up, lasts): (Duration, Duration),
) -> Result<Outcome> {
    let mut buffer = vec![0x5a; bytes];
    let mut count = Count::new(warm_up, lasts);
    let mut began = vec![Instant::now(); polled.streams.len()];
    let mut waiting: VecDeque<usize> = (0..polled.streams.len()).collect();
    for _ in 0..outstanding {
        let Some(number) = waiting.pop_front() else { break };
        began[number] = Instant::now();
        polled.streams[number].write_all(&buffer)?;
    }
    while count.next().is_some() {
        let open = polled.each(|streams, number| {
            let open = read_full(&mut streams[number], &mut buffer)?;
            count.answered(began[number]);
            waiting.push_back(number);
            if let Some(next) = waiting.pop_front() {
                began[next] = Instant::now();
                streams[next].write_all(&buffer)?;
            }
            Ok(open)
        })?;
        anyhow::ensure!(open, "the baseline's server is gone");
    }
    Ok(count.outcome(bytes))
}

/// Many connections with one request outstanding on each, one epoll thread on either side.
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
    let outcome = ask_in_turn(&mut polled, connections, bytes, (warm_up, lasts))?;
    // The server ends at the first stream that ends: only when its answers are no longer wanted.
    drop((polled, pinned));
    // What it had not sent yet may find the connection reset.
    let _ = thread.join();
    Ok(outcome)
}

/// Connections a second that are opened, used for one request and closed, `lanes` at a time, by as many blocking threads on
/// either side: the client closes first.
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
        // Threads inherit the core of the one that starts them.
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
    // Relaxed: the connections below come after it, by the kernel.
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

/// One connection, as much as it takes, in Gbit/s.
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
