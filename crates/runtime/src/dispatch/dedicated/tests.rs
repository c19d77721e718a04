//! Random steps of an assigner whose lanes lose their cores at any time: every request is answered
//! once, no lane has more than its bound, and the policy's order is kept.

use super::super::settings::{Policy, RequestClass, Requeue, Settings};
use super::assigner::{Handed, PATIENCE};
use super::lanes::makes_way;
use super::*;
use crate::dispatch::table::{Next, Number};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tailwater_sched::dispatch::QuantumDecision;

const QUANTUM: Duration = Duration::from_micros(5);
const MAX_DETACHED: usize = 2;
const QUEUE: usize = 1_000;

/// What the thread of a lane does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// There is none.
    None,
    /// It is on its way.
    Comes,
    /// It looks into the mailbox.
    Looks,
    Runs(Number, u32),
    /// Its request has blocked with the lane.
    Keeps(Number, u32),
}

#[derive(Debug, Clone)]
enum Step {
    Submit {
        class: usize,
        work: u64,
    },
    /// The lane's thread goes on; a request that runs ends.
    Act(usize),
    Preempt(usize),
    Block(usize),
    Unblock(usize),
    EndDetached(usize),
    PreemptDetached(usize),
    /// The dispatcher makes a pass.
    Pass,
    /// The lane's core is taken, or comes back.
    Core(usize, bool),
    Rest(usize, bool),
    Time(u64),
}

fn steps(lanes: usize) -> impl Strategy<Value = Vec<Step>> {
    let lane = 0..lanes;
    let step = prop_oneof![
        6 => (0..3usize, 0..50_000u64).prop_map(|(class, work)| Step::Submit { class, work }),
        9 => lane.clone().prop_map(Step::Act),
        3 => lane.clone().prop_map(Step::Preempt),
        1 => lane.clone().prop_map(Step::Block),
        2 => (0..8usize).prop_map(Step::Unblock),
        1 => (0..8usize).prop_map(Step::EndDetached),
        1 => (0..8usize).prop_map(Step::PreemptDetached),
        4 => Just(Step::Pass),
        2 => (lane.clone(), any::<bool>()).prop_map(|(lane, is)| Step::Core(lane, is)),
        1 => (lane, any::<bool>()).prop_map(|(lane, is)| Step::Rest(lane, is)),
        2 => (0..60_000u64).prop_map(Step::Time),
    ];
    prop::collection::vec(step, 0..250)
}

fn policies() -> impl Strategy<Value = (Policy, usize)> {
    let requeue = prop_oneof![Just(Requeue::Head), Just(Requeue::Tail)];
    let single = requeue.clone().prop_map(|requeue| Policy::single_queue(QUANTUM, requeue));
    let multi = requeue.prop_map(|requeue| Policy::multi_queue(QUANTUM, requeue));
    let any_depth = prop_oneof![Just(Policy::central_fcfs()), single, multi];
    prop_oneof![
        4 => (any_depth, 1..=4usize),
        1 => Just((Policy::shortest_remaining(), 1)),
    ]
}

struct Model {
    assigner: Assigner<u32, u32>,
    admission: Arc<Admission>,
    mailboxes: Vec<Arc<LaneMailbox<u32, u32>>>,
    depth: usize,
    now: Nanos,
    threads: Vec<Thread>,
    has_core: Vec<bool>,
    submitted: u32,
    /// Payloads in the order in which they began.
    begun: Vec<u32>,
    /// Payloads, by which threads go, and the numbers that their requests had.
    suspended: BTreeMap<u32, Number>,
    detached: Vec<(Number, u32)>,
    ended: Vec<u32>,
}

