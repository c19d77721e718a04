//! Behaviour of each policy in small hand-made cases, and a random driver that checks every
//! policy's protocol.

use heap::boxed::Box;
use heap::collections::BTreeMap;
use heap::string::ToString;
use heap::vec;
use heap::vec::Vec;

use super::*;
use crate::ids::Nanos;

const US: u64 = 1_000;

fn request(id: u64, arrived: u64, work: u64, class: u16) -> Request {
    // Spread ids over the hash space so that consecutive ids have different homes.
    let flow = FlowHash((id as u32).wrapping_mul(0x9e37_79b9));
    let (arrived_ns, remaining_ns) = (Nanos(arrived), Nanos(work));
    Request { id: RequestId(id), arrived_ns, remaining_ns, flow, class: ClassId(class) }
}

fn at_home(id: u64, home: u32, workers: u32) -> Request {
    let hash = ((u64::from(home) << 32) / u64::from(workers) + 1) as u32;
    Request { flow: FlowHash(hash), ..request(id, 0, US, 0) }
}

fn ids(policy: &mut dyn Dispatch, worker: u32, now: u64) -> Option<u64> {
    policy.next_for(WorkerId(worker), Nanos(now)).map(|a| a.request.id.0)
}

fn setup(workers: usize) -> Setup {
    let class = |slo_us: u64, mean_ns: f64| ClassInfo {
        slo_ns: Nanos(slo_us * US),
        demand: ClassDemand { mean_ns, share: 0.5 },
        requeue: None,
    };
    Setup { workers, classes: vec![class(10, 1_000.0), class(1_000, 100_000.0)], seed: 7 }
}

fn every_policy() -> Vec<PolicySpec> {
    let quantum_ns = Nanos(5 * US);
    let mut all =
        vec![PolicySpec::DFcfs, PolicySpec::CFcfs, PolicySpec::ShortestRemaining, PolicySpec::Reserved];
    all.extend([1, 4].map(|batch| PolicySpec::Stealing { batch }));
    all.push(PolicySpec::ProcessorSharing { quantum_ns });
    for requeue in [Requeue::Head, Requeue::Tail] {
        all.push(PolicySpec::SingleQueue { quantum_ns, requeue });
        all.push(PolicySpec::MultiQueue { quantum_ns, requeue });
    }
    for depth in [1, 2, 3, DEPTH_MAX] {
        all.extend(
            [None, Some(quantum_ns)].map(|quantum_ns| PolicySpec::BoundedQueues { depth, quantum_ns }),
        );
    }
    all
}

#[test]
fn d_fcfs_keeps_a_request_for_its_home_while_another_worker_idles() {
    let mut p = DistributedFcfs::new(2);
    assert_eq!(ids(&mut p, 0, 0), None);
    assert_eq!(ids(&mut p, 1, 0), None);
    assert_eq!(p.on_arrival(Nanos(1), at_home(1, 0, 2)), Reaction::Run(WorkerId(0)));
    assert_eq!(ids(&mut p, 0, 1), Some(1));
    assert_eq!(p.on_arrival(Nanos(2), at_home(2, 0, 2)), Reaction::Queue);
    assert_eq!(ids(&mut p, 1, 2), None);
    assert_eq!(ids(&mut p, 0, 3), Some(2));
}

#[test]
fn stealing_wakes_the_home_worker_first_and_another_when_home_is_busy() {
    let mut p = WorkStealing::new(2, 1, 1);
    assert_eq!(ids(&mut p, 0, 0), None);
    assert_eq!(ids(&mut p, 1, 0), None);
    assert_eq!(p.on_arrival(Nanos(1), at_home(1, 1, 2)), Reaction::Run(WorkerId(1)));
    assert_eq!(p.next_for(WorkerId(1), Nanos(1)).unwrap().origin, Origin::Local);
    assert_eq!(p.on_arrival(Nanos(2), at_home(2, 1, 2)), Reaction::Run(WorkerId(0)));
    assert_eq!(p.next_for(WorkerId(0), Nanos(2)).unwrap().origin, Origin::Stolen(WorkerId(1)));
}

