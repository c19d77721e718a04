//! The primary's side of a link to one backup: connection, copy, changes, reconnection.
//!
//! Owns the connection and what has been sent over it. One thread sends, and so reads the store in
//! the order of its messages; another reads acknowledgments. Either ends the connection for both.
//! A backup that does not acknowledge within the timeout is lost: the primary asks at least four
//! times as often, by sending its last mark again.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::progress::Session;
use super::wire::{self, ACK, Ack, AckState, Hello, Message, Nonces, PREFACE, VERDICT, Verdict};
use super::{HANDSHAKE, Replication, SEND, described, nonce, report};
use crate::clock::Clock;
use crate::store::{Change, Crawl, Journal, MAX_KEY};
use crate::system::System;

/// Pauses before a connection is tried again: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum time between two looks at a scheduled flush.
const LOOK: Duration = Duration::from_millis(500);
/// Changes that are sent before anything else is looked at.
const BATCH: usize = 256;
/// Steps of the copy between two looks at the changes: each is a bucket with items, or some hundred
/// without.
const COPY_STEPS: usize = 1024;
/// Largest value that is sent with its head.
const INLINE: usize = 16 << 10;
/// Pause before a value is pinned again that has too many pins.
const PIN_PAUSE: Duration = Duration::from_millis(1);

/// Keeps the link to a backup for ever, once this process is a primary.
pub(super) fn keep_link<S: System>(replication: &Arc<Replication>, backup: usize, clock: Clock) -> ! {
    let address = replication.settings.backups[backup];
    let (mut pause, mut last_reason) = (FIRST_PAUSE, String::new());
    replication.is_primary.wait();
    loop {
        let (was_in_step, error) = connection::<S>(replication, backup, clock);
        let reason = error.to_string();
        if was_in_step || reason != last_reason {
            report(&format!("backup {address} is lost: {reason}"));
        }
        last_reason = reason;
        pause = if was_in_step { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
        S::sleep(pause);
    }
}

/// Serves one connection to its end; returns whether the backup was in step, and why it ended.
fn connection<S: System>(replication: &Arc<Replication>, backup: usize, clock: Clock) -> (bool, io::Error) {
    let stream = match dial::<S>(replication, backup) {
        Ok(stream) => stream,
        Err(error) => return (false, error),
    };
    let stream = match greet::<S>(replication, stream) {
        Ok(stream) => stream,
        Err(error) => {
            replication.progress.release(backup);
            return (false, error);
        }
    };
    let journal = replication.store.journal().expect("a replicated store has one");
    // A change between the two would be answered without this backup, and the copy would not be
    // known to lack it.
    let session = journal.attach(backup, |last| replication.progress.begin(backup, last));
    let ended = serve::<S>(replication, journal, session, stream, clock);
    journal.detach(backup);
    replication.progress.end(session, Instant::now());
    ended
}

/// Connects to a backup and then claims its copy, so that none waits for a machine that is gone.
fn dial<S: System>(replication: &Replication, backup: usize) -> io::Result<S::Stream> {
    let Replication { settings, progress, .. } = replication;
    loop {
        while !progress.is_free(backup, Instant::now()) {
            S::sleep(FIRST_PAUSE);
        }
        let stream = S::connect(settings.backups[backup], settings.timeout.min(HANDSHAKE))?;
        if progress.claim(backup, Instant::now()) {
            return Ok(stream);
        }
    }
}

/// Proves the secret, both ways, and learns whether the backup accepts this primary.
fn greet<S: System>(replication: &Replication, mut stream: S::Stream) -> io::Result<S::Stream> {
    let Replication { settings, store, .. } = replication;
    let refused = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    S::prepare(&stream, Some(HANDSHAKE))?;
    let own = nonce();
    stream.write_all(&wire::preface(own))?;
    let mut preface = [0; PREFACE];
    let silent = "it does not answer as a backup; give the port after --backup, not that of clients";
    stream.read_exact(&mut preface).map_err(|error| io::Error::new(error.kind(), silent))?;
    let nonces = Nonces { primary: own, backup: wire::decode_preface(&preface).map_err(refused)? };
    let config = store.config();
    let hello = Hello {
        origin: replication.replica.origin(replication.id),
        memory: store.limit(),
        room: store.room(),
        max_item: config.max_item as u64,
        timeout_ms: u32::try_from(settings.timeout.as_millis()).unwrap_or(u32::MAX),
        evict: config.evict,
    };
    stream.write_all(&hello.encode(&settings.secret, &nonces))?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict)?;
    Verdict::check(&verdict, &settings.secret, &nonces).map_err(refused)?;
    S::prepare(&stream, Some(settings.timeout))?;
    Ok(stream)
}

