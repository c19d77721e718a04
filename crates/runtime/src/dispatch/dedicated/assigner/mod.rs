//! The assignment of requests to workers: a pure state machine between the policy and the
//! mailboxes.
//!
//! Owns the [`RequestTable`], the order of what was handed out, and what is known of each lane
//! ([`lane`]): hands requests out and takes them back. When one gives way is decided in
//! [`quantum`]. Time is an argument, threads are values of any type `S`, so tests step it without
//! threads. The thread that holds the dispatcher's lock calls it.
//!
//! # Tokens
//! A lane has at most `depth` requests, the one it runs and those in its mailbox: JBSQ(k), join the
//! bounded shortest queue (R2P2, ATC'19; Concord, SOSP'23 section 3.2). To the policy each of these
//! places is a worker, here a *token*. No token belongs to a lane: a request that the policy gives
//! to a token goes to the lane with the fewest requests, and may be moved to another one before it
//! has begun. So policies know nothing of mailboxes, and every one of them can be combined with
//! them.
//!
//! | a token | the policy has it as | who acts next |
//! |---|---|---|
//! | idle | idle | the policy calls it for a request |
//! | in `called` | called, or busy with a request that ended or was preempted | it asks when a lane has room |
//! | holds a request of a lane | busy | the lane's report, or its thread under the lock |
//! | holds a request in `returned` | busy | the next lane with room gets the request |
//!
//! # What is taken back
//! Requests in a mailbox go to `returned`, in the order in which they were handed out, and from
//! there to the next lane with room, before the policy is asked for another: it has chosen them
//! already. They are taken back
//! - when the lane's request is preempted or blocks, for then another thread has to come first;
//! - when the lane's kthread has no core, or its thread lets others run first;
//! - when they have waited for [`PATIENCE`]: the request before them has no poll points, or Linux
//!   has taken the core, or it is long and the policy does not preempt;
//! - one at a time, by a lane that finds nothing else.
//!
//! # Invariants ([`Assigner::check`])
//! - Each request that is handed out has one token, and is at one lane or in `returned`.
//! - A lane has at most `depth` requests, and none while it is idle or called.
//! - `returned` is in the order of `order`.

mod lane;
mod quantum;

use super::super::table::{Blocked, Next, Number, Offer, Preempted, RequestTable};
use super::admission::Admission;
use crate::ground::words::worker_mailbox::WorkerMailbox;
use std::collections::VecDeque;
use std::sync::Arc;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{Reaction, WorkerId};

use lane::{Given, Lane, State};

/// Time after which a request is taken back from a mailbox: ten quanta, and less than the time that
/// Linux leaves a thread waiting when it has taken its core.
pub const PATIENCE: Nanos = Nanos(50_000);

/// Time for which a lane that finds nothing leaves a request to a lane that is about to take it.
const ABOUT_TO_TAKE: Nanos = Nanos(5_000);

/// A request on its way to a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Handed<P, S> {
    /// A new one.
    Start(Number, P),
    /// A preempted one, with its thread.
    Resume(Number, S),
}

/// The mailbox of a lane of this assigner.
pub type LaneMailbox<P, S> = WorkerMailbox<Handed<P, S>>;

/// See the module documentation.
pub struct Assigner<P, S> {
    pub table: RequestTable<P, S>,
    admission: Arc<Admission>,
    lanes: Box<[Lane<P, S>]>,
    /// The lane of each token's request.
    holders: Box<[Option<usize>]>,
    returned: VecDeque<(Given, Handed<P, S>)>,
    /// Tokens that have to ask, and whether each has a preempted request in hand.
    called: VecDeque<(WorkerId, bool)>,
    in_hand: usize,
    lanes_called: usize,
    order: u64,
    /// `None` under a policy without quanta.
    quantum: Option<Nanos>,
    depth: usize,
    /// Lanes that were called, for which the caller makes a thread runnable.
    calls: Vec<usize>,
}

