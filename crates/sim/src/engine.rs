//! One machine, one service, one dispatch policy: the discrete-event loop.
//!
//! Owns virtual time, the cores and the requests they run; the policy owns the requests that wait.
//! There are three kinds of event: the next arrival, the head of the dispatcher's inbox (central
//! policies with a dispatcher cost), and one timer per core (its request ends, or its quantum
//! does). Single-threaded and deterministic: equal times are ordered core timers first (in core
//! order), then the inbox, then arrivals.
//!
//! # How costs are charged
//!
//! A core pays context switch, stealing and (once per request) packet time before a request's own
//! work begins. A preemption is paid before the core's next request. The dispatcher of a central
//! policy is one server: taking a request in, handing one out and preempting each occupy it, and a
//! core waits for its hand-out to finish, unless the request waited at the core already. Decisions
//! are made at the time of the event; a busy dispatcher delays their effect, not their information.
//!
//! # Invariants, checked after every event in debug builds
//!
//! arrived = completed + waiting + in the inbox + running; a core runs at most one request; the
//! policy's own [`Dispatch::check`].

use std::collections::VecDeque;

use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{
    Assignment, ClassId, Dispatch, Origin, QuantumDecision, Reaction, Request, RequestId, WorkerId,
};

use crate::costs::Costs;
use crate::measure::Measured;
use crate::source::{Incoming, Source};
use crate::timers::Timers;

/// Maximum number of requests that may wait before a run is declared saturated and cut short.
pub const MAX_BACKLOG: usize = 1 << 18;

/// The state of a core.
#[derive(Clone, Copy, Debug)]
enum Core {
    Idle,
    Running {
        request: Request,
        /// Time at which its own work begins, after the overheads.
        begins_ns: u64,
        /// Time at which it would end if left alone.
        ends_ns: u64,
    },
}

/// A simulated machine in the middle of a run.
pub struct Engine<'a, S> {
    policy: &'a mut dyn Dispatch,
    source: S,
    costs: &'a Costs,
    cores: Vec<Core>,
    /// Overhead a core owes before its next request.
    debt_ns: Vec<u64>,
    timers: Timers,
    now_ns: u64,
    next: Option<Incoming>,
    /// Requests the dispatcher is taking in, with the time it will be done with each.
    inbox: VecDeque<(u64, Request)>,
    dispatcher_free_ns: u64,
    central: bool,
    measured: Measured,
    warm_since_ns: u64,
    arrived: u64,
    completed: u64,
    running: usize,
}

impl<'a, S: Source> Engine<'a, S> {
    /// Creates a machine with `cores` idle cores at time 0.
    ///
    /// # Panics
    ///
    /// If `cores` is 0, above [`MAX_CORES`](crate::timers::MAX_CORES), or differs from what the
    /// policy was built for.
    pub fn new(
        policy: &'a mut dyn Dispatch,
        cores: usize,
        costs: &'a Costs,
        source: S,
        measured: Measured,
    ) -> Self {
        let central = policy.properties().central;
        Self {
            policy,
            source,
            costs,
            cores: vec![Core::Idle; cores],
            debt_ns: vec![0; cores],
            timers: Timers::new(cores),
            now_ns: 0,
            next: None,
            inbox: VecDeque::new(),
            dispatcher_free_ns: 0,
            central,
            measured,
            warm_since_ns: 0,
            arrived: 0,
            completed: 0,
            running: 0,
        }
    }

    /// Runs until the budget is used up, the source has ended and everything is served, or the
    /// backlog passes [`MAX_BACKLOG`].
    pub fn run(mut self) -> Measured {
        for core in 0..self.cores.len() {
            self.ask(core, 0);
        }
        self.next = self.source.next_request();
        while self.step() {
            if cfg!(debug_assertions) {
                self.check();
            }
        }
        self.measured.spent.elapsed_ns = self.now_ns - self.warm_since_ns;
        self.measured.spent.core_ns = self.measured.spent.elapsed_ns * self.cores.len() as u64;
        self.measured.finish();
        self.measured
    }

