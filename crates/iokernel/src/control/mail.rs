//! Messages between the control thread and the polling thread.
//!
//! Owns [`Command`] and [`Notice`], one for each direction, and the [`mailbox`]: a queue with its
//! signal. Nobody waits for room in a queue, and no message of one sender overtakes another.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | the queue | each [`Outbox`], on any thread | the thread of the [`Inbox`] |
//! | `rung` | set after a message is queued; cleared by the polling thread before it reads the queue | the polling thread while it runs: one load; the control thread never |
//! | `fd` | each outbox, after `rung`; [`silence`](Inbox::silence) before the queue is read | poll(2) or epoll(7) of the inbox's thread while it sleeps |
//!
//! Both signals follow the message, and are taken back before the queue is read: a message is found
//! now or announced again.
//!
//! # What bounds the queues
//!
//! | message | at most |
//! |---|---|
//! | `Attach`, `Begin`, `Pair`, `End`, `Attached`, `Retired` | a few for each registration, of which there are `max-runtimes` |
//! | `RequestCores` | what the [gate](super::gate) lets users ask for: each request is charged |
//! | `Capture`, `EndCapture`, `CaptureEnded` | one for each of [`MAX_CAPTURES`](crate::capture::MAX_CAPTURES) |
//! | `Trace`, `EndTrace`, `TraceEnded` | one: there is one trace at a time |
//! | `Reload` | one for each thread that calls [`Reloader::reload`](reload::Reloader::reload), which waits for the answer |
//! | the others | a change that the sender saw, once |

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tailwater_sched::RuntimeId;
use tailwater_sched::alloc::Clock as Rate;

use super::reload;
use crate::authority::Authority;
use crate::capture::Tap;
use crate::config::Config;
use crate::firewall::{Guard, Multicast};
use crate::runtime::{EndReason, Runtime};
use crate::stats::FirewallStats;
use crate::tenant::Key;
use crate::trace::Tracer;

/// A message from the control thread to the polling thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Attaches a runtime: its frames are taken from now on, and it is lent no core yet.
    Attach(Box<Runtime>),
    /// The runtime has been sent `Ready`: it may be lent cores.
    Begin(RuntimeId),
    /// Of two instances with one address, which are both attached, this one is the later.
    Pair {
        earlier: RuntimeId,
        later: RuntimeId,
    },
    End(RuntimeId, EndReason),
    /// A client requests cores for the runtime: a word of requests.
    RequestCores(RuntimeId, u64),
    /// Ends the polling thread's work: another IOKernel takes over.
    Leave,
    /// All programs of the previous IOKernel have registered.
    Reunited,
    /// Puts other firewall rules into effect.
    Rules(Box<NewRules>),
    /// Moves programs to the tenants of these keys.
    Rekey(Vec<(RuntimeId, Key)>),
    /// Starts copying frames for a watcher.
    Capture(Box<Tap>),
    /// The watcher with this number is gone.
    EndCapture(u64),
    /// Starts tracing requests.
    Trace(Box<Tracer>),
    /// The tracer with this number is gone.
    EndTrace(u64),
    /// These of the managed cores can be used at present.
    Present(Box<CpuSet>),
    /// True if the clock rates of the policy are set.
    Clocks(bool),
}

/// Firewall rules that come into effect while programs run.
#[derive(Debug)]
pub(crate) struct NewRules {
    /// The compiled rules and limits of registered programs.
    pub(crate) guards: Vec<(RuntimeId, Option<Box<Guard>>)>,
    /// Counters of the rules.
    pub(crate) stats: Arc<FirewallStats>,
    pub(crate) ethertypes: Vec<u16>,
    pub(crate) multicast: Multicast,
}