impl<P, S> Assigner<P, S> {
    /// Returns an assigner for lanes that are all on their way. `table` is for `depth` workers
    /// each; requests are submitted once `admission` has admitted them.
    pub fn new(
        table: RequestTable<P, S>,
        mailboxes: &[Arc<LaneMailbox<P, S>>],
        depth: usize,
        quantum: Option<Nanos>,
        admission: &Arc<Admission>,
    ) -> Self {
        let (lanes, tokens) = (mailboxes.len(), mailboxes.len() * depth);
        Self {
            table,
            admission: Arc::clone(admission),
            lanes: mailboxes.iter().map(|mailbox| Lane::new(Arc::clone(mailbox), depth)).collect(),
            holders: vec![None; tokens].into(),
            returned: VecDeque::with_capacity(tokens),
            // Each worker of the policy asks once.
            called: (0..tokens as u32).map(|token| (WorkerId(token), false)).collect(),
            in_hand: 0,
            lanes_called: lanes,
            order: 0,
            quantum,
            depth,
            calls: Vec::with_capacity(lanes),
        }
    }

    /// Queues a request that was admitted. The caller [pumps](Self::pump) afterwards.
    ///
    /// # Errors
    /// The payload, if as many wait as are allowed.
    pub fn submit(&mut self, now: Nanos, offer: Offer, payload: P) -> Result<(), P> {
        let reaction = self.table.submit(now, offer, payload)?;
        self.react(reaction);
        Ok(())
    }

    /// Collects the reports of all lanes, and takes back the requests that wait at lanes that rest.
    /// The caller pumps afterwards.
    pub fn collect(&mut self) {
        for lane in 0..self.lanes.len() {
            self.collect_from(lane);
            if self.lanes[lane].mailbox.is_resting() {
                self.take_back(lane);
            }
        }
    }

    fn collect_from(&mut self, index: usize) {
        while let Some(report) = self.lanes[index].mailbox.collect(self.lanes[index].collected) {
            self.lanes[index].collected = self.lanes[index].collected.wrapping_add(1);
            let given = self.leaves(index, report.number);
            self.table.begin(given.number, Nanos(report.began));
            let token = self.table.finish(given.number, Nanos(report.ended), report.panicked);
            debug_assert_eq!(token, Some(given.token));
            self.called.push_back((given.token, false));
        }
    }

    /// Takes the running request, which is `number`, from its lane.
    fn leaves(&mut self, index: usize, number: Number) -> Given {
        let lane = &mut self.lanes[index];
        let given = lane.given.pop_front().expect("a lane runs what it was given");
        assert_eq!(given.number, number, "a lane runs requests in the order in which it got them");
        lane.left = lane.left.wrapping_add(1);
        lane.ask_at = Nanos::ZERO;
        lane.update_order();
        self.holders[given.token.index()] = None;
        given
    }

    /// Hands out requests: first to lanes without one. Then it calls one lane for each request that
    /// is left, and puts the rest behind requests that run.
    pub fn pump(&mut self, now: Nanos) {
        if self.table.waiting() == 0 && self.in_hand == 0 {
            // There is nothing for them: so the policy learns that they idle.
            while let Some((token, _)) = self.called.pop_front() {
                let (next, reaction) = self.table.assign(token, now);
                debug_assert!(matches!(next, Next::Idle));
                self.react(reaction);
            }
        }
        while let Some(lane) = self.shortest(0) {
            if !self.fill(lane, now) {
                break;
            }
        }
        while self.is_short() {
            let Some(lane) = self.lanes.iter().position(|lane| lane.state == State::Idle) else { break };
            self.lanes[lane].state = State::Called;
            self.lanes_called += 1;
            self.calls.push(lane);
        }
        while self.is_short() {
            let Some(lane) = self.shortest(self.depth - 1) else { break };
            if !self.fill(lane, now) {
                break;
            }
        }
    }

    /// Returns whether there are more requests than lanes on their way to them.
    pub fn is_short(&self) -> bool {
        let wanted = self.called.len().min(self.table.waiting() + self.in_hand) + self.returned.len();
        wanted > self.lanes_called
    }

    /// Returns how many requests wait for a lane that takes them: in the policy, or taken back from
    /// mailboxes.
    pub fn waiting(&self) -> usize {
        self.table.waiting() + self.returned.len()
    }

    /// Returns whether there is something for the dispatcher's thread to watch: requests wait, if
    /// only for the lanes that have them in their mailboxes.
    pub fn needs_watching(&self) -> bool {
        self.is_short() || self.waiting() > 0 || self.lanes.iter().any(|lane| lane.waiting() > 0)
    }

