//! One lane: the requests that the assigner has given it, and what its mailbox shows.
//!
//! Owns the counts by which assigner and mailbox are compared, and the order to give way that the
//! mailbox carries. Which requests the lane gets is decided by the [`Assigner`](super::Assigner).
//!
//! | state | is entered | gets requests |
//! |---|---|---|
//! | idle | its thread finds nothing | no: it is called |
//! | called | a thread is on its way to the lane | no: the thread may have to wait for a core |
//! | present | that thread runs and asks | up to `depth` |
//! | kept | its request blocks and keeps it | no |

use super::super::super::table::Number;
use super::LaneMailbox;
use std::collections::VecDeque;
use std::sync::Arc;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::WorkerId;

/// Time in which a request with poll points gives way: as long as the IOKernel waits for a program.
pub(super) const OBEYS_WITHIN: Nanos = Nanos(20_000);
/// Time from one report that a request is overdue to the next: a signal takes its sender 8 us.
pub(super) const AGAIN: Nanos = Nanos(1_000_000);

/// The assigner's record of a request that is handed out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    pub(super) number: Number,
    pub(super) token: WorkerId,
    /// Its place in the order in which requests were handed out.
    pub(super) order: u64,
    /// When it came into the mailbox.
    pub(super) at: Nanos,
    /// The policy demands that it gives way.
    pub(super) stops: bool,
    /// It was to give way, and there was no room for that: it does when there is.
    pub(super) refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Called,
    Present,
    Kept,
}

pub(super) struct Lane<P, S> {
    pub(super) mailbox: Arc<LaneMailbox<P, S>>,
    pub(super) state: State,
    /// The requests at the lane: the one it runs, if it has taken any, then those in its mailbox.
    pub(super) given: VecDeque<Given>,
    /// Requests given and not taken back, modulo 2^32.
    pub(super) sent: u32,
    /// Requests that were taken and have left the lane, modulo 2^32.
    pub(super) left: u32,
    /// Reports collected, modulo 2^32.
    pub(super) collected: u32,
    /// When to ask the policy about the running request.
    pub(super) ask_at: Nanos,
    /// What its mailbox is ordered.
    pub(super) ordered: Option<Number>,
    /// From when on the request that is ordered to give way is [overdue](Self::poll_overdue).
    pub(super) overdue_at: Option<Nanos>,
    /// Gets no request until it has taken more than so many: what it had was taken back.
    pub(super) stalled: Option<u32>,
}

impl<P, S> Lane<P, S> {
    /// Returns a lane to which a thread is on its way.
    pub(super) fn new(mailbox: Arc<LaneMailbox<P, S>>, depth: usize) -> Self {
        Self {
            mailbox,
            state: State::Called,
            given: VecDeque::with_capacity(depth),
            sent: 0,
            left: 0,
            collected: 0,
            ask_at: Nanos::ZERO,
            ordered: None,
            overdue_at: None,
            stalled: None,
        }
    }

    /// Returns how many requests wait in the mailbox, at this moment.
    pub(super) fn waiting(&self) -> usize {
        self.sent.wrapping_sub(self.mailbox.progress().0) as usize
    }

    /// Returns whether the lane has taken the first of its requests.
    pub(super) fn runs(&self) -> bool {
        self.mailbox.progress().0 != self.left
    }

    /// Orders the first request to give way, if it stops.
    pub(super) fn update_order(&mut self) {
        let ordered = self.given.front().filter(|given| given.stops).map(|given| given.number);
        if ordered != self.ordered {
            self.ordered = ordered;
            self.overdue_at = None;
            self.mailbox.order(ordered);
        }
    }

    /// Returns whether the request that the lane runs was ordered to give way and has reached no
    /// poll point since. True once in [`AGAIN`].
    pub(super) fn poll_overdue(&mut self, now: Nanos) -> bool {
        if self.ordered.is_none() || !self.runs() {
            return false;
        }
        let is_overdue = now >= *self.overdue_at.get_or_insert(now + OBEYS_WITHIN);
        if is_overdue {
            self.overdue_at = Some(now + AGAIN);
        }
        is_overdue
    }
}
