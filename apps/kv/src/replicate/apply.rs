//! Applies a primary's changes to the store of its backup.
//!
//! Owns the reading and the application of messages, in their order. Each checks under the lock of
//! [`Replica`] that its connection may still change the store, and holds the lock for the change.
//! A large value is received without it, into an item that nothing refers to yet.

use std::io::{self, BufReader, Read, Write};

use super::backup::{Copy, Replica};
use super::wire::{self, Ack, AckState, Invalid, Message};
use super::{SEND, described};
use crate::clock::Clock;
use crate::store::{Image, MAX_KEY, Now, Refusal, Store};

/// Bytes of items after which the last acknowledgment is repeated, so that the primary does not
/// take the time for many or large ones for silence.
const REPEAT: usize = 256 << 10;
/// Steps of a sweep after which it is repeated: some 65,000 buckets, which take tens of
/// milliseconds.
const SWEEP: usize = 256;

/// Why a connection to a primary ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}; run the same release on both sides")]
    Invalid(#[from] Invalid),
    #[error(
        "an item finds no room; start this backup with the same -m and -I, and with --idle-timeout if slow clients \
         read large items"
    )]
    NoRoom,
    #[error("it has connected anew, or another primary in its place")]
    Replaced,
    #[error("this backup was promoted")]
    Promoted,
}

/// Fills `to` with what the primary sends next.
fn receive(input: &mut impl Read, to: &mut [u8]) -> Result<(), Ended> {
    let silent = "it was silent for twice its --backup-timeout";
    Ok(input.read_exact(to).map_err(|error| described(error, silent))?)
}

/// The thread of a connection that may change the store.
pub(super) struct Applier<'a, T: Read + Write> {
    pub store: &'a Store,
    pub replica: &'a Replica,
    pub session: u64,
    pub clock: Clock,
    pub input: BufReader<T>,
    /// The last mark.
    pub number: u64,
    /// The primary's clock, as Unix time, was at least this.
    pub time: i64,
    /// Bytes of items received since the last acknowledgment.
    pub since_ack: usize,
    /// A value that is read as a whole.
    pub value: Vec<u8>,
}

impl<T: Read + Write> Applier<'_, T> {
    /// Applies messages until the connection ends.
    pub fn run(&mut self) -> Result<std::convert::Infallible, Ended> {
        let mut key = [0; MAX_KEY];
        loop {
            tailwater::poll();
            let input = &mut self.input;
            let message = wire::read::<Ended>(&mut key, |to| receive(input, to))?;
            let now = self.clock.now();
            let store = self.store;
            match message {
                Message::Item(key, image) => self.item(key, &image)?,
                Message::Time(unix) => self.time = unix,
                Message::Mark(number) => {
                    self.number = number;
                    self.acknowledge()?;
                }
                other => {
                    let mut state = self.replica.allow(self.session)?;
                    match other {
                        Message::Reset => {
                            store.flush(None, now);
                            state.begin_copy();
                        }
                        Message::Complete => state.copy = Copy::Complete,
                        Message::Absent(key) => store.lock(key, now).forget(),
                        Message::Flush => {
                            store.flush(None, now);
                            state.flush = None;
                        }
                        Message::Schedule(unix) => state.flush = (unix != 0).then_some(unix),
                        Message::Time(_) | Message::Item(..) | Message::Mark(_) => {}
                    }
                }
            }
        }
    }

    fn acknowledge(&mut self) -> Result<(), Ended> {
        let copy = self.replica.allow(self.session)?.copy;
        let state = if copy == Copy::Complete { AckState::InStep } else { AckState::Copying };
        let ack = Ack { number: self.number, state };
        self.since_ack = 0;
        Ok(self.input.get_mut().write_all(&ack.encode())?)
    }

    fn item(&mut self, key: &[u8], image: &Image) -> Result<(), Ended> {
        let store = self.store;
        if !store.fits(key.len(), image.value_len) {
            return Err(Invalid.into());
        }
        if image.value_len > SEND {
            return self.large_item(key, image);
        }
        self.receive_value(image.value_len)?;
        self.with_room(key, |this| {
            let _allowed = this.replica.allow(this.session)?;
            Ok(store.lock(key, this.clock.now()).restore(image, &this.value))
        })
    }

    /// Calls `attempt`; if there is no room, removes dead items beside `key` and calls it again: a
    /// primary that does not evict may have used the room of items that are dead by its clock.
    fn with_room<R>(
        &mut self,
        key: &[u8],
        attempt: impl Fn(&Self) -> Result<Result<R, Refusal>, Ended>,
    ) -> Result<R, Ended> {
        let mut done = attempt(self)?;
        if matches!(done, Err(Refusal::NoMemory)) {
            self.sweep(key)?;
            done = attempt(self)?;
        }
        done.map_err(|refusal| match refusal {
            Refusal::NoMemory => Ended::NoRoom,
            Refusal::TooLarge => Invalid.into(),
        })
    }

    /// Returns the later one of the present second here and the last known one at the primary.
    fn later(&self) -> Now {
        let now = self.clock.now();
        let theirs = self.time.saturating_sub(now.start_unix).clamp(0, u32::MAX.into()) as u32;
        Now { seconds: now.seconds.max(theirs), ..now }
    }

    /// Removes the items that share the room of `key` and are dead here or at the primary, and
    /// repeats the last acknowledgment meanwhile.
    fn sweep(&mut self, key: &[u8]) -> Result<(), Ended> {
        let mut bucket = 0;
        for step in 0_usize.. {
            tailwater::poll();
            if step.is_multiple_of(SWEEP) {
                self.acknowledge()?;
            }
            let _allowed = self.replica.allow(self.session)?;
            if self.store.sweep(key, &mut bucket, self.later()) {
                break;
            }
        }
        Ok(())
    }

    /// Receives `len` bytes of a value.
    fn receive_value(&mut self, len: usize) -> Result<(), Ended> {
        self.value.resize(len, 0);
        receive(&mut self.input, &mut self.value)?;
        // With the head, and the key, so that many empty values count.
        self.since_ack += len + MAX_KEY;
        if self.since_ack >= REPEAT { self.acknowledge() } else { Ok(()) }
    }

    /// Receives a large value piece by piece into the store.
    fn large_item(&mut self, key: &[u8], image: &Image) -> Result<(), Ended> {
        let store = self.store;
        let mut filling = self.with_room(key, |this| {
            let _allowed = this.replica.allow(this.session)?;
            Ok(store.lock(key, this.clock.now()).reserve_image(image.value_len))
        })?;
        while filling.left() > 0 {
            if let Err(ended) = self.receive_value(filling.left().min(SEND)) {
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