    /// Returns true if no request waits or runs, except on threads that have blocked.
    pub fn is_empty(&self) -> bool {
        let has_work = |lane: &Lane<P, S>| match lane.state {
            State::Idle | State::Kept => false,
            State::Called => true,
            State::Present => !lane.given.is_empty(),
        };
        let waits = self.waiting() > 0 || self.in_hand > 0;
        !waits && !self.lanes.iter().any(has_work)
    }

    /// Returns the next lane for which a thread is to be made runnable.
    pub fn next_call(&mut self) -> Option<usize> {
        self.calls.pop()
    }

    /// Returns the lane with the fewest requests, at most `most`, that may be given one.
    fn shortest(&self, most: usize) -> Option<usize> {
        let mut found: Option<(usize, usize)> = None;
        for (index, lane) in self.lanes.iter().enumerate() {
            let len = lane.given.len();
            if lane.state != State::Present || len > most || found.is_some_and(|(_, least)| least <= len) {
                continue;
            }
            if !lane.mailbox.is_resting() && lane.stalled != Some(lane.mailbox.progress().0) {
                found = Some((index, len));
            }
        }
        found.map(|(index, _)| index)
    }

    /// Gives a lane its next request; false if there is none.
    fn fill(&mut self, lane: usize, now: Nanos) -> bool {
        if let Some((given, handed)) = self.returned.pop_front() {
            self.send(lane, given, handed, now);
            return true;
        }
        while let Some((token, has_one)) = self.called.pop_front() {
            self.in_hand -= usize::from(has_one);
            let (next, reaction) = self.table.assign(token, now);
            self.react(reaction);
            let (number, handed) = match next {
                Next::Start(number, payload) => {
                    // Before a worker has it, which may begin it at once.
                    self.admission.take_out();
                    (number, Handed::Start(number, payload))
                }
                Next::Resume(number, thread) => (number, Handed::Resume(number, thread)),
                Next::Idle => continue,
            };
            self.order += 1;
            let given = Given { number, token, order: self.order, at: now, stops: false, refused: false };
            self.send(lane, given, handed, now);
            return true;
        }
        false
    }

    fn send(&mut self, index: usize, given: Given, handed: Handed<P, S>, now: Nanos) {
        let lane = &mut self.lanes[index];
        debug_assert!(lane.given.len() < self.depth);
        if lane.mailbox.give(lane.sent, handed).is_err() {
            unreachable!("a lane has fewer requests than places");
        }
        lane.sent = lane.sent.wrapping_add(1);
        lane.given.push_back(Given { at: now, ..given });
        lane.ask_at = Nanos::ZERO;
        lane.update_order();
        self.holders[given.token.index()] = Some(index);
        // What runs there keeps one more waiting.
        self.watch_quantum(index, now);
    }

    /// Does what the policy demands.
    fn react(&mut self, reaction: Reaction) {
        match reaction {
            Reaction::Queue => {}
            Reaction::Run(token) => self.called.push_back((token, false)),
            Reaction::Preempt(token) => {
                let is_it = |given: &&mut Given| given.token == token;
                let given = match self.holders[token.index()] {
                    Some(lane) => self.lanes[lane].given.iter_mut().find(is_it),
                    None => self.returned.iter_mut().map(|(given, _)| given).find(is_it),
                };
                let Some(given) = given else { return };
                given.stops = true;
                if let Some(lane) = self.holders[token.index()] {
                    self.lanes[lane].update_order();
                }
            }
        }
    }

    /// A thread asks for `lane`, which has nothing: one that is on its way to it, or that has
    /// finished its last request. Returns whether there is one in its mailbox; if not, the lane
    /// idles.
    pub fn ask(&mut self, index: usize, now: Nanos) -> bool {
        self.collect();
        let lane = &mut self.lanes[index];
        match lane.state {
            State::Called => {
                self.lanes_called -= 1;
                lane.state = State::Present;
            }
            State::Present => {}
            State::Idle | State::Kept => unreachable!("no thread has the lane, or its request has blocked"),
        }
        lane.stalled = None;
        if lane.given.is_empty() && !self.fill(index, now) && !self.take_from_another(index, now) {
            self.lanes[index].state = State::Idle;
        }
        self.pump(now);
        self.lanes[index].state == State::Present
    }