#[test]
fn a_batch_steal_takes_at_most_half_of_the_victims_queue() {
    let mut p = WorkStealing::new(2, 16, 1);
    for id in 0..7 {
        p.on_arrival(Nanos(0), at_home(id, 1, 2));
    }
    assert_eq!(ids(&mut p, 0, 1), Some(0), "the oldest is stolen first");
    p.check().unwrap();
    let mut own = Vec::new();
    for _ in 0..3 {
        let a = p.next_for(WorkerId(0), Nanos(2)).unwrap();
        own.push((a.request.id.0, a.origin == Origin::Local));
    }
    assert_eq!(own, [(1, true), (2, true), (3, true)], "half of 7, rounded up, moved to the thief");
    assert_eq!(ids(&mut p, 1, 2), Some(4));
}

#[test]
fn processor_sharing_rotates_and_lets_a_lone_request_run_until_somebody_comes() {
    let mut p = SingleQueue::processor_sharing(1, Nanos(5));
    let first = request(1, 0, 100, 0);
    assert_eq!(p.on_arrival(Nanos(0), first), Reaction::Queue, "no worker has come yet");
    assert_eq!(ids(&mut p, 0, 0), Some(1));
    assert_eq!(p.on_quantum(WorkerId(0), Nanos(5), &first), QuantumDecision::RunOn);
    assert_eq!(p.on_arrival(Nanos(9), request(2, 9, 100, 0)), Reaction::Preempt(WorkerId(0)));
    assert_eq!(p.on_preempt(WorkerId(0), Nanos(9), first), Reaction::Queue);
    assert_eq!(ids(&mut p, 0, 9), Some(2));
    assert_eq!(p.on_quantum(WorkerId(0), Nanos(14), &request(2, 9, 95, 0)), QuantumDecision::Preempt);
}

#[test]
fn a_request_preempted_to_the_head_runs_before_those_that_waited_behind_the_next() {
    for (requeue, then) in [(Requeue::Head, 1), (Requeue::Tail, 3)] {
        let mut p = SingleQueue::shinjuku(1, Nanos(5), requeue);
        let first = request(1, 0, 100, 0);
        for r in [first, request(2, 1, 9, 0), request(3, 2, 9, 0)] {
            p.on_arrival(r.arrived_ns, r);
        }
        assert_eq!(ids(&mut p, 0, 2), Some(1));
        assert_eq!(p.on_quantum(WorkerId(0), Nanos(7), &first), QuantumDecision::Preempt);
        p.on_preempt(WorkerId(0), Nanos(7), first);
        assert_eq!(ids(&mut p, 0, 7), Some(2));
        assert_eq!(ids(&mut p, 0, 8), Some(then), "{requeue:?}");
    }
}

#[test]
fn a_class_may_requeue_elsewhere_than_the_policy_says() {
    let quantum_ns = Nanos(5 * US);
    for (requeue, other) in [(Requeue::Head, Requeue::Tail), (Requeue::Tail, Requeue::Head)] {
        for spec in
            [PolicySpec::SingleQueue { quantum_ns, requeue }, PolicySpec::MultiQueue { quantum_ns, requeue }]
        {
            for class in [0, 1] {
                let mut setup = setup(1);
                setup.classes[1].requeue = Some(other);
                let mut p = spec.build(&setup).unwrap();
                let first = request(1, 0, 100 * US, class);
                for id in 1..=3 {
                    p.on_arrival(Nanos(0), request(id, 0, 100 * US, class));
                }
                assert_eq!(ids(&mut *p, 0, 0), Some(1));
                p.on_preempt(WorkerId(0), Nanos(5 * US), first);
                let order = [5, 6, 7].map(|at| ids(&mut *p, 0, at * US).unwrap());
                let to = if class == 1 { other } else { requeue };
                let expected = match (to, spec) {
                    (Requeue::Tail, _) => [2, 3, 1],
                    // Behind the one that its own worker takes instead.
                    (Requeue::Head, PolicySpec::SingleQueue { .. }) => [2, 1, 3],
                    (Requeue::Head, _) => [1, 2, 3],
                };
                assert_eq!(order, expected, "{spec:?}, class {class}");
            }
        }
    }
}

