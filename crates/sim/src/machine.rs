//! A machine shared by several runtimes, among which a real allocation policy moves the cores.
//!
//! Owns virtual time, the activity of each core, and the hand-offs under way. The ledger records
//! which kthread owns which core, the allocation policy decides which runtime gets one, and the
//! service's dispatch policy decides which request runs next: all three are `sched`'s own code. The
//! allocator itself runs elsewhere (the IOKernel's core is not among the simulated ones).
//!
//! A *service* is an open-loop source and a dispatch policy over its kthreads, one per core it may
//! use. A *batch* job always has work on every core it gets. A kthread that finds nothing looks for
//! `idle_spin_ns`, then declares itself idle. The policy may take its core at once; otherwise it
//! keeps polling until it parks.
//!
//! # Costs of a core changing hands
//!
//! From the decision to the new owner's first instruction: `handoff_ns` if the owner was busy,
//! `handback_ns` if it was idle, `wake_parked_ns` if the core was free. The old owner's request
//! stops at the decision and returns to its queue.
//!
//! With [`Hardware`] cores have clock rates, which the policy's step sets at once, and hyperthreads
//! that slow each other down. A request whose core changes its speed has its end put off, and
//! energy is counted. Without it all cores are alike and independent.
//!
//! Events at one time are ordered: cores (lowest first), arrivals (by runtime), the policy's tick.
//! Invariants, checked after every event in debug builds: [`Ledger::check`], and arrived =
//! completed + waiting + running for every service.

use tailwater_sched::alloc::{Action, Activity, Observation, Policy, View};
use tailwater_sched::dispatch::{ClassId, Dispatch, Reaction, Request, RequestId, WorkerId};
use tailwater_sched::ledger::{CoreState, Ledger, RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, KthreadId, Nanos, RuntimeId};

use crate::costs::Costs;
use crate::course::{Course, Reading, Window};
use crate::engine::MAX_BACKLOG;
use crate::estimated::Estimated;
use crate::hardware::{self, Hardware, Meter};
use crate::measure::Measured;
use crate::source::{Incoming, Source};
use crate::timers::Timers;

/// A latency-critical runtime to put on the machine.
pub struct Service {
    /// The source of its requests.
    pub source: Box<dyn Source>,
    /// The policy that orders its requests; never a preemptive one, because there is no quantum
    /// here.
    pub dispatch: Box<dyn Dispatch + Send>,
    /// Cores it is guaranteed, the most it may have; it has one kthread for each.
    pub guaranteed: u16,
    /// The most cores it may have.
    pub max: u16,
    /// Whether it requests as many cores as it needs by Arachne's estimate. Only the policy
    /// `arbiter` grants requests.
    pub estimates: bool,
    /// Receives its latencies.
    pub measured: Measured,
}

/// What a finished run reports for one service.
#[derive(Clone, Debug)]
pub struct ServiceOutcome {
    /// Latencies, and the core time spent on requests.
    pub measured: Measured,
    /// Core time this runtime held, hand-offs to it included.
    pub held_ns: u64,
}

/// What a finished run reports.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One per service.
    pub services: Vec<ServiceOutcome>,
    /// Core time in which the batch job ran.
    pub batch_ns: u64,
    /// Core time during hand-offs.
    pub handoff_ns: u64,
    /// Hand-offs.
    pub handoffs: u64,
    /// Core time of the whole machine over the measured part.
    pub core_ns: u64,
    /// Its cores.
    pub cores: usize,
    /// What its cores used.
    pub used: Used,
}

/// What the cores of a machine used over the measured part.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// Energy in joules; 0 without [`Hardware`].
    pub joules: f64,
    /// Work of the batch job, in nanoseconds of a core that is alone at the nominal clock rate; 0
    /// without [`Hardware`].
    pub batch_work_ns: f64,
    /// The run over time, if [`Setup::window_ns`] was given.
    pub course: Vec<Window>,
}

/// The activity of a core.
#[derive(Clone, Copy, Debug)]
enum Occupant {
    Free,
    /// On its way to this kthread.
    Transit(KthreadId),
    Batch(KthreadId),
    Running {
        kthread: KthreadId,
        request: Request,
        begins_ns: u64,
    },
    /// Looks for work.
    Spinning(KthreadId),
    /// Polls after it found none.
    Idle(KthreadId),
}

