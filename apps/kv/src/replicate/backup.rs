//! The backup's side: primaries that knock, the state of the copy, promotion.
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

use super::apply::{Applier, Ended};
use super::origin::{self, Origin};
use super::wire::{self, Ack, AckState, HELLO, Hello, Nonces, PREFACE, Verdict};
use super::{HANDSHAKE, Replication, SEND, STRANGERS, nonce, report};
use crate::clock::Clock;
use crate::store::Store;
use crate::system::System;

/// Pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Minimum time between two lines about refused peers, so that strangers do not fill a log.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// A primary sends at least four times in its timeout; here it may be silent for this many
/// timeouts.
const SILENCE: u32 = 2;

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
pub(super) struct State {
    pub copy: Copy,
    promoted: bool,
    /// Number of the connection that may change the store.
    session: u64,
    /// True while it is open.
    is_connected: bool,
    /// Whose store the copy is of, or the store of this process since its promotion.
    origin: Option<Origin>,
    /// Whose store the open connection is to bring, before its [`Message::Reset`]: the former copy
    /// is still there.
    ///
    /// [`Message::Reset`]: wire::Message::Reset
    expected: Option<Origin>,
    /// Unix time of a scheduled flush.
    pub flush: Option<i64>,
    /// Time from which the next refusal is reported.
    next_report: Option<Instant>,
}

impl State {
    /// Records that the former copy is forgotten, and another one begins.
    pub fn begin_copy(&mut self) {
        (self.copy, self.flush) = (Copy::Partial, None);
        self.origin = self.expected.take().or(self.origin);
    }
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
        replication: &Replication,
        clock: Clock,
        then: impl FnOnce(),
    ) -> Result<(), PromotionRefused> {
        let mut state = self.lock();
        if state.promoted || !replication.is_backup() {
            return Err(PromotionRefused::IsPrimary);
        }
        if state.copy == Copy::Partial {
            return Err(PromotionRefused::Incomplete);
        }
        state.promoted = true;
        // Without a copy it begins a store, which is not to replace any other.
        let copied = state.origin.filter(|_| state.copy == Copy::Complete);
        let id = replication.id;
        state.origin = Some(copied.map_or_else(|| Origin::begin(id), |origin| origin.promoted(id)));
        if let Some(unix) = state.flush.take() {
            let now = clock.now();
            let second = u32::try_from(unix.saturating_sub(now.start_unix))
                .ok()
                .filter(|&second| second > now.seconds);
            replication.store.flush(second, now);
        }
        then();
        Ok(())
    }

    /// Returns whose store this process has as a primary with number `id`.
    pub fn origin(&self, id: u64) -> Origin {
        self.lock().origin.unwrap_or_else(|| Origin::begin(id))
    }

    /// Gives the right to change the store to a new connection of a primary, unless
    /// [`origin::decide`] refuses it. Returns the number of the connection.
    pub fn admit(&self, offered: Origin) -> Result<u64, Verdict> {
        let mut state = self.lock();
        if state.promoted {
            return Err(Verdict::Promoted);
        }
        let has = state.expected.or(state.origin);
        origin::decide(has, state.copy == Copy::Complete, state.is_connected, offered)?;
        state.session += 1;
        (state.is_connected, state.expected) = (true, Some(offered));
        Ok(state.session)
    }

    /// Returns the state if connection `session` may change the store.
    pub fn allow(&self, session: u64) -> Result<MutexGuard<'_, State>, Ended> {
        let state = self.lock();
        match state.promoted {
            true => Err(Ended::Promoted),
            false if state.session != session => Err(Ended::Replaced),
            false => Ok(state),
        }
    }

    /// Returns true if a refusal is to be reported: at most one per [`REPORT_PAUSE`].
    fn may_report(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let may = state.next_report.is_none_or(|next| now >= next);
        if may {
            state.next_report = Some(now + REPORT_PAUSE);
        }
        may
    }

    fn leave(&self, session: u64) {
        let mut state = self.lock();
        if state.session == session {
            (state.is_connected, state.expected) = (false, None);
        }
    }
}

/// Opens the port on which primaries knock; returns its address.
pub(super) fn listen<S: System>(
    replication: &Arc<Replication>,
    port: u16,
    clock: Clock,
) -> io::Result<SocketAddr> {
    let (listener, address) = S::listen((replication.listen.as_str(), port))?;
    let replication = Arc::clone(replication);
    S::spawn("kv-backup", move || accept::<S>(&replication, &listener, clock))?;
    Ok(address)
}