    /// Moves a request to `lane` that waits behind another, at the lane with the most of those that
    /// do not take theirs at this moment.
    fn take_from_another(&mut self, index: usize, now: Nanos) -> bool {
        let waits = |lane: &Lane<P, S>| {
            let last = lane.given.back()?;
            let waiting = lane.waiting();
            let may = waiting > 0 && (lane.runs() || now.since(last.at) >= ABOUT_TO_TAKE);
            may.then_some(waiting)
        };
        // None is tried again, whatever lanes take meanwhile: the pairs only decrease.
        let mut tried = (usize::MAX, usize::MAX);
        loop {
            let others = (0..self.lanes.len()).filter(|&other| other != index);
            let waiting = others.filter_map(|other| Some((waits(&self.lanes[other])?, other)));
            let Some(most) = waiting.filter(|candidate| *candidate < tried).max() else { return false };
            if let Some((given, handed)) = self.take_back_one(most.1) {
                self.send(index, given, handed, now);
                return true;
            }
            tried = most;
        }
    }

    /// Takes the newest request back from a mailbox, if the lane has not taken it.
    fn take_back_one(&mut self, index: usize) -> Option<(Given, Handed<P, S>)> {
        let lane = &mut self.lanes[index];
        if lane.given.is_empty() {
            return None;
        }
        let handed = lane.mailbox.take_back(lane.sent.wrapping_sub(1))?;
        lane.sent = lane.sent.wrapping_sub(1);
        let given = lane.given.pop_back()?;
        lane.update_order();
        self.holders[given.token.index()] = None;
        Some((given, handed))
    }

    /// Takes all requests back from a mailbox.
    fn take_back(&mut self, lane: usize) {
        while let Some((given, handed)) = self.take_back_one(lane) {
            let at = self.returned.partition_point(|(other, _)| other.order < given.order);
            self.returned.insert(at, (given, handed));
        }
    }

    /// The request that `lane` runs gave way. Its thread is kept, and another one is on its way to
    /// the lane afterwards.
    ///
    /// # Errors
    /// The thread, if as many are preempted as are allowed: it runs on.
    pub fn preempt(&mut self, lane: usize, number: Number, now: Nanos, thread: S) -> Result<(), S> {
        self.begin_running(lane, number);
        match self.table.preempt(number, now, thread) {
            Ok(Preempted::Free(token)) => {
                let given = self.leaves(lane, number);
                debug_assert_eq!(given.token, token);
                self.called.push_back((token, true));
                self.in_hand += 1;
                self.leave(lane);
                self.pump(now);
                Ok(())
            }
            Ok(Preempted::Queued(_)) => unreachable!("a request at a lane has a token"),
            Err(thread) => {
                self.run_on(lane, now);
                Err(thread)
            }
        }
    }

    /// A request without a lane gave way. The caller pumps afterwards.
    ///
    /// # Errors
    /// As [`RequestTable::preempt`].
    pub fn preempt_detached(&mut self, number: Number, now: Nanos, thread: S) -> Result<(), S> {
        match self.table.preempt(number, now, thread)? {
            Preempted::Queued(reaction) => self.react(reaction),
            Preempted::Free(_) => unreachable!("a request without a lane has no token"),
        }
        Ok(())
    }

    /// The request that `lane` runs has blocked. If it `leaves` the lane, another thread is on its
    /// way to that afterwards; else returns the threads that run on as any others, with the numbers
    /// of their requests where they are new.
    pub fn block(
        &mut self,
        lane: usize,
        number: Number,
        now: Nanos,
        leaves: bool,
    ) -> Vec<(S, Option<Number>)> {
        self.begin_running(lane, number);
        if leaves {
            let left = self.table.block(number, now, true);
            debug_assert!(matches!(left, Blocked::Left(_)));
            let given = self.leaves(lane, number);
            self.called.push_back((given.token, false));
            self.leave(lane);
            self.pump(now);
            return Vec::new();
        }
        // Before suspended requests are released: it may be for one of these that it waits.
        self.take_back(lane);
        for at in 0..self.called.len() {
            if core::mem::take(&mut self.called[at].1) {
                self.in_hand -= 1;
                let reaction = self.table.empty_hand(self.called[at].0, now);
                self.react(reaction);
            }
        }
        self.lanes[lane].state = State::Kept;
        let Blocked::Kept(suspended) = self.table.block(number, now, false) else {
            unreachable!("it keeps its lane");
        };
        let mut released: Vec<_> = suspended.into_iter().map(|thread| (thread, None)).collect();
        let waiting = core::mem::take(&mut self.returned);
        for (given, handed) in waiting {
            match handed {
                Handed::Start(..) => self.returned.push_back((given, handed)),
                Handed::Resume(number, thread) => {
                    self.table.release_assigned(number, now);
                    self.called.push_back((given.token, false));
                    released.push((thread, Some(number)));
                }
            }
        }
        self.pump(now);
        released
    }

