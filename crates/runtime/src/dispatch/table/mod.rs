//! The state of a dispatcher, with the place of each request: a pure state machine around the
//! policy.
//!
//! Owns the waiting requests, those that run or are suspended, and what the policy's workers, here
//! *lanes*, have in hand. Time is an argument; a suspended thread is a value of any type `S`. So
//! tests step it without threads.
//!
//! A request is in one state:
//!
//! | state | is entered | the policy has it | its lane |
//! |---|---|---|---|
//! | new | [`RequestTable::submit`] | waiting | none |
//! | running | [`RequestTable::next`] | handed out | the one that asked |
//! | in hand | [`RequestTable::preempt`] | handed out | the one it ran on, until that asks |
//! | suspended | the next [`RequestTable::next`] of that lane | waiting | none |
//! | detached | [`RequestTable::block`] | unknown, or listed: still waiting | none: it blocked, and runs again ([`RequestTable::unblock`]) as any thread |
//! | ended | [`RequestTable::finish`] of one that is listed | waiting | none |
//!
//! A request that blocks with its lane may wait for a suspended one, which only a lane that asks
//! resumes. So all suspended requests are *released* then: they are detached, and run as any
//! threads. The policy, which cannot forget them, has them *listed* until it names them. While a
//! lane is kept no request without a lane is suspended: all lanes may be kept.
//!
//! # Places
//! What the policy has as a request is a place in its order. While as many requests of a class are
//! preempted as its share allows, no further one begins: if the policy names a new one, a suspended
//! one of the class runs in its place, and the new one waits in the place of that. So preemption
//! goes on however many long requests arrive, and each has its stack only when others of its class
//! have ended.
//!
//! A preempted request stays in the hand of its lane until that asks again: requests that arrive in
//! between are queued first, so the policy compares it with them.
//!
//! # Invariants ([`RequestTable::check`])
//! - A lane has at most one request, which knows it.
//! - At most `queue` requests are new, and at most `blocked` are detached because they blocked.
//! - Of each class at most its share of `preempted`, and one for each lane (each worker, with
//!   [`RequestTable::for_workers`]), are suspended, in hand or released; beyond them one for each
//!   lane, if [`RequestTable::release_assigned`] is used.
//! - `suspended` has the numbers of the suspended requests of each share, each at the index that
//!   its entry knows.
//! - While all lanes are kept by requests that have blocked, no request is suspended.

use super::settings::Settings;
use super::shares::{Shares, divide};
use super::stats::ClassStats;
use std::io;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{
    ClassId, Dispatch, FlowHash, QuantumDecision, Reaction, Request, RequestId, WorkerId,
};

/// Number of a request while it is in the system.
pub type Number = u32;

/// What a lane runs next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<P, S> {
    /// A new request.
    Start(Number, P),
    /// A preempted one, which has this number from now on.
    Resume(Number, S),
    /// Nothing: the lane idles until a reaction names it.
    Idle,
}

/// What follows from a preemption.
#[derive(Debug, PartialEq, Eq)]
pub enum Preempted {
    /// This lane has to ask.
    Free(WorkerId),
    /// The request had no lane and waits again.
    Queued(Reaction),
}

/// What follows from a request that blocks.
#[derive(Debug, PartialEq, Eq)]
pub enum Blocked<S> {
    /// It had no lane.
    Detached,
    /// It left this lane, which has to ask.
    Left(WorkerId),
    /// It keeps its lane. These were suspended, and run from now on.
    Kept(Vec<S>),
}

/// A request that the caller offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Index of its class; those beyond the last are the last.
    pub class: usize,
    /// Its flow.
    pub flow: FlowHash,
    /// The work it asks for; zero: unknown.
    pub work_ns: Nanos,
    /// When it arrived, not after it is offered.
    pub arrived: Nanos,
}

