//! Replication: every change of a primary's store is at its backups before its client is answered.
//!
//! ```text
//! Replication    the role of this process, its backups, what is refused      mod
//! Progress       which change is at which backup; threads that wait          progress
//! keep_link      the primary's side of a link: copy, changes, reconnection   primary
//! Replica        the backup's side: who may change the store, promotion       backup
//! Applier        the backup's side: messages change the store                apply
//! Origin         whose copy a backup has, and whose it takes instead         origin
//! messages       bytes of both                                               wire
//! ```
//!
//! A command changes the store, which records the key in its [`Journal`]; the thread of its
//! connection then waits until all backups that count have the change, and only then writes the
//! answers, while other threads run. A link takes numbers and keys from the journal, looks up each
//! key's present item and sends that: the effect of a command, never the command. A backup applies
//! messages in their order. So an item never becomes older at a backup, whatever the number of
//! links, copies and connections before; no version is compared.
//!
//! A backup that comes back forgets everything and gets a *copy*: the items of one bucket after the
//! other, with the changes that happen meanwhile after each `SEND` bytes, over the same
//! connection.
//!
//! Reads wait, too: a command that locks a shard waits for the last change of that shard, so an
//! answer shows no change that a backup lacks. The exception is a read while changes are refused.
//!
//! | dies | when | then |
//! |---|---|---|
//! | primary | before a change is sent | no backup has it; its client got no answer |
//! | primary | between two backups | some have it; its client got no answer |
//! | primary | before the answer | all have it; its client got no answer |
//! | primary | after the answer | all that counted have it |
//! | primary | during a copy | the backup in question is incomplete and refuses to be promoted; unless another is in step, the others still have what they had |
//! | primary | and is started anew, empty | a complete copy refuses it, until its backup is promoted or started anew |
//! | backup | at any time | refuse: waiting clients lose their connections, later changes are refused; degrade: both go on without it |
//!
//! | lies | then |
//! |---|---|
//! | a stranger, on the port of a backup | cannot prove the secret; its connection ends within `HANDSHAKE`, at most `STRANGERS` are open, and few are reported |
//! | a backup's impostor | cannot prove the secret either, and gets no item |
//! | a peer with the secret | is believed; invalid messages end its connection |
//!
//! Memory: the journal has the changes of commands whose connections wait, an entry for each
//! command in at most one input buffer of each; a link has a buffer of `SEND` and one bucket's
//! keys; large values are sent from and received into the store, piece by piece.
//!
//! [`Journal`]: crate::store::Journal

mod apply;
mod backup;
mod origin;
mod primary;
mod progress;
#[cfg(test)]
mod tests;
mod wire;

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tailwater::sync::Event;

use crate::clock::Clock;
use crate::store::{Horizon, Journal, Store};
use crate::system::System;

use backup::Replica;
pub use backup::{Copy, PromotionRefused};
use progress::Progress;
pub use progress::{Link, OnLoss, Unsettled};
pub use wire::Secret;

/// Most backups of a primary.
pub const MAX_BACKUPS: usize = 7;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections to a backup whose peers have not proved the secret, at most.
const STRANGERS: usize = 8;
/// Bytes that a link sends at once.
const SEND: usize = 32 << 10;

/// Answer to a change at a backup.
const IS_BACKUP: &str = "SERVER_ERROR this is a backup: write to the primary, or promote it with SIGUSR1";
/// Answer to a change while it would be refused.
const IS_LOST: &str = "SERVER_ERROR a backup is lost: writes are refused until it is back";

/// What replication is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where backups take copies (`--replicate`), at most [`MAX_BACKUPS`].
    pub backups: Vec<SocketAddr>,
    /// What happens to writes while one is lost (`--on-backup-loss`).
    pub on_loss: OnLoss,
    /// Time after which a peer that does not answer is lost (`--backup-timeout`).
    pub timeout: Duration,
    /// Port on which this process takes copies; it is a backup until it is promoted (`--backup`).
    pub port: Option<u16>,
    /// What all of them know (`--secret`).
    pub secret: Secret,
}

/// The replication of a store.
#[derive(Debug)]
pub struct Replication {
    store: Arc<Store>,
    /// Address on which a backup takes copies, without the port.
    listen: String,
    settings: Settings,
    progress: Progress,
    /// Set unless this is a backup.
    is_primary: Event,
    /// As `is_primary`, for every command. Relaxed: a change that is made or refused a moment
    /// earlier or later is so at both sides of the promotion.
    is_backup: AtomicBool,
    replica: Replica,
    /// Tells primaries apart.
    id: u64,
}

