//! The baseline of [`messages::connections`](super::messages::connections): connections that are
//! opened, send some messages and are reset, over the kernel's loopback device, with one epoll
//! thread on each core.
//!
//! Owns all threads. The client resets its connections, which frees their ports at once, and each
//! server keeps the listener beside its connections in one epoll instance.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use tailwater_loadgen::pin::PinnedThread;
use tailwater_loadgen::tcp::Outcome;

use super::kernel::Count;
use super::many::Length;

/// What an event of the listener carries in place of a connection's number.
const LISTENER: u64 = u64::MAX;
/// Maximum number of events taken at once.
const EVENTS: usize = 256;
/// Time between two looks at whether the measurement is over.
const TURN: Duration = Duration::from_millis(10);

/// Measures `concurrent` connections at a time with `messages` messages of `bytes` bytes each; a
/// message fits a socket's buffer. The client has the first core, and each of the others a server.
///
/// # Errors
/// A socket's.
pub(super) fn measure(
    (client_core, server_cores): (usize, &[usize]),
    concurrent: u32,
    messages: u32,
    bytes: usize,
    length: Length,
) -> Result<Outcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port to listen on")?;
    let address = listener.local_addr()?;
    let over = Arc::new(AtomicBool::new(false));
    // Before the first server: one that has begun would not end with an error.
    let listeners: std::io::Result<Vec<_>> = server_cores.iter().map(|_| listener.try_clone()).collect();
    let serve_on = |(listener, &core): (TcpListener, &usize)| {
        let over = Arc::clone(&over);
        std::thread::spawn(move || -> std::io::Result<()> {
            let _pinned = PinnedThread::new(core)?;
            serve(&listener, bytes, &over)
        })
    };
    let servers: Vec<_> = listeners?.into_iter().zip(server_cores).map(serve_on).collect();
    let client = || -> Result<Outcome> {
        let _pinned = PinnedThread::new(client_core)?;
        ask(address, concurrent, messages, bytes, length)
    };
    let outcome = client();
    // Relaxed: the servers act upon nothing else that this thread writes.
    over.store(true, Ordering::Relaxed);
    for server in servers {
        match server.join() {
            Ok(served) => served.context("the baseline's server failed")?,
            Err(_) => anyhow::bail!("the baseline's server panicked"),
        }
    }
    outcome
}

/// Waits for events, for at most [`TURN`].
fn wait(poll: &OwnedFd, events: &mut Vec<epoll::Event>) -> std::io::Result<()> {
    let timeout = Timespec::try_from(TURN).map_err(std::io::Error::other)?;
    events.reserve(EVENTS);
    epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&timeout)).map(drop)?;
    Ok(())
}

fn watch(poll: &OwnedFd, stream: &TcpStream, number: u64) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(epoll::add(poll, stream, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
}

/// Echoes whole messages of any number of connections until `over`.
pub fn serve(listener: &TcpListener, bytes: usize, over: &AtomicBool) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut streams: HashMap<u64, (TcpStream, usize)> = HashMap::new();
    let (mut events, mut next, mut buffer) = (Vec::new(), 0, vec![0; bytes]);
    while !over.load(Ordering::Relaxed) {
        wait(&poll, &mut events)?;
        for event in events.drain(..) {
            let number = event.data.u64();
            if number == LISTENER {
                match listener.accept() {
                    Ok((stream, _)) => {
                        watch(&poll, &stream, next)?;
                        streams.insert(next, (stream, 0));
                        next += 1;
                    }
                    // The client is gone already.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(error),
                }
            } else if let Some((stream, have)) = streams.get_mut(&number)
                && !answer(stream, have, &mut buffer).unwrap_or(false)
            {
                // Closing it takes it out of the epoll instance.
                streams.remove(&number);
            }
        }
    }
    Ok(())
}

/// Reads, and answers if a message is complete; false at the end of the connection. All of a
/// connection's messages have the same bytes, so parts of several share a buffer.
fn answer(stream: &mut TcpStream, have: &mut usize, buffer: &mut [u8]) -> std::io::Result<bool> {
    match stream.read(&mut buffer[*have..]) {
        Ok(0) => return Ok(false),
        Ok(len) => *have += len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
        Err(error) => return Err(error),
    }
    if *have == buffer.len() {
        *have = 0;
        stream.write_all(buffer)?;
    }
    Ok(true)
}

/// A connection of the client.
struct Call {
    stream: TcpStream,
    began: Instant,
    /// Messages after this one.
    left: u32,
    /// Bytes of the echo so far.
    have: usize,
}

impl Call {
    fn open(to: SocketAddr, poll: &OwnedFd, number: u64, messages: u32, message: &[u8]) -> Result<Self> {
        let began = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        watch(poll, &stream, number)?;
        stream.write_all(message)?;
        Ok(Self { stream, began, left: messages - 1, have: 0 })
    }

    /// Reads; true when the echo is complete.
    fn take(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.stream.read(&mut buffer[self.have..]) {
            Ok(0) => anyhow::bail!("the baseline's server is gone"),
            Ok(len) => self.have += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.have == buffer.len())
    }
}

fn ask(to: SocketAddr, concurrent: u32, messages: u32, bytes: usize, length: Length) -> Result<Outcome> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (message, mut buffer) = (vec![0x5a; bytes], vec![0; bytes]);
    let opened: Result<Vec<Call>> =
        (0..concurrent).map(|number| Call::open(to, &poll, number.into(), messages, &message)).collect();
    let mut calls = opened?;
    let mut count = Count::new(length.warm_up, length.lasts);
    let mut events = Vec::new();
    while count.next().is_some() {
        wait(&poll, &mut events)?;
        for event in events.drain(..) {
            let number = event.data.u64();
            let call = &mut calls[number as usize];
            if !call.take(&mut buffer)? {
                continue;
            }
            let now = count.answered(call.began);
            if call.left == 0 {
                *call = Call::open(to, &poll, number, messages, &message)?;
            } else {
                (call.began, call.left, call.have) = (now, call.left - 1, 0);
                call.stream.write_all(&message)?;
            }
        }
    }
    Ok(count.outcome(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_messages_and_another_one_follows() {
        let cores = tailwater_testbed::machine::usable_cores();
        let (Some(&first), Some(&last)) = (cores.first(), cores.last()) else { return };
        let length = Length { warm_up: Duration::ZERO, lasts: Duration::from_millis(200) };
        // Two servers on one core are as good as on two.
        for (messages, servers) in [(1, &[last][..]), (3, &[last]), (1, &[last, last])] {
            // Four connections have been used up and replaced, unless this machine stood still.
            let answered = (0..50).any(|_| {
                let outcome = measure((first, servers), 4, messages, 100, length).unwrap();
                assert_eq!(outcome.bytes, 100 * outcome.completed);
                outcome.completed > 4 * u64::from(messages)
            });
            assert!(answered, "{messages} messages on a connection");
        }
    }
}
