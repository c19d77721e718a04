//! Dispatchers with cores of their own, over several lent workers.

use super::{NO_STALLS, assert_no_defect, lend, lent};
use std::collections::BTreeSet;
use std::time::Duration;
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::{eventually, has_cpus};
use tailwater_tests::Bench;

/// Workers of the largest dispatcher.
const WORKERS: u16 = 6;
/// Rounds of requests that meet at all workers.
const ROUNDS: u16 = 20;

#[test]
#[ignore = "for machines with nine CPUs, emulated ones as a rule: .ci/full machine"]
fn a_dispatcher_hands_each_of_two_to_six_workers_one_request_before_any_gets_two() {
    // One for the IOKernel, one for ordinary threads, one for the dispatcher.
    if !has_cpus(usize::from(WORKERS) + 3) {
        return;
    }
    let bench = Bench::start(
        |config| {
            lend(config, &lent()[..=usize::from(WORKERS)]);
            config.policy = PolicyName::Arbiter;
        },
        vec![],
    );
    for workers in 2..=WORKERS {
        let count = (workers + 1).to_string();
        let variables = [("TAILWATER_KTHREADS", &*count), NO_STALLS];
        let service =
            bench.child_with(&format!("gather {workers}"), "gather", "latency-critical", &variables);
        for round in 0..ROUNDS {
            for number in 0..workers {
                bench.send_from(4000 + number, &service, 7, &round.to_be_bytes());
            }
            let mut cores = BTreeSet::new();
            for _ in 0..workers {
                let answer =
                    eventually("the requests have met", || bench.receive(Duration::from_millis(200)));
                let word = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
                assert_eq!(word(0), round);
                cores.insert(word(2));
            }
            assert_eq!(cores.len(), usize::from(workers), "{cores:?}");
            assert!(cores.iter().all(|core| lent().contains(core)), "{cores:?}");
        }
        assert_no_defect(&bench.stats());
    }
}
