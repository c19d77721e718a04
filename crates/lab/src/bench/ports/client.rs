//! The plain Linux client of `bench ports`: TCP connections on one epoll thread that sleeps while
//! there is nothing to do, as memcached's load generators do.
//!
//! Owns the connections and the courses. *Closed loop*: one request is outstanding on each
//! connection at all times. *Open loop*: requests are due at random times that do not depend on
//! answers, at a mean rate, over the connections in turn; latency counts from the due time. A
//! request that finds all connections busy waits for the first answer. *Bulk* is one connection and
//! one thread that blocks.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::thread::set_current_timer_slack;
use serde::{Deserialize, Serialize};
use tailwater_workload::{ArrivalProcess, Arrivals, LoadSchedule, Rate, random};

use super::super::tcp::bulk;
use super::REQUEST;

/// First part of the time that is not counted.
const WARM_UP: Duration = Duration::from_millis(200);
/// A service that answers nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for which a p99 of its own is taken.
const WINDOW: Duration = Duration::from_millis(100);
/// Seed of the due times: the same in every measurement.
const SEED: u64 = 17;

/// What a client counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) rps: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Median over windows of [`WINDOW`] of each window's p99: stalls of the host in a few windows
    /// do not change it.
    pub(super) win_p99_us: f64,
    /// Times the client waited for answers, for each of them.
    pub(super) waits: f64,
}

/// Measures for `lasts` after a warm-up; at `rate` requests a second, or in a closed loop.
pub(super) fn run(
    to: SocketAddrV4,
    connections: usize,
    rate: Option<f64>,
    lasts: Duration,
) -> Result<Counted> {
    // Due times are met within a microsecond or so.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let client = Client::connect(to, connections)?;
    match rate {
        None => client.closed(lasts),
        Some(rate) => client.open(rate, lasts),
    }
}

/// Reads what `to` sends, after a warm-up for `lasts`; returns the rate in Gbit/s.
pub(super) fn fetch(to: SocketAddrV4, lasts: Duration) -> Result<f64> {
    let mut stream = connect_bulk(to)?;
    bulk::receive(&mut stream, WARM_UP, lasts).context("cannot read bulk data")
}

/// Sends to `to`, after a warm-up for `lasts`; returns the rate in Gbit/s.
pub(super) fn send(to: SocketAddrV4, lasts: Duration) -> Result<f64> {
    let mut stream = connect_bulk(to)?;
    bulk::send(&mut stream, WARM_UP, lasts).context("cannot send bulk data")
}

fn connect_bulk(to: SocketAddrV4) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Connections under one epoll instance.
struct Client {
    poll: OwnedFd,
    streams: Vec<TcpStream>,
    events: Vec<epoll::Event>,
    /// When the outstanding request of each connection was sent, or due.
    began: Vec<Instant>,
    count: Count,
}

impl Client {
    fn connect(to: SocketAddrV4, connections: usize) -> Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut streams = Vec::new();
        for number in 0..connections {
            let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&poll, &stream, data, epoll::EventFlags::IN)?;
            streams.push(stream);
        }
        let events = Vec::with_capacity(connections);
        let began = vec![Instant::now(); connections];
        Ok(Self { poll, streams, events, began, count: Count::new(Duration::ZERO) })
    }

    fn closed(mut self, lasts: Duration) -> Result<Counted> {
        self.count = Count::new(lasts);
        (0..self.streams.len()).try_for_each(|number| self.send(number, Instant::now()))?;
        while !self.count.is_over() {
            self.wait(PATIENCE)?;
            ensure!(!self.events.is_empty(), "the service answers nothing");
            for number in self.take_answers()? {
                self.send(number, Instant::now())?;
            }
        }
        Ok(self.count.result())
    }

    fn open(mut self, rate: f64, lasts: Duration) -> Result<Counted> {
        let length = (WARM_UP + lasts).as_nanos() as u64;
        let mut arrivals =
            Arrivals::new(ArrivalProcess::Poisson, LoadSchedule::constant(Rate::new(rate)?, length));
        let mut random = random::stream(SEED, 0);
        self.count = Count::new(lasts);
        let start = self.count.from - WARM_UP;
        let mut idle: VecDeque<usize> = (0..self.streams.len()).collect();
        let mut due = arrivals.next_ns(&mut random).map(|ns| start + Duration::from_nanos(ns));
        while due.is_some() || idle.len() < self.streams.len() {
            let now = Instant::now();
            if let Some(at) = due.filter(|at| *at <= now)
                && let Some(number) = idle.pop_front()
            {
                self.send(number, at)?;
                due = arrivals.next_ns(&mut random).map(|ns| start + Duration::from_nanos(ns));
                continue;
            }
            let next = due.filter(|_| !idle.is_empty()).map(|at| at.saturating_duration_since(now));
            self.wait(next.unwrap_or(PATIENCE))?;
            ensure!(next.is_some() || !self.events.is_empty(), "the service answers nothing");
            idle.extend(self.take_answers()?);
        }
        Ok(self.count.result())
    }

    fn send(&mut self, number: usize, began: Instant) -> Result<()> {
        self.began[number] = began;
        Ok(self.streams[number].write_all(&[0x5a; REQUEST])?)
    }

    fn wait(&mut self, at_most: Duration) -> Result<()> {
        let timeout = Timespec::try_from(at_most)?;
        self.count.waits += 1;
        if at_most < PATIENCE {
            // To the nanosecond: epoll_wait(2) takes milliseconds.
            poll(&mut [PollFd::new(&self.poll, PollFlags::IN)], Some(&timeout))?;
        }
        let timeout = if at_most < PATIENCE { Timespec::default() } else { timeout };
        epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout))?;
        Ok(())
    }

    /// Reads the answers that have arrived; returns their connections.
    fn take_answers(&mut self) -> Result<Vec<usize>> {
        let mut answered = Vec::with_capacity(self.events.len());
        for event in self.events.drain(..) {
            let number = event.data.u64() as usize;
            let mut buffer = [0; REQUEST];
            read_full(&mut self.streams[number], &mut buffer)?;
            ensure!(buffer == [0x5a; REQUEST], "an answer differs from its request");
            self.count.answered(self.began[number]);
            answered.push(number);
        }
        Ok(answered)
    }
}