impl Model {
    fn new(policy: Policy, lanes: usize, depth: usize) -> Self {
        let settings = Settings::new(policy)
            .class(RequestClass::new("short").slo(Duration::from_micros(20)))
            .class(RequestClass::new("long").slo(Duration::from_millis(5)))
            .queue(QUEUE)
            .preempted(3)
            .blocked(MAX_DETACHED)
            .complete();
        let mailboxes: Vec<_> = (0..lanes).map(|_| Arc::new(LaneMailbox::new())).collect();
        let table = RequestTable::for_workers(&settings, lanes, depth).unwrap();
        let quantum = settings.has_quantum().then_some(Nanos(QUANTUM.as_nanos() as u64));
        let admission = Arc::new(Admission::new(QUEUE));
        Self {
            assigner: Assigner::new(table, &mailboxes, depth, quantum, &admission),
            admission,
            mailboxes,
            depth,
            now: Nanos(1),
            threads: vec![Thread::Comes; lanes],
            has_core: vec![true; lanes],
            submitted: 0,
            begun: Vec::new(),
            suspended: BTreeMap::new(),
            detached: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn submit(&mut self, class: usize, work: u64) {
        let (work_ns, arrived) = (Nanos(work), self.now);
        let offer = Offer { class, flow: FlowHash(7), work_ns, arrived };
        assert!(self.admission.admit(), "there is room");
        self.assigner.submit(self.now, offer, self.submitted).unwrap();
        self.submitted += 1;
    }

    /// As a dispatcher that polls does.
    fn pass(&mut self) {
        let has_core = self.has_core.clone();
        self.assigner.collect();
        self.assigner.pump(self.now);
        self.assigner.watch(self.now, |lane| !has_core[lane]);
        self.assigner.pump(self.now);
    }

    /// Takes what is in the mailbox, if there is anything.
    fn take(&mut self, lane: usize) -> bool {
        let (number, payload) = match self.mailboxes[lane].take(self.now.0) {
            None => return false,
            Some(Handed::Start(number, payload)) => {
                self.begun.push(payload);
                (number, payload)
            }
            Some(Handed::Resume(number, payload)) => {
                self.suspended.remove(&payload).expect("a thread resumes once");
                (number, payload)
            }
        };
        self.threads[lane] = Thread::Runs(number, payload);
        true
    }

    fn act(&mut self, lane: usize) {
        let thread = self.threads[lane];
        match thread {
            Thread::Comes => self.ask(lane),
            Thread::Looks => {
                if !self.take(lane) {
                    self.ask(lane);
                }
            }
            Thread::Runs(number, payload) => {
                self.mailboxes[lane].report(number, self.now.0, payload % 7 == 0);
                self.mailboxes[lane].set_resting(false);
                self.ended.push(payload);
                self.threads[lane] = Thread::Looks;
            }
            Thread::None | Thread::Keeps(..) => {}
        }
    }

    fn ask(&mut self, lane: usize) {
        if self.assigner.ask(lane, self.now) {
            assert!(self.take(lane), "what the assigner gave is there");
        } else {
            assert!(!self.mailboxes[lane].has_request());
            self.threads[lane] = Thread::None;
        }
    }

    fn preempt(&mut self, lane: usize) {
        let Thread::Runs(number, payload) = self.threads[lane] else { return };
        if self.assigner.preempt(lane, number, self.now, payload).is_ok() {
            self.suspended.insert(payload, number);
            self.threads[lane] = Thread::Comes;
        } else {
            assert!(!self.assigner.table.may_preempt(number));
        }
    }

    fn block(&mut self, lane: usize) {
        let Thread::Runs(number, payload) = self.threads[lane] else { return };
        let leaves = self.assigner.table.may_leave_lane(number);
        let released = self.assigner.block(lane, number, self.now, leaves);
        assert!(released.is_empty() || !leaves);
        if leaves {
            self.detached.push((number, payload));
            self.threads[lane] = Thread::Comes;
        } else {
            self.threads[lane] = Thread::Keeps(number, payload);
        }
        for (payload, number) in released {
            let before = self.suspended.remove(&payload).expect("it was suspended");
            self.detached.push((number.unwrap_or(before), payload));
        }
    }

    fn unblock(&mut self, index: usize) {
        match self.threads.get(index) {
            Some(&Thread::Keeps(number, payload)) => {
                self.assigner.unblock(index, number, self.now);
                self.threads[index] = Thread::Runs(number, payload);
            }
            Some(_) => {}
            None => {
                if let Some(&(number, _)) = self.detached.get(index - self.threads.len()) {
                    self.assigner.table.unblock(number, self.now);
                }
            }
        }
    }

    fn end_detached(&mut self, index: usize) {
        if index < self.detached.len() {
            let (number, payload) = self.detached.swap_remove(index);
            assert_eq!(self.assigner.table.finish(number, self.now, false), None);
            self.assigner.pump(self.now);
            self.ended.push(payload);
        }
    }

    fn preempt_detached(&mut self, index: usize) {
        if let Some(&(number, payload)) = self.detached.get(index)
            && self.assigner.preempt_detached(number, self.now, payload).is_ok()
        {
            self.detached.swap_remove(index);
            self.suspended.insert(payload, number);
            self.assigner.pump(self.now);
        }
    }

    fn step(&mut self, step: &Step) {
        self.now = self.now + Nanos(300);
        match *step {
            Step::Submit { class, work } => self.submit(class, work),
            Step::Act(lane) if self.has_core[lane] => self.act(lane),
            Step::Preempt(lane) if self.has_core[lane] => self.preempt(lane),
            Step::Block(lane) if self.has_core[lane] => self.block(lane),
            Step::Act(_) | Step::Preempt(_) | Step::Block(_) => {}
            Step::Unblock(index) => self.unblock(index),
            Step::EndDetached(index) => self.end_detached(index),
            Step::PreemptDetached(index) => self.preempt_detached(index),
            Step::Pass => self.pass(),
            Step::Core(lane, has_core) => self.has_core[lane] = has_core,
            Step::Rest(lane, rests) => self.mailboxes[lane].set_resting(rests),
            Step::Time(ns) => self.now = self.now + Nanos(ns),
        }
        while let Some(lane) = self.assigner.next_call() {
            assert_eq!(self.threads[lane], Thread::None, "a lane without a thread is called");
            self.threads[lane] = Thread::Comes;
        }
        self.assigner.check();
        for (lane, thread) in self.threads.iter().enumerate() {
            let runs = matches!(thread, Thread::Runs(..) | Thread::Keeps(..));
            assert!(usize::from(runs) + self.waiting_at(lane) <= self.depth, "JBSQ({})", self.depth);
        }
    }

    /// Requests in a mailbox.
    fn waiting_at(&self, lane: usize) -> usize {
        self.assigner.waiting_at(lane)
    }

    /// Lets all that is left end, with all cores; without a dispatcher if it is `away`.
    fn finish(&mut self, away: bool) {
        self.has_core.fill(true);
        (0..self.threads.len()).for_each(|lane| self.mailboxes[lane].set_resting(false));
        for round in 0.. {
            assert!(round < 5_000, "{} of {} requests end", self.ended.len(), self.submitted);
            if self.ended.len() == self.submitted as usize {
                break;
            }
            if !away {
                self.step(&Step::Pass);
            }
            for lane in 0..self.threads.len() {
                self.step(&Step::Unblock(lane));
                self.step(&Step::Act(lane));
            }
            self.step(&Step::EndDetached(0));
            if away && self.threads.iter().all(|thread| *thread == Thread::None) {
                // As the thread that submits, or one whose request ends.
                self.assigner.pump(self.now);
            }
        }
        let mut ended = self.ended.clone();
        ended.sort_unstable();
        assert!(ended.into_iter().eq(0..self.submitted), "every request ends once");
        let mut begun = self.begun.clone();
        begun.sort_unstable();
        assert!(begun.into_iter().eq(0..self.submitted), "every request begins once");
        self.pass();
        let stats = self.assigner.table.stats();
        assert_eq!(stats.iter().map(|class| class.finished).sum::<u64>(), u64::from(self.submitted));
        assert!(stats.iter().all(|class| class.queue_delay.count() == class.accepted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_once_whatever_cores_are_lost(
        (policy, depth) in policies(),
        steps in steps(3),
        away in any::<bool>(),
    ) {
        let mut model = Model::new(policy, 3, depth);
        for step in &steps {
            if !(away && matches!(step, Step::Pass)) {
                model.step(step);
            }
        }
        model.finish(away);
    }

    #[test]
    fn one_worker_begins_requests_in_the_order_in_which_they_came(
        depth in 1..=4usize,
        steps in steps(1),
    ) {
        let mut model = Model::new(Policy::central_fcfs(), 1, depth);
        for step in &steps {
            // Without what takes requests out of the order.
            if !matches!(step, Step::Preempt(_) | Step::PreemptDetached(_) | Step::Block(_)) {
                model.step(step);
            }
        }
        model.finish(false);
        prop_assert!(model.begun.iter().copied().eq(0..model.submitted));
    }

    /// With a depth of 1 a worker runs what it runs without mailboxes.
    #[test]
    fn the_policy_decides_what_runs_next(
        policy in policies().prop_map(|(policy, _)| policy),
        requests in prop::collection::vec((0..3usize, 1..50_000u64, any::<bool>()), 1..60),
    ) {
        let mut model = Model::new(policy, 1, 1);
        let settings = Settings::new(policy)
            .class(RequestClass::new("short").slo(Duration::from_micros(20)))
            .class(RequestClass::new("long").slo(Duration::from_millis(5)))
            .preempted(3)
            .complete();
        let mut table = RequestTable::<u32, u32>::new(&settings, 1).unwrap();
        assert!(matches!(table.next(WorkerId(0), model.now).0, Next::Idle));
        model.step(&Step::Act(0));
        let (mut expected, mut runs) = (Vec::new(), None);
        let mut next = |table: &mut RequestTable<u32, u32>, now| match table.next(WorkerId(0), now).0 {
            Next::Start(number, payload) | Next::Resume(number, payload) => {
                expected.push(payload);
                Some((number, payload))
            }
            Next::Idle => None,
        };
        let mut ran = Vec::new();
        for &(class, work, ends) in &requests {
            let (work_ns, arrived) = (Nanos(work), model.now);
            let offer = Offer { class, flow: FlowHash(7), work_ns, arrived };
            table.submit(model.now, offer, model.submitted).unwrap();
            model.submit(class, work);
            model.assigner.pump(model.now);
            while model.assigner.next_call().is_some() {
                model.threads[0] = Thread::Comes;
            }
            model.now = model.now + Nanos(6_000);
            if let Some((number, payload)) = runs {
                if ends {
                    table.finish(number, model.now, payload % 7 == 0);
                    model.act(0);
                } else if table.preempt(number, model.now, payload).is_ok() {
                    model.preempt(0);
                    prop_assert_eq!(model.threads[0], Thread::Comes);
                } else {
                    continue;
                }
            }
            runs = next(&mut table, model.now);
            model.act(0);
            if let Thread::Runs(_, payload) = model.threads[0] {
                ran.push(payload);
            }
        }
        prop_assert_eq!(ran, expected);
    }
}

/// A server gives the permit of a request back when that begins, and the next one is not refused.
#[test]
fn a_request_that_a_worker_may_begin_has_left_its_place_in_the_queue() {
    let mut model = Model::new(Policy::central_fcfs(), 1, 2);
    (0..QUEUE).for_each(|_| model.submit(0, 0));
    assert!(!model.admission.admit(), "as many wait as are allowed");
    // The lane has two, one of which is in its mailbox, and the lock is still held.
    assert!(model.assigner.ask(0, model.now));
    assert_eq!(
        [model.admission.admit(), model.admission.admit(), model.admission.admit()],
        [true, true, false]
    );
}

#[test]
fn a_request_behind_one_that_does_not_end_is_run_by_another_lane() {
    let mut model = Model::new(Policy::central_fcfs(), 2, 2);
    model.step(&Step::Act(0));
    model.step(&Step::Act(1));
    (0..4).for_each(|_| model.submit(0, 0));
    for lane in [0, 1] {
        model.pass();
        while model.assigner.next_call().is_some() {}
        model.threads[lane] = Thread::Comes;
        model.step(&Step::Act(lane));
    }
    model.pass();
    assert_eq!([model.waiting_at(0), model.waiting_at(1)], [1, 1]);
    // Lane 0 does not end its request; lane 1 runs all others.
    for _ in 0..6 {
        model.step(&Step::Act(1));
    }
    assert_eq!(model.ended.len(), 3);
    assert!(matches!(model.threads[0], Thread::Runs(..)));
}

#[test]
fn what_waits_at_a_worker_without_a_core_is_taken_back_at_the_next_pass() {
    let mut model = Model::new(Policy::central_fcfs(), 1, 2);
    model.step(&Step::Act(0));
    (0..2).for_each(|_| model.submit(0, 0));
    model.step(&Step::Pass);
    model.step(&Step::Act(0));
    model.step(&Step::Pass);
    assert_eq!(model.waiting_at(0), 1);
    model.step(&Step::Core(0, false));
    model.step(&Step::Pass);
    assert_eq!(model.waiting_at(0), 0);
    // It gets no other one before it has gone on.
    model.step(&Step::Pass);
    assert_eq!(model.waiting_at(0), 0);
    model.finish(false);
}

#[test]
fn a_request_gives_way_to_one_in_its_mailbox_when_its_quantum_is_over() {
    let mut model = Model::new(Policy::single_queue(QUANTUM, Requeue::Tail), 1, 2);
    model.step(&Step::Act(0));
    model.submit(1, 0);
    model.step(&Step::Pass);
    model.step(&Step::Act(0));
    let Thread::Runs(number, _) = model.threads[0] else { panic!("{:?}", model.threads[0]) };
    model.step(&Step::Time(1_000));
    model.submit(0, 0);
    model.step(&Step::Pass);
    assert!(!model.mailboxes[0].is_ordered(number), "its quantum is not over");
    model.step(&Step::Time(5_000));
    model.step(&Step::Pass);
    assert!(model.mailboxes[0].is_ordered(number));
    // As is one that is alone for longer than its quantum before another one comes.
    let mut model = Model::new(Policy::single_queue(QUANTUM, Requeue::Tail), 1, 2);
    model.step(&Step::Act(0));
    model.submit(1, 0);
    model.step(&Step::Pass);
    model.step(&Step::Act(0));
    let Thread::Runs(number, _) = model.threads[0] else { panic!("{:?}", model.threads[0]) };
    model.step(&Step::Time(8_000));
    model.step(&Step::Pass);
    assert!(!model.mailboxes[0].is_ordered(number), "nothing waits");
    model.submit(0, 0);
    model.step(&Step::Pass);
    assert!(model.mailboxes[0].is_ordered(number));
}

#[test]
fn a_request_that_does_not_give_way_is_reported_once_in_a_while_until_it_does() {
    let (mut model, running) = all_run(2);
    model.submit(0, 0);
    model.submit(0, 0);
    model.step(&Step::Time(5_000));
    model.step(&Step::Pass);
    assert!(model.mailboxes.iter().zip(&running).all(|(mailbox, &number)| mailbox.is_ordered(number)));
    let overdue = |model: &mut Model| model.assigner.poll_overdue(model.now);
    assert_eq!(overdue(&mut model), None, "it has had no time to reach a poll point");
    model.step(&Step::Time(20_000));
    assert_eq!([(); 3].map(|()| overdue(&mut model)), [Some(0), Some(1), None]);
    model.step(&Step::Preempt(0));
    model.step(&Step::Time(1_000_000));
    assert_eq!([(); 2].map(|()| overdue(&mut model)), [Some(1), None]);
}

/// Returns a model under `sq:5us` whose lanes all run a request each.
fn all_run(lanes: usize) -> (Model, Vec<Number>) {
    let mut model = Model::new(Policy::single_queue(QUANTUM, Requeue::Tail), lanes, 2);
    (0..lanes).for_each(|_| model.submit(1, 0));
    (0..lanes).for_each(|lane| model.step(&Step::Act(lane)));
    let running = model.threads.iter().map(|thread| match *thread {
        Thread::Runs(number, _) => number,
        _ => panic!("{thread:?}"),
    });
    let running = running.collect();
    (model, running)
}

#[test]
fn the_signal_ends_the_turn_of_a_request_behind_which_one_waits_at_the_lane() {
    let (mut model, running) = all_run(1);
    assert!(!makes_way(&model.mailboxes[0], running[0], true), "it is alone");
    model.submit(0, 0);
    model.step(&Step::Pass);
    assert_eq!((model.assigner.table.waiting(), model.waiting_at(0)), (0, 1));
    assert!(makes_way(&model.mailboxes[0], running[0], true));
    assert!(!makes_way(&model.mailboxes[0], running[0], false), "the policy has no quantum");
    // It is taken back, and waits for any lane: the order is there, and the count has it.
    model.step(&Step::Time(PATIENCE.0));
    model.step(&Step::Pass);
    assert_eq!((model.assigner.table.waiting(), model.waiting_at(0)), (0, 0));
    assert!(makes_way(&model.mailboxes[0], running[0], false));
    assert_eq!(model.assigner.waiting(), 1);
}

#[test]
fn a_request_gives_way_to_one_that_was_taken_back_before_its_quantum_was_over() {
    for off_duty in [false, true] {
        let (mut model, running) = all_run(1);
        model.submit(0, 0);
        model.step(&Step::Core(0, false));
        model.step(&Step::Pass);
        assert!(!model.mailboxes[0].is_ordered(running[0]), "its quantum is not over");
        assert_eq!((model.assigner.waiting(), model.waiting_at(0)), (1, 0));
        model.step(&Step::Core(0, true));
        model.step(&Step::Time(6_000));
        if off_duty {
            assert_eq!(model.assigner.ask_policy(Some(0), running[0], model.now), QuantumDecision::Preempt);
        } else {
            model.step(&Step::Pass);
            assert!(model.mailboxes[0].is_ordered(running[0]));
        }
        model.finish(off_duty);
    }
}

#[test]
fn a_request_that_runs_on_gives_way_to_one_that_was_taken_back_from_another_lane() {
    let (mut model, running) = all_run(2);
    // What waits behind either is taken back: neither gets another one before it has gone on.
    (0..2).for_each(|_| model.submit(0, 0));
    model.step(&Step::Pass);
    assert_eq!([model.waiting_at(0), model.waiting_at(1)], [1, 1]);
    model.step(&Step::Core(1, false));
    model.step(&Step::Pass);
    model.step(&Step::Core(1, true));
    // Lane 0 runs both, and nothing waits when the quantum of the request at lane 1 is over.
    (0..4).for_each(|_| model.step(&Step::Act(0)));
    assert_eq!((model.ended.len(), model.assigner.waiting()), (2, 0));
    assert!(matches!(model.threads[0], Thread::Runs(..)));
    model.step(&Step::Time(6_000));
    model.step(&Step::Pass);
    assert!(!model.mailboxes[1].is_ordered(running[1]), "nothing waits");
    model.submit(0, 0);
    model.step(&Step::Core(0, false));
    model.step(&Step::Pass);
    model.step(&Step::Pass);
    assert_eq!((model.assigner.table.waiting(), model.assigner.waiting()), (0, 1));
    assert!(model.mailboxes[1].is_ordered(running[1]));
    model.finish(false);
}

#[test]
fn a_request_for_whose_successor_there_was_no_memory_is_ordered_again() {
    let mut model = Model::new(Policy::shortest_remaining(), 1, 1);
    model.submit(0, 900_000);
    model.step(&Step::Act(0));
    let Thread::Runs(number, _) = model.threads[0] else { panic!("{:?}", model.threads[0]) };
    model.submit(0, 1_000);
    assert!(model.mailboxes[0].is_ordered(number));
    model.assigner.run_on(0, model.now);
    assert!(!model.mailboxes[0].is_ordered(number));
    model.step(&Step::Pass);
    assert!(model.mailboxes[0].is_ordered(number));
    model.finish(false);
}

#[test]
fn a_request_that_was_refused_a_place_gives_way_when_there_is_one() {
    for off_duty in [false, true] {
        let mut model = Model::new(Policy::shortest_remaining(), 2, 1);
        (0..2).for_each(|lane| model.step(&Step::Act(lane)));
        let submit = |model: &mut Model, work| {
            model.step(&Step::Submit { class: 0, work });
            model.step(&Step::Pass);
        };
        // Two requests have left lane 0, and are preempted while both lanes run shorter ones.
        for _ in 0..2 {
            submit(&mut model, 900_000);
            model.step(&Step::Act(0));
            model.step(&Step::Block(0));
        }
        submit(&mut model, 600_000);
        model.step(&Step::Act(0));
        submit(&mut model, 500_000);
        model.step(&Step::Act(1));
        (2..4).for_each(|detached| model.step(&Step::Unblock(detached)));
        (0..2).for_each(|_| model.step(&Step::PreemptDetached(0)));
        let Thread::Runs(number, _) = model.threads[0] else { panic!("{:?}", model.threads[0]) };
        submit(&mut model, 1_000);
        assert!(model.mailboxes[0].is_ordered(number));
        // The request of lane 1 takes the last place.
        (0..2).for_each(|lane| model.step(&Step::Preempt(1 - lane)));
        assert!(matches!(model.threads[..], [Thread::Runs(..), Thread::Comes]), "{:?}", model.threads);
        model.step(&Step::Pass);
        assert!(!model.mailboxes[0].is_ordered(number), "there is no place");
        model.step(&Step::Act(1));
        assert!(model.assigner.table.may_preempt(number), "lane 1 has resumed a request");
        if off_duty {
            assert_eq!(model.assigner.ask_policy(Some(0), number, model.now), QuantumDecision::Preempt);
        } else {
            model.step(&Step::Pass);
        }
        assert!(model.mailboxes[0].is_ordered(number));
        model.finish(off_duty);
    }
}

#[test]
fn a_request_at_a_lane_that_may_have_stopped_needs_the_dispatcher() {
    let mut model = Model::new(Policy::central_fcfs(), 2, 2);
    (0..2).for_each(|lane| model.step(&Step::Act(lane)));
    assert!(!model.assigner.needs_watching(), "nothing waits");
    model.submit(0, 0);
    model.assigner.pump(model.now);
    while model.assigner.next_call().is_some() {}
    model.threads[0] = Thread::Comes;
    model.step(&Step::Act(0));
    assert!(!model.assigner.needs_watching(), "the only request runs");
    // Linux stops the thread of lane 0 after its report, and the next request goes to that lane.
    model.step(&Step::Act(0));
    assert_eq!(model.threads, [Thread::Looks, Thread::None]);
    model.assigner.collect();
    model.submit(0, 0);
    model.assigner.pump(model.now);
    assert_eq!(model.waiting_at(0), 1);
    assert!(!model.assigner.is_short());
    assert!(model.assigner.needs_watching());
    model.finish(false);
    assert!(!model.assigner.needs_watching());
}

#[test]
fn a_lane_without_requests_tries_all_others() {
    let mut model = Model::new(Policy::central_fcfs(), 3, 4);
    (0..6).for_each(|_| model.submit(0, 0));
    (1..3).for_each(|lane| model.step(&Step::Act(lane)));
    model.submit(0, 0);
    model.step(&Step::Pass);
    model.step(&Step::Act(0));
    assert_eq!([0, 1, 2].map(|lane| model.waiting_at(lane)), [0, 3, 1]);
    // Of the lane with the most, the last place is empty and not yet counted as taken.
    let taken = model.mailboxes[1].take_back(3).expect("it is there");
    (0..2).for_each(|_| model.step(&Step::Act(0)));
    assert_eq!([0, 1, 2].map(|lane| model.waiting_at(lane)), [0, 3, 0]);
    assert!(matches!(model.threads[0], Thread::Runs(..)));
    assert!(model.mailboxes[1].give(3, taken).is_ok());
    model.finish(false);
}
