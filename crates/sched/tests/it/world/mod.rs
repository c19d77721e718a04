//! A small machine for policies to run: kthreads that run, idle, park, cede after a while or never,
//! and runtimes that lie.
//!
//! Owns the true state, which observations may or may not report. Time passes in looks of 5 us.
//! Every action is entered into the ledger, which must accept it; every rule of a policy is
//! asserted at each step, against the true state, not against the policy's memory.

use std::collections::{BTreeMap, VecDeque};
use tailwater_sched::alloc::{Action, Activity, KthreadLook, Observation, Policy, Requests, View};
use tailwater_sched::ledger::{Account, CoreState, KthreadState, Ledger, RuntimeClass, RuntimeSpec};
use tailwater_sched::topology::Topology;
use tailwater_sched::{CoreId, KthreadId, Nanos, RuntimeId};

/// Time between looks.
pub const LOOK: Nanos = Nanos::from_micros(5);
/// Looks after which a kthread that will not cede is evicted.
const CEDE_DEADLINE: u64 = 6;
/// Looks after which an evicted kthread is found parked.
const READMIT_AFTER: u64 = 3;
/// Looks after which an idle kthread parks.
const IDLE_TIMEOUT: u64 = 4;
/// Free-running counters start here, so that every run sees them wrap.
const COUNTER_START: u32 = u32::MAX - 20;

/// How a runtime behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    /// Reports the truth; cedes at the given number of looks after it was asked.
    Honest(u64),
    /// As honest, but has more work at every look than it can do.
    Greedy(u64),
    /// Reports the truth and never cedes.
    Stubborn,
    /// Reports random states; cedes after that many looks.
    Liar(u64),
}

#[derive(Debug)]
struct Kthread {
    activity: Activity,
    /// Look since which it is `activity`.
    since: u64,
}

#[derive(Debug)]
struct Runtime {
    spec: RuntimeSpec,
    temper: Temper,
    on_hold: bool,
    /// User threads waiting, by the first look that sees them. All wait at kthread 0.
    queue: VecDeque<u64>,
    taken: u32,
    kthreads: Vec<Kthread>,
    /// Kthreads that host an exclusive thread, by index.
    hosts: Vec<u16>,
}

impl Runtime {
    fn tells_the_truth(&self) -> bool {
        !matches!(self.temper, Temper::Liar(_))
    }

    fn cedes_after(&self) -> Option<u64> {
        match self.temper {
            Temper::Honest(looks) | Temper::Greedy(looks) | Temper::Liar(looks) => Some(looks),
            Temper::Stubborn => None,
        }
    }
}

/// The machine, its runtimes, and the policy under test.
pub struct World<P> {
    pub ledger: Ledger,
    pub policy: P,
    obs: Observation,
    runtimes: BTreeMap<u32, Runtime>,
    look: u64,
    random: u64,
    actions: Vec<Action>,
    /// Drop the next action a policy takes, as a caller may.
    pub drop_next: bool,
}

impl<P: Policy> World<P> {
    pub fn new(topology: Topology, policy: P, seed: u64) -> Self {
        Self {
            ledger: Ledger::new(topology),
            policy,
            obs: Observation::new(),
            runtimes: BTreeMap::new(),
            look: 1,
            random: seed,
            actions: Vec::new(),
            drop_next: false,
        }
    }

    pub fn now(&self) -> Nanos {
        Nanos(self.look * LOOK.0)
    }

    /// Registers a runtime; returns whether the ledger accepts it.
    pub fn register(&mut self, slot: u32, spec: RuntimeSpec, temper: Temper) -> bool {
        let runtime = RuntimeId(slot);
        if self.ledger.register(runtime, spec, self.now()).is_err() {
            return false;
        }
        self.obs.attach(runtime, spec.kthreads);
        self.policy.attach(runtime, &self.ledger);
        let kthread = |_| Kthread { activity: Activity::Parked, since: 0 };
        let kthreads = (0..spec.kthreads).map(kthread).collect();
        let queue = VecDeque::new();
        let taken = COUNTER_START;
        let hosts = Vec::new();
        self.runtimes.insert(slot, Runtime { spec, temper, on_hold: false, queue, taken, kthreads, hosts });
        true
    }

    /// A runtime dies, whatever it is doing.
    pub fn kill(&mut self, slot: u32) {
        if self.runtimes.remove(&slot).is_none() {
            return;
        }
        let before = self.ledger.clone();
        self.ledger.unregister(RuntimeId(slot), self.now()).unwrap();
        self.obs.detach(RuntimeId(slot));
        self.policy.detach(RuntimeId(slot));
        for core in before.topology().cores() {
            match (before.core(core.id).unwrap(), self.ledger.core(core.id).unwrap()) {
                (CoreState::Moving { .. }, CoreState::Owned { kthread, .. }) => self.start(kthread),
                (CoreState::Owned { .. }, CoreState::Free) => self.offer(core.id),
                _ => {}
            }
        }
    }