    /// Handles the next event; `false` when the run is over.
    #[inline]
    fn step(&mut self) -> bool {
        let core = self.timers.earliest();
        let inbox = self.inbox.front().map(|(at, _)| *at);
        let arrival = self.next.map(|r| r.at_ns);
        let core_ns = core.map_or(u64::MAX, |(at, _)| at);
        let other_ns = inbox.unwrap_or(u64::MAX).min(arrival.unwrap_or(u64::MAX));
        self.measured.spent.events += 1;
        if let Some((at, core)) = core.filter(|_| core_ns <= other_ns) {
            self.now_ns = at;
            self.handle_core(core);
            return !self.measured.complete();
        }
        if inbox.is_some_and(|at| at == other_ns) {
            let Some((at, request)) = self.inbox.pop_front() else { return false };
            self.now_ns = at;
            self.admit(request);
            return true;
        }
        match self.next {
            Some(incoming) => self.handle_arrival(incoming),
            None => false,
        }
    }

    fn handle_arrival(&mut self, incoming: Incoming) -> bool {
        self.now_ns = incoming.at_ns;
        self.arrived += 1;
        let waiting = self.policy.queued() + self.inbox.len();
        if self.measured.warm() {
            self.measured.found.record(self.running + waiting);
            self.measured.spent.max_queued = self.measured.spent.max_queued.max(waiting as u64);
        }
        if waiting >= MAX_BACKLOG {
            self.measured.saturated = true;
            return false;
        }
        let request = Request {
            // Policies never read the id, so it carries the service time to the completion.
            id: RequestId(incoming.service_ns),
            arrived_ns: Nanos(incoming.at_ns),
            remaining_ns: Nanos(incoming.service_ns),
            flow: incoming.flow,
            class: ClassId(incoming.class),
        };
        if self.central && self.costs.intake_ns > 0 {
            let ready = self.occupy_dispatcher(self.costs.intake_ns);
            self.inbox.push_back((ready, request));
        } else {
            self.admit(request);
        }
        self.next = self.source.next_request();
        true
    }

    /// Occupies the dispatcher for `ns`; returns when it is done.
    fn occupy_dispatcher(&mut self, ns: u64) -> u64 {
        self.dispatcher_free_ns = self.dispatcher_free_ns.max(self.now_ns) + ns;
        self.dispatcher_free_ns
    }

    #[inline]
    fn admit(&mut self, request: Request) {
        let reaction = self.policy.on_arrival(Nanos(self.now_ns), request);
        self.react(reaction);
    }

    #[inline]
    fn react(&mut self, mut reaction: Reaction) {
        loop {
            match reaction {
                Reaction::Queue => return,
                Reaction::Run(worker) => {
                    debug_assert!(matches!(self.cores[worker.index()], Core::Idle), "{worker:?} is busy");
                    return self.ask(worker.index(), self.costs.wake_ns);
                }
                Reaction::Preempt(worker) => reaction = self.preempt(worker.index()),
            }
        }
    }

    /// Lets a core without a request ask for one; `delay_ns` is charged before it begins.
    #[inline]
    fn ask(&mut self, core: usize, delay_ns: u64) {
        match self.policy.next_for(WorkerId(core as u32), Nanos(self.now_ns)) {
            Some(assignment) => self.start(core, &assignment, delay_ns),
            None => self.timers.clear(core),
        }
    }

    #[inline]
    fn start(&mut self, core: usize, assignment: &Assignment, delay_ns: u64) {
        let request = assignment.request;
        let mut overhead_ns = self.costs.context_switch_ns + std::mem::take(&mut self.debt_ns[core]);
        if request.remaining_ns.0 == request.id.0 {
            overhead_ns += self.costs.packet_ns;
        }
        if let Origin::Stolen(_) = assignment.origin {
            overhead_ns += self.costs.steal_ns;
            self.measured.spent.steals += u64::from(self.measured.warm());
        }
        let mut from_ns = self.now_ns + delay_ns;
        if self.central && self.costs.assign_ns > 0 {
            let handed_out_ns = self.occupy_dispatcher(self.costs.assign_ns);
            if assignment.origin != Origin::Local {
                from_ns = from_ns.max(handed_out_ns + delay_ns);
            }
        }
        if self.measured.warm() {
            self.measured.spent.overhead_ns += overhead_ns;
        }
        let begins_ns = from_ns + overhead_ns;
        let ends_ns = begins_ns + request.remaining_ns.0;
        self.cores[core] = Core::Running { request, begins_ns, ends_ns };
        self.running += 1;
        let slice_end = assignment.slice_ns.map_or(u64::MAX, |slice| begins_ns + slice.0);
        self.timers.set(core, ends_ns.min(slice_end));
    }

