//! What services receive while cores change hands: every frame once, in the order of its flow.

use super::{CPUS, NO_STALLS, assert_no_defect, crunch, kthreads, lend_all, progress};
use serde_json::Value;
use std::time::Duration;
use tailwater_testkit::{eventually, has_cpus, until};
use tailwater_tests::{Bench, Role};

/// Flows to each service.
const FLOWS: usize = 16;
/// Datagrams on their way, few enough for every ring.
const WINDOW: usize = 32;

/// Numbered datagrams over several flows to services that send them back.
struct Flows<'a> {
    bench: &'a Bench,
    services: &'a [Role],
    /// Datagrams sent over each flow, and come back; a flow's service is by the remainder.
    sent: Vec<u32>,
    returned: Vec<u32>,
}

impl<'a> Flows<'a> {
    fn new(bench: &'a Bench, services: &'a [Role]) -> Self {
        let none = vec![0; FLOWS * services.len()];
        Self { bench, services, sent: none.clone(), returned: none }
    }

    /// Sends the next datagram of this flow; waits until few are on their way.
    fn send(&mut self, flow: usize) {
        let payload = [flow as u32, self.sent[flow]].map(u32::to_be_bytes).concat();
        let count = self.services.len();
        self.bench.send_from(4000 + (flow / count) as u16, &self.services[flow % count], 7, &payload);
        self.sent[flow] += 1;
        self.receive_until(WINDOW);
    }

    /// Receives datagrams, and checks their order, until at most `rest` are on their way.
    fn receive_until(&mut self, rest: usize) {
        while self.sent.iter().sum::<u32>() as usize > self.returned.iter().sum::<u32>() as usize + rest {
            let answer =
                eventually("each datagram returns", || self.bench.receive(Duration::from_millis(200)));
            let word = |at: usize| u32::from_be_bytes(answer[at..at + 4].try_into().expect("four bytes"));
            let next = &mut self.returned[word(0) as usize];
            assert_eq!(word(4), *next, "flow {} is out of order: {:#}", word(0), self.bench.stats());
            *next += 1;
        }
    }
}

fn assert_no_drop(stats: &Value) {
    for counter in ["dropped_full", "dropped_torn", "dropped_malformed"] {
        assert_eq!(stats["switch"][counter], 0, "{stats:#}");
    }
}

/// Returns the number that follows this word in a line.
fn after(line: &str, word: &str) -> Option<u64> {
    line.split(' ').skip_while(|part| *part != word).nth(1)?.parse().ok()
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn services_lose_and_reorder_no_frame_while_batch_jobs_take_their_cores() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let count = kthreads();
    let services: Vec<Role> = (0..4)
        .map(|number| {
            let name = format!("service-{number}");
            bench.child_with("echo", &name, "latency-critical", &[("TAILWATER_KTHREADS", &count)])
        })
        .collect();
    let mut jobs = ["one", "other"].map(|name| crunch(&bench, name, "best-effort"));
    let before = jobs.each_mut().map(|job| progress(job).0);
    let mut flows = Flows::new(&bench, &services);
    for number in 0..2_000 {
        flows.send(number % (4 * FLOWS));
    }
    flows.receive_until(0);
    for (job, before) in jobs.iter_mut().zip(before) {
        until("each thread computes", || progress(job).0 > before);
    }
    let stats = bench.stats();
    assert_no_defect(&stats);
    assert_no_drop(&stats);
}

#[test]
#[ignore = "for machines with six CPUs, emulated ones as a rule: .ci/full machine"]
fn kthreads_take_threads_timers_and_frames_from_each_other() {
    if !has_cpus(CPUS) {
        return;
    }
    let bench = Bench::start(lend_all, vec![]);
    let count = kthreads();
    let variables = [("TAILWATER_KTHREADS", &*count), NO_STALLS];
    let mut services = [bench.child_with("bustle", "bustle", "latency-critical", &variables)];
    until("all three kinds are taken", || {
        let mut flows = Flows::new(&bench, &services);
        (0..4 * FLOWS).for_each(|number| flows.send(number % FLOWS));
        flows.receive_until(0);
        let line = services[0].fresh_line().expect("it runs");
        let taken = ["threads", "timers", "frames"].map(|kind| after(&line, kind).expect("a count"));
        !taken.contains(&0)
    });
    assert_no_drop(&bench.stats());
}
