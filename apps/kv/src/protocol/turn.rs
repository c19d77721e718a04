//! The interface between a connection and the commands of any protocol: a command's input and its
//! next step.

use std::sync::atomic::Ordering::Relaxed;

use super::bytes::DecodedKey;
use super::dump::Dump;
use super::packet::Header;
use crate::service::Service;
use crate::store::{Expiry, Horizon, Locked, Now, Pinned, Put};

/// The input of a command besides its own bytes.
pub(super) struct Turn<'a> {
    pub service: &'a Service,
    pub out: &'a mut Vec<u8>,
    pub now: Now,
    /// Rises by what the commands of a connection do or see.
    pub horizon: &'a Horizon,
    /// Larger values are left to the connection.
    pub inline_limit: usize,
}

impl<'a> Turn<'a> {
    /// Returns the shard of `key`, locked, for one command.
    #[inline]
    pub fn lock<'k>(&self, key: &'k [u8]) -> Locked<'k>
    where
        'a: 'k,
    {
        self.service.store.lock(key, self.now).within(self.horizon)
    }

    /// Returns the answer of the text protocol to a command that would change something, if such
    /// commands are refused at present.
    #[inline]
    pub fn refusal(&self) -> Option<&'static str> {
        self.service.replication.get()?.refusal()
    }

    /// Flushes all items `delay` seconds from now, or at a Unix time; returns false if that is
    /// forbidden.
    pub fn flush(&mut self, delay: i64) -> bool {
        if !self.service.settings.flush {
            return false;
        }
        self.service.flushes.fetch_add(1, Relaxed);
        let at = if delay > 0 { Expiry::decode(delay, self.now).left(self.now) } else { None };
        let at = at.map(|left| self.now.seconds.saturating_add(left));
        self.horizon.raise(self.service.store.flush(at, self.now), true);
        true
    }

    /// Answers with one line.
    pub fn say(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The command that the keys of a line belong to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    pub with_cas: bool,
    pub touch: Option<Expiry>,
}

/// How a block is answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reply {
    Text {
        silent: bool,
    },
    /// From the flags of its line.
    Meta,
    Binary(Header),
}

impl Reply {
    /// Returns the bytes that follow the block.
    pub fn tail(self) -> &'static [u8] {
        match self {
            Self::Text { .. } | Self::Meta => b"\r\n",
            Self::Binary(_) => b"",
        }
    }
}

/// A block of data to be stored.
pub(super) struct Block<'a> {
    pub key: &'a [u8],
    /// The key, if it was received in base64.
    pub decoded: Option<DecodedKey>,
    pub len: usize,
    pub put: Put,
    pub reply: Reply,
}

/// The step after a command.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment, on the stack; a key in base64 makes it large"
)]
pub(super) enum Next<'a> {
    Done,
    /// Keys, after the line's first `skip` bytes.
    Keys {
        skip: usize,
        keys: Keys,
    },
    Block(Block<'a>),
    /// The number of bytes to discard.
    Swallow(usize),
    /// A large value.
    Send(Pinned),
    /// A list of items.
    Dump(Dump),
    SkipLine,
    Close,
}