#[derive(Debug)]
enum State<P, S> {
    New(P),
    Running,
    InHand(S),
    Suspended {
        thread: S,
        /// Its index in the list of its share.
        at: u32,
    },
    Detached {
        /// It has not blocked since `since`.
        runs: bool,
        /// It was released, and holds the place of a preempted request.
        released: bool,
        /// The policy has it as waiting.
        listed: bool,
    },
    Ended,
}

#[derive(Debug)]
struct Entry<P, S> {
    request: Request,
    state: State<P, S>,
    lane: Option<WorkerId>,
    /// It has blocked with its lane.
    keeps_lane: bool,
    /// It has run.
    has_begun: bool,
    /// Start of the present run.
    since: Nanos,
    /// Time of the runs before.
    ran: Nanos,
}

/// See the module documentation.
pub struct RequestTable<P, S> {
    policy: Box<dyn Dispatch + Send>,
    entries: Vec<Option<Entry<P, S>>>,
    free: Vec<Number>,
    /// The request of each lane.
    lanes: Box<[Option<Number>]>,
    classes: Vec<ClassStats>,
    new: usize,
    new_max: usize,
    preempted: Shares,
    /// The suspended requests of each share, in any order.
    suspended: Box<[Vec<Number>]>,
    /// Requests that are detached because they blocked.
    detached: usize,
    detached_max: usize,
    /// Number of lanes whose requests have blocked with them.
    kept: usize,
}

impl<P, S> core::fmt::Debug for RequestTable<P, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RequestTable")
            .field("policy", &self.policy.name())
            .field("new", &self.new)
            .field("preempted", &self.preempted)
            .field("detached", &self.detached)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

impl<P, S> RequestTable<P, S> {
    /// Creates an empty table for `lanes` lanes, which all have to ask once.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for so many requests.
    pub fn new(settings: &Settings, lanes: usize) -> io::Result<Self> {
        Self::with_shares(settings, lanes, |places, classes| Shares::new(places, classes, lanes))
    }

