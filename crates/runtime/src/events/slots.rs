//! The sockets of a loop by handle. A handle has the generation of its socket, a number that no
//! other socket of the process has, so neither an old handle nor another loop's finds anything.

use super::condition::{CommandError, Handle};
use super::datagrams::Datagrams;
use super::inbox::Link;
use super::stream::Stream;
use crate::net::TcpListener;
use crate::token::Token;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// A listener of a loop.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    link: Arc<Link>,
}

impl Listener {
    /// Returns the loop's side of a listener.
    pub fn new(listener: TcpListener, link: Arc<Link>) -> Self {
        listener.with_watchers(|watchers| {
            // SAFETY: 1. each listener has its own link and watches once; `drop` ends the watch. 2.
            // The socket's lock is held.
            unsafe { link.watch_reads(watchers) };
        });
        Self { listener, link }
    }

    /// Returns the listener.
    pub fn get(&self) -> &TcpListener {
        &self.listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: it watches these.
        self.listener.with_watchers(|watchers| unsafe { self.link.ignore_reads(watchers) });
        self.link.leave();
    }
}

/// A socket.
#[derive(Debug)]
pub enum Kind {
    Listener(Listener),
    Stream(Stream),
    Datagrams(Datagrams),
}

/// A place for a socket.
#[derive(Debug, Default)]
pub struct Slot {
    /// Of the socket that was here last.
    generation: u64,
    pub token: Token,
    /// True while one of the loop's lists of slots to visit has it.
    pub queued: bool,
    /// The last round in which the connection here reported something.
    pub reported: u64,
    pub kind: Option<Kind>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Numbers for the next sockets.
    generations: Range<u64>,
}

/// Generations that a loop takes at once, so that loops seldom share a cache line.
const GENERATIONS: u64 = 1 << 16;
/// The first generation that no loop has taken. Ends after 2^64 sockets. Written and read Relaxed:
/// the addition alone keeps loops apart.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(0);

impl Slots {
    /// Puts what `make` returns for its index into a slot.
    ///
    /// # Panics
    /// With more than 2^32 sockets.
    pub fn insert(&mut self, token: Token, make: impl FnOnce(u32) -> Kind) -> Handle {
        let generation = self.next_generation();
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("there are fewer ports")
        });
        let slot = &mut self.slots[index as usize];
        slot.token = token;
        slot.generation = generation;
        slot.reported = 0;
        slot.kind = Some(make(index));
        Handle { index, generation }
    }

    fn next_generation(&mut self) -> u64 {
        self.generations.next().unwrap_or_else(|| {
            let first = NEXT_GENERATION.fetch_add(GENERATIONS, Relaxed);
            self.generations = first + 1..first + GENERATIONS;
            first
        })
    }

    /// Returns the handle of the socket in a slot.
    pub fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.slots[index as usize].generation }
    }

    /// Returns a slot, which may be free.
    #[inline]
    pub fn at(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// Returns the slot of a socket.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`].
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut Slot, CommandError> {
        let slot = self.slots.get_mut(handle.index as usize);
        slot.filter(|slot| slot.generation == handle.generation && slot.kind.is_some())
            .ok_or(CommandError::UnknownHandle)
    }

    /// Returns a connection.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`], [`CommandError::WrongKind`].
    #[inline]
    pub fn stream_mut(&mut self, handle: Handle) -> Result<&mut Stream, CommandError> {
        match &mut self.get_mut(handle)?.kind {
            Some(Kind::Stream(stream)) => Ok(stream),
            _ => Err(CommandError::WrongKind),
        }
    }

    /// As [`stream_mut`](Self::stream_mut), to look at.
    ///
    /// # Errors
    /// As `stream_mut`.
    #[inline]
    pub fn stream(&self, handle: Handle) -> Result<&Stream, CommandError> {
        match self.get(handle)? {
            Kind::Stream(stream) => Ok(stream),
            _ => Err(CommandError::WrongKind),
        }
    }

    /// Returns a socket.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`].
    #[inline]
    pub fn get(&self, handle: Handle) -> Result<&Kind, CommandError> {
        let slot = self.slots.get(handle.index as usize);
        slot.filter(|slot| slot.generation == handle.generation)
            .and_then(|slot| slot.kind.as_ref())
            .ok_or(CommandError::UnknownHandle)
    }

    /// Takes a socket out of its slot; its handle is invalid from now on.
    ///
    /// # Errors
    /// [`CommandError::UnknownHandle`].
    pub fn remove(&mut self, handle: Handle) -> Result<Kind, CommandError> {
        let kind = self.get_mut(handle)?.kind.take().ok_or(CommandError::UnknownHandle)?;
        self.free.push(handle.index);
        Ok(kind)
    }

    /// Returns the number of sockets.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
