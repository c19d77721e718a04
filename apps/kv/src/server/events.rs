//! The store run to completion: an event loop on each kthread, no thread for a connection.
//!
//! Owns the loops and what they know of each client: its [`Connection`], the bytes of its answers
//! that had no room yet, and when it last made progress. What arrives is executed in the round in
//! which it arrives, until the send buffer is full; the rest waits in the connection's own buffers
//! and in the peer's window. A loop waits between two rounds only, so no command may wait for
//! another machine: there are no backups here. Commands and store are those of the threads.
//!
//! ```text
//! Incoming -> accept, register
//! Received -> Connection::space -> process -> output -> send --- all taken ---> next step
//! Window ------------------------------------> send         \-- some left ----> until Window
//! Eof, Step::Close, idle for too long -----> close
//! ```

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use slab::Slab;
use tailwater::events::{Batch, CommandError, Condition, EventLoop, Handle, Token};
use tailwater::net::{TcpListener, TcpOptions};

use super::TOO_MANY;
use crate::clock::Clock;
use crate::protocol::{Connection, Step};
use crate::service::{Registered, Service, Settings};
use crate::system::{System, Tailwater, keepalive};

/// How often a loop looks for idle connections, if they are closed.
const SWEEP: Duration = Duration::from_secs(1);
/// Token of the listener and of refused clients: no client has this number.
const NO_CLIENT: Token = Token(usize::MAX);

/// Opens the TCP port that the settings name, with a loop for each kthread.
pub(super) fn start(service: &Arc<Service>, clock: Clock) -> io::Result<SocketAddr> {
    let listener = listen(&service.settings)?;
    let address = listener.local_addr()?;
    for _ in 0..service.settings.threads.max(1) {
        let (service, listener) = (Arc::clone(service), listener.try_clone()?);
        Tailwater::spawn("kv-events", move || Loop::new(service, clock).run(listener))?;
    }
    Ok(address)
}

/// Returns a listener whose connections probe their peers.
fn listen(settings: &Settings) -> io::Result<TcpListener> {
    let options = TcpOptions::new().keepalive(Some(keepalive()));
    options.listen((settings.listen.as_str(), settings.tcp_port))
}

/// A loop and its clients, which their tokens number.
struct Loop {
    events: EventLoop,
    clients: Slab<Client>,
    service: Arc<Service>,
    clock: Clock,
}

struct Client {
    handle: Handle,
    connection: Connection,
    registered: Registered,
    /// Bytes of the output that are sent.
    sent: usize,
    /// What follows when all of them are.
    next: Step,
    /// Second in which it last sent a byte or took one.
    progress: u32,
}

/// What becomes of a client.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Closes,
}

impl Loop {
    fn new(service: Arc<Service>, clock: Clock) -> Self {
        Self { events: EventLoop::new(), clients: Slab::new(), service, clock }
    }

    fn run(&mut self, listener: TcpListener) -> ! {
        self.events.listen(listener, NO_CLIENT);
        let idle_timeout = self.service.settings.idle_timeout;
        let sweeps = (idle_timeout > 0).then_some(SWEEP);
        let (mut batch, mut swept) = (Batch::new(), self.clock.now().seconds);
        loop {
            self.events.poll(&mut batch, sweeps);
            for condition in batch.iter() {
                self.handle(condition);
            }
            let now = self.clock.now().seconds;
            if sweeps.is_some() && now != swept {
                self.close_idle(now, idle_timeout);
                swept = now;
            }
        }
    }

    fn handle(&mut self, condition: Condition) {
        match condition {
            Condition::Incoming { handle, peer, .. } => self.admit(handle, peer),
            Condition::Received { token, handle, .. }
            | Condition::Window { token, handle, .. }
            | Condition::Eof { token, handle } => self.serve(token.0, handle),
            Condition::Closed { token, handle, .. } => self.forget(token.0, handle),
            // Only of sockets that the loop does not have.
            _ => {}
        }
    }

