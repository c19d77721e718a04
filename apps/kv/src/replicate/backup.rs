//! The backup's side: primaries that knock, the copy, promotion.
//!
//! Owns the state of the copy and which connection may change the store. Only the connection that
//! was accepted last may; it checks so under the lock of [`Replica`] for each message, and
//! [`Replica::promote`] takes that right away. The store serves reads of clients meanwhile.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tailwater::sync::{Mutex, MutexGuard};

use super::wire::{self, Ack, AckState, HELLO, Hello, Invalid, Message, Nonces, PREFACE, Verdict};
use super::{HANDSHAKE, SEND, STRANGERS, nonce, report};
use crate::server::{Clock, System};
use crate::service::Service;
use crate::store::{Image, MAX_KEY, Refusal};

/// Pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// A primary sends at least four times in its timeout; here it may be silent for this many
/// timeouts.
const SILENCE: u32 = 2;
/// Bytes of a value after which the last acknowledgment is repeated, so that the primary does not
/// take a large one for silence.
const REPEAT: usize = 256 << 10;

/// The copy that a backup has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Copy {
    /// No primary has been there.
    #[default]
    None,
    /// It is being made, or was not completed.
    Partial,
    /// It was complete, and had all changes that its primary acknowledged to clients while it
    /// counted this backup.
    Complete,
}

/// Why a process does not become a primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromotionRefused {
    /// It is one.
    #[error("it is no backup: nothing changes")]
    IsPrimary,
    /// Items are missing.
    #[error(
        "its copy is incomplete: promote another backup, wait for the primary, or restart it without --backup, \
         and empty"
    )]
    Incomplete,
}

/// What a backup has of its primary.
#[derive(Debug, Default)]
pub(super) struct Replica {
    state: Mutex<State>,
    /// Connections whose peers have not proved the secret.
    strangers: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    copy: Copy,
    promoted: bool,
    /// Number of the connection that may change the store.
    session: u64,
    /// The primary behind it, while it is connected.
    primary: Option<u64>,
    /// Unix time of a scheduled flush.
    flush: Option<i64>,
}

impl Replica {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn copy(&self) -> Copy {
        self.lock().copy
    }

    /// Ends the rights of the primary and calls `then`.
    pub fn promote(
        &self,
        service: &Service,
        clock: Clock,
        then: impl FnOnce(),
    ) -> Result<(), PromotionRefused> {
        let replication = service.replication.get().ok_or(PromotionRefused::IsPrimary)?;
        let mut state = self.lock();
        if state.promoted || !replication.is_backup() {
            return Err(PromotionRefused::IsPrimary);
        }
        if state.copy == Copy::Partial {
            return Err(PromotionRefused::Incomplete);
        }
        state.promoted = true;
        if let Some(unix) = state.flush.take() {
            let now = clock.now();
            let second = u32::try_from(unix - now.start_unix).ok().filter(|&second| second > now.seconds);
            service.store.flush(second, now);
        }
        then();
        Ok(())
    }

    /// Gives the right to change the store to a new connection of `primary`, unless another primary
    /// has it. Returns the number of the connection.
    fn admit(&self, primary: u64) -> Result<u64, Verdict> {
        let mut state = self.lock();
        if state.promoted {
            return Err(Verdict::Promoted);
        }
        if state.primary.is_some_and(|there| there != primary) {
            return Err(Verdict::Taken);
        }
        state.session += 1;
        state.primary = Some(primary);
        Ok(state.session)
    }

    /// Returns the state if connection `session` may change the store.
    fn allow(&self, session: u64) -> Result<MutexGuard<'_, State>, Ended> {
        let state = self.lock();
        match state.promoted {
            true => Err(Ended::Promoted),
            false if state.session != session => Err(Ended::Replaced),
            false => Ok(state),
        }
    }

    fn leave(&self, session: u64) {
        let mut state = self.lock();
        if state.session == session {
            state.primary = None;
        }
    }
}

/// Why a connection to a primary ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}; run the same release on both sides")]
    Invalid(#[from] Invalid),
    #[error("an item finds no room; start this backup with a larger -m")]
    NoRoom,
    #[error("the primary has connected anew")]
    Replaced,
    #[error("this backup was promoted")]
    Promoted,
}

