//! Acknowledgments that no thread waits for: they fetch no core of their own.

use std::net::Ipv4Addr;
use tailwater_shm::KthreadState;
use tailwater_shm::control::Class::{BestEffort, LatencyCritical};

use crate::config::Config;
use crate::fixture::Sandbox;
use crate::switch::lone::tests::{tcp, tcp_ipv6};

const CLIENT: u32 = 0;
const SERVICE: u32 = 1;
const PSH_ACK: u8 = 0x18;
const ACK: u8 = 0x10;

/// Makes a segment: `tcp` or `tcp_ipv6`.
type Segment = fn((Ipv4Addr, Ipv4Addr), (u16, u16), (u32, u32), u8, usize) -> Vec<u8>;

/// A client that keeps its core, and a service that has parked after an answer of 100 bytes.
fn after_an_answer(config: &Config) -> Sandbox {
    after_an_answer_over(tcp, config)
}

fn after_an_answer_over(segment: Segment, config: &Config) -> Sandbox {
    let mut sandbox = Sandbox::with_config(2, Vec::new(), config);
    sandbox.add(CLIENT, 1, 0, BestEffort);
    sandbox.add(SERVICE, 1, 0, LatencyCritical);
    sandbox.peer(CLIENT).queue(0, 1);
    sandbox.settle();
    request_over(segment, &mut sandbox, 1);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    answer_over(segment, &mut sandbox, 1);
    sandbox
}

fn addresses(sandbox: &Sandbox) -> (Ipv4Addr, Ipv4Addr) {
    (sandbox.peers[&CLIENT].ip, sandbox.peers[&SERVICE].ip)
}

/// The `n`-th request of 50 bytes, which acknowledges the answer before it.
fn request(sandbox: &mut Sandbox, n: u32) {
    request_over(tcp, sandbox, n);
}

fn request_over(segment: Segment, sandbox: &mut Sandbox, n: u32) {
    let frame = segment(addresses(sandbox), (40_001, 5_000), (50 * n - 50, 100 * n - 100), PSH_ACK, 50);
    sandbox.peer(CLIENT).send(0, &frame);
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
}

/// The service reads all frames, answers the `n`-th request, and gives its core back.
fn answer_and_park(sandbox: &mut Sandbox, n: u32) {
    answer_over(tcp, sandbox, n);
}

fn answer_over(segment: Segment, sandbox: &mut Sandbox, n: u32) {
    let (client, service) = addresses(sandbox);
    while sandbox.peer(SERVICE).receive(0).is_some() {}
    let frame = segment((service, client), (5_000, 40_001), (100 * n - 100, 50 * n), PSH_ACK, 100);
    sandbox.peer(SERVICE).send(0, &frame);
    sandbox.pass(100);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(100);
    assert!(sandbox.peer(CLIENT).receive(0).is_some());
}

/// The client acknowledges everything up to byte `number`.
fn ack(sandbox: &mut Sandbox, number: u32) {
    ack_over(tcp, sandbox, number);
}

fn ack_over(segment: Segment, sandbox: &mut Sandbox, number: u32) {
    let frame = segment(addresses(sandbox), (40_001, 5_000), (50, number), ACK, 0);
    sandbox.peer(CLIENT).send(0, &frame);
    sandbox.pass(100);
    sandbox.obey();
    sandbox.pass(100);
}

fn grants(sandbox: &Sandbox) -> u64 {
    let runtimes = sandbox.world.runtimes.iter();
    runtimes
        .filter(|runtime| runtime.id.0 == SERVICE)
        .map(|runtime| runtime.stats.counters.grants.get())
        .sum()
}

#[test]
fn a_request_costs_one_grant_though_its_answer_is_acknowledged_alone() {
    for segment in [tcp as Segment, tcp_ipv6] {
        let mut sandbox = after_an_answer_over(segment, &Config::default());
        let before = grants(&sandbox);
        for n in 2..50 {
            ack_over(segment, &mut sandbox, 100 * n - 100);
            (0..20).for_each(|_| sandbox.tick());
            let state = sandbox.peer(SERVICE).state(0);
            assert_eq!(state, KthreadState::Parked, "a core for an acknowledgment");
            request_over(segment, &mut sandbox, n);
            assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
            answer_over(segment, &mut sandbox, n);
        }
        assert_eq!(grants(&sandbox) - before, 48);
        assert_eq!(sandbox.world.stats.switch.held_acks.get(), 48);
    }
}

#[test]
fn an_acknowledgment_waits_no_longer_than_its_bound_and_comes_with_the_next_core() {
    let config = Config { ack_hold_us: 100, ..Config::default() };
    let mut sandbox = after_an_answer(&config);
    ack(&mut sandbox, 100);
    assert!(sandbox.alloc.earliest_timer() <= sandbox.now + 100_000, "the polling thread would oversleep");
    for _ in 0..18 {
        sandbox.tick();
        sandbox.obey();
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Parked);
    }
    for _ in 0..4 {
        sandbox.tick();
        sandbox.obey();
    }
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running, "it waits for ever");
    assert!(sandbox.peer(SERVICE).receive(0).is_some_and(|frame| frame.len() == 54));
}

#[test]
fn whatever_a_thread_may_wait_for_gets_a_core_at_once() {
    for (number, hold) in [(99, 2_000), (100, 0)] {
        let mut sandbox = after_an_answer(&Config { ack_hold_us: hold, ..Config::default() });
        ack(&mut sandbox, number);
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running, "{number}, {hold} us");
        let mut sandbox = after_an_answer_over(tcp_ipv6, &Config { ack_hold_us: hold, ..Config::default() });
        ack_over(tcp_ipv6, &mut sandbox, number);
        assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running, "IPv6, {number}, {hold} us");
    }
    // A small segment waits behind the answer, by Nagle's algorithm.
    let mut sandbox = after_an_answer(&Config::default());
    let word = |sandbox: &mut Sandbox, connections: u32| {
        let status = &sandbox.peer(SERVICE).region.kthread(0).status;
        status.awaits_acks.store(connections, std::sync::atomic::Ordering::Relaxed);
    };
    word(&mut sandbox, 1);
    ack(&mut sandbox, 100);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
    answer_and_park(&mut sandbox, 2);
    word(&mut sandbox, 0);
    ack(&mut sandbox, 200);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Parked, "no connection waits any more");
    // Behind other frames that wait there.
    let mut sandbox = after_an_answer(&Config::default());
    request(&mut sandbox, 2);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(100);
    ack(&mut sandbox, 100);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
}