#[test]
fn an_arrival_starts_a_wave_over_every_overdue_worker() {
    let mut p = SingleQueue::processor_sharing(2, Nanos(5));
    let (a, b) = (request(1, 0, 100, 0), request(2, 0, 100, 0));
    p.on_arrival(Nanos(0), a);
    p.on_arrival(Nanos(0), b);
    assert_eq!((ids(&mut p, 0, 0), ids(&mut p, 1, 0)), (Some(1), Some(2)));
    p.on_quantum(WorkerId(0), Nanos(5), &a);
    p.on_quantum(WorkerId(1), Nanos(6), &b);
    assert_eq!(
        p.on_arrival(Nanos(9), request(3, 9, 1, 0)),
        Reaction::Preempt(WorkerId(0)),
        "overdue longest"
    );
    assert_eq!(
        p.on_preempt(WorkerId(0), Nanos(9), a),
        Reaction::Preempt(WorkerId(1)),
        "now the first one waits"
    );
    assert_eq!(ids(&mut p, 0, 9), Some(3));
    assert_eq!(p.on_preempt(WorkerId(1), Nanos(9), b), Reaction::Queue);
    assert_eq!(ids(&mut p, 1, 9), Some(1));
    p.check().unwrap();
}

#[test]
fn multi_queue_serves_the_largest_age_to_slo_ratio_and_lets_long_requests_age() {
    let mut p = MultiQueue::new(1, &[Nanos(10), Nanos(1_000)], Nanos(5), Requeue::Head);
    p.on_arrival(Nanos(0), request(1, 0, 100, 1));
    p.on_arrival(Nanos(90), request(2, 90, 1, 0));
    p.on_arrival(Nanos(91), request(3, 91, 1, 0));
    // At 95 the long one has the ratio 95/1000, the short ones 5/10 and 4/10.
    assert_eq!(ids(&mut p, 0, 95), Some(2));
    // At 5000 a short request of age 10 (ratio 1) loses against the long one (ratio 5).
    p.on_arrival(Nanos(4_990), request(4, 4_990, 1, 0));
    assert_eq!(ids(&mut p, 0, 95), Some(3));
    assert_eq!(ids(&mut p, 0, 5_000), Some(1));
    assert_eq!(ids(&mut p, 0, 5_000), Some(4));
}

#[test]
fn multi_queue_preempts_a_running_request_at_its_quantum_only_for_a_more_urgent_one() {
    let mut p = MultiQueue::new(1, &[Nanos(10), Nanos(1_000)], Nanos(5), Requeue::Head);
    let long = request(1, 0, 100, 1);
    p.on_arrival(Nanos(0), long);
    assert_eq!(ids(&mut p, 0, 0), Some(1));
    assert_eq!(p.on_arrival(Nanos(1), request(2, 1, 100, 1)), Reaction::Queue);
    assert_eq!(p.on_quantum(WorkerId(0), Nanos(5), &long), QuantumDecision::Again(Nanos(5)), "it is older");
    let mut p = MultiQueue::new(1, &[Nanos(10), Nanos(1_000)], Nanos(5), Requeue::Head);
    p.on_arrival(Nanos(0), long);
    assert_eq!(ids(&mut p, 0, 0), Some(1));
    assert_eq!(p.on_arrival(Nanos(4), request(2, 4, 1, 0)), Reaction::Queue, "its quantum is not over");
    assert_eq!(p.on_quantum(WorkerId(0), Nanos(5), &long), QuantumDecision::Preempt, "6/10 beats 10/1000");
    assert_eq!(p.on_preempt(WorkerId(0), Nanos(5), long), Reaction::Queue);
    assert_eq!((ids(&mut p, 0, 5), ids(&mut p, 0, 6)), (Some(2), Some(1)));
}

#[test]
fn multi_queue_preempts_an_overdue_worker_when_a_more_urgent_request_arrives() {
    let mut p = MultiQueue::new(2, &[Nanos(10), Nanos(1_000)], Nanos(5), Requeue::Head);
    let (old, young) = (request(1, 0, 100, 1), request(2, 3, 100, 1));
    for (worker, long) in [(0, old), (1, young)] {
        p.on_arrival(long.arrived_ns, long);
        assert_eq!(ids(&mut p, worker, 3), Some(long.id.0));
        assert_eq!(p.on_quantum(WorkerId(worker), Nanos(8), &long), QuantumDecision::Again(Nanos(5)));
    }
    assert_eq!(p.on_arrival(Nanos(9), request(3, 9, 100, 1)), Reaction::Queue, "no more urgent");
    assert_eq!(p.on_arrival(Nanos(9), request(4, 9, 1, 0)), Reaction::Preempt(WorkerId(1)), "the younger");
    assert_eq!(p.on_preempt(WorkerId(1), Nanos(9), young), Reaction::Queue, "worker 0 runs an older one");
    p.check().unwrap();
    assert_eq!((ids(&mut p, 1, 9), ids(&mut p, 1, 10)), (Some(4), Some(2)));
    // 505/1000 beats 5/10: a long request that is late runs on.
    assert_eq!(p.on_quantum(WorkerId(1), Nanos(515), &young), QuantumDecision::Again(Nanos(5)));
    p.on_done(WorkerId(0), Nanos(515));
    assert_eq!(ids(&mut p, 0, 515), Some(3));
    assert_eq!(
        p.on_quantum(WorkerId(0), Nanos(520), &request(3, 9, 100, 1)),
        QuantumDecision::Again(Nanos(5))
    );
    assert_eq!(p.on_arrival(Nanos(520), request(5, 520, 1, 0)), Reaction::Queue);
    p.check().unwrap();
}