/// Opens the port on which primaries knock; returns its address.
pub(super) fn listen<S: System>(service: &Arc<Service>, port: u16, clock: Clock) -> io::Result<SocketAddr> {
    let (listener, address) = S::listen((service.settings.listen.as_str(), port))?;
    let service = Arc::clone(service);
    S::spawn("kv-backup", move || accept::<S>(&service, &listener, clock))?;
    Ok(address)
}

fn accept<S: System>(service: &Arc<Service>, listener: &S::Listener, clock: Clock) -> ! {
    loop {
        let Ok((stream, peer)) = S::accept(listener) else {
            S::sleep(ACCEPT_PAUSE);
            continue;
        };
        let replica = &service.replication.get().expect("it is prepared before it is started").replica;
        if replica.strangers.fetch_add(1, Relaxed) >= STRANGERS {
            replica.strangers.fetch_sub(1, Relaxed);
            continue;
        }
        let of_thread = Arc::clone(service);
        // The thread counts itself out.
        if S::spawn("kv-copy", move || serve::<S>(&of_thread, stream, peer, clock)).is_err() {
            replica.strangers.fetch_sub(1, Relaxed);
        }
    }
}

/// Serves one connection to its end.
fn serve<S: System>(service: &Service, mut stream: S::Stream, peer: SocketAddr, clock: Clock) {
    let replica = &service.replication.get().expect("it is prepared before it is started").replica;
    let greeted = greet::<S>(service, &mut stream);
    replica.strangers.fetch_sub(1, Relaxed);
    let session = match greeted {
        Ok(session) => session,
        Err(error) => return report(&format!("{peer} is refused as a primary: {error}")),
    };
    let mut applier = Applier::<S> {
        service,
        replica,
        session,
        clock,
        input: BufReader::with_capacity(SEND, stream),
        number: 0,
        value: Vec::new(),
    };
    let Err(ended) = applier.run();
    if matches!(ended, Ended::NoRoom) {
        let ack = Ack { number: applier.number, state: AckState::NoRoom };
        // The primary notices the end in any case.
        let _ = applier.input.get_mut().write_all(&ack.encode());
    }
    replica.leave(session);
    report(&format!("the primary {peer} is lost: {ended}"));
}

/// Checks who knocks; returns the number of the connection.
fn greet<S: System>(service: &Service, stream: &mut S::Stream) -> io::Result<u64> {
    let replication = service.replication.get().expect("it is prepared before it is started");
    let secret = &replication.settings.secret;
    let refused = |why: &str| io::Error::new(ErrorKind::PermissionDenied, why);
    let deadline = Instant::now() + HANDSHAKE;
    let mut preface = [0; PREFACE];
    read_by::<S>(stream, &mut preface, deadline)?;
    let primary = wire::decode_preface(&preface).map_err(refused)?;
    let nonces = Nonces { primary, backup: nonce() };
    stream.write_all(&wire::preface(nonces.backup))?;
    let mut hello = [0; HELLO];
    read_by::<S>(stream, &mut hello, deadline)?;
    let verdict = match Hello::decode(&hello, secret, &nonces) {
        None => Err((Verdict::WrongSecret, "it has another secret")),
        Some(hello) if !fits(service, &hello) => Err((
            Verdict::Smaller,
            "its store is larger, or differs in -M; start this one with the same -m, -I and -M",
        )),
        Some(hello) => {
            replication.replica.admit(hello.id).map(|session| (session, hello)).map_err(|verdict| {
                let why = if verdict == Verdict::Promoted {
                    "this was promoted"
                } else {
                    "another primary is connected"
                };
                (verdict, why)
            })
        }
    };
    let answer = verdict.as_ref().map_or_else(|(verdict, _)| *verdict, |_| Verdict::Welcome);
    let sent = stream.write_all(&answer.encode(secret, &nonces));
    let (session, hello) = verdict.map_err(|(_, why)| refused(why))?;
    let limit = Duration::from_millis(hello.timeout_ms.max(1).into()) * SILENCE;
    // Otherwise the next primary would be refused for ever.
    let ready = sent.and_then(|()| S::prepare(stream, Some(limit)));
    ready.inspect_err(|_| replication.replica.leave(session))?;
    Ok(session)
}