    /// `items` user threads become ready; a runtime without a core is woken.
    pub fn work(&mut self, slot: u32, items: u32) {
        let Some(runtime) = self.runtimes.get_mut(&slot) else { return };
        runtime.queue.extend((0..items).map(|_| self.look + 1));
        self.report(slot);
        self.wakeup(slot);
    }

    /// A wakeup, true or false.
    pub fn wakeup(&mut self, slot: u32) {
        self.event(|policy, view, actions| policy.wakeup(view, RuntimeId(slot), actions));
    }

    /// The core is said to be there for the taking, truly or not.
    pub fn offer(&mut self, core: CoreId) {
        self.event(|policy, view, actions| policy.idle(view, core, actions));
    }

    /// The runtime requests cores.
    pub fn request(&mut self, slot: u32, requests: Requests) {
        self.obs.set_requests(RuntimeId(slot), requests);
    }

    /// These kthreads, and no others of the runtime, host an exclusive thread.
    pub fn host(&mut self, slot: u32, kthreads: &[u16]) {
        if let Some(runtime) = self.runtimes.get_mut(&slot) {
            runtime.hosts = kthreads.to_vec();
            self.report(slot);
        }
    }

    /// The core, by its position, is kept from ordinary threads for this runtime, and no other is.
    pub fn reserve(&mut self, at: usize, slot: u32) {
        let owner = |other| (other == at).then_some(RuntimeId(slot));
        self.obs.set_reserved((0..self.ledger.topology().len()).map(owner));
    }