    /// The request that keeps `lane` runs again.
    pub fn unblock(&mut self, lane: usize, number: Number, now: Nanos) {
        self.table.unblock(number, now);
        if self.lanes[lane].state == State::Kept {
            self.lanes[lane].state = State::Present;
        }
        self.pump(now);
    }

    /// The request that `lane` runs gave its core up and keeps the lane: what waits behind it goes
    /// to others.
    pub fn rest(&mut self, lane: usize, now: Nanos) {
        self.take_back(lane);
        self.pump(now);
    }

    /// Looks at what lanes run and what waits there: has requests give way whose quantum is over,
    /// and takes back what has waited too long, or where `has_no_core` says so. The caller pumps
    /// afterwards.
    pub fn watch(&mut self, now: Nanos, has_no_core: impl Fn(usize) -> bool) {
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            if lane.state != State::Present || lane.given.is_empty() {
                continue;
            }
            self.order_again(index);
            self.watch_quantum(index, now);
            let lane = &self.lanes[index];
            let Some(last) = lane.given.back().filter(|_| lane.waiting() > 0) else { continue };
            if now.since(last.at) >= PATIENCE || has_no_core(index) {
                let taken = lane.mailbox.progress().0;
                self.take_back(index);
                self.lanes[index].stalled = Some(taken);
            }
        }
    }

    /// Returns a lane whose request was ordered to give way and reaches no poll point: its kthread
    /// is to be interrupted.
    pub fn poll_overdue(&mut self, now: Nanos) -> Option<usize> {
        self.lanes.iter_mut().position(|lane| lane.state == State::Present && lane.poll_overdue(now))
    }

    /// Records when the request that `lane` runs began.
    fn begin_running(&mut self, lane: usize, number: Number) {
        self.collect_from(lane);
        let began = self.lanes[lane].mailbox.progress().1;
        self.table.begin(number, Nanos(began));
    }

    /// Leaves `lane` to a thread that is on its way.
    fn leave(&mut self, lane: usize) {
        self.take_back(lane);
        self.lanes[lane].state = State::Called;
        self.lanes_called += 1;
    }

    /// Returns how many requests wait in the mailbox of a lane.
    #[cfg(test)]
    pub fn waiting_at(&self, lane: usize) -> usize {
        self.lanes[lane].waiting()
    }

    /// Verifies the invariants.
    #[cfg(test)]
    pub fn check(&self) {
        self.table.check();
        let mut held = vec![None; self.holders.len()];
        for (index, lane) in self.lanes.iter().enumerate() {
            assert!(lane.given.len() <= self.depth, "lane {index} has {} requests", lane.given.len());
            assert!(matches!(lane.state, State::Present | State::Kept) || lane.given.is_empty());
            assert_eq!(lane.sent.wrapping_sub(lane.left), lane.given.len() as u32);
            for given in &lane.given {
                assert_eq!(held[given.token.index()].replace(index), None, "a token has one request");
            }
        }
        assert_eq!(*held, *self.holders);
        assert!(self.returned.iter().is_sorted_by_key(|(given, _)| given.order));
        assert!(self.returned.iter().all(|(given, _)| held[given.token.index()].is_none()));
        assert!(self.called.iter().all(|(token, _)| held[token.index()].is_none()));
        assert_eq!(self.in_hand, self.called.iter().filter(|(_, has_one)| *has_one).count());
        let called = self.lanes.iter().filter(|lane| lane.state == State::Called).count();
        assert_eq!(self.lanes_called, called);
        if self.lanes.iter().all(|lane| lane.state == State::Kept) {
            let starts = |handed: &Handed<P, S>| matches!(handed, Handed::Start(..));
            let none_waits = self.in_hand == 0 && self.returned.iter().all(|(_, handed)| starts(handed));
            assert!(none_waits && self.table.suspended() == 0, "nothing resumes them");
        }
    }
}