#[test]
fn jbsq_hands_out_to_the_shortest_queue_below_its_bound() {
    let mut p = BoundedQueues::new(2, 2, None);
    assert_eq!((ids(&mut p, 0, 0), ids(&mut p, 1, 0)), (None, None));
    for (id, worker) in [(0, 0), (1, 1)] {
        assert_eq!(p.on_arrival(Nanos(1), request(id, 1, 9, 0)), Reaction::Run(WorkerId(worker)));
        assert_eq!(ids(&mut p, worker, 1), Some(id));
    }
    for id in 2..6 {
        assert_eq!(p.on_arrival(Nanos(2), request(id, 2, 9, 0)), Reaction::Queue);
        p.check().unwrap();
    }
    assert_eq!([0, 1].map(|worker| p.waiting_at(WorkerId(worker))), [1, 1], "two wait in the central queue");
    p.on_done(WorkerId(1), Nanos(3));
    let next = p.next_for(WorkerId(1), Nanos(3)).unwrap();
    assert_eq!((next.request.id.0, next.origin, p.waiting_at(WorkerId(1))), (3, Origin::Local, 1));
    p.on_done(WorkerId(1), Nanos(4));
    assert_eq!(ids(&mut p, 1, 4), Some(4), "the one at worker 0 waits for it");
    assert_eq!((p.queued(), p.waiting_at(WorkerId(1))), (2, 1));
}

#[test]
fn jbsq_takes_back_what_waits_at_a_worker_that_is_preempted() {
    let mut p = BoundedQueues::new(2, 3, Some(Nanos(5)));
    let long = request(0, 0, 100, 0);
    assert_eq!((ids(&mut p, 0, 0), ids(&mut p, 1, 0)), (None, None));
    for id in [0, 1] {
        assert_eq!(p.on_arrival(Nanos(0), request(id, 0, 100, 0)), Reaction::Run(WorkerId(id as u32)));
        assert_eq!(ids(&mut p, id as u32, 0), Some(id));
    }
    for id in 2..6 {
        assert_eq!(p.on_arrival(Nanos(1), request(id, 1, 1, 0)), Reaction::Queue);
    }
    assert_eq!([0, 1].map(|worker| p.waiting_at(WorkerId(worker))), [2, 2]);
    // Worker 1 has nothing left before the quantum of worker 0 is over.
    for id in [1, 3, 5] {
        p.on_done(WorkerId(1), Nanos(4));
        assert_eq!(ids(&mut p, 1, 4), [Some(3), Some(5), None][id as usize / 2]);
    }
    assert_eq!(p.on_quantum(WorkerId(0), Nanos(5), &long), QuantumDecision::Preempt);
    assert_eq!(p.on_preempt(WorkerId(0), Nanos(5), long), Reaction::Run(WorkerId(1)));
    assert_eq!((ids(&mut p, 0, 5), ids(&mut p, 1, 5)), (Some(2), Some(4)));
    // The long one waits at worker 0, and runs when the short one is done.
    p.check().unwrap();
    p.on_done(WorkerId(0), Nanos(6));
    assert_eq!(ids(&mut p, 0, 6), Some(0));
}