struct Tenant {
    service: Option<Service>,
    estimated: Option<Estimated>,
    next: Option<Incoming>,
    held_ns: u64,
    enqueued: u32,
    dequeued: u32,
    arrived: u64,
    completed: u64,
    /// The core of each kthread.
    core_of: Vec<Option<usize>>,
}

/// The setup of a machine.
pub struct Setup<'a> {
    /// Its cores.
    pub topology: Topology,
    /// Its costs.
    pub costs: &'a Costs,
    /// The allocation policy.
    pub policy: Box<dyn Policy>,
    /// The services, registered in this order.
    pub services: Vec<Service>,
    /// True if a best-effort batch job takes what is left.
    pub batch: bool,
    /// Time for which an idle kthread polls before it parks; `None` for ever.
    pub park_after_ns: Option<u64>,
    /// Virtual time before measuring starts.
    pub warmup_ns: u64,
    /// Virtual time measured.
    pub duration_ns: u64,
    /// Clock rates, hyperthreads and power; `None`: all cores are alike and independent.
    pub hardware: Option<Hardware>,
    /// Length of the windows in which [`Used::course`] is reported; `None`: none.
    pub window_ns: Option<u64>,
}

/// A machine in the middle of a run.
pub struct Machine<'a> {
    costs: &'a Costs,
    policy: Box<dyn Policy>,
    ledger: Ledger,
    obs: Observation,
    tenants: Vec<Tenant>,
    cores: Vec<Occupant>,
    since_ns: Vec<u64>,
    timers: Timers,
    now_ns: u64,
    warm_ns: u64,
    end_ns: u64,
    next_tick_ns: u64,
    park_after_ns: Option<u64>,
    actions: Vec<Action>,
    batch_ns: u64,
    handoff_ns: u64,
    handoffs: u64,
    meter: Option<Meter>,
    course: Option<Course>,
}

impl<'a> Machine<'a> {
    /// Sets the machine up at time 0 with every kthread parked.
    ///
    /// # Errors
    ///
    /// If the ledger refuses a runtime (its message says why), or a service's dispatch policy is
    /// preemptive.
    pub fn new(setup: Setup<'a>) -> anyhow::Result<Self> {
        let cores = setup.topology.len();
        let meter = setup.hardware.map(|hardware| Meter::new(hardware, &setup.topology, setup.warmup_ns));
        let mut machine = Self {
            costs: setup.costs,
            policy: setup.policy,
            ledger: Ledger::new(setup.topology),
            obs: Observation::new(),
            tenants: Vec::new(),
            cores: vec![Occupant::Free; cores],
            since_ns: vec![0; cores],
            timers: Timers::new(cores),
            now_ns: 0,
            warm_ns: setup.warmup_ns,
            end_ns: setup.warmup_ns + setup.duration_ns,
            next_tick_ns: 0,
            park_after_ns: setup.park_after_ns,
            actions: Vec::new(),
            batch_ns: 0,
            handoff_ns: 0,
            handoffs: 0,
            meter,
            course: setup.window_ns.map(|length_ns| Course::new(length_ns, setup.warmup_ns)),
        };
        for service in setup.services {
            let name = service.dispatch.name();
            anyhow::ensure!(
                !service.dispatch.properties().preemptive,
                "{name} preempts: use c-fcfs, d-fcfs or steal"
            );
            let spec = RuntimeSpec {
                guaranteed: service.guaranteed,
                max: service.max,
                kthreads: service.max,
                class: RuntimeClass::LatencyCritical,
            };
            machine.attach(spec, Some(service))?;
        }
        if setup.batch {
            let n = u16::try_from(cores)?;
            let spec = RuntimeSpec { guaranteed: 0, max: n, kthreads: n, class: RuntimeClass::BestEffort };
            let batch = machine.attach(spec, None)?;
            // There is always more to do: the run queue never empties.
            if let Some(look) = machine.obs.kthread_mut(KthreadId::new(batch, 0)) {
                look.overflow = 1;
            }
        }
        Ok(machine)
    }

