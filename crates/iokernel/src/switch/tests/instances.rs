//! Two instances of one program, which have one address.

use tailwater_ports::Port;
use tailwater_sched::RuntimeId;
use tailwater_shm::control::ProgramClass::LatencyCritical;
use tailwater_shm::ring::{FLAG_CHECKSUM_OK, FLAG_PASSED_ON};
use tailwater_testkit::frames::udp;
use tailwater_wire::MacAddr;

use super::{ELSEWHERE, ip, uplink};
use crate::fixture::Sandbox;

const CLIENT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// Returns a frame from the client to the program.
fn request() -> Vec<u8> {
    udp(ip(CLIENT), ip(FIRST), (5, 7), 60)
}

/// Returns a client that runs, and a program with a guaranteed core, of two managed ones.
fn one_instance(ports: Vec<Box<dyn Port>>) -> Sandbox {
    let mut sandbox = Sandbox::new(2, ports);
    sandbox.add(CLIENT, 1, 1, LatencyCritical);
    sandbox.add(FIRST, 1, 1, LatencyCritical);
    sandbox.peer(CLIENT).queue(0, 1);
    sandbox.settle();
    sandbox
}

/// Returns which of the two gets what the client sends.
fn receiver(sandbox: &mut Sandbox) -> Vec<u32> {
    sandbox.peer(CLIENT).send(0, &request());
    sandbox.pass(100);
    let instances: Vec<u32> = [FIRST, SECOND]
        .into_iter()
        .filter(|&id| sandbox.world.runtimes.get(RuntimeId(id)).is_some())
        .collect();
    instances.into_iter().filter(|&id| sandbox.peer(id).receive(0).is_some()).collect()
}

/// Lets an instance run, so that what it has sent is taken.
fn run(sandbox: &mut Sandbox, id: u32) {
    sandbox.peer(id).queue(0, 1);
    sandbox.settle();
}

/// Returns the present guarantee of an instance.
fn guaranteed(sandbox: &Sandbox, id: u32) -> u16 {
    sandbox.alloc.guaranteed_to(RuntimeId(id))
}

#[test]
fn the_later_instance_has_the_address_and_the_guarantee_until_it_ends() {
    let mut sandbox = one_instance(Vec::new());
    assert_eq!(receiver(&mut sandbox), [FIRST]);
    // There is no core left to guarantee: it is the first one's.
    sandbox.add_instance(SECOND, FIRST, false);
    assert_eq!((guaranteed(&sandbox, FIRST), guaranteed(&sandbox, SECOND)), (0, 1));
    assert_eq!(receiver(&mut sandbox), [SECOND]);
    sandbox.end(RuntimeId(SECOND));
    assert_eq!(guaranteed(&sandbox, FIRST), 1);
    assert_eq!(receiver(&mut sandbox), [FIRST]);
    sandbox.add_instance(SECOND, FIRST, false);
    sandbox.end(RuntimeId(FIRST));
    assert_eq!(guaranteed(&sandbox, SECOND), 1);
    assert_eq!(receiver(&mut sandbox), [SECOND]);
}

#[test]
fn which_instance_is_the_later_one_may_be_said_again_and_otherwise() {
    let mut sandbox = one_instance(Vec::new());
    sandbox.add_instance(SECOND, FIRST, false);
    let last = [(FIRST, SECOND), (SECOND, FIRST), (SECOND, FIRST), (FIRST, SECOND)];
    for (earlier, later) in last {
        sandbox.pair(earlier, later);
        assert_eq!((guaranteed(&sandbox, earlier), guaranteed(&sandbox, later)), (0, 1));
        assert_eq!(receiver(&mut sandbox), [later]);
        let before = |id| sandbox.world.runtimes.get(RuntimeId(id)).unwrap().earlier;
        assert_eq!((before(earlier), before(later)), (None, Some(RuntimeId(earlier))));
    }
    sandbox.end(RuntimeId(SECOND));
    // It is on the way when one of them ends; and another program is no instance.
    sandbox.pair(FIRST, SECOND);
    sandbox.pair(SECOND, FIRST);
    sandbox.pair(FIRST, CLIENT);
    assert_eq!((guaranteed(&sandbox, FIRST), guaranteed(&sandbox, CLIENT)), (1, 1));
    assert_eq!(receiver(&mut sandbox), [FIRST]);
}

#[test]
fn an_earlier_instance_that_comes_back_after_the_later_one_is_behind_it() {
    let mut sandbox = one_instance(Vec::new());
    sandbox.add_instance(SECOND, FIRST, true);
    assert_eq!((guaranteed(&sandbox, FIRST), guaranteed(&sandbox, SECOND)), (1, 0));
    assert_eq!(receiver(&mut sandbox), [FIRST]);
    sandbox.peer(FIRST).send_flagged(0, &request(), FLAG_PASSED_ON | FLAG_CHECKSUM_OK);
    run(&mut sandbox, FIRST);
    assert_eq!(sandbox.peer(SECOND).receive_flagged(0), Some((request(), FLAG_CHECKSUM_OK)));
}

#[test]
fn a_frame_that_is_passed_on_reaches_the_earlier_instance_as_it_came() {
    let (port, wire) = uplink();
    let mut sandbox = one_instance(vec![port]);
    sandbox.add_instance(SECOND, FIRST, false);
    let mut outside = udp(ELSEWHERE, ip(FIRST), (5, 7), 60);
    outside[..6].copy_from_slice(&MacAddr::derived(ip(FIRST)).0);
    assert!(wire.send(&outside));
    sandbox.pass(100);
    let (frame, flags) = sandbox.peer(SECOND).receive_flagged(0).expect("it has the address");
    // Its addresses are others', and a wire may have damaged it.
    sandbox.peer(SECOND).send_flagged(0, &frame, FLAG_PASSED_ON | flags);
    run(&mut sandbox, SECOND);
    assert_eq!(sandbox.peer(FIRST).receive_flagged(0), Some((outside.clone(), 0)));
    assert_eq!(wire.receive(), None);
    // Without an earlier instance it goes nowhere.
    sandbox.end(RuntimeId(FIRST));
    sandbox.peer(SECOND).send_flagged(0, &frame, FLAG_PASSED_ON);
    sandbox.peer(CLIENT).send_flagged(0, &frame, FLAG_PASSED_ON);
    run(&mut sandbox, SECOND);
    assert_eq!((sandbox.peer(SECOND).receive(0), wire.receive()), (None, None));
    assert_eq!(sandbox.world.stats.switch.dropped_unknown.get(), 2);
    assert_eq!(sandbox.world.stats.switch.dropped_spoofed.get(), 0);
}
