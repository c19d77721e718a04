//! What late kthreads pay for the time beside services on the cores that they lost.

use super::*;
use super::{arrival, busy_batch, cedes_late, late_ns};

/// A best-effort kthread has been bypassed, and the service has started beside it. Linux shows this
/// processor time of its thread, if any.
fn bypassed(ran_ns: Option<u64>) -> Sandbox {
    let mut sandbox = busy_batch();
    if let Some(ns) = ran_ns {
        sandbox.show_ran_ns(1, ns);
    }
    arrival(&mut sandbox);
    cedes_late(&mut sandbox);
    assert_eq!(sandbox.alloc.withdrawn.len(), 1);
    sandbox
}

/// The late kthread parks, and the service leaves the core `after` ns later. Returns what was
/// charged until then.
fn paid_at_the_end(mut sandbox: Sandbox, after: u64) -> u64 {
    assert!(sandbox.peer(BATCH).obey(0), "it cedes at last");
    sandbox.pass(after);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(0);
    assert!(sandbox.alloc.withdrawn.is_empty(), "it is back");
    late_ns(&sandbox)
}

#[test]
fn a_late_kthread_pays_for_the_processor_time_of_its_thread_once_the_service_has_started() {
    const RAN: u64 = 5_000_000;
    let pays = |beside: u64, ran: u64| {
        let mut sandbox = bypassed(Some(RAN));
        sandbox.pass(beside);
        sandbox.show_ran_ns(1, RAN + ran);
        paid_at_the_end(sandbox, 1_000)
    };
    // Until the bypass, and until the service has started.
    let before = pays(0, 0);
    assert!((27_000..=29_000).contains(&before), "{before}");
    assert_eq!(pays(900_000, 0), before, "it waited for its turn");
    assert_eq!(pays(900_000, 40_000), before + 40_000);
    let whole = pays(900_000, 4_000_000);
    assert!((before + 900_000..=before + 902_000).contains(&whole), "no more than all: {whole}");
    let mut hidden = bypassed(None);
    hidden.pass(900_000);
    assert!(paid_at_the_end(hidden, 1_000) >= before + 900_000, "Linux does not show it");
}

#[test]
fn a_late_kthread_that_runs_on_pays_each_millisecond() {
    let mut sandbox = bypassed(Some(5_000_000));
    let before = late_ns(&sandbox);
    sandbox.show_ran_ns(1, 5_900_000);
    sandbox.pass(900_000);
    assert_eq!(late_ns(&sandbox), before);
    sandbox.pass(100_000);
    assert_eq!(late_ns(&sandbox), before + 900_000);
    sandbox.show_ran_ns(1, 6_100_000);
    sandbox.pass(200_000);
    assert_eq!(late_ns(&sandbox), before + 900_000, "the next millisecond");
}

#[test]
fn processor_time_that_linux_shows_after_the_kthread_has_parked_is_charged() {
    let mut sandbox = bypassed(Some(5_000_000));
    sandbox.pass(800_000);
    let before = late_ns(&sandbox);
    assert!(sandbox.peer(BATCH).obey(0), "its word says that it has parked");
    sandbox.pass(1_000);
    assert_eq!(sandbox.alloc.withdrawn.len(), 1, "Linux has not shown yet what it has run");
    sandbox.show_ran_ns(1, 5_700_000);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(1_000);
    assert_eq!(late_ns(&sandbox), before + 700_000);
    assert!(sandbox.alloc.withdrawn.is_empty(), "the service has left the core, so the thread had before");
    // A service that keeps the core.
    let mut sandbox = bypassed(Some(5_000_000));
    sandbox.pass(800_000);
    assert!(sandbox.peer(BATCH).obey(0));
    sandbox.pass(1_000);
    sandbox.show_ran_ns(1, 5_700_000);
    sandbox.pass(sandbox.alloc.bounds.tick + 1_000);
    assert!(late_ns(&sandbox) >= before + 700_000 && sandbox.alloc.withdrawn.is_empty());
}

#[test]
fn a_late_kthread_pays_for_each_service_that_has_not_started_on_its_core() {
    let mut sandbox = bypassed(Some(5_000_000));
    let before = late_ns(&sandbox);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(1_000);
    // What the thread runs while the core is free keeps no service waiting.
    sandbox.show_ran_ns(1, 5_400_000);
    sandbox.pass(400_000);
    assert_eq!(late_ns(&sandbox), before);
    arrival(&mut sandbox);
    sandbox.pass(15_000);
    assert!(sandbox.peer(SERVICE).obey(0));
    sandbox.pass(1_000);
    let paid = late_ns(&sandbox) - before;
    assert!((15_000..=16_000).contains(&paid), "{paid}: the service had not started");
    sandbox.pass(200_000);
    assert_eq!(late_ns(&sandbox) - before, paid, "the thread waits for its turn");
    assert!(paid_at_the_end(sandbox, 1_000) - before == paid);
}

#[test]
fn a_program_that_ends_while_it_runs_beside_a_service_pays_before() {
    let mut sandbox = bypassed(Some(5_000_000));
    let stats = std::sync::Arc::clone(&sandbox.world.runtimes.get(RuntimeId(BATCH)).unwrap().stats);
    let before = stats.counters.late_ns.get();
    sandbox.pass(400_000);
    sandbox.show_ran_ns(1, 5_300_000);
    sandbox.end(RuntimeId(BATCH));
    assert_eq!(stats.counters.late_ns.get(), before + 300_000);
}
