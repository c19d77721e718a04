//! Random steps of a table: every request ends once, whatever is preempted or blocks, and a long
//! one gets on beside short ones.

use super::super::settings::{RequestClass, Requeue};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MAX_DETACHED: usize = 3;
const QUANTUM: Duration = Duration::from_micros(5);

fn policies() -> impl Strategy<Value = super::super::Policy> {
    use super::super::Policy;
    prop_oneof![
        Just(Policy::central_fcfs()),
        Just(Policy::shortest_remaining()),
        (1..5usize).prop_map(Policy::stealing),
        prop_oneof![Just(Requeue::Head), Just(Requeue::Tail)]
            .prop_map(|requeue| Policy::single_queue(QUANTUM, requeue)),
        prop_oneof![Just(Requeue::Head), Just(Requeue::Tail)]
            .prop_map(|requeue| Policy::multi_queue(QUANTUM, requeue)),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Submit { class: usize, flow: u32, work: u64 },
    Ask(usize),
    Finish(usize),
    Preempt(usize),
    Quantum(usize),
    Block(usize),
    Unblock(usize),
    FinishDetached(usize),
    PreemptDetached(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = 0..3usize;
    let step = prop_oneof![
        4 => (0..4usize, any::<u32>(), 0..50_000u64)
            .prop_map(|(class, flow, work)| Step::Submit { class, flow, work }),
        4 => lane.clone().prop_map(Step::Ask),
        3 => lane.clone().prop_map(Step::Finish),
        3 => lane.clone().prop_map(Step::Preempt),
        2 => lane.clone().prop_map(Step::Quantum),
        1 => lane.prop_map(Step::Block),
        1 => (0..8usize).prop_map(Step::Unblock),
        1 => (0..8usize).prop_map(Step::FinishDetached),
        1 => (0..8usize).prop_map(Step::PreemptDetached),
    ];
    prop::collection::vec(step, 0..200)
}

/// Drives a table as the threads of a dispatcher do.
struct Model {
    table: RequestTable<u32, u32>,
    now: Nanos,
    submitted: u32,
    refused: u32,
    held: u64,
    /// Payload of each request that has begun and is not suspended.
    begun: BTreeMap<Number, u32>,
    /// Payloads of those that are, by which their threads go, with the numbers they had.
    suspended: BTreeMap<u32, Number>,
    /// What each lane runs.
    lanes: [Option<Number>; 3],
    /// What has blocked with its lane.
    kept: [Option<Number>; 3],
    detached: Vec<Number>,
    /// Those of them that were released.
    released: BTreeSet<Number>,
    /// Payloads of finished requests.
    finished: Vec<u32>,
}

impl Model {
    fn new(policy: super::super::Policy) -> Self {
        let settings = Settings::new(policy)
            .class(RequestClass::new("short").slo(Duration::from_micros(20)))
            .class(RequestClass::new("middle"))
            .class(RequestClass::new("long").slo(Duration::from_millis(5)))
            .queue(20)
            .preempted(3)
            .blocked(MAX_DETACHED)
            .complete();
        Self {
            table: RequestTable::new(&settings, 3).unwrap(),
            now: Nanos(1),
            submitted: 0,
            refused: 0,
            held: 0,
            begun: BTreeMap::new(),
            suspended: BTreeMap::new(),
            lanes: [None; 3],
            kept: [None; 3],
            detached: Vec::new(),
            released: BTreeSet::new(),
            finished: Vec::new(),
        }
    }

    fn ask(&mut self, lane: usize) {
        if self.lanes[lane].is_some() || self.kept[lane].is_some() {
            return;
        }
        let (next, _) = self.table.next(WorkerId(lane as u32), self.now);
        self.lanes[lane] = match next {
            Next::Start(number, payload) => {
                assert_eq!(self.begun.insert(number, payload), None, "a request begins once");
                Some(number)
            }
            Next::Resume(number, payload) => {
                self.suspended.remove(&payload).expect("it is suspended");
                assert_eq!(self.begun.insert(number, payload), None);
                Some(number)
            }
            Next::Idle => None,
        };
    }

    /// Preempts a request that runs; returns false if it runs on.
    fn preempt(&mut self, number: Number, lane: Option<usize>) -> bool {
        let payload = self.begun[&number];
        match (self.table.preempt(number, self.now, payload), lane) {
            (Ok(Preempted::Free(freed)), Some(lane)) => assert_eq!(freed.index(), lane),
            (Ok(Preempted::Queued(_)), None) => {}
            (Ok(freed), lane) => panic!("{freed:?} of {lane:?}"),
            (Err(thread), _) => {
                assert_eq!(thread, payload);
                return false;
            }
        }
        self.begun.remove(&number);
        self.suspended.insert(payload, number);
        true
    }

    fn finish(&mut self, number: Number, lane: Option<usize>) {
        let freed = self.table.finish(number, self.now, false);
        assert_eq!(freed.map(WorkerId::index), lane);
        self.released.remove(&number);
        self.finished.push(self.begun.remove(&number).expect("it runs"));
    }

    fn step(&mut self, step: &Step) {
        self.now = self.now + Nanos(700);
        match *step {
            Step::Submit { class, flow, work } => {
                let (flow, work_ns, arrived) = (FlowHash(flow), Nanos(work), self.now);
                let offer = Offer { class, flow, work_ns, arrived };
                match self.table.submit(self.now, offer, self.submitted) {
                    Ok(_) => self.submitted += 1,
                    Err(payload) => {
                        assert_eq!(payload, self.submitted);
                        self.refused += 1;
                    }
                }
            }
            Step::Ask(lane) => self.ask(lane),
            Step::Finish(lane) => {
                if let Some(number) = self.lanes[lane].take() {
                    self.finish(number, Some(lane));
                }
            }
            Step::Preempt(lane) => {
                if let Some(number) = self.lanes[lane].take()
                    && !self.preempt(number, Some(lane))
                {
                    assert!(!self.table.may_preempt(number));
                    self.lanes[lane] = Some(number);
                }
            }
            Step::Quantum(lane) => {
                if let Some(number) = self.lanes[lane] {
                    self.table.quantum(number, self.now);
                }
            }
            Step::Block(lane) => {
                if let Some(number) = self.lanes[lane] {
                    let leaves = self.table.may_leave_lane(number);
                    assert_eq!(leaves, self.detached.len() - self.released.len() < MAX_DETACHED);
                    self.lanes[lane] = None;
                    match self.table.block(number, self.now, leaves) {
                        Blocked::Left(left) => {
                            assert!(leaves && left.index() == lane);
                            self.detached.push(number);
                        }
                        Blocked::Kept(released) => {
                            assert!(!leaves);
                            self.held += 1;
                            self.kept[lane] = Some(number);
                            for payload in released {
                                let number = self.suspended.remove(&payload).expect("it is suspended");
                                assert_eq!(self.begun.insert(number, payload), None);
                                self.released.insert(number);
                                self.detached.push(number);
                            }
                        }
                        Blocked::Detached => panic!("it had a lane"),
                    }
                }
            }
            Step::Unblock(index) => match self.kept.get_mut(index) {
                Some(kept) => {
                    if let Some(number) = kept.take() {
                        self.table.unblock(number, self.now);
                        self.lanes[index] = Some(number);
                    }
                }
                None => {
                    if let Some(&number) = self.detached.get(index - 3) {
                        self.table.unblock(number, self.now);
                    }
                }
            },
            Step::FinishDetached(index) => {
                if index < self.detached.len() {
                    let number = self.detached.swap_remove(index);
                    self.finish(number, None);
                }
            }
            Step::PreemptDetached(index) => {
                if index < self.detached.len() {
                    let number = self.detached.swap_remove(index);
                    if self.preempt(number, None) {
                        self.released.remove(&number);
                    } else {
                        self.detached.push(number);
                    }
                }
            }
        }
        self.table.check();
    }

    /// Ends all requests that are left.
    fn drain(&mut self) {
        (0..3).for_each(|lane| self.step(&Step::Unblock(lane)));
        (0..3).for_each(|lane| self.step(&Step::Finish(lane)));
        for number in core::mem::take(&mut self.detached) {
            self.finish(number, None);
        }
        loop {
            let mut ran = false;
            for lane in 0..3 {
                self.ask(lane);
                if let Some(number) = self.lanes[lane].take() {
                    self.finish(number, Some(lane));
                    ran = true;
                }
            }
            self.table.check();
            if !ran {
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn every_request_ends_once(policy in policies(), steps in steps()) {
        let mut model = Model::new(policy);
        for step in &steps {
            model.step(step);
        }
        model.drain();
        model.finished.sort_unstable();
        prop_assert_eq!(&model.finished, &(0..model.submitted).collect::<Vec<_>>());
        prop_assert_eq!(model.table.waiting(), 0);
        let stats = model.table.stats();
        let sum = |of: fn(&ClassStats) -> u64| stats.iter().map(of).sum::<u64>();
        prop_assert_eq!(sum(|class| class.finished), u64::from(model.submitted));
        prop_assert_eq!(sum(|class| class.accepted), u64::from(model.submitted));
        prop_assert_eq!(sum(|class| class.dropped), u64::from(model.refused));
        prop_assert_eq!(sum(|class| class.held), model.held);
    }

    /// One lane. In a single queue, with short requests in every other quantum, a long one has all
    /// others. With a queue for each class, and short requests that would fill the lane alone, it
    /// has the ratio of the SLOs: it wins when its age by its SLO exceeds that of the oldest short
    /// one, which is as old as the turns that the long one has had.
    #[test]
    fn a_long_request_has_its_share(head in any::<bool>(), multi in any::<bool>(), ratio in 1..100_u32) {
        let requeue = if head { Requeue::Head } else { Requeue::Tail };
        let (policy, ratio) = if multi {
            (super::super::Policy::multi_queue(QUANTUM, requeue), ratio)
        } else {
            (super::super::Policy::single_queue(QUANTUM, requeue), 2)
        };
        let slo = Duration::from_micros(20);
        let settings = Settings::new(policy).class(RequestClass::new("short").slo(slo));
        let settings = settings.class(RequestClass::new("long").slo(slo * ratio)).complete();
        let mut table: RequestTable<usize, Number> = RequestTable::new(&settings, 1).unwrap();
        let (lane, half) = (WorkerId(0), Nanos(QUANTUM.as_nanos() as u64 / 2));
        let mut now = Nanos(1);
        let submit = |table: &mut RequestTable<usize, Number>, now, class| {
            let offer = Offer { class, flow: FlowHash(0), work_ns: Nanos::ZERO, arrived: now };
            table.submit(now, offer, class).unwrap();
        };
        submit(&mut table, now, 1);
        let mut had = 0;
        for turns in 1..=20 * ratio {
            let (number, is_long) = match table.next(lane, now).0 {
                Next::Start(number, class) => (number, class == 1),
                Next::Resume(number, _) => (number, true),
                Next::Idle => panic!("a request waits"),
            };
            if multi || turns % 2 == 0 {
                submit(&mut table, now + half, 0);
            }
            now = now + half + half;
            if is_long {
                had += 1;
                table.preempt(number, now, number).unwrap();
            } else {
                table.finish(number, now, false);
            }
            table.check();
            // Two turns more or less: a quantum is added to each age, and shorts arrive amid one.
            let share = turns / ratio;
            prop_assert!(had + 2 >= share && had <= share + 2, "{had} of {turns} turns, not 1 in {ratio}");
        }
    }
}

#[test]
fn service_time_is_all_that_a_request_runs() {
    let settings = Settings::new(super::super::Policy::central_fcfs()).blocked(1).complete();
    let mut table: RequestTable<(), ()> = RequestTable::new(&settings, 2).unwrap();
    let at = |us: u64| Nanos(us * 1_000);
    let offer = Offer { class: 0, flow: FlowHash(0), work_ns: Nanos::ZERO, arrived: Nanos::ZERO };
    table.submit(at(0), offer, ()).unwrap();
    table.submit(at(0), offer, ()).unwrap();
    let mut start = |lane| match table.next(WorkerId(lane), at(1)).0 {
        Next::Start(number, ()) => number,
        next => panic!("{next:?}"),
    };
    let (first, second) = (start(0), start(1));
    // Runs for 1 us on its lane, twice for 3 us after it has blocked.
    assert_eq!(table.block(first, at(2), true), Blocked::Left(WorkerId(0)));
    table.unblock(first, at(102));
    assert_eq!(table.block(first, at(105), false), Blocked::Detached);
    table.unblock(first, at(205));
    assert_eq!(table.finish(first, at(208), false), None);
    let service = table.stats()[0].service.quantile(1.0).as_nanos() as u64;
    assert!((7_000..=7_000 + 7_000 / 8).contains(&service), "{service}");
    // Its wait on a lane counts: no other request has that.
    assert_eq!(table.block(second, at(301), false), Blocked::Kept(Vec::new()));
    table.unblock(second, at(401));
    assert_eq!(table.finish(second, at(401), false), Some(WorkerId(1)));
    let service = table.stats()[0].service.quantile(1.0).as_nanos() as u64;
    assert!((400_000..=450_000).contains(&service), "{service}");
    assert_eq!(table.stats()[0].held, 1);
}

/// Returns a table of two classes, and what its lanes run: each a request of the class given.
fn running<const N: usize>(
    settings: Settings,
    classes: [usize; N],
) -> (RequestTable<(), Number>, [Number; N]) {
    let settings = settings.class(RequestClass::new("first")).class(RequestClass::new("second"));
    let mut table = RequestTable::new(&settings.complete(), N).unwrap();
    let numbers = core::array::from_fn(|lane| {
        let (flow, arrived) = (FlowHash(0), Nanos::ZERO);
        let offer = Offer { class: classes[lane], flow, work_ns: Nanos::ZERO, arrived };
        table.submit(Nanos::ZERO, offer, ()).unwrap();
        match table.next(WorkerId(lane as u32), Nanos::ZERO).0 {
            Next::Start(number, ()) => number,
            next => panic!("{next:?}"),
        }
    });
    (table, numbers)
}

/// One lane, the classes in turn. With one place each, a second request of the first class begins
/// when the first has ended, and one of the second class at once.
#[test]
fn a_class_with_all_its_preempted_requests_begins_no_other_until_one_ends() {
    let policy = super::super::Policy::single_queue(QUANTUM, Requeue::Tail);
    let settings = Settings::new(policy).preempted(2);
    let (mut table, [mut first]) = running(settings, [0]);
    for class in [0, 1] {
        let offer = Offer { class, flow: FlowHash(0), work_ns: Nanos::ZERO, arrived: Nanos::ZERO };
        table.submit(Nanos::ZERO, offer, ()).unwrap();
    }
    let lane = WorkerId(0);
    let mut order = Vec::new();
    for us in 1..=4 {
        assert_eq!(table.preempt(first, Nanos(us), 77), Ok(Preempted::Free(lane)));
        table.check();
        match table.next(lane, Nanos(us)).0 {
            // In the place of the other of its class.
            Next::Resume(number, 77) => {
                order.push("first");
                first = number;
            }
            Next::Start(other, ()) => {
                order.push("other class");
                table.check();
                assert_eq!(table.finish(other, Nanos(us), false), Some(lane));
                let Next::Resume(number, 77) = table.next(lane, Nanos(us)).0 else { panic!("it waits") };
                first = number;
            }
            next => panic!("{next:?}"),
        }
        table.check();
    }
    assert_eq!(order, ["first", "other class", "first", "first"]);
    // It has ended: the second of its class begins.
    assert_eq!(table.finish(first, Nanos(5), false), Some(lane));
    assert!(matches!(table.next(lane, Nanos(5)).0, Next::Start(..)));
    table.check();
    assert_eq!(table.waiting(), 0);
}

#[test]
fn lanes_may_exceed_the_share_of_a_class_by_one_each() {
    let policy = super::super::Policy::single_queue(QUANTUM, Requeue::Tail);
    let (mut table, numbers) = running(Settings::new(policy).preempted(2), [0, 0, 1]);
    for lane in [0, 1, 2] {
        assert_eq!(table.preempt(numbers[lane], Nanos(1), 0), Ok(Preempted::Free(WorkerId(lane as u32))));
    }
    table.check();
    // Without any no request is.
    let (mut table, [number]) = running(Settings::new(policy).preempted(0), [0]);
    assert_eq!(table.preempt(number, Nanos(1), 3), Err(3));
}

#[test]
fn released_requests_keep_their_places_until_they_end() {
    let policy = super::super::Policy::single_queue(QUANTUM, Requeue::Tail);
    let settings = Settings::new(policy).preempted(2).blocked(1);
    let (mut table, [first, second, third]) = running(settings, [0, 0, 1]);
    // The first is suspended when its lane asks, which has nothing else.
    table.preempt(first, Nanos(1), first).unwrap();
    table.empty_hand(WorkerId(0), Nanos(1));
    assert_eq!(table.block(third, Nanos(2), false), Blocked::Kept(vec![first]));
    table.check();
    assert_eq!(table.preempted.taken(), 1);
    // It does not count as one that has left its lane because it blocked.
    assert!(table.may_leave_lane(second));
    assert_eq!(table.finish(first, Nanos(3), false), None);
    assert_eq!(table.preempted.taken(), 0);
    table.check();
}