/// A message to the control thread, from the polling thread unless said otherwise.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The switch has the runtime's address.
    Attached(RuntimeId),
    /// The runtime's cores are back in the ledger, and its rings are no longer accessed.
    Retired(Box<Runtime>, EndReason),
    /// The tap's ring is no longer accessed.
    CaptureEnded(Box<Tap>),
    /// The tracer's ring is no longer accessed.
    TraceEnded(Box<Tracer>),
    /// A new configuration, from outside.
    Reload(Box<Config>, Authority, reload::Answer),
    /// The policy is at this clock rate.
    Clock(Rate),
    /// Ordinary threads are to be kept off these cores.
    Reserved(Box<CpuSet>),
    /// The polling thread ends.
    Stop,
}

/// The signal of one direction.
#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

/// The sending end of one direction; its copies send to the same inbox.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    queue: Sender<T>,
    bell: Arc<Bell>,
}

/// The receiving end of one direction.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    queue: Receiver<T>,
    bell: Arc<Bell>,
}

/// Returns both ends of one direction.
///
/// # Errors
/// If no descriptor is left.
pub(crate) fn mailbox<T>() -> Result<(Outbox<T>, Inbox<T>), Errno> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let bell = Arc::new(Bell { fd, rung: AtomicBool::new(false) });
    let (sender, receiver) = channel();
    Ok((Outbox { queue: sender, bell: Arc::clone(&bell) }, Inbox { queue: receiver, bell }))
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Outbox<T> {
    /// Sends a message. It has no effect if the receiving thread has ended: see
    /// [`offer`](Self::offer).
    pub(crate) fn send(&self, message: T) {
        let _ = self.offer(message);
    }

    /// As [`send`](Self::send); returns false if the receiving thread has ended: at the end of the
    /// IOKernel, or, for notices, after an error or panic of the control thread. The message is
    /// dropped on this thread then.
    #[must_use]
    pub(crate) fn offer(&self, message: T) -> bool {
        let is_queued = self.queue.send(message).is_ok();
        self.ring();
        is_queued
    }

    /// Wakes the receiving side.
    pub(crate) fn ring(&self) {
        // Release: pairs with the Acquire in `was_rung`: a thread that sees the flag sees what was
        // queued before.
        self.bell.rung.store(true, Ordering::Release);
        // Fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes());
    }
}

impl<T> Inbox<T> {
    /// Returns whether it was rung since the last call: one load if it was not.
    #[inline(always)]
    pub(crate) fn was_rung(&self) -> bool {
        // Relaxed: a hint. Acquire in the swap: pairs with the Release in `ring`.
        self.bell.rung.load(Ordering::Relaxed) && self.bell.rung.swap(false, Ordering::Acquire)
    }

    /// Takes the next message.
    pub(crate) fn next(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }

    /// Makes the descriptor unreadable again, after it woke the reader.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell.fd, &mut [0u8; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(inbox: &Inbox<u32>) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(inbox.fd(), PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn messages_come_in_order_and_each_signal_lasts_until_it_is_taken_back() {
        let (outbox, inbox) = mailbox().unwrap();
        assert!(!inbox.was_rung() && !is_readable(&inbox) && inbox.next().is_none());
        outbox.send(1);
        outbox.clone().send(2);
        assert!(inbox.was_rung());
        assert!(!inbox.was_rung(), "once");
        assert!(is_readable(&inbox) && is_readable(&inbox));
        inbox.silence();
        assert!(!is_readable(&inbox));
        assert_eq!([inbox.next(), inbox.next(), inbox.next()], [Some(1), Some(2), None]);
        outbox.send(3);
        assert!(inbox.was_rung() && is_readable(&inbox), "again");
        assert_eq!(inbox.next(), Some(3));
    }

    #[test]
    fn a_message_to_a_thread_that_has_ended_is_dropped_and_said_to_be() {
        let (outbox, inbox) = mailbox().unwrap();
        let message = Arc::new(());
        assert!(outbox.offer(Arc::clone(&message)));
        drop(inbox);
        assert!(!outbox.offer(Arc::clone(&message)));
        outbox.send(Arc::clone(&message));
        assert_eq!(Arc::strong_count(&message), 1, "all are dropped");
    }
}
