//! Acknowledgments that no thread waits for: they fetch no core of their own.

use std::net::Ipv4Addr;
use tailwater_shm::KthreadState;
use tailwater_shm::control::ProgramClass::{BestEffort, LatencyCritical};
use tailwater_testkit::frames::udp;
use tailwater_wire::frame::ETHERTYPE_IPV6;
use tailwater_wire::packet::{TCP, decode};
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

use crate::config::Config;
use crate::fixture::Sandbox;

const CLIENT: u32 = 0;
const SERVICE: u32 = 1;
const PSH_ACK: u8 = 0x18;
const ACK: u8 = 0x10;

/// Makes a segment: `tcp` or `tcp_ipv6`.
type Segment = fn((Ipv4Addr, Ipv4Addr), (u16, u16), (u32, u32), u8, usize) -> Vec<u8>;

/// A frame with a TCP segment of `data` bytes.
fn tcp(
    (from, to): (Ipv4Addr, Ipv4Addr),
    ports: (u16, u16),
    (sequence, acknowledgment): (u32, u32),
    flags: u8,
    data: usize,
) -> Vec<u8> {
    let mut frame = udp(from, to, ports, 54 + data);
    frame[23] = TCP;
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledgment.to_be_bytes());
    frame[46] = 5 << 4;
    frame[47] = flags;
    frame
}

/// The same over IPv6, between the link-local addresses of the stations.
fn tcp_ipv6(
    (from, to): (Ipv4Addr, Ipv4Addr),
    ports: (u16, u16),
    numbers: (u32, u32),
    flags: u8,
    data: usize,
) -> Vec<u8> {
    let mut frame = tcp((from, to), ports, numbers, flags, data);
    frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
    let segment = frame.split_off(34);
    frame.truncate(ETHERNET_HEADER);
    // Version 6, a flow label, the length of the segment, hop limit 64.
    frame.extend([0x60, 0, 0x12, 0x34]);
    frame.extend((segment.len() as u16).to_be_bytes());
    frame.extend([TCP, 64]);
    frame.extend([from, to].map(|ip| MacAddr::derived(ip).link_local().octets()).as_flattened());
    frame.extend(segment);
    frame
}

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

/// Whether a segment of `data` bytes with these flags, to a service that has parked after an answer
/// and states that so many of its connections await acknowledgments, fetches a core.
fn fetches_a_core(segment: Segment, config: &Config, awaiting: u32, (flags, data): (u8, usize)) -> bool {
    let mut sandbox = after_an_answer_over(segment, config);
    let status = &sandbox.peer(SERVICE).region.kthread(0).status;
    status.awaits_acks.store(awaiting, std::sync::atomic::Ordering::Relaxed);
    let frame = segment(addresses(&sandbox), (40_001, 5_000), (50, 100), flags, data);
    sandbox.peer(CLIENT).send(0, &frame);
    sandbox.pass(100);
    sandbox.obey();
    sandbox.peer(SERVICE).state(0) == KthreadState::Running
}

#[test]
fn whatever_a_thread_may_wait_for_gets_a_core_at_once() {
    const FIN: u8 = 1;
    let (waits, never) = (Config::default(), Config { ack_hold_us: 0, ..Config::default() });
    for segment in [tcp as Segment, tcp_ipv6] {
        assert!(!fetches_a_core(segment, &waits, 0, (ACK, 0)));
        assert!(fetches_a_core(segment, &never, 0, (ACK, 0)), "none may wait");
        assert!(fetches_a_core(segment, &waits, 1, (ACK, 0)), "a connection awaits one");
        for (flags, data) in [(ACK, 1), (PSH_ACK, 0), (ACK | FIN, 0), (ACK | 1 << 1, 0), (ACK | 1 << 2, 0)] {
            assert!(fetches_a_core(segment, &waits, 0, (flags, data)), "{flags:#x}, {data} bytes");
        }
    }
    // Behind other frames that wait there.
    let mut sandbox = after_an_answer(&Config::default());
    request(&mut sandbox, 2);
    sandbox.peer(SERVICE).park(0);
    sandbox.pass(100);
    ack(&mut sandbox, 100);
    assert_eq!(sandbox.peer(SERVICE).state(0), KthreadState::Running);
}

#[test]
fn lengths_that_contradict_each_other_are_no_acknowledgment() {
    let is_bare_ack =
        |frame: &[u8], len| decode(frame, len).is_ok_and(|it| it.is_some_and(|it| it.is_bare_ack()));
    let (from, to) = (Ipv4Addr::new(10, 77, 0, 10), Ipv4Addr::new(10, 77, 0, 11));
    for segment in [tcp as Segment, tcp_ipv6] {
        let frame = segment((from, to), (40_001, 5_000), (1, 1), ACK, 0);
        assert!(is_bare_ack(&frame, frame.len()));
        assert!(!is_bare_ack(&frame[..frame.len() - 7], frame.len()), "the flags are not shown");
        let header = frame.len() - 20;
        for offset in [0, 4 << 4, 6 << 4, 15 << 4] {
            let mut frame = frame.clone();
            frame[header + 12] = offset;
            assert!(!is_bare_ack(&frame, frame.len()), "a header of {} bytes", offset >> 2);
        }
    }
    // A ring's first line shows enough of an IPv4 segment; a fragment is none.
    let mut frame = tcp((from, to), (40_001, 5_000), (1, 1), ACK, 0);
    assert!(is_bare_ack(&frame[..48], frame.len()));
    frame[20] = 0x20;
    assert!(!is_bare_ack(&frame, frame.len()));
}
