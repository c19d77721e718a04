//! Whole tables as assertions: the same seed gives the same bytes on any machine.
//!
//! A change of these numbers means that a policy, the engine, a cost profile or a random stream
//! changed. If that was the intention, say so in the commit and paste the new table.

use tailwater_sim::study::Effort;
use tailwater_sim::study::policies::{PolicyStudy, table};

#[test]
fn a_small_study_of_every_policy_has_exactly_these_numbers() {
    let study = PolicyStudy {
        policies:
            "d-fcfs c-fcfs steal:4 ps:1us sq:5us,head sq:5us,tail mq:5us jbsq:2 jbsq:2,5us srpt reserved"
                .to_owned(),
        service: "bimodal:0.9*5us+0.1*100us".to_owned(),
        cores: 4,
        loads: "0.7".to_owned(),
        costs: "paper-2019".to_owned(),
        connections: Some(64),
        effort: Effort { requests: 5_000, replications: 2, seed: 7, threads: 0 },
        ..PolicyStudy::default()
    };
    let shown = table(&study.run(&|| ()).unwrap(), &study.mix().unwrap()).to_string();
    assert_eq!(shown, EXPECTED, "\n{shown}");
}

#[test]
fn a_worker_with_a_queue_does_not_wait_for_the_dispatcher_between_two_requests() {
    // A core needs 1.355 us for a request, and 0.1 us more if it waits for each to be handed out:
    // 2.95 and 2.75 million a second on 4 cores.
    let study = PolicyStudy {
        policies: "c-fcfs jbsq:2".to_owned(),
        service: "const:1us".to_owned(),
        cores: 4,
        loads: "0.71".to_owned(),
        costs: "paper-2019".to_owned(),
        effort: Effort { requests: 5_000, replications: 2, seed: 7, threads: 0 },
        ..PolicyStudy::default()
    };
    let rows = study.run(&|| ()).unwrap();
    let achieved: Vec<_> = rows.iter().map(|row| row.achieved_rps / 1e6).collect();
    assert!(achieved[0] < 2.76 && achieved[1] > 2.78, "{achieved:?}");
}

const EXPECTED: &str = "\
policy        load   Mrps  p50 us        p99 us  p99.9 us  p99 slowdown   busy  overhead  p99 5us us  p99 100us us
d-fcfs       70.0%  0.195    89.2    710 ±15.8%       869         137.7  68.3%      1.7%         698           798
c-fcfs       70.0%  0.195    5.76    157 ±10.7%       209          23.8  68.3%      1.7%         120           210
steal:4      70.0%  0.195    5.65    172 ±11.7%       245          28.8  68.3%      2.2%         148           242
ps:1us       70.0%  0.177     730  13648 ±21.1%     17859         275.5  52.6%     33.5%        1377         18137
sq:5us,head  70.0%  0.195    6.32    240 ±13.6%       309          37.2  68.3%      5.2%         189           312
sq:5us,tail  70.0%  0.195    6.37    366 ±22.6%       540           5.7  68.3%      5.3%        28.6           546
mq:5us       70.0%  0.195    5.79    202 ±15.4%       278           2.6  68.3%      3.0%        12.7           281
jbsq:2       70.0%  0.195    5.61    180 ±11.6%       251          27.9  68.3%      1.7%         143           251
jbsq:2,5us   70.0%  0.195    6.31    375 ±21.6%       539           5.8  68.3%      5.5%        29.6           549
srpt         70.0%  0.195    5.78    200 ±15.6%       289           2.0  68.3%      3.0%        7.00           291
reserved     70.0%  0.195    5.61    196 ±15.6%       279           5.7  68.2%      1.7%        28.9           281
";