/// What the two threads of a connection share.
struct Acks {
    replication: Arc<Replication>,
    session: Session,
    /// Why acknowledgments ended, and whether the backup was in step.
    ended: tailwater::sync::mpsc::Sender<(bool, io::Error)>,
}

fn serve<S: System>(
    replication: &Arc<Replication>,
    journal: &Journal,
    session: Session,
    stream: S::Stream,
    clock: Clock,
) -> (bool, io::Error) {
    let (ended, why) = tailwater::sync::mpsc::channel();
    let acks = Acks { replication: Arc::clone(replication), session, ended };
    let started =
        S::handle_of(&stream).and_then(|acked| S::spawn("kv-acks", move || read_acks::<S>(acked, &acks)));
    if let Err(error) = started {
        return (false, error);
    }
    let mut sender = Sender {
        replication,
        journal,
        backup: session.backup,
        clock,
        stream,
        sleep: S::sleep,
        out: Vec::with_capacity(2 * SEND),
        sent: 0,
        time: i64::MIN,
        copy: Some(Crawl::default()),
        keys: Vec::new(),
    };
    let sent = sender.run();
    // Ends the other thread, which may have ended first and then knows the reason.
    S::end(&sender.stream);
    let (was_in_step, reason) = why.recv().unwrap_or((false, io::Error::other("its thread has ended")));
    match sent {
        Ok(()) => (was_in_step, reason),
        Err(_) if reason.kind() == io::ErrorKind::OutOfMemory => (was_in_step, reason),
        Err(error) => (was_in_step, error),
    }
}

/// Takes acknowledgments until the connection ends.
fn read_acks<S: System>(mut stream: S::Stream, acks: &Acks) {
    let mut in_step = false;
    let error = loop {
        match next_ack(&mut stream) {
            Err(error) => break error,
            Ok(Ack { state: AckState::NoRoom, .. }) => {
                let why = "it has no room for an item; start it with the same -m and -I, and with --idle-timeout \
                           if slow clients read large items there";
                break io::Error::new(io::ErrorKind::OutOfMemory, why);
            }
            Ok(Ack { number, state }) => {
                let replication = &acks.replication;
                if replication.progress.acknowledge(acks.session, number, state == AckState::InStep) {
                    in_step = true;
                    let address = replication.settings.backups[acks.session.backup];
                    report(&format!("backup {address} is in step"));
                }
            }
        }
    };
    S::end(&stream);
    // The sender may wait for changes.
    acks.replication.store.journal().expect("a replicated store has one").detach(acks.session.backup);
    // It waits for this, unless it panicked.
    let _ = acks.ended.send((in_step, error));
}

fn next_ack(stream: &mut impl Read) -> io::Result<Ack> {
    let mut bytes = [0; ACK];
    let silent = "it does not answer within --backup-timeout";
    stream.read_exact(&mut bytes).map_err(|error| described(error, silent))?;
    let invalid = "its acknowledgment is invalid; run the same release on both sides";
    Ack::decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, invalid))
}

/// The sending thread's view of a connection.
pub(super) struct Sender<'a, T: Write> {
    pub replication: &'a Replication,
    pub journal: &'a Journal,
    pub backup: usize,
    pub clock: Clock,
    pub stream: T,
    /// Blocks the thread.
    pub sleep: fn(Duration),
    /// Encoded and not sent.
    pub out: Vec<u8>,
    /// Bytes sent.
    pub sent: u64,
    /// The last [`Message::Time`].
    pub time: i64,
    /// Progress of the copy, until it is complete.
    pub copy: Option<Crawl>,
    /// Keys of one step of the copy, each behind its length.
    pub keys: Vec<u8>,
}