/// Fills `buffer`. The rest of an answer that has begun to arrive is polled for.
fn read_full(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    let (mut have, began) = (0, Instant::now());
    while have < buffer.len() {
        match stream.read(&mut buffer[have..]) {
            Ok(0) => anyhow::bail!("the service has closed a connection"),
            Ok(len) => have += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            Err(error) => return Err(error).context("cannot read an answer"),
        }
    }
    Ok(())
}

/// Answers to requests of the counted time.
struct Count {
    from: Instant,
    until: Instant,
    latency: Histogram<u64>,
    windows: Windows,
    waits: u64,
}

/// The p99 of each [`WINDOW`].
struct Windows {
    /// Answers of the present window, and when it ends.
    latency: Histogram<u64>,
    until: Instant,
    p99s: Vec<u64>,
}

impl Count {
    fn new(lasts: Duration) -> Self {
        let from = Instant::now() + WARM_UP;
        let windows = Windows { latency: histogram(), until: from + WINDOW, p99s: Vec::new() };
        Self { from, until: from + lasts, latency: histogram(), windows, waits: 0 }
    }

    /// Returns whether the time is over. It is longer where Linux has not let this process count
    /// one answer in it.
    fn is_over(&mut self) -> bool {
        let over = Instant::now() >= self.until;
        if over && self.latency.is_empty() {
            self.until = Instant::now() + (self.until - self.from);
            return false;
        }
        over
    }

    fn answered(&mut self, began: Instant) {
        if (self.from..self.until).contains(&began) {
            let now = Instant::now();
            let ns = (now - began).as_nanos() as u64;
            self.latency.saturating_record(ns);
            self.windows.record(ns, now);
        }
    }

    fn result(&mut self) -> Counted {
        let us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e3;
        let answers = self.latency.len();
        Counted {
            rps: answers as f64 / (self.until - self.from).as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            win_p99_us: self.windows.median() as f64 / 1e3,
            waits: self.waits as f64 / answers.max(1) as f64,
        }
    }
}

impl Windows {
    fn record(&mut self, ns: u64, now: Instant) {
        if now >= self.until {
            self.end();
            self.until = now + WINDOW;
        }
        self.latency.saturating_record(ns);
    }

    fn end(&mut self) {
        if !self.latency.is_empty() {
            self.p99s.push(self.latency.value_at_quantile(0.99));
            self.latency.reset();
        }
    }

    /// Returns the median over the windows, the present one included.
    fn median(&mut self) -> u64 {
        self.end();
        self.p99s.sort_unstable();
        self.p99s.get(self.p99s.len() / 2).copied().unwrap_or(0)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_in_one_window_does_not_change_the_median_of_the_windows() {
        let start = Instant::now();
        let mut windows = Windows { latency: histogram(), until: start + WINDOW, p99s: Vec::new() };
        for window in 0..5 {
            for answer in 0..100 {
                let ns = if window == 2 && answer >= 50 { 9_000_000 } else { 50_000 };
                windows.record(ns, start + WINDOW * window + Duration::from_micros(answer));
            }
        }
        let median = windows.median();
        assert!((50_000..=50_100).contains(&median), "{median}");
        assert_eq!(windows.p99s.len(), 5);
    }
}