#[test]
fn a_long_request_progresses_beside_short_ones_in_bounded_queues() {
    // One worker; a short request of one quantum arrives every second quantum.
    for depth in 1..=DEPTH_MAX {
        let mut p = BoundedQueues::new(1, depth, Some(Nanos(5)));
        p.on_arrival(Nanos(0), request(0, 0, 100, 0));
        let (mut current, mut left) = (ids(&mut p, 0, 0), 20);
        for quantum in 1..=60 {
            let now = Nanos(5 * quantum);
            let long = request(0, 0, 5 * left, 0);
            left -= u64::from(current == Some(0));
            if current != Some(0) || left == 0 {
                p.on_done(WorkerId(0), now);
                current = ids(&mut p, 0, now.0);
            } else if p.on_quantum(WorkerId(0), now, &long) == QuantumDecision::Preempt {
                p.on_preempt(WorkerId(0), now, long);
                current = ids(&mut p, 0, now.0);
            }
            if left == 0 {
                break;
            }
            if quantum % 2 == 0
                && p.on_arrival(now, request(quantum, now.0, 5, 0)) == Reaction::Preempt(WorkerId(0))
            {
                p.on_preempt(WorkerId(0), now, long);
                current = ids(&mut p, 0, now.0);
            }
            p.check().unwrap();
        }
        assert_eq!(left, 0, "depth {depth}");
    }
}

#[test]
fn srpt_preempts_the_request_with_most_left() {
    let mut p = ShortestRemaining::new(2);
    for r in [request(1, 0, 100, 0), request(2, 0, 50, 0)] {
        p.on_arrival(Nanos(0), r);
    }
    assert_eq!((ids(&mut p, 0, 0), ids(&mut p, 1, 0)), (Some(2), Some(1)));
    assert_eq!(p.on_arrival(Nanos(10), request(3, 10, 95, 0)), Reaction::Queue, "90 are left of the longest");
    assert_eq!(p.on_arrival(Nanos(10), request(4, 10, 5, 0)), Reaction::Preempt(WorkerId(1)));
    assert_eq!(p.on_preempt(WorkerId(1), Nanos(10), request(1, 0, 90, 0)), Reaction::Queue);
    assert_eq!(ids(&mut p, 1, 10), Some(4));
    p.on_done(WorkerId(1), Nanos(15));
    assert_eq!(ids(&mut p, 1, 15), Some(1));
}

#[test]
fn long_requests_never_take_a_worker_reserved_for_short_ones() {
    let demand =
        [ClassDemand { mean_ns: 100_000.0, share: 0.5 }, ClassDemand { mean_ns: 1_000.0, share: 0.5 }];
    let mut p = Reserved::new(4, &demand).unwrap();
    assert_eq!(p.cores_per_class(), [3, 1], "the short class brings 1 % of the work and keeps one worker");
    for w in 0..4 {
        assert_eq!(ids(&mut p, w, 0), None);
    }
    let mut woken = Vec::new();
    for id in 0..4 {
        woken.push(p.on_arrival(Nanos(id), request(id, id, 1, 0)));
    }
    assert_eq!(woken[3], Reaction::Queue, "worker 0 stays idle: {woken:?}");
    assert_eq!(p.on_arrival(Nanos(9), request(9, 9, 1, 1)), Reaction::Run(WorkerId(0)));
    assert_eq!(ids(&mut p, 0, 9), Some(9));
    p.on_arrival(Nanos(10), request(10, 10, 1, 1));
    assert_eq!(ids(&mut p, 1, 10), Some(10), "a worker of the long class takes short requests first");
}

#[test]
fn a_reservation_gives_every_worker_away_for_any_mix() {
    for workers in 1..40 {
        for classes in 1..=6u32 {
            let demand: Vec<_> = (0..classes)
                .map(|c| ClassDemand { mean_ns: 10f64.powi(c as i32), share: f64::from(classes - c) })
                .collect();
            let cores = Reserved::new(workers, &demand).unwrap().cores_per_class();
            assert_eq!(cores.iter().sum::<usize>(), workers);
            assert!(cores[classes as usize - 1] > 0, "the longest class has no worker: {cores:?}");
            assert!(workers < classes as usize || cores.iter().all(|&c| c > 0), "{workers}: {cores:?}");
        }
    }
}