/// Returns a random number.
fn random() -> u64 {
    // The standard library's secrets are random, and differ from call to call.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Returns a random nonce.
fn nonce() -> [u8; wire::NONCE] {
    let mut nonce = [0; wire::NONCE];
    nonce[..8].copy_from_slice(&random().to_be_bytes());
    nonce[8..].copy_from_slice(&random().to_be_bytes());
    nonce
}

impl Replication {
    /// Prepares the replication of `store`, which no client uses yet: it has backups, or is one at
    /// the address `listen`, or both; then it replicates from its promotion on.
    ///
    /// # Errors
    /// If there are too many backups, one is there twice, the store is replicated already, or it
    /// does not evict and its hash function has not the keys of [`Secret::hash_keys`].
    pub fn new(store: &Arc<Store>, listen: &str, settings: Settings) -> io::Result<Self> {
        let invalid = |message: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        if settings.backups.len() > MAX_BACKUPS {
            return invalid("a primary has at most 7 backups: give fewer to --replicate");
        }
        if (1..settings.backups.len()).any(|at| settings.backups[..at].contains(&settings.backups[at])) {
            return invalid("a backup is named twice: give each address to --replicate once");
        }
        let config = store.config();
        if !config.evict && config.secret != settings.secret.hash_keys() {
            return invalid(
                "a store that does not evict is replicated with the hash keys of its secret only",
            );
        }
        let progress = Progress::new(settings.backups.len(), settings.on_loss);
        let is_backup = settings.port.is_some();
        let is_primary = Event::new();
        if !is_backup {
            is_primary.set();
        }
        let (journal, id) = (Journal::new(settings.backups.len()), random());
        let is_backup = AtomicBool::new(is_backup);
        if !store.keep_journal(journal) {
            return invalid("the store is replicated already: make another");
        }
        let (store, listen) = (Arc::clone(store), listen.to_owned());
        let replica = Replica::default();
        Ok(Self { store, listen, settings, progress, is_primary, is_backup, replica, id })
    }

    /// Returns the answer of the text protocol to a command that would change something, if such
    /// commands are refused at present.
    #[inline]
    pub fn refusal(&self) -> Option<&'static str> {
        if self.is_backup.load(Relaxed) {
            Some(IS_BACKUP)
        } else {
            self.progress.refuses().then_some(IS_LOST)
        }
    }

    /// Waits until all backups that count have what commands have changed, and what they may have
    /// seen.
    ///
    /// # Errors
    /// If one is lost before it has what they have changed, and changes are refused then.
    #[inline]
    pub fn wait(&self, horizon: &Horizon) -> Result<(), Unsettled> {
        self.progress.wait(horizon.wrote())?;
        // While changes are refused, what was seen may stay unsettled; reads go on.
        let _ = self.progress.wait(horizon.seen());
        Ok(())
    }

    /// Returns true if this is a backup that was not promoted.
    #[must_use]
    pub fn is_backup(&self) -> bool {
        self.is_backup.load(Relaxed)
    }

    /// Returns the state of the copy that a backup has.
    #[must_use]
    pub fn copy(&self) -> Copy {
        self.replica.copy()
    }

    /// Returns the state of each backup of this primary, and the number of the last change that it
    /// has.
    #[must_use]
    pub fn backups(&self) -> Vec<(SocketAddr, Link, u64)> {
        let links = self.progress.links();
        self.settings.backups.iter().zip(links).map(|(&address, (link, has))| (address, link, has)).collect()
    }

    /// Makes a backup a primary: it takes no more changes from its primary, accepts those of
    /// clients, and replicates to backups of its own. May be called on any thread.
    ///
    /// # Errors
    /// If it is none, or its copy is incomplete.
    pub fn promote(&self, clock: Clock) -> Result<(), PromotionRefused> {
        self.replica.promote(self, clock, || {
            self.is_backup.store(false, Relaxed);
            self.is_primary.set();
        })
    }
}

/// Starts the threads of replication; returns where a backup takes copies.
pub(crate) fn start<S: System>(
    replication: &Arc<Replication>,
    clock: Clock,
) -> io::Result<Option<SocketAddr>> {
    for backup in 0..replication.settings.backups.len() {
        let replication = Arc::clone(replication);
        S::spawn("kv-link", move || primary::keep_link::<S>(&replication, backup, clock))?;
    }
    replication.settings.port.map(|port| backup::listen::<S>(replication, port, clock)).transpose()
}

/// Returns an error of a read in words, with `silent` for a timeout.
fn described(error: io::Error, silent: &'static str) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent,
        // A process that is killed with unread bytes resets its connections.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "it has ended the connection",
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Prints a line about a link on standard error. It is printed by an ordinary thread, whose lock of
/// standard error it is.
fn report(line: &str) {
    // Nothing is left to do if this fails.
    let _ = tailwater::blocking(|| {
        use std::io::Write;
        writeln!(std::io::stderr(), "tailwater-kv: {line}")
    });
}