    fn attach(&mut self, spec: RuntimeSpec, mut service: Option<Service>) -> anyhow::Result<RuntimeId> {
        let runtime = RuntimeId(self.tenants.len() as u32);
        self.ledger.register(runtime, spec, Nanos::ZERO)?;
        self.obs.attach(runtime, spec.kthreads);
        self.policy.attach(runtime, &self.ledger);
        let next = service.as_mut().and_then(|s| s.source.next_request());
        let estimated = service.as_ref().filter(|s| s.estimates).map(|s| Estimated::new(s.max));
        let core_of = vec![None; usize::from(spec.kthreads)];
        let (held_ns, enqueued, dequeued, arrived, completed) = (0, 0, 0, 0, 0);
        self.tenants.push(Tenant {
            service,
            estimated,
            next,
            held_ns,
            enqueued,
            dequeued,
            arrived,
            completed,
            core_of,
        });
        Ok(runtime)
    }

    /// Runs to the end of the measured time, or until a backlog passes [`MAX_BACKLOG`].
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.step() {
            self.note_activity();
            if cfg!(debug_assertions) {
                self.check();
            }
        }
        self.now_ns = self.now_ns.min(self.end_ns);
        for core in 0..self.cores.len() {
            self.account(core);
        }
        let used = self.take_used();
        let elapsed_ns = self.now_ns.saturating_sub(self.warm_ns);
        let core_ns = elapsed_ns * self.cores.len() as u64;
        let finish = |tenant: Tenant| {
            let mut measured = tenant.service?.measured;
            (measured.spent.elapsed_ns, measured.spent.core_ns) = (elapsed_ns, core_ns);
            measured.finish();
            Some(ServiceOutcome { measured, held_ns: tenant.held_ns })
        };
        Outcome {
            services: self.tenants.into_iter().filter_map(finish).collect(),
            batch_ns: self.batch_ns,
            handoff_ns: self.handoff_ns,
            handoffs: self.handoffs,
            core_ns,
            cores: self.cores.len(),
            used,
        }
    }

    /// Closes the accounts of the hardware and the last window.
    fn take_used(&mut self) -> Used {
        self.close_window();
        let course = self.course.take().map_or_else(Vec::new, |course| course.windows);
        let Some(meter) = &mut self.meter else { return Used { course, ..Used::default() } };
        meter.count(self.now_ns);
        let (joules, batch_work_ns) = meter.used();
        Used { joules, batch_work_ns, course }
    }

    fn close_window(&mut self) {
        let Some(mut course) = self.course.take() else { return };
        for core in 0..self.cores.len() {
            self.account(core);
        }
        let services = self.tenants.iter().filter(|tenant| tenant.service.is_some());
        let held_ns = services.map(|tenant| tenant.held_ns).sum::<u64>() as f64;
        let (joules, batch_ns) = match &mut self.meter {
            None => (0.0, self.batch_ns as f64),
            Some(meter) => {
                meter.count(self.now_ns);
                meter.used()
            }
        };
        let setting = self.policy.setting().map_or((0, 0), |s| (s.step, s.cores));
        let requested = self.tenants.iter().filter_map(|tenant| tenant.estimated.as_ref());
        let requested = requested.map(Estimated::requested).sum();
        let clock = self.meter.as_ref().and_then(Meter::clock);
        course.close(self.now_ns, Reading { joules, held_ns, batch_ns, requested }, setting, clock);
        self.course = Some(course);
    }

    /// Enters what the cores do into the meter, and puts off the ends of requests whose cores have
    /// another speed since.
    fn note_activity(&mut self) {
        let Some(mut meter) = self.meter.take() else { return };
        for core in 0..self.cores.len() {
            let activity = match self.cores[core] {
                Occupant::Free => hardware::Activity::Halted,
                Occupant::Batch(_) => hardware::Activity::Batch,
                Occupant::Transit(_)
                | Occupant::Running { .. }
                | Occupant::Spinning(_)
                | Occupant::Idle(_) => hardware::Activity::Service,
            };
            if meter.activity_of(core) == activity {
                continue;
            }
            let before: Vec<_> =
                meter.siblings(core).map(|sibling| (sibling, meter.speed(sibling))).collect();
            if meter.set_activity(self.now_ns, core, activity) {
                for (sibling, speed) in before {
                    self.put_off(sibling, speed, meter.speed(sibling));
                }
            }
        }
        self.meter = Some(meter);
    }

    /// Sets the clock rate of the policy's step.
    fn note_clock(&mut self) {
        let Some(mut meter) = self.meter.take() else { return };
        let clock = self.policy.setting().and_then(|setting| setting.clock);
        let before: Vec<f64> = match clock == meter.clock() {
            true => Vec::new(),
            false => (0..self.cores.len()).map(|core| meter.speed(core)).collect(),
        };
        meter.set_clock(self.now_ns, clock);
        for (core, before) in before.into_iter().enumerate() {
            self.put_off(core, before, meter.speed(core));
        }
        self.meter = Some(meter);
    }

    /// Moves the end of a core's request, whose speed changes now.
    fn put_off(&mut self, core: usize, before: f64, after: f64) {
        let Occupant::Running { kthread, mut request, begins_ns } = self.cores[core] else { return };
        let ran_ns = self.now_ns.saturating_sub(begins_ns);
        request.remaining_ns = Nanos(request.remaining_ns.0.saturating_sub(work(ran_ns, before)));
        if let Some(service) = self.tenants[kthread.runtime.0 as usize].service.as_mut() {
            service.measured.spent.busy_ns += self.now_ns.saturating_sub(begins_ns.max(self.warm_ns));
        }
        let begins_ns = begins_ns.max(self.now_ns);
        self.cores[core] = Occupant::Running { kthread, request, begins_ns };
        self.timers.set(core, begins_ns + time(request.remaining_ns.0, after));
    }

    fn speed(&self, core: usize) -> f64 {
        self.meter.as_ref().map_or(1.0, |meter| meter.speed(core))
    }

    fn step(&mut self) -> bool {
        let core = self.timers.earliest();
        let arrival = self.tenants.iter().enumerate().filter_map(|(i, t)| Some((t.next?.at_ns, i))).min();
        let core_ns = core.map_or(u64::MAX, |(at, _)| at);
        let arrival_ns = arrival.map_or(u64::MAX, |(at, _)| at);
        let at = core_ns.min(arrival_ns).min(self.next_tick_ns);
        if at >= self.end_ns {
            self.now_ns = self.end_ns;
            return false;
        }
        self.now_ns = at;
        match (core, arrival) {
            (Some((_, core)), _) if core_ns == at => self.handle_core(core),
            (_, Some((_, tenant))) if arrival_ns == at => return self.handle_arrival(tenant),
            _ => self.handle_tick(),
        }
        true
    }

    fn handle_tick(&mut self) {
        self.next_tick_ns += self.policy.interval().0.max(1);
        self.sample_estimates();
        self.consult(|policy, view, actions| policy.tick(view, actions));
        self.note_clock();
        if self.course.as_ref().is_some_and(|course| course.is_over(self.now_ns)) {
            self.close_window();
        }
        let view = View { now: Nanos(self.now_ns), obs: &self.obs, ledger: &self.ledger };
        if let Some(core) = self.policy.surplus(view) {
            self.take_back(core);
        }
    }

    /// Has the services that request cores by an estimate sample their load.
    fn sample_estimates(&mut self) {
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            let Some(estimated) = &mut tenant.estimated else { continue };
            let runtime = RuntimeId(index as u32);
            let runs = |core: &&Occupant| matches!(core, Occupant::Running { kthread, .. } if kthread.runtime == runtime);
            let busy = self.cores.iter().filter(runs).count() as u64;
            let runnable = tenant.arrived - tenant.completed;
            self.obs.set_requests(runtime, estimated.sample(Nanos(self.now_ns), busy, runnable));
        }
    }

    /// Takes a core that the policy no longer uses from its owner, at once.
    fn take_back(&mut self, core: CoreId) {
        let Some(at) = self.ledger.topology().position(core) else { return };
        let owner = match self.cores[at] {
            // On its way: asked for again at the next look.
            Occupant::Free | Occupant::Transit(_) => return,
            Occupant::Batch(k) | Occupant::Spinning(k) | Occupant::Idle(k) => k,
            Occupant::Running { kthread, .. } => kthread,
        };
        self.account(at);
        let before = std::mem::replace(&mut self.cores[at], Occupant::Free);
        self.timers.clear(at);
        self.vacate(at, before);
        let parked = self.ledger.handle_parked(owner, Nanos(self.now_ns));
        debug_assert!(parked.is_ok(), "{parked:?}");
        self.consult(|policy, view, actions| policy.idle(view, core, actions));
    }

    fn consult(&mut self, ask: impl FnOnce(&mut dyn Policy, View<'_>, &mut Vec<Action>)) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let view = View { now: Nanos(self.now_ns), obs: &self.obs, ledger: &self.ledger };
        ask(&mut *self.policy, view, &mut actions);
        for action in &actions {
            self.carry_out(action);
        }
        self.actions = actions;
    }

    fn carry_out(&mut self, action: &Action) {
        let Action::Grant { kthread, core, victim, only_if_idle, .. } = *action;
        let Some(at) = self.ledger.topology().position(core) else { return };
        let idle = matches!(self.cores[at], Occupant::Idle(_));
        if only_if_idle && !idle {
            return;
        }
        // One event's actions are independent of each other, so none can fail because of an earlier
        // one; an action that the ledger refuses is a defect of the policy.
        if let Err(refused) = self.ledger.apply(action, Nanos(self.now_ns)) {
            debug_assert!(false, "{} at {} ns: {refused}", self.policy.name(), self.now_ns);
            return;
        }
        let cost_ns = match victim {
            None => self.costs.wake_parked_ns,
            Some(_) if idle => self.costs.handback_ns,
            Some(_) => self.costs.handoff_ns,
        };
        self.account(at);
        let before = std::mem::replace(&mut self.cores[at], Occupant::Transit(kthread));
        self.timers.set(at, self.now_ns + cost_ns);
        self.handoffs += u64::from(self.now_ns >= self.warm_ns);
        self.vacate(at, before);
    }

    /// Stops the activity of a core that is taken.
    fn vacate(&mut self, core: usize, before: Occupant) {
        match before {
            Occupant::Free => {}
            Occupant::Transit(k) | Occupant::Batch(k) => self.set_activity(k, Activity::Parked),
            Occupant::Spinning(k) | Occupant::Idle(k) => self.leave(k),
            Occupant::Running { kthread, mut request, begins_ns } => {
                let ran_ns = self.now_ns.saturating_sub(begins_ns);
                let worked_ns = work(ran_ns, self.speed(core));
                request.remaining_ns = Nanos(request.remaining_ns.0.saturating_sub(worked_ns));
                let (now, warm) = (Nanos(self.now_ns), self.now_ns >= self.warm_ns);
                let tenant = &mut self.tenants[kthread.runtime.0 as usize];
                tenant.dequeued = tenant.dequeued.wrapping_sub(1);
                let Some(service) = tenant.service.as_mut() else { return };
                if warm {
                    service.measured.spent.preemptions += 1;
                    service.measured.spent.busy_ns += ran_ns;
                }
                let reaction = service.dispatch.on_preempt(WorkerId(u32::from(kthread.index)), now, request);
                self.leave(kthread);
                self.publish(kthread.runtime);
                self.react(kthread.runtime, reaction);
            }
        }
    }

    /// Takes the core from a service's kthread that has nothing to run.
    fn leave(&mut self, kthread: KthreadId) {
        self.set_activity(kthread, Activity::Parked);
        let now = Nanos(self.now_ns);
        let tenant = &mut self.tenants[kthread.runtime.0 as usize];
        tenant.core_of[usize::from(kthread.index)] = None;
        if let Some(service) = tenant.service.as_mut() {
            service.dispatch.on_leave(WorkerId(u32::from(kthread.index)), now);
        }
    }

    fn handle_arrival(&mut self, tenant: usize) -> bool {
        let runtime = RuntimeId(tenant as u32);
        let (now_ns, warm) = (self.now_ns, self.now_ns >= self.warm_ns);
        let t = &mut self.tenants[tenant];
        let (Some(incoming), Some(service)) = (t.next.take(), t.service.as_mut()) else { return false };
        t.next = service.source.next_request();
        t.arrived += 1;
        t.enqueued = t.enqueued.wrapping_add(1);
        let request = Request {
            id: RequestId(incoming.service_ns),
            arrived_ns: Nanos(incoming.at_ns),
            remaining_ns: Nanos(incoming.service_ns),
            flow: incoming.flow,
            class: ClassId(incoming.class),
        };
        if warm {
            let waiting = service.dispatch.queued() as u64;
            service.measured.spent.max_queued = service.measured.spent.max_queued.max(waiting);
        }
        let reaction = service.dispatch.on_arrival(Nanos(now_ns), request);
        let overflowing = service.dispatch.queued() > MAX_BACKLOG;
        service.measured.saturated |= overflowing;
        self.publish(runtime);
        self.react(runtime, reaction);
        if self.ledger.account(runtime).is_some_and(|a| a.cores() == 0) {
            self.consult(|policy, view, actions| policy.wakeup(view, runtime, actions));
        }
        !overflowing
    }

    fn react(&mut self, runtime: RuntimeId, reaction: Reaction) {
        let Reaction::Run(worker) = reaction else { return };
        let core = self.tenants[runtime.0 as usize].core_of[worker.index()];
        let core = core.expect("a dispatch policy only names workers that have a core");
        self.account(core);
        self.find_work(core, KthreadId::new(runtime, worker.0 as u16), self.costs.wake_ns);
    }

    fn handle_core(&mut self, core: usize) {
        match self.cores[core] {
            Occupant::Transit(kthread) => self.arrive(core, kthread),
            Occupant::Running { kthread, request, begins_ns } => {
                self.complete(core, kthread, &request, begins_ns);
            }
            Occupant::Spinning(kthread) => self.declare_idle(core, kthread),
            Occupant::Idle(kthread) => self.park(core, kthread),
            Occupant::Free | Occupant::Batch(_) => unreachable!("this core has no timer"),
        }
    }

    fn arrive(&mut self, core: usize, kthread: KthreadId) {
        self.account(core);
        let id = self.core_id(core);
        if let Some(CoreState::Moving { .. }) = self.ledger.core(id) {
            let moved = self.ledger.complete_move(id, Nanos(self.now_ns));
            debug_assert!(moved.is_ok(), "{moved:?}");
        }
        self.set_activity(kthread, Activity::Running);
        let tenant = &mut self.tenants[kthread.runtime.0 as usize];
        if tenant.service.is_none() {
            self.cores[core] = Occupant::Batch(kthread);
            return self.timers.clear(core);
        }
        tenant.core_of[usize::from(kthread.index)] = Some(core);
        self.find_work(core, kthread, 0);
    }

    fn complete(&mut self, core: usize, kthread: KthreadId, request: &Request, begins_ns: u64) {
        self.account(core);
        let (now_ns, warm_ns) = (self.now_ns, self.warm_ns);
        let tenant = &mut self.tenants[kthread.runtime.0 as usize];
        tenant.completed += 1;
        if let Some(service) = tenant.service.as_mut() {
            if now_ns >= warm_ns {
                service.measured.spent.busy_ns += now_ns - begins_ns.max(warm_ns);
            }
            if request.arrived_ns.0 >= warm_ns {
                service.measured.record(request.class.0, now_ns - request.arrived_ns.0, request.id.0);
            }
            if let Some(course) = &mut self.course {
                course.record(now_ns, now_ns - request.arrived_ns.0);
            }
            service.dispatch.on_done(WorkerId(u32::from(kthread.index)), Nanos(now_ns));
        }
        self.find_work(core, kthread, 0);
    }

    fn find_work(&mut self, core: usize, kthread: KthreadId, delay_ns: u64) {
        let (now_ns, warm) = (self.now_ns, self.now_ns >= self.warm_ns);
        let speed = self.speed(core);
        self.set_activity(kthread, Activity::Running);
        let tenant = &mut self.tenants[kthread.runtime.0 as usize];
        let Some(service) = tenant.service.as_mut() else { return };
        match service.dispatch.next_for(WorkerId(u32::from(kthread.index)), Nanos(now_ns)) {
            Some(assignment) => {
                tenant.dequeued = tenant.dequeued.wrapping_add(1);
                let request = assignment.request;
                let mut overhead_ns = self.costs.context_switch_ns + delay_ns;
                if request.remaining_ns.0 == request.id.0 {
                    overhead_ns += self.costs.packet_ns;
                }
                let overhead_ns = time(overhead_ns, speed);
                if warm {
                    service.measured.spent.overhead_ns += overhead_ns;
                }
                let begins_ns = now_ns + overhead_ns;
                self.timers.set(core, begins_ns + time(request.remaining_ns.0, speed));
                self.cores[core] = Occupant::Running { kthread, request, begins_ns };
                self.publish(kthread.runtime);
            }
            None => {
                self.cores[core] = Occupant::Spinning(kthread);
                self.timers.set(core, now_ns + self.costs.idle_spin_ns);
            }
        }
    }

    fn declare_idle(&mut self, core: usize, kthread: KthreadId) {
        self.account(core);
        self.cores[core] = Occupant::Idle(kthread);
        self.set_activity(kthread, Activity::Idle);
        match self.park_after_ns {
            Some(after) => self.timers.set(core, self.now_ns + after),
            None => self.timers.clear(core),
        }
        let id = self.core_id(core);
        self.consult(|policy, view, actions| policy.idle(view, id, actions));
    }

    fn park(&mut self, core: usize, kthread: KthreadId) {
        self.account(core);
        self.cores[core] = Occupant::Free;
        self.timers.clear(core);
        self.leave(kthread);
        let released = self.ledger.release(kthread, Nanos(self.now_ns));
        debug_assert!(released.is_ok(), "{released:?}");
        let id = self.core_id(core);
        self.consult(|policy, view, actions| policy.idle(view, id, actions));
    }

    fn core_id(&self, at: usize) -> CoreId {
        self.ledger.topology().cores()[at].id
    }

    fn set_activity(&mut self, kthread: KthreadId, activity: Activity) {
        if let Some(look) = self.obs.kthread_mut(kthread) {
            look.activity = activity;
        }
    }

    /// Shows the policy the service's queue, as one ring at its first kthread.
    fn publish(&mut self, runtime: RuntimeId) {
        let tenant = &self.tenants[runtime.0 as usize];
        if let Some(look) = self.obs.kthread_mut(KthreadId::new(runtime, 0)) {
            (look.runq_head, look.runq_tail) = (tenant.dequeued, tenant.enqueued);
        }
    }

    /// Accounts the time since the core's last change to its activity.
    fn account(&mut self, core: usize) {
        let spent_ns = self.now_ns.saturating_sub(self.since_ns[core].max(self.warm_ns));
        self.since_ns[core] = self.now_ns;
        let owner = match self.cores[core] {
            Occupant::Free => return,
            Occupant::Batch(_) => {
                self.batch_ns += spent_ns;
                return;
            }
            Occupant::Transit(k) => {
                self.handoff_ns += spent_ns;
                k
            }
            Occupant::Running { kthread: k, .. } | Occupant::Spinning(k) | Occupant::Idle(k) => k,
        };
        self.tenants[owner.runtime.0 as usize].held_ns += spent_ns;
    }

    /// Verifies the ledger and conservation of requests.
    ///
    /// # Panics
    ///
    /// On the first that does not hold, which is a defect of a policy or of this module.
    fn check(&self) {
        if let Err(wrong) = self.ledger.check() {
            panic!("{} at {} ns: {wrong}", self.policy.name(), self.now_ns);
        }
        for (i, tenant) in self.tenants.iter().enumerate() {
            let Some(service) = &tenant.service else { continue };
            let runs = |o: &&Occupant| matches!(o, Occupant::Running { kthread, .. } if kthread.runtime.0 as usize == i);
            let running = self.cores.iter().filter(runs).count() as u64;
            let waiting = service.dispatch.queued() as u64;
            assert_eq!(
                tenant.arrived,
                tenant.completed + waiting + running,
                "service {i} lost or duplicated requests"
            );
            if let Err(broken) = service.dispatch.check() {
                panic!("service {i}: {broken}");
            }
        }
    }
}

/// Returns the work done in a time at a speed.
fn work(ran_ns: u64, speed: f64) -> u64 {
    (ran_ns as f64 * speed) as u64
}

/// Returns the time that work takes at a speed.
fn time(work_ns: u64, speed: f64) -> u64 {
    (work_ns as f64 / speed).ceil() as u64
}
