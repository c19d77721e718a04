//! Readiness: one thread waits for many objects.
//!
//! A [`Poller`] has registrations of [sources](Source): sockets, channels, events,
//! notifications. It has timers of its own. [`Poller::wait`] returns what is ready. An event loop
//! ported from `epoll` or `mio` keeps its shape; new programs have threads and futures,
//! which are simpler.
//!
//! # How it works
//! A registration links a watcher into its source (the module `verbs::watch`). A change of the
//! source, under the source's lock, puts the registration on the poller's ready list and wakes one
//! waiting thread; nothing allocates. It is on the list at most once. A waiting thread takes
//! registrations off the list, reads the state of their sources, and reports those that are ready
//! for what was asked.
//!
//! So the edge is the primitive, and no event is stale: what another thread has used up meanwhile
//! is not reported. A registration by [`Level`](Mode::Level) goes back on the list when it was
//! reported, and the next `wait` reads its source again.
//!
//! | step | holds |
//! |---|---|
//! | a change puts a registration on the list, or a close on the list of those gone | source's lock, then the poller's |
//! | `wait` takes registrations off | the poller's |
//! | `wait` reads a source's state | the source's |
//! | `register`, `modify`, `deregister` link and unlink watchers | the registry's mutex, then the source's |
//!
//! No source is locked with the poller's lock held.
//!
//! # Several waiting threads
//! A change wakes one of them, and each change is reported by one. A source that changes again
//! while a thread handles its event is reported again, maybe to another thread; [`Mode::OneShot`]
//! prevents that. A source by [`Mode::Level`] that stays ready without a change wakes none of them,
//! and is reported to the next thread that calls [`Poller::wait`]. One of the waiting threads
//! watches the timers, and hands that over when it leaves.
//!
//! # Closing
//! The last handle of a source may be dropped while it is registered: the registration ends, and
//! its events with it. An [`Event`](crate::sync::Event) or
//! [`Notify`](crate::sync::Notify) is kept by its registration.
//!
//! # epoll
//! | epoll | here |
//! |---|---|
//! | `epoll_ctl` ADD, MOD, DEL; `EEXIST`, `ENOENT` | `register`, `modify`, `deregister`; `AlreadyExists`, `NotFound` |
//! | level; `EPOLLET`; `EPOLLONESHOT` | [`Mode`] |
//! | `EPOLLIN`, `EPOLLOUT`, `EPOLLRDHUP`, `EPOLLERR`, `EPOLLHUP` | [`Readiness::is_readable`], `is_writable`, `is_read_closed`, `is_failed`, `is_hung_up` |
//! | `EPOLLERR` and `EPOLLHUP` without being asked for | [`Interest::HANGUP`] |
//! | `EPOLLEXCLUSIVE` | threads that share one poller get each change once; between pollers, as without the flag, each gets it |
//! | a registration belongs to the open file description | to the socket, whose clones share it |
//! | `timerfd` | [`Poller::set_timer`] |
//! | `eventfd` | [`Poller::wake`], or a registered [`Event`](crate::sync::Event) |
//!
//! # Examples
//! An echo server in one thread:
//! ```no_run
//! use std::collections::HashMap;
//! use std::io::{Read, Write};
//! use tailwater::net::TcpListener;
//! use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
//!
//! fn serve(listener: TcpListener) -> std::io::Result<()> {
//!     let (poller, mut events) = (Poller::new(), Events::with_capacity(64));
//!     let (mut streams, mut next) = (HashMap::new(), 1);
//!     listener.set_nonblocking(true)?;
//!     poller.register(&listener, Token(0), Interest::READABLE, Mode::Level)?;
//!     let mut buf = [0; 4096];
//!     loop {
//!         poller.wait(&mut events, None);
//!         for event in &events {
//!             if event.token() == Token(0) {
//!                 let (stream, _) = listener.accept()?;
//!                 stream.set_nonblocking(true)?;
//!                 poller.register(&stream, Token(next), Interest::READABLE, Mode::Level)?;
//!                 streams.insert(Token(next), stream);
//!                 next += 1;
//!             } else if let Some(stream) = streams.get_mut(&event.token()) {
//!                 // A client that does not read is dropped when the buffer is full: a real server
//!                 // keeps what is left and asks for `Interest::WRITABLE`.
//!                 let echoed = match stream.read(&mut buf) {
//!                     Ok(len @ 1..) => stream.write_all(&buf[..len]).is_ok(),
//!                     Ok(0) | Err(_) => false,
//!                 };
//!                 if !echoed {
//!                     // Dropping the stream ends its registration.
//!                     streams.remove(&event.token());
//!                 }
//!             }
//!         }
//!     }
//! }
//! ```

mod events;
mod interest;
mod poller;
mod registration;
mod source;
mod timers;

pub use crate::token::Token;
pub use events::Events;
pub use interest::{Interest, Mode, Readiness};
#[doc(hidden)]
pub use poller::Nested;
pub use poller::Poller;
pub use source::Source;

/// Returns what `source` is ready for now, with [`Token`] 0, without a poller.
///
/// # Examples
/// ```
/// use tailwater::readiness;
/// use tailwater::sync::{Arc, Event};
///
/// let event = Arc::new(Event::new());
/// assert!(!readiness::of(&event).is_readable());
/// event.set();
/// assert!(readiness::of(&event).is_readable());
/// ```
pub fn of(source: &impl Source) -> Readiness {
    Readiness { token: Token(0), ready: source.object().ready() }
}
