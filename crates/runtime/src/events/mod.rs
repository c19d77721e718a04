//! Run to completion: one loop, its sockets, and conditions in batches.
//!
//! An [`EventLoop`] has any number of TCP connections, listeners and UDP sockets.
//! [`poll`](EventLoop::poll) returns what happened to them, as a batch of [`Condition`]s; the
//! program answers with commands, which take effect at the end of the round. No connection has a
//! thread or a stack, no request costs a switch, and received data is not copied: the program reads
//! it in the buffer in which TCP put it together. The interface is that of IX (TOCS 2017, section
//! 4.3, table II) within one process.
//!
//! ```text
//!   frames of this kthread -> TCP, UDP -> changed sockets (inbox)
//!                                              |
//!   +-> visit them, at most B conditions -> batch -> program's code --+
//!   |                                                                 | send, consume, accept, ...
//!   +--- one segment for each connection <- commands of the round <---+
//! ```
//!
//! # Rounds
//! * A round takes what is there, and never waits for more: with one request in the system a batch
//!   has one condition. It has at most B ([`set_batch`](EventLoop::set_batch)), so that the first
//!   reply of a round leaves soon. A connection reports one condition in a round; what else it has
//!   to report is the next round's, behind the others'.
//! * Where nothing is left to do, the loop takes the next frames from its kthread's ring by itself.
//!   It goes through the scheduler if other threads of the kthread are runnable, if the core is
//!   asked for, or after a number of such batches of frames; and if there are no frames, it waits
//!   there, so its core is free for others. While conditions follow one another without a pause,
//!   the scheduler, and with it timers and new frames, has its turn after the round in which 50 us
//!   have passed: small batches and short handlers make that soon.
//! * Replies leave at the end of the round, a few connections' at a time. A reply acknowledges the
//!   request, and opens the window by what was consumed.
//!
//! # What is copied
//! | step | copies |
//! |---|---|
//! | from the ingress ring to the connection | one: frames are freed in the order of the ring, so one that a program held would hold all |
//! | from the connection to the program | none: its receive buffer and an empty one change places; new bytes are copied if older ones are not consumed, or if a gap in the stream lies behind them |
//! | UDP, from the socket to the program | none: its queue and an empty one change places |
//! | from the program's slices to the connection | one with [`send`](EventLoop::send): TCP keeps bytes until they are acknowledged, and the program has its memory back when it returns. None with [`send_shared`](EventLoop::send_shared), which keeps a reference |
//! | from the connection, or the shared bytes, to the egress ring | one, in place: the ring is the IOKernel's memory too |
//! | a UDP datagram to the egress ring | one; another one if it has several slices |
//!
//! IX lends the packets of arriving data themselves; the first copy is what that saves. Its
//! programs keep what they send unchanged until it is acknowledged, as shared bytes are kept.
//!
//! # Backpressure
//! Data on loan has its room in the window: a program that does not consume it stops its peer.
//! [`send`](EventLoop::send) and [`send_shared`](EventLoop::send_shared) return how many bytes were
//! taken, the loop keeps none of the others, and [`Condition::Window`] reports room.
//!
//! # Handlers that may not wait
//! [`run`](EventLoop::run) calls a handler for each condition. What waits panics there, and says
//! what to do. A program that calls [`poll`](EventLoop::poll) by itself may wait between two
//! rounds; all its sockets wait with it.
//!
//! # Several loops
//! A loop is in one thread; a program starts one for each kthread, and each
//! [listens](EventLoop::listen) with a clone of one listener. A connection stays with the loop that
//! has accepted it, whichever kthread receives its frames.
//!
//! # Examples
//! An echo server:
//! ```no_run
//! use std::io::IoSlice;
//! use std::ops::ControlFlow;
//! use tailwater::events::{CommandError, Condition, EventLoop, Handle, Token};
//! use tailwater::net::TcpListener;
//!
//! /// Sends back what there is room for; the rest stays on loan.
//! fn echo(events: &mut EventLoop, handle: Handle) -> Result<(), CommandError> {
//!     let sent = events.send(handle, &[IoSlice::new(events.data(handle)?)])?;
//!     events.consume(handle, sent)?;
//!     if events.is_eof(handle)? && events.data(handle)?.is_empty() {
//!         events.shutdown(handle)?;
//!     }
//!     Ok(())
//! }
//!
//! # fn serve() -> std::io::Result<()> {
//! let mut events = EventLoop::new();
//! events.listen(TcpListener::bind("0.0.0.0:7")?, Token(0));
//! events.run(|events, condition| {
//!     // An error is that the connection is over, which is reported.
//!     let _ = match condition {
//!         Condition::Incoming { handle, .. } => events.accept(handle, Token(1)),
//!         Condition::Received { handle, .. }
//!         | Condition::Window { handle, .. }
//!         | Condition::Eof { handle, .. } => echo(events, handle),
//!         _ => Ok(()),
//!     };
//!     ControlFlow::<()>::Continue(())
//! });
//! # Ok(())
//! # }
//! ```

mod commands;
mod condition;
mod datagrams;
mod event_loop;
mod inbox;
mod run;
mod slots;
mod stream;
mod waker;

pub use crate::token::Token;
pub use condition::{Batch, CommandError, Condition, DatagramRange, Handle};
pub use event_loop::EventLoop;
pub use waker::LoopWaker;