    /// Returns the actions of the latest event.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    pub fn hold(&mut self, slot: u32, on_hold: bool) {
        if let Some(runtime) = self.runtimes.get_mut(&slot) {
            runtime.on_hold = on_hold;
            self.report(slot);
        }
    }

    /// 5 us: kthreads cede, run, idle and park, then the policy looks.
    pub fn step(&mut self) {
        self.look += 1;
        self.settle_moves();
        for slot in self.runtimes.keys().copied().collect::<Vec<_>>() {
            self.run(slot);
            self.report(slot);
        }
        self.event(Policy::tick);
    }

    /// Returns the runtimes that report truthfully, are not on hold, could be lent any core, got
    /// none by this look, and lack one: without any while user threads wait, or with more user
    /// threads that waited through two looks than kthreads about to take them.
    pub fn in_need(&self) -> Vec<RuntimeId> {
        let in_need = |(&slot, runtime): (&u32, &Runtime)| {
            let id = RuntimeId(slot);
            let account = self.ledger.account(id)?;
            let waited = runtime.queue.iter().filter(|queued| **queued < self.look).count();
            let lacks = match account.cores() {
                0 => !runtime.queue.is_empty(),
                _ => waited > self.help_under_way(id, runtime),
            };
            let served = self.actions.iter().any(|Action::Grant { runtime, .. }| *runtime == id);
            let lacks = lacks && !served;
            let may_be_lent = !runtime.on_hold && account.room() > 0 && !account.has_withheld();
            (lacks && runtime.tells_the_truth() && may_be_lent).then_some(id)
        };
        self.runtimes.iter().filter_map(in_need).collect()
    }

    /// Cores that another runtime than this could be lent at once: free, or idled on with nothing
    /// queued by a runtime that has not requested them.
    pub fn spare_cores_for(&self, runtime: RuntimeId) -> usize {
        let usable = |state: &&CoreState| match state {
            CoreState::Free => true,
            CoreState::Absent | CoreState::Moving { .. } => false,
            CoreState::Owned { kthread, .. } => {
                let owner = &self.runtimes[&kthread.runtime.0];
                let idles = owner.kthreads[usize::from(kthread.index)].activity == Activity::Idle;
                let cores = self.ledger.account(kthread.runtime).unwrap().cores();
                let lends = cores > self.policy.granted(kthread.runtime);
                kthread.runtime != runtime
                    && owner.tells_the_truth()
                    && idles
                    && owner.queue.is_empty()
                    && lends
            }
        };
        self.ledger.cores().iter().filter(usable).count()
    }

    /// Returns how many cores a runtime owns, by guarantee or by request.
    pub fn own(&self, runtime: RuntimeId) -> u16 {
        let guaranteed = self.ledger.account(runtime).map_or(0, Account::guaranteed);
        guaranteed.max(self.policy.granted(runtime))
    }

    /// Cores of other runtimes that burst, not on the move.
    pub fn bursting_cores_beside(&self, runtime: RuntimeId) -> usize {
        let bursting = |state: &&CoreState| match state {
            CoreState::Owned { kthread, .. } => {
                let account = self.ledger.account(kthread.runtime).unwrap();
                kthread.runtime != runtime && account.cores() > self.own(kthread.runtime)
            }
            CoreState::Free | CoreState::Absent | CoreState::Moving { .. } => false,
        };
        self.ledger.cores().iter().filter(bursting).count()
    }

    fn help_under_way(&self, id: RuntimeId, runtime: &Runtime) -> usize {
        let states = self.ledger.account(id).unwrap().kthreads();
        let helps = |(state, kthread): &(KthreadState, &Kthread)| match *state {
            KthreadState::Incoming { .. } => true,
            KthreadState::Granted { core } => {
                kthread.activity != Activity::Running
                    && matches!(self.ledger.core(core), Some(CoreState::Owned { .. }))
            }
            KthreadState::Parked { .. } | KthreadState::Evicted { .. } => false,
        };
        states.zip(&runtime.kthreads).filter(helps).count()
    }

    fn event(&mut self, event: impl FnOnce(&mut P, View<'_>, &mut Vec<Action>)) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let view = View { now: self.now(), obs: &self.obs, ledger: &self.ledger };
        event(&mut self.policy, view, &mut actions);
        let before = self.ledger.clone();
        let mut lost = BTreeMap::new();
        for action in &actions {
            self.check_rules(&before, &mut lost, action);
            self.carry_out(action);
            self.ledger.check().unwrap();
        }
        self.actions = actions;
    }

    /// What every policy owes, judged by the ledger before the event and what the event took since.
    fn check_rules(&self, before: &Ledger, lost: &mut BTreeMap<RuntimeId, i32>, action: &Action) {
        let Action::Grant { runtime, kthread, victim, only_if_idle, .. } = *action;
        assert_eq!(runtime, kthread.runtime);
        assert!(!self.runtimes[&runtime.0].on_hold, "{runtime} is on hold: {action:?}");
        let Some(victim) = victim else { return };
        assert_ne!(victim.runtime, runtime, "a runtime is its own victim");
        let mut spare = |id: RuntimeId| {
            let account = before.account(id).unwrap();
            let taken = lost.entry(id).or_insert(0);
            (i32::from(account.cores()) - *taken - i32::from(self.own(id)), account.spec().class)
        };
        let (claim, class) = spare(runtime);
        let (surplus, victim_class) = spare(victim.runtime);
        let says_idle = self.obs.activity(victim) == Activity::Idle;
        if !says_idle && !only_if_idle {
            assert!(surplus > 0, "{victim} is busy on a core of its own: {action:?}");
            let reverse = class == RuntimeClass::BestEffort && victim_class == RuntimeClass::LatencyCritical;
            assert!(!reverse || claim < 0, "best effort takes a busy latency-critical core: {action:?}");
        }
        *lost.entry(victim.runtime).or_insert(0) += 1;
    }

    fn carry_out(&mut self, action: &Action) {
        let Action::Grant { kthread, victim, only_if_idle, .. } = *action;
        let busy = victim.is_some_and(|v| {
            self.runtimes[&v.runtime.0].kthreads[usize::from(v.index)].activity == Activity::Running
        });
        let drop = core::mem::take(&mut self.drop_next) || (only_if_idle && busy);
        if drop {
            return;
        }
        self.ledger.apply(action, self.now()).unwrap();
        if victim.is_none() {
            self.start(kthread);
        }
    }

    /// Wakes the kthread on its core. Until it runs, at the next look, it reports that it is
    /// parked.
    fn start(&mut self, kthread: KthreadId) {
        self.become_(kthread, Activity::Parked);
    }

    fn become_(&mut self, kthread: KthreadId, activity: Activity) {
        let look = self.look;
        if let Some(runtime) = self.runtimes.get_mut(&kthread.runtime.0) {
            runtime.kthreads[usize::from(kthread.index)] = Kthread { activity, since: look };
        }
    }

    /// Kthreads that were asked to cede do so in their own time, or are evicted; evicted ones are
    /// readmitted.
    fn settle_moves(&mut self) {
        let cores: Vec<CoreId> = self.ledger.topology().cores().iter().map(|core| core.id).collect();
        for core in cores {
            let Some(CoreState::Moving { from, since, .. }) = self.ledger.core(core) else { continue };
            let waited = self.now().since(since).0 / LOOK.0;
            let next = match self.runtimes[&from.runtime.0].cedes_after() {
                Some(looks) if waited >= looks => self.ledger.handle_parked(from, self.now()).unwrap(),
                _ if waited >= CEDE_DEADLINE => self.ledger.evict(from, self.now()).unwrap(),
                _ => continue,
            };
            let to = next.unwrap_or_else(|| panic!("{core} was moving, and is free now"));
            self.save_user_thread(from);
            self.become_(from, Activity::Parked);
            self.start(to);
        }
        self.readmit();
        self.ledger.check().unwrap();
    }

    /// A preempted kthread's user thread is queued again.
    fn save_user_thread(&mut self, kthread: KthreadId) {
        let Some(runtime) = self.runtimes.get_mut(&kthread.runtime.0) else { return };
        if runtime.kthreads[usize::from(kthread.index)].activity == Activity::Running {
            runtime.queue.push_back(self.look);
        }
    }

    fn readmit(&mut self) {
        let now = self.now();
        for runtime in self.ledger.runtimes().to_vec() {
            for index in 0..self.ledger.account(runtime).unwrap().spec().kthreads {
                let kthread = KthreadId::new(runtime, index);
                let Some(KthreadState::Evicted { since }) = self.ledger.kthread(kthread) else { continue };
                if now.since(since).0 >= READMIT_AFTER * LOOK.0 {
                    self.ledger.readmit(kthread, now).unwrap();
                }
            }
        }
    }

    /// Each kthread that has a core takes one user thread, or idles, or parks.
    fn run(&mut self, slot: u32) {
        for index in 0..self.runtimes[&slot].spec.kthreads {
            let kthread = KthreadId::new(RuntimeId(slot), index);
            let Some(KthreadState::Granted { core }) = self.ledger.kthread(kthread) else { continue };
            let look = self.look;
            let Some(runtime) = self.runtimes.get_mut(&slot) else { return };
            if matches!(runtime.temper, Temper::Greedy(_)) && runtime.queue.len() < 200 {
                runtime.queue.extend([look, look]);
            }
            let this = &mut runtime.kthreads[usize::from(index)];
            if runtime.queue.pop_front().is_some() {
                runtime.taken = runtime.taken.wrapping_add(1);
                *this = Kthread { activity: Activity::Running, since: look };
            } else if this.activity != Activity::Idle {
                *this = Kthread { activity: Activity::Idle, since: look };
                self.report(slot);
                self.offer(core);
            } else if look - this.since >= IDLE_TIMEOUT {
                self.park(kthread);
            }
        }
    }

    fn park(&mut self, kthread: KthreadId) {
        self.become_(kthread, Activity::Parked);
        self.report(kthread.runtime.0);
        let Some(KthreadState::Granted { core }) = self.ledger.kthread(kthread) else { return };
        if let Some(CoreState::Moving { to, .. }) = self.ledger.core(core) {
            self.ledger.handle_parked(kthread, self.now()).unwrap();
            self.start(to);
        } else {
            self.ledger.release(kthread, self.now()).unwrap();
            self.offer(core);
        }
    }

    /// Writes the runtime's report into the observation.
    fn report(&mut self, slot: u32) {
        let runtime = &self.runtimes[&slot];
        let lies = !runtime.tells_the_truth();
        self.obs.set_on_hold(RuntimeId(slot), runtime.on_hold);
        let look = self.obs.runtime_mut(RuntimeId(slot)).unwrap();
        for (index, kthread) in runtime.kthreads.iter().enumerate() {
            let waiting = if index == 0 { runtime.queue.len() as u32 } else { 0 };
            look.kthreads[index] = KthreadLook {
                runq_head: runtime.taken,
                runq_tail: runtime.taken.wrapping_add(waiting),
                activity: kthread.activity,
                hosted: runtime.hosts.contains(&(index as u16)),
                ..KthreadLook::default()
            };
            if lies {
                look.kthreads[index] = garbage(&mut self.random);
            }
        }
    }
}

/// Any bit pattern, with a liking for the edges.
fn garbage(random: &mut u64) -> KthreadLook {
    let mut next = || {
        // SplitMix64: Steele, Lea, Flood, OOPSLA'14.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let value = (mixed >> 32) as u32;
        if mixed & 3 == 0 { [0, 1, u32::MAX, 1 << 31][value as usize % 4] } else { value }
    };
    KthreadLook {
        runq_head: next(),
        runq_tail: next(),
        overflow: next(),
        ingress_head: next(),
        ingress_tail: next(),
        timer_due: next() & 1 == 0,
        activity: [Activity::Running, Activity::Idle, Activity::Parked][next() as usize % 3],
        hosted: next() & 1 == 0,
        // The IOKernel's own statement.
        left_out: false,
    }
}