    fn admit(&mut self, handle: Handle, peer: SocketAddr) {
        let now = self.clock.now();
        let Some(registered) = self.service.register(peer, now) else {
            // A client that is gone needs no answer.
            let _ = self.refuse(handle);
            return;
        };
        let connection = Connection::new(Arc::clone(&self.service));
        let client =
            Client { handle, connection, registered, sent: 0, next: Step::Read, progress: now.seconds };
        let number = self.clients.insert(client);
        if self.events.accept(handle, Token(number)).is_err() {
            self.clients.remove(number);
        }
    }

    /// Tells a client that there are too many.
    fn refuse(&mut self, handle: Handle) -> Result<(), CommandError> {
        self.events.accept(handle, NO_CLIENT)?;
        self.events.send(handle, &[IoSlice::new(TOO_MANY)])?;
        self.events.close(handle)
    }

    /// Serves a client as far as its bytes and the room for answers go.
    fn serve(&mut self, number: usize, handle: Handle) {
        // A condition of this batch may be about a client that was closed since.
        let Some(client) = self.clients.get_mut(number).filter(|client| client.handle == handle) else {
            return;
        };
        // A command fails on a connection that is over.
        let fate = client.serve(&mut self.events, &self.service, self.clock).unwrap_or(Fate::Closes);
        if fate == Fate::Closes {
            let _ = self.events.close(handle);
            self.clients.remove(number);
        }
    }

    fn forget(&mut self, number: usize, handle: Handle) {
        if self.clients.get(number).is_some_and(|client| client.handle == handle) {
            self.clients.remove(number);
        }
    }

    fn close_idle(&mut self, now: u32, idle_timeout: u32) {
        let Self { events, clients, service, .. } = self;
        clients.retain(|_, client| {
            let stays = now.saturating_sub(client.progress) <= idle_timeout;
            if !stays {
                service.idle_kicks.fetch_add(1, Relaxed);
                let _ = events.close(client.handle);
            }
            stays
        });
    }
}

impl Client {
    fn serve(
        &mut self,
        events: &mut EventLoop,
        service: &Service,
        clock: Clock,
    ) -> Result<Fate, CommandError> {
        let now = clock.now();
        self.progress = now.seconds;
        loop {
            if !self.send(events, service)? {
                return Ok(Fate::Stays);
            }
            match self.next {
                Step::Continue => {}
                Step::Close => return Ok(Fate::Closes),
                Step::Read => {
                    let data = events.data(self.handle)?;
                    if data.is_empty() {
                        let is_eof = events.is_eof(self.handle)?;
                        return Ok(if is_eof { Fate::Closes } else { Fate::Stays });
                    }
                    let space = self.connection.space();
                    let len = data.len().min(space.len());
                    space[..len].copy_from_slice(&data[..len]);
                    self.connection.received(len);
                    events.consume(self.handle, len)?;
                    service.bytes_read.fetch_add(len as u64, Relaxed);
                    self.registered.peer.last.store(now.seconds, Relaxed);
                }
            }
            self.next = self.connection.process(now);
        }
    }

    /// Sends what there is room for; returns whether that is all.
    fn send(&mut self, events: &EventLoop, service: &Service) -> Result<bool, CommandError> {
        let left = &self.connection.output()[self.sent..];
        if !left.is_empty() {
            let taken = events.send(self.handle, &[IoSlice::new(left)])?;
            service.bytes_written.fetch_add(taken as u64, Relaxed);
            self.sent += taken;
            if self.sent < self.connection.output().len() {
                return Ok(false);
            }
            self.connection.sent();
            self.sent = 0;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater::net::TcpStream;
    use tailwater_testkit::own_process;

    #[test]
    fn a_client_of_a_loop_that_is_silent_is_asked_whether_it_is_there() {
        own_process(|| {
            let run = tailwater::RuntimeBuilder::new().kthreads(1).run(|| {
                let listener = listen(&Settings { tcp_port: 0, ..Settings::default() }).unwrap();
                let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (accepted, _) = listener.accept().unwrap();
                assert_eq!(accepted.keepalive().unwrap(), Some(keepalive()));
            });
            run.unwrap();
        });
    }
}
