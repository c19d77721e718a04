//! The plain Linux service of `bench ports`: TCP echo on one epoll thread, as memcached has with
//! `-t 1`.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use rustix::event::epoll;

use super::REQUEST;

/// What an event of the listener carries in place of a connection's number.
const LISTENER: u64 = u64::MAX;

/// Serves until killed; prints `ready` when it listens.
pub(super) fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("cannot listen")?;
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    println!("ready");
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(128);
    loop {
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => accept(&listener, &poll, &mut streams)?,
                number => {
                    let slot = &mut streams[number as usize];
                    if !slot.as_mut().is_some_and(|stream| answer(stream).unwrap_or(false)) {
                        // Closing it takes it out of the epoll instance.
                        *slot = None;
                    }
                }
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: &rustix::fd::OwnedFd,
    streams: &mut Vec<Option<TcpStream>>,
) -> Result<()> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let data = epoll::EventData::new_u64(streams.len() as u64);
            epoll::add(poll, &stream, data, epoll::EventFlags::IN)?;
            streams.push(Some(stream));
            Ok(())
        }
        // The client is gone already.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error).context("cannot accept"),
    }
}

/// Sends back what has arrived; false at the end of the connection.
fn answer(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut buffer = [0; 4 * REQUEST];
    match stream.read(&mut buffer) {
        Ok(0) => Ok(false),
        // It fits the send buffer: a client sends no second request before the answer.
        Ok(len) => stream.write_all(&buffer[..len]).map(|()| true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}