/// Fills `to` until `deadline`, however few bytes arrive at a time.
fn read_by<S: System>(stream: &mut S::Stream, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !to.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        S::prepare(stream, Some(left))?;
        match stream.read(to) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => to = &mut to[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns true if everything in the store of a primary fits into this one.
fn fits(service: &Service, hello: &Hello) -> bool {
    let (store, config) = (&service.store, service.store.config());
    store.limit() >= hello.memory && config.max_item as u64 >= hello.max_item && config.evict == hello.evict
}

/// The thread of a connection that may change the store.
struct Applier<'a, S: System> {
    service: &'a Service,
    replica: &'a Replica,
    session: u64,
    clock: Clock,
    input: BufReader<S::Stream>,
    /// The last mark.
    number: u64,
    /// A value that is read as a whole.
    value: Vec<u8>,
}

impl<S: System> Applier<'_, S> {
    fn run(&mut self) -> Result<std::convert::Infallible, Ended> {
        let mut key = [0; MAX_KEY];
        loop {
            tailwater::poll();
            let input = &mut self.input;
            let message = wire::read::<Ended>(&mut key, |to| Ok(input.read_exact(to)?))?;
            let now = self.clock.now();
            let store = &self.service.store;
            match message {
                Message::Item(key, image) => self.item(key, &image)?,
                Message::Mark(number) => {
                    self.number = number;
                    self.acknowledge()?;
                }
                other => {
                    let mut state = self.replica.allow(self.session)?;
                    match other {
                        Message::Reset => {
                            store.flush(None, now);
                            (state.copy, state.flush) = (Copy::Partial, None);
                        }
                        Message::Complete => state.copy = Copy::Complete,
                        Message::Absent(key) => store.lock(key, now).forget(),
                        Message::Flush => {
                            store.flush(None, now);
                            state.flush = None;
                        }
                        Message::Schedule(unix) => state.flush = (unix != 0).then_some(unix),
                        Message::Item(..) | Message::Mark(_) => {}
                    }
                }
            }
        }
    }

    fn acknowledge(&mut self) -> Result<(), Ended> {
        let copy = self.replica.allow(self.session)?.copy;
        let state = if copy == Copy::Complete { AckState::InStep } else { AckState::Copying };
        let ack = Ack { number: self.number, state };
        Ok(self.input.get_mut().write_all(&ack.encode())?)
    }

    fn item(&mut self, key: &[u8], image: &Image) -> Result<(), Ended> {
        let store = &self.service.store;
        if !store.fits(key.len(), image.value_len) {
            return Err(Invalid.into());
        }
        if image.value_len > SEND {
            return self.large_item(key, image);
        }
        self.value.resize(image.value_len, 0);
        self.input.read_exact(&mut self.value)?;
        let _allowed = self.replica.allow(self.session)?;
        store.lock(key, self.clock.now()).restore(image, &self.value).map_err(|_| Ended::NoRoom)
    }

    /// Receives a large value piece by piece into the store.
    fn large_item(&mut self, key: &[u8], image: &Image) -> Result<(), Ended> {
        let store = &self.service.store;
        let reserved = store.lock(key, self.clock.now()).reserve(image.value_len);
        let mut filling = reserved.map_err(|refusal| match refusal {
            Refusal::NoMemory => Ended::NoRoom,
            Refusal::TooLarge => Invalid.into(),
        })?;
        let mut since_ack = 0;
        while filling.left() > 0 {
            let len = filling.left().min(SEND);
            self.value.resize(len, 0);
            let mut received = self.input.read_exact(&mut self.value).map_err(Ended::from);
            since_ack += len;
            if received.is_ok() && since_ack >= REPEAT {
                since_ack = 0;
                received = self.acknowledge();
            }
            if let Err(ended) = received {
                store.abandon(filling);
                return Err(ended);
            }
            store.fill(&mut filling, &self.value);
        }
        match self.replica.allow(self.session) {
            Ok(_allowed) => {
                store.restore(filling, image, self.clock.now());
                Ok(())
            }
            Err(ended) => {
                store.abandon(filling);
                Err(ended)
            }
        }
    }
}