fn accept<S: System>(replication: &Arc<Replication>, listener: &S::Listener, clock: Clock) -> ! {
    loop {
        let Ok((stream, peer)) = S::accept(listener) else {
            S::sleep(ACCEPT_PAUSE);
            continue;
        };
        let replica = &replication.replica;
        if replica.strangers.fetch_add(1, Relaxed) >= STRANGERS {
            replica.strangers.fetch_sub(1, Relaxed);
            continue;
        }
        let of_thread = Arc::clone(replication);
        // The thread counts itself out.
        if S::spawn("kv-copy", move || serve::<S>(&of_thread, stream, peer, clock)).is_err() {
            replica.strangers.fetch_sub(1, Relaxed);
        }
    }
}

/// Serves one connection to its end.
fn serve<S: System>(replication: &Replication, mut stream: S::Stream, peer: SocketAddr, clock: Clock) {
    let replica = &replication.replica;
    let greeted = greet::<S>(replication, &mut stream);
    replica.strangers.fetch_sub(1, Relaxed);
    let session = match greeted {
        Ok(session) => session,
        Err(error) => {
            if replica.may_report(Instant::now()) {
                report(&format!("{peer} is refused as a primary: {error}"));
            }
            return;
        }
    };
    let mut applier = Applier {
        store: &replication.store,
        replica,
        session,
        clock,
        input: BufReader::with_capacity(SEND, stream),
        number: 0,
        time: i64::MIN,
        since_ack: 0,
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
fn greet<S: System>(replication: &Replication, stream: &mut S::Stream) -> io::Result<u64> {
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
        None => Err(Verdict::WrongSecret),
        Some(hello) if !fits(&replication.store, &hello) => Err(Verdict::Smaller),
        Some(hello) => replication.replica.admit(hello.origin).map(|session| (session, hello)),
    };
    let answer = verdict.as_ref().map_or_else(|verdict| *verdict, |_| Verdict::Welcome);
    let sent = stream.write_all(&answer.encode(secret, &nonces));
    let (session, hello) = verdict.map_err(|verdict| refused(verdict.reason()))?;
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
fn fits(store: &Store, hello: &Hello) -> bool {
    let config = store.config();
    store.limit() >= hello.memory
        && config.max_item as u64 >= hello.max_item
        && config.evict == hello.evict
        && (config.evict || store.room().holds(hello.room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_reported_at_most_once_a_pause() {
        let (replica, start) = (Replica::default(), Instant::now());
        let times = [0, 1, 999, 1000, 1001, 5000].map(Duration::from_millis);
        let reported = times.map(|after| replica.may_report(start + after));
        assert_eq!(reported, [true, false, false, true, false, true]);
    }

    /// Has a connection make a copy.
    fn complete(replica: &Replica, session: u64) {
        let mut state = replica.allow(session).unwrap();
        state.begin_copy();
        state.copy = Copy::Complete;
    }

    #[test]
    fn a_copy_keeps_its_origin_until_another_one_begins() {
        let (replica, first) = (Replica::default(), Origin::begin(7));
        complete(&replica, replica.admit(first).unwrap());
        let promoted = first.promoted(8);
        let lost = replica.admit(promoted).unwrap();
        assert_eq!(replica.admit(first), Err(Verdict::Superseded), "while the newer one is connected");
        replica.leave(lost);
        // The items are still those of the first.
        assert_eq!((replica.copy(), replica.origin(0)), (Copy::Complete, first));
        let again = replica.admit(first).unwrap();
        replica.leave(again);
        let next = replica.admit(promoted).unwrap();
        replica.allow(next).unwrap().begin_copy();
        replica.leave(next);
        assert_eq!((replica.copy(), replica.origin(0)), (Copy::Partial, promoted));
        assert_eq!(replica.admit(first), Err(Verdict::Superseded));
    }

    #[test]
    fn one_primary_at_a_time_may_change_the_store() {
        let (replica, [one, other]) = (Replica::default(), [7, 8].map(Origin::begin));
        let first = replica.admit(one).unwrap();
        assert_eq!(replica.admit(other), Err(Verdict::Taken));
        let again = replica.admit(one).unwrap();
        assert!(matches!(replica.allow(first), Err(Ended::Replaced)) && replica.allow(again).is_ok());
        replica.leave(first);
        assert_eq!(replica.admit(other), Err(Verdict::Taken), "the replaced connection is not the last");
        replica.leave(again);
        let next = replica.admit(other).unwrap();
        complete(&replica, next);
        replica.leave(next);
        assert_eq!(replica.admit(one), Err(Verdict::Keeps), "the copy is all that is left of a store");
        assert!(replica.admit(other.promoted(9)).is_ok());
        assert_eq!(replica.admit(other), Err(Verdict::Superseded));
    }
}