impl<T: Write> Sender<'_, T> {
    /// Sends until the connection ends, or this reader of the journal is detached.
    pub fn run(&mut self) -> io::Result<()> {
        let ask = self.replication.settings.timeout / 4;
        Message::Reset.encode(&mut self.out);
        self.schedule();
        let (mut changes, mut sent_at) = (Vec::with_capacity(BATCH), Instant::now());
        loop {
            // A scheduled flush is executed even if no client sends a command.
            self.replication.store.flush_if_due(self.clock.now());
            let Some(last) = self.journal.take(self.backup, BATCH, &mut changes) else { return Ok(()) };
            let left = ask.saturating_sub(sent_at.elapsed());
            if changes.is_empty() && self.copy.is_none() && !left.is_zero() {
                self.journal.wait(self.backup, left.min(LOOK));
                continue;
            }
            for change in changes.drain(..) {
                match change {
                    Change::Key(key) => self.item(&key)?,
                    Change::Flush => Message::Flush.encode(&mut self.out),
                    Change::Schedule => self.schedule(),
                }
            }
            self.copy_more()?;
            // Also without a change, for the backup answers it.
            Message::Mark(last).encode(&mut self.out);
            self.send()?;
            sent_at = Instant::now();
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.sent += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Returns the number of bytes encoded.
    fn encoded(&self) -> u64 {
        self.sent + self.out.len() as u64
    }

    fn schedule(&mut self) {
        let now = self.clock.now();
        let unix = self.journal.scheduled().map_or(0, |second| now.start_unix + i64::from(second));
        Message::Schedule(unix).encode(&mut self.out);
    }

    /// Copies up to a buffer of items, and the rest of a bucket, from at most [`COPY_STEPS`] steps.
    fn copy_more(&mut self) -> io::Result<()> {
        let begin = self.encoded();
        for _ in 0..COPY_STEPS {
            let Some(progress) = &mut self.copy else { return Ok(()) };
            let keys = &mut self.keys;
            keys.clear();
            let more = self.replication.store.dump(progress, self.clock.now(), |key, _| {
                keys.push(key.len() as u8);
                keys.extend_from_slice(key);
            });
            if !more {
                self.copy = None;
            }
            let keys = std::mem::take(&mut self.keys);
            let mut rest = &keys[..];
            while let Some((&len, behind)) = rest.split_first() {
                let (key, behind) = behind.split_at(usize::from(len));
                self.item(key)?;
                rest = behind;
            }
            self.keys = keys;
            if !more {
                Message::Complete.encode(&mut self.out);
            }
            if self.encoded() - begin >= SEND as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Encodes the present second, if it is a new one. With the item's shard locked, it is no
    /// earlier than the second in which the item was stored.
    fn time(&mut self) {
        let unix = self.clock.now().unix();
        if unix != self.time {
            self.time = unix;
            Message::Time(unix).encode(&mut self.out);
        }
    }

    /// Sends the present item of a key, or that there is none.
    fn item(&mut self, key: &[u8]) -> io::Result<()> {
        debug_assert!(key.len() <= MAX_KEY);
        let begin = Instant::now();
        loop {
            let mut locked = self.replication.store.lock(key, self.clock.now());
            self.time();
            let Some((image, hit)) = locked.image() else {
                Message::Absent(key).encode(&mut self.out);
                break;
            };
            if image.value_len <= INLINE {
                Message::Item(key, image).encode(&mut self.out);
                locked.append_value(&hit, &mut self.out);
                break;
            }
            if let Some(mut pinned) = locked.pin_image(&hit) {
                drop(locked);
                Message::Item(key, image).encode(&mut self.out);
                let sent = self.value(&mut pinned);
                self.replication.store.release(pinned);
                return sent;
            }
            drop(locked);
            // Clients send it so often that its pins cannot be counted.
            if begin.elapsed() > HANDSHAKE {
                let why = "too many slow clients of the primary read one item; set --idle-timeout";
                return Err(io::Error::other(why));
            }
            (self.sleep)(PIN_PAUSE);
        }
        if self.out.len() >= SEND { self.send() } else { Ok(()) }
    }

    /// Sends a large value piece by piece.
    fn value(&mut self, pinned: &mut crate::store::Pinned) -> io::Result<()> {
        while pinned.left() > 0 {
            self.replication.store.drain(pinned, SEND, &mut self.out);
            self.send()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::net::SocketAddr;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::super::{OnLoss, Progress, Secret, Settings};
    use super::*;

    thread_local! {
        static REPLICATION: RefCell<Option<Arc<Replication>>> = const { RefCell::new(None) };
        static CONNECTED: Cell<u32> = const { Cell::new(0) };
    }

    /// A connection whose other end goes away when it is greeted.
    struct Stream;

    impl Read for Stream {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            unreachable!()
        }
    }

    impl Write for Stream {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            assert!(!with_progress(|progress| progress.claim(1, Instant::now())), "it has claimed the copy");
            Err(io::ErrorKind::ConnectionReset.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            unreachable!()
        }
    }

    fn with_progress<T>(then: impl FnOnce(&Progress) -> T) -> T {
        let replication = REPLICATION.with_borrow(|it| Arc::clone(it.as_ref().unwrap()));
        then(&replication.progress)
    }

    /// A system without network whose time is that of a script.
    struct Script;

    impl System for Script {
        type Listener = ();
        type Stream = Stream;
        type Datagrams = ();

        /// Ends the other link's claim, if it has one; otherwise checks that it may have one, and
        /// ends the thread.
        fn sleep(_: Duration) {
            let connected = CONNECTED.get();
            with_progress(|progress| match connected {
                0 | 1 => progress.release(1),
                _ => {
                    assert!(progress.claim(1, Instant::now()), "an attempt that failed claims nothing");
                    resume_unwind(Box::new(()));
                }
            });
        }

        /// While the first connection is made, the other link claims its copy.
        fn connect(_: SocketAddr, _: Duration) -> io::Result<Stream> {
            let connected = CONNECTED.replace(CONNECTED.get() + 1);
            if connected == 0 {
                assert!(with_progress(|progress| progress.claim(1, Instant::now())), "nobody claims before");
            }
            Ok(Stream)
        }

        fn spawn(_: &str, _: impl FnOnce() + Send + 'static) -> io::Result<()> {
            unreachable!()
        }

        fn listen(_: (&str, u16)) -> io::Result<((), SocketAddr)> {
            unreachable!()
        }

        fn accept((): &()) -> io::Result<(Stream, SocketAddr)> {
            unreachable!()
        }

        fn handle_of(_: &Stream) -> io::Result<Stream> {
            unreachable!()
        }

        fn end(_: &Stream) {
            unreachable!()
        }

        fn prepare(_: &Stream, _: Option<Duration>) -> io::Result<()> {
            Ok(())
        }

        fn bind(_: (&str, u16)) -> io::Result<((), SocketAddr)> {
            unreachable!()
        }

        fn recv_from((): &(), _: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
            unreachable!()
        }

        fn send_to((): &(), _: &[u8], _: SocketAddr) -> io::Result<usize> {
            unreachable!()
        }
    }

    #[test]
    fn a_link_greets_only_with_a_claim_and_gives_it_up_if_it_is_not_accepted() {
        let config =
            crate::store::Config { memory: 4 << 20, max_item: 64 << 10, evict: true, secret: [3, 4] };
        let service = crate::fuzzing::service_over(config);
        let backups = [1, 2].map(|port| ([127, 0, 0, 1], port).into()).to_vec();
        let (secret, timeout) = (Secret::decode(&"7e".repeat(16)).unwrap(), Duration::from_secs(3600));
        let settings = Settings { backups, on_loss: OnLoss::Refuse, timeout, port: None, secret };
        service.replicate(settings).unwrap();
        let replication = service.replication.get().unwrap();
        assert!(replication.progress.claim(1, Instant::now()));
        REPLICATION.set(Some(Arc::clone(replication)));
        let ended = catch_unwind(AssertUnwindSafe(|| keep_link::<Script>(replication, 0, Clock::start())));
        let why = ended.unwrap_err();
        assert!(why.is::<()>(), "an assertion of the script failed");
        assert_eq!(CONNECTED.get(), 2);
    }
}