    /// Creates an empty table for workers that have up to `depth` requests each: the table's lanes
    /// are the places for these. Each worker may add one preempted request to the share of a class.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_workers(settings: &Settings, workers: usize, depth: usize) -> io::Result<Self> {
        let lanes = workers * depth;
        let shares = |places, classes| Shares::new(places, classes, workers).with_retaken(lanes);
        Self::with_shares(settings, lanes, shares)
    }

    fn with_shares(
        settings: &Settings,
        lanes: usize,
        shares: impl Fn(usize, usize) -> Shares,
    ) -> io::Result<Self> {
        let policy = settings.build(lanes)?;
        // Now: a vector that grows is copied under the dispatcher's lock. Pages are used when
        // requests are.
        let (mut entries, mut free) = (Vec::new(), Vec::new());
        let classes = settings.classes.len();
        let preempted = shares(settings.preempted, classes);
        let most = settings.queue + preempted.most() + settings.blocked + lanes;
        entries.try_reserve_exact(most)?;
        free.try_reserve_exact(most)?;
        let mut suspended = Vec::new();
        let shares = divide(settings.preempted, classes).0;
        for _ in 0..shares {
            let mut of_share = Vec::new();
            of_share.try_reserve_exact(preempted.most() / shares)?;
            suspended.push(of_share);
        }
        let stats = |class: &super::RequestClass| ClassStats::new(class.name.clone(), class.slo);
        Ok(Self {
            policy,
            entries,
            free,
            lanes: vec![None; lanes].into(),
            classes: settings.classes.iter().map(stats).collect(),
            new: 0,
            new_max: settings.queue,
            preempted,
            suspended: suspended.into(),
            detached: 0,
            detached_max: settings.blocked,
            kept: 0,
        })
    }

    /// Returns the counters of each class.
    pub fn stats(&self) -> &[ClassStats] {
        &self.classes
    }

    /// Returns the number of requests that wait for a lane.
    pub fn waiting(&self) -> usize {
        self.policy.queued()
    }

    /// Returns whether this request may be preempted: it was released, and holds a place, or fewer
    /// of its class are than are allowed.
    pub fn may_preempt(&self, number: Number) -> bool {
        let entry = self.entries[number as usize].as_ref();
        entry.is_some_and(|entry| entry.is_released() || self.preempted.has_room(entry.request.class))
    }

    /// Returns whether a request that blocks now leaves a lane: it has one, and fewer have left
    /// theirs than are allowed.
    pub fn may_leave_lane(&self, number: Number) -> bool {
        let entry = self.entries[number as usize].as_ref();
        self.detached < self.detached_max && entry.is_some_and(|entry| entry.lane.is_some())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The payload, if as many wait as are allowed.
    pub fn submit(&mut self, now: Nanos, offer: Offer, payload: P) -> Result<Reaction, P> {
        let class = self.known(offer.class);
        if self.new >= self.new_max {
            self.classes[class].dropped += 1;
            return Err(payload);
        }
        self.classes[class].accepted += 1;
        self.new += 1;
        let number = self.free.pop().unwrap_or(self.entries.len() as Number);
        let request = Request {
            id: RequestId(number.into()),
            arrived_ns: offer.arrived,
            remaining_ns: offer.work_ns,
            flow: offer.flow,
            class: ClassId(class as u16),
        };
        let state = State::New(payload);
        let (since, ran) = (now, Nanos::ZERO);
        let entry = Entry { request, state, lane: None, keeps_lane: false, has_begun: false, since, ran };
        match self.entries.get_mut(number as usize) {
            Some(place) => *place = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        Ok(self.policy.on_arrival(now, request))
    }

    /// Returns the index of a class; those beyond the last are the last.
    fn known(&self, class: usize) -> usize {
        class.min(self.classes.len() - 1)
    }

    /// Counts a request of `class` as dropped that is not offered.
    pub fn drop_unsubmitted(&mut self, class: usize) {
        let class = self.known(class);
        self.classes[class].dropped += 1;
    }

    /// Chooses what `lane` runs next, and returns what the policy demands of another lane. If the
    /// lane's last request neither finished nor was preempted, it has blocked: see
    /// [`block`](Self::block).
    pub fn next(&mut self, lane: WorkerId, now: Nanos) -> (Next<P, S>, Reaction) {
        let (next, reaction) = self.assign(lane, now);
        if let Next::Start(number, _) | Next::Resume(number, _) = next {
            self.begin(number, now);
        }
        (next, reaction)
    }

    /// As [`next`](Self::next), for a request that may begin later: see [`begin`](Self::begin).
    pub fn assign(&mut self, lane: WorkerId, now: Nanos) -> (Next<P, S>, Reaction) {
        let reaction = self.empty_hand(lane, now);
        let number = loop {
            let Some(assignment) = self.policy.next_for(lane, now) else { return (Next::Idle, reaction) };
            let number = assignment.request.id.0 as Number;
            if !self.unlist(number) {
                break number;
            }
            self.policy.on_done(lane, now);
        };
        self.prefer_suspended(number);
        self.lanes[lane.index()] = Some(number);
        let entry = self.entries[number as usize].as_mut().expect("the policy names queued requests");
        entry.lane = Some(lane);
        entry.since = now;
        let next = match core::mem::replace(&mut entry.state, State::Running) {
            State::New(payload) => {
                self.new -= 1;
                Next::Start(number, payload)
            }
            State::Suspended { thread, at } => {
                let class = entry.request.class;
                self.preempted.give_back(class);
                self.unsuspend(class, at);
                Next::Resume(number, thread)
            }
            State::Running | State::InHand(_) | State::Detached { .. } | State::Ended => {
                unreachable!("the policy names queued requests")
            }
        };
        (next, reaction)
    }

    /// Records when a request that was [assigned](Self::assign) began to run, once before it ends,
    /// is preempted or blocks.
    pub fn begin(&mut self, number: Number, at: Nanos) {
        let entry = self.entry(number);
        entry.since = at;
        if core::mem::replace(&mut entry.has_begun, true) {
            return;
        }
        let (class, delay) = (entry.request.class.index(), at.since(entry.request.arrived_ns));
        self.classes[class].queue_delay.add(delay.0);
    }

    /// Releases a preempted request that was assigned to a lane and has not begun to run again: its
    /// thread runs on without a lane. Returns the lane, which has to ask.
    pub fn release_assigned(&mut self, number: Number, now: Nanos) -> Option<WorkerId> {
        let entry = self.entry(number);
        entry.since = now;
        let class = entry.request.class;
        let lane = self.leave_lane(number, now);
        self.preempted.retake(class);
        self.entry(number).state = State::Detached { runs: true, released: true, listed: false };
        lane
    }

    /// Records that a request which the policy has chosen is no longer in its list; returns true if
    /// the request was only listed.
    fn unlist(&mut self, number: Number) -> bool {
        match &mut self.entry(number).state {
            State::Detached { listed, .. } => *listed = false,
            State::Ended => self.forget(number),
            _ => return false,
        }
        true
    }

    /// If this request is new, and as many of its class are preempted as are allowed, exchanges it
    /// with one of them: that has the number afterwards.
    fn prefer_suspended(&mut self, number: Number) {
        let entry = self.entries[number as usize].as_ref().expect("the policy names queued requests");
        let class = entry.request.class;
        if !matches!(entry.state, State::New(_)) || !self.preempted.is_full(class) {
            return;
        }
        let Some(&other) = self.suspended[self.preempted.of(class)].last() else { return };
        // Classes that are too many for shares of their own have one list.
        if self.entry(other).request.class != class {
            return;
        }
        self.entries.swap(number as usize, other as usize);
        for number in [number, other] {
            self.entry(number).request.id = RequestId(number.into());
        }
        // It is the last of the list, which `next` takes it from.
        *self.suspended[self.preempted.of(class)].last_mut().expect("it was there") = number;
    }

    /// Makes a request suspended, which holds the place of a preempted one.
    fn suspend(&mut self, number: Number, thread: S) {
        let class = self.entry(number).request.class;
        let share = self.preempted.of(class);
        let at = self.suspended[share].len() as u32;
        self.suspended[share].push(number);
        self.entry(number).state = State::Suspended { thread, at };
    }

    /// Takes from its list the suspended request at this index, whose state has changed.
    fn unsuspend(&mut self, class: ClassId, at: u32) {
        let list = &mut self.suspended[self.preempted.of(class)];
        list.swap_remove(at as usize);
        if let Some(&moved) = list.get(at as usize)
            && let State::Suspended { at: index, .. } = &mut self.entry(moved).state
        {
            *index = at;
        }
    }

    fn forget(&mut self, number: Number) {
        self.entries[number as usize] = None;
        self.free.push(number);
    }

    /// Gives the policy back what `lane` has in hand; [`next`](Self::next) does so first.
    pub fn empty_hand(&mut self, lane: WorkerId, now: Nanos) -> Reaction {
        let Some(number) = self.lanes[lane.index()].take() else { return Reaction::Queue };
        let entry = self.entry(number);
        match core::mem::replace(&mut entry.state, State::Running) {
            State::InHand(thread) => {
                entry.lane = None;
                let request = entry.request;
                self.suspend(number, thread);
                self.policy.on_preempt(lane, now, request)
            }
            _ => unreachable!("a lane that asks has nothing, or a preempted request"),
        }
    }

    /// Records that a request ended; returns the lane that is free now.
    pub fn finish(&mut self, number: Number, now: Nanos, panicked: bool) -> Option<WorkerId> {
        let lane = self.leave_lane(number, now);
        let entry = self.entry(number);
        let (was_detached, is_listed) = (entry.end_detached_run(now), entry.is_listed());
        let (request, ran, released) = (entry.request, entry.ran, entry.is_released());
        if is_listed {
            entry.state = State::Ended;
        } else {
            self.forget(number);
        }
        if released {
            self.preempted.give_back(request.class);
        } else {
            self.detached -= usize::from(was_detached);
        }
        let class = &mut self.classes[request.class.index()];
        let latency = now.since(request.arrived_ns);
        class.finished += 1;
        class.panicked += u64::from(panicked);
        class.late += u64::from(u128::from(latency.0) > class.slo.as_nanos());
        class.service.add(ran.0);
        class.latency.add(latency.0);
        lane
    }

    /// Records that a request gave its core up, with the suspended thread.
    ///
    /// # Errors
    /// The thread, if it [may not be preempted](Self::may_preempt), or if it has no lane and might
    /// never get one.
    pub fn preempt(&mut self, number: Number, now: Nanos, thread: S) -> Result<Preempted, S> {
        let (is_full, lanes_are_kept) = (!self.may_preempt(number), self.kept > 0);
        let entry = self.entry(number);
        if is_full || entry.lane.is_none() && (lanes_are_kept || entry.is_listed()) {
            return Err(thread);
        }
        let (lane, request, released) = (entry.lane, entry.request, entry.is_released());
        if !released {
            self.preempted.take(request.class);
        }
        self.classes[request.class.index()].preemptions += 1;
        match lane {
            Some(lane) => {
                let entry = self.entry(number);
                entry.stop(now);
                entry.state = State::InHand(thread);
                Ok(Preempted::Free(lane))
            }
            None => {
                self.entry(number).end_detached_run(now);
                let request = self.entry(number).request;
                self.detached -= usize::from(!released);
                self.suspend(number, thread);
                Ok(Preempted::Queued(self.policy.on_arrival(now, request)))
            }
        }
    }

    /// Records that a request blocked. If it `leaves` its lane, as
    /// [`may_leave_lane`](Self::may_leave_lane) said, it goes on as any thread until it is
    /// preempted or ends; else it keeps the lane, if it has one.
    pub fn block(&mut self, number: Number, now: Nanos, leaves: bool) -> Blocked<S> {
        let entry = self.entry(number);
        if entry.end_detached_run(now) {
            return Blocked::Detached;
        }
        if !leaves {
            entry.keeps_lane = true;
            let class = entry.request.class.index();
            self.classes[class].held += 1;
            self.kept += 1;
            return Blocked::Kept(self.release_suspended(now));
        }
        entry.state = State::Detached { runs: false, released: false, listed: false };
        self.detached += 1;
        self.leave_lane(number, now).map_or(Blocked::Detached, Blocked::Left)
    }

    /// Returns the threads of all suspended requests, which run on without lanes.
    fn release_suspended(&mut self, now: Nanos) -> Vec<S> {
        let mut threads = Vec::with_capacity(self.suspended.iter().map(Vec::len).sum());
        while let Some(number) = self.suspended.iter_mut().find_map(Vec::pop) {
            let entry = self.entry(number);
            entry.since = now;
            let released = State::Detached { runs: true, released: true, listed: true };
            match core::mem::replace(&mut entry.state, released) {
                State::Suspended { thread, .. } => threads.push(thread),
                _ => unreachable!("the list has suspended requests"),
            }
        }
        threads
    }

    /// Records that a request runs again, which had blocked.
    pub fn unblock(&mut self, number: Number, now: Nanos) {
        let entry = self.entry(number);
        if core::mem::take(&mut entry.keeps_lane) {
            self.kept -= 1;
        } else if let State::Detached { runs, .. } = &mut entry.state {
            *runs = true;
            entry.since = now;
        }
    }

    /// Returns what the policy says of a request that has used up its quantum. One without a lane
    /// gives way.
    pub fn quantum(&mut self, number: Number, now: Nanos) -> QuantumDecision {
        let entry = self.entry(number);
        let Some(lane) = entry.lane else { return QuantumDecision::Preempt };
        let request = entry.request;
        self.policy.on_quantum(lane, now, &request)
    }

    /// Ends the run of a request on its lane, which is returned.
    fn leave_lane(&mut self, number: Number, now: Nanos) -> Option<WorkerId> {
        let entry = self.entry(number);
        let lane = entry.lane.take()?;
        entry.stop(now);
        self.lanes[lane.index()] = None;
        self.policy.on_done(lane, now);
        Some(lane)
    }

    fn entry(&mut self, number: Number) -> &mut Entry<P, S> {
        self.entries[number as usize].as_mut().expect("a request that has not ended is known")
    }

    /// Returns how many requests are suspended.
    #[cfg(test)]
    pub fn suspended(&self) -> usize {
        self.suspended.iter().map(Vec::len).sum()
    }

    /// Verifies the invariants.
    #[cfg(test)]
    pub fn check(&self) {
        self.policy.check().expect("the policy is sound");
        let count =
            |is: fn(&State<P, S>) -> bool| self.entries.iter().flatten().filter(|e| is(&e.state)).count();
        assert_eq!(self.new, count(|state| matches!(state, State::New(_))));
        let suspended = count(|state| matches!(state, State::Suspended { .. }));
        assert_eq!(self.suspended.iter().map(Vec::len).sum::<usize>(), suspended);
        for (share, list) in self.suspended.iter().enumerate() {
            for (index, number) in list.iter().enumerate() {
                let entry = self.entries[*number as usize].as_ref().expect("known");
                assert!(matches!(entry.state, State::Suspended { at, .. } if at as usize == index));
                assert_eq!(self.preempted.of(entry.request.class), share);
            }
        }
        let entries = || self.entries.iter().flatten();
        let listed = entries().filter(|e| e.is_listed() || matches!(e.state, State::Ended)).count();
        assert_eq!(self.waiting(), self.new + suspended + listed);
        let released = entries().filter(|entry| entry.is_released()).count();
        let in_hand = count(|state| matches!(state, State::InHand(_)));
        assert_eq!(self.preempted.taken(), suspended + in_hand + released);
        let detached = count(|state| matches!(state, State::Detached { .. }));
        assert_eq!(self.detached, detached - released);
        assert!(self.new <= self.new_max && self.detached <= self.detached_max);
        assert_eq!(self.kept, self.entries.iter().flatten().filter(|entry| entry.keeps_lane).count());
        assert!(self.kept < self.lanes.len() || suspended == 0, "nothing resumes them");
        for (lane, number) in self.lanes.iter().enumerate() {
            let Some(number) = number else { continue };
            let entry = self.entries[*number as usize].as_ref().expect("known");
            assert_eq!(entry.lane, Some(WorkerId(lane as u32)));
        }
        assert_eq!(
            self.lanes.iter().flatten().count(),
            self.entries.iter().flatten().filter(|entry| entry.lane.is_some()).count()
        );
    }
}

impl<P, S> Entry<P, S> {
    /// Returns whether it is detached, and the policy has it as waiting.
    fn is_listed(&self) -> bool {
        matches!(self.state, State::Detached { listed: true, .. })
    }

    /// Returns whether it was released, and holds the place of a preempted request.
    fn is_released(&self) -> bool {
        matches!(self.state, State::Detached { released: true, .. })
    }

    /// Ends the present run of a detached request, if it runs; returns whether it is detached.
    fn end_detached_run(&mut self, now: Nanos) -> bool {
        let State::Detached { runs, .. } = &mut self.state else { return false };
        if core::mem::take(runs) {
            self.stop(now);
        }
        true
    }

    /// Adds the present run to those before, and takes it from the work that is left, of which at
    /// least 1 ns stays: none is unknown.
    fn stop(&mut self, now: Nanos) {
        let run = now.since(self.since);
        self.since = now;
        self.ran = self.ran + run;
        if self.request.remaining_ns != Nanos::ZERO {
            self.request.remaining_ns = Nanos(self.request.remaining_ns.since(run).0.max(1));
        }
    }
}

#[cfg(test)]
mod tests;