#[test]
fn bad_parameters_are_refused_with_the_reason() {
    let reason = |spec: PolicySpec, s: &Setup| spec.build(s).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(reason(PolicySpec::CFcfs, &setup(0)).contains("0 workers"));
    assert!(reason(PolicySpec::ProcessorSharing { quantum_ns: Nanos(0) }, &setup(1)).contains("quantum"));
    let without = Setup { classes: Vec::new(), ..setup(1) };
    let mq = PolicySpec::MultiQueue { quantum_ns: Nanos(1), requeue: Requeue::Head };
    assert!(reason(mq, &without).contains("SLO"));
    assert!(reason(PolicySpec::Reserved, &without).contains("0 request classes"));
}

/// A driver that follows the protocol and nothing else: random arrivals, completions, expiries,
/// yields and lost cores. Verifies that every request runs to its end exactly once, and calls
/// `check()` after every step.
struct Driver {
    policy: Box<dyn Dispatch + Send>,
    running: Vec<Option<Request>>,
    present: Vec<bool>,
    /// Every request, with true if it has completed.
    seen: BTreeMap<u64, bool>,
    done: usize,
    now: u64,
}

impl Driver {
    fn react(&mut self, mut reaction: Reaction) {
        loop {
            match reaction {
                Reaction::Queue => break,
                Reaction::Run(w) => {
                    assert!(
                        self.present[w.index()] && self.running[w.index()].is_none(),
                        "called a busy worker"
                    );
                    self.ask(w);
                    break;
                }
                Reaction::Preempt(w) => {
                    let r = self.running[w.index()].take().expect("preempted a worker without a request");
                    reaction = self.policy.on_preempt(w, Nanos(self.now), r);
                    self.ask(w);
                }
            }
        }
    }

    fn ask(&mut self, w: WorkerId) {
        assert!(self.running[w.index()].is_none());
        let assignment = self.policy.next_for(w, Nanos(self.now));
        self.running[w.index()] = assignment.map(|a| a.request);
    }

    fn give_back(&mut self, w: WorkerId, ask: bool) {
        let Some(mut r) = self.running[w.index()].take() else { return };
        r.remaining_ns = Nanos(r.remaining_ns.0.saturating_sub(1).max(1));
        let reaction = self.policy.on_preempt(w, Nanos(self.now), r);
        if ask {
            self.ask(w);
        } else {
            self.policy.on_leave(w, Nanos(self.now));
            self.present[w.index()] = false;
        }
        self.react(reaction);
    }

    fn step(&mut self, random: u64) {
        self.now += 1 + random % 7;
        let w = WorkerId(((random >> 8) % self.running.len() as u64) as u32);
        let busy = self.running[w.index()].is_some();
        match (random >> 40) % 8 {
            0..=2 => {
                let id = self.seen.len() as u64;
                self.seen.insert(id, false);
                let r = request(id, self.now, 1 + random % 50, ((random >> 50) % 3) as u16);
                let reaction = self.policy.on_arrival(Nanos(self.now), r);
                self.react(reaction);
            }
            3 | 4 if busy => {
                let r = self.running[w.index()].take().unwrap();
                assert_eq!(self.seen.insert(r.id.0, true), Some(false), "ran twice");
                self.done += 1;
                self.policy.on_done(w, Nanos(self.now));
                self.ask(w);
            }
            5 if busy => {
                let r = self.running[w.index()].unwrap();
                if self.policy.on_quantum(w, Nanos(self.now), &r) == QuantumDecision::Preempt {
                    self.give_back(w, true);
                }
            }
            6 if busy && random >> 60 == 0 => self.give_back(w, false),
            7 if !self.present[w.index()] => {
                self.present[w.index()] = true;
                self.ask(w);
            }
            _ => {}
        }
        self.policy.check().unwrap_or_else(|e| panic!("{} at {}: {e}", self.policy.name(), self.now));
        let running = self.running.iter().flatten().count();
        assert_eq!(
            self.done + running + self.policy.queued(),
            self.seen.len(),
            "{}: requests lost",
            self.policy.name()
        );
    }
}

#[test]
fn every_policy_keeps_its_protocol_under_random_driving() {
    for spec in every_policy() {
        for workers in [1, 2, 5, 70] {
            let mut driver = Driver {
                policy: spec.build(&setup(workers)).unwrap(),
                running: vec![None; workers],
                present: vec![false; workers],
                seen: BTreeMap::new(),
                done: 0,
                now: 0,
            };
            let mut state = 0x1234_5678_9abc_def1_u64 ^ workers as u64;
            for _ in 0..3_000 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                driver.step(state);
            }
        }
    }
}