    #[inline]
    fn handle_core(&mut self, core: usize) {
        let Core::Running { request, begins_ns, ends_ns } = self.cores[core] else {
            unreachable!("an idle core has no timer")
        };
        if self.now_ns < ends_ns {
            return self.handle_quantum(core, request, begins_ns, ends_ns);
        }
        self.cores[core] = Core::Idle;
        self.running -= 1;
        self.completed += 1;
        let was_warm = self.measured.warm();
        self.measured.record(request.class.0, self.now_ns - request.arrived_ns.0, request.id.0);
        if was_warm {
            self.measured.spent.busy_ns += request.remaining_ns.0;
        } else if self.measured.warm() {
            self.warm_since_ns = self.now_ns;
        }
        self.policy.on_done(WorkerId(core as u32), Nanos(self.now_ns));
        self.ask(core, 0);
    }

    fn handle_quantum(&mut self, core: usize, request: Request, begins_ns: u64, ends_ns: u64) {
        let running = Request { remaining_ns: Nanos(ends_ns - self.now_ns), ..request };
        debug_assert!(self.now_ns > begins_ns);
        match self.policy.on_quantum(WorkerId(core as u32), Nanos(self.now_ns), &running) {
            QuantumDecision::Preempt => {
                let reaction = self.preempt(core);
                self.react(reaction);
            }
            QuantumDecision::Again(after) => self.timers.set(core, ends_ns.min(self.now_ns + after.0.max(1))),
            QuantumDecision::RunOn => self.timers.set(core, ends_ns),
        }
    }

    /// Stops the core's request, returns it to the policy and lets the core ask for another.
    /// Returns the policy's reaction.
    fn preempt(&mut self, core: usize) -> Reaction {
        let Core::Running { mut request, begins_ns, .. } = self.cores[core] else {
            unreachable!("a policy preempts only workers it gave a request to")
        };
        let worked_ns = self.now_ns.saturating_sub(begins_ns);
        request.remaining_ns = Nanos(request.remaining_ns.0 - worked_ns);
        self.cores[core] = Core::Idle;
        self.running -= 1;
        self.debt_ns[core] = self.costs.preempt_ns;
        if self.central && self.costs.preempt_send_ns > 0 {
            self.occupy_dispatcher(self.costs.preempt_send_ns);
        }
        if self.measured.warm() {
            self.measured.spent.preemptions += 1;
            self.measured.spent.busy_ns += worked_ns;
        }
        let worker = WorkerId(core as u32);
        let reaction = self.policy.on_preempt(worker, Nanos(self.now_ns), request);
        self.ask(core, 0);
        reaction
    }

    /// Verifies conservation of requests and the policy's own invariants.
    ///
    /// # Panics
    ///
    /// On the first that does not hold, which is a defect of the policy or of this module.
    fn check(&self) {
        let running = self.cores.iter().filter(|c| matches!(c, Core::Running { .. })).count();
        assert_eq!(running, self.running, "the count of running requests is off at {} ns", self.now_ns);
        let inside = running + self.policy.queued() + self.inbox.len();
        let expected = self.arrived - self.completed - u64::from(self.measured.saturated);
        assert_eq!(inside as u64, expected, "requests lost or duplicated at {} ns", self.now_ns);
        if let Err(broken) = self.policy.check() {
            panic!("{} at {} ns: {broken}", self.policy.name(), self.now_ns);
        }
    }
}
