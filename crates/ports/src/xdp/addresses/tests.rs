use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use tailwater_testkit::frames::{arp, ipv6, udp};
use tailwater_wire::{Addresses, Checksums, Icmpv6Message, Neighbour};

use crate::xdp::ways::Prefix;
use crate::{Delivery, PORT_BUDGET};

const OWN: MacAddr = MacAddr([0x0a, 1, 2, 3, 4, 5]);
const ROUTER: MacAddr = MacAddr([0x0a, 9, 9, 9, 9, 9]);
const OTHER_ROUTER: MacAddr = MacAddr([0x0a, 8, 8, 8, 8, 8]);
const PROGRAM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const GATEWAY: Gateway =
    Gateway { ip: Ipv4Addr::new(10, 77, 0, 1), ip6: Some(Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 1)) };
const PROGRAM6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 2);
const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 9);

/// Returns the MAC address of a program, as the switch does.
fn station(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(ip) => Some(MacAddr::derived(ip)),
        IpAddr::V6(PROGRAM6) => Some(MacAddr::derived(PROGRAM)),
        IpAddr::V6(_) => None,
    }
}

fn way(network: [u8; 4], len: u8, via: Option<MacAddr>) -> Way<Option<MacAddr>> {
    Way { from: Prefix::all(true), to: Prefix::new(network.into(), len), via }
}

fn translation(gateway: Option<Gateway>) -> Translation {
    let latest = Arc::new(Latest::default());
    let ways = vec![
        way([198, 51, 100, 0], 24, Some(OTHER_ROUTER)),
        way([203, 0, 113, 0], 24, None),
        Way { from: Prefix::one(HOST.into()), ..way([0; 4], 0, Some(OTHER_ROUTER)) },
        way([0; 4], 0, Some(ROUTER)),
    ];
    latest.set(View { own: OWN, ways });
    Translation::new(latest, gateway, Arc::new(Counts::default()))
}

/// Returns the frame as it is on the wire; `None` if it does not leave.
fn outward(translation: &mut Translation, frame: &[u8]) -> Option<Vec<u8>> {
    let Outward::Leaves(station) = translation.judge(frame) else { return None };
    let mut copy = frame.to_vec();
    translation.leave(&mut copy, station);
    Some(copy)
}

/// Returns a frame with a message of neighbour discovery.
fn discovery(message: Neighbour, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let (bytes, len) = message.encode(&Addresses::V6 { source, destination });
    let mut frame = ipv6(source.to_bits(), destination.to_bits(), ICMPV6, 255, &bytes[..len]);
    frame[6..12].copy_from_slice(&MacAddr::derived(PROGRAM).0);
    frame
}

fn message(frame: &[u8]) -> Neighbour {
    let packet = decode(frame, frame.len()).unwrap().unwrap();
    let (source, destination) = (packet.source.into(), packet.destination.into());
    let addresses = Addresses::V6 { source, destination };
    match Icmpv6Message::parse(packet.payload, &addresses, Checksums::Verify) {
        Ok(Icmpv6Message::Neighbour(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// Keeps what is injected.
#[derive(Default)]
struct Seen(RefCell<Vec<Vec<u8>>>);

impl Inject for Seen {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.0.get_mut().push(frame.to_vec());
        Delivery::Delivered
    }

    fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }
}

#[test]
fn a_program_has_the_interfaces_address_on_the_wire_and_its_own_behind_it() {
    let mut port = translation(None);
    let mut question = outward(&mut port, &arp(PROGRAM, HOST)).expect("it leaves");
    assert_eq!((&question[6..12], &question[22..28]), (&OWN.0[..], &OWN.0[..]));
    // What the host answers.
    question[..6].copy_from_slice(&OWN.0);
    question[21] = 2;
    question[22..28].copy_from_slice(&ROUTER.0);
    question[28..32].copy_from_slice(&HOST.octets());
    question[32..38].copy_from_slice(&OWN.0);
    question[38..42].copy_from_slice(&PROGRAM.octets());
    assert!(port.enter(&mut question, station));
    let own = MacAddr::derived(PROGRAM);
    assert_eq!((&question[..6], &question[32..38]), (&own.0[..], &own.0[..]));
    assert_eq!(question[22..28], ROUTER.0, "the host's own address stays");
    let sent = outward(&mut port, &udp(PROGRAM, HOST, (7, 9), 60)).expect("it leaves");
    assert_eq!((&sent[..6], &sent[6..12]), (&MacAddr::derived(HOST).0[..], &OWN.0[..]));
    let mut answer = udp(HOST, PROGRAM, (9, 7), 60);
    answer[..6].copy_from_slice(&OWN.0);
    assert!(port.enter(&mut answer, station));
    assert_eq!(answer[..6], own.0);
}

#[test]
fn neighbour_discovery_names_the_interfaces_address_with_a_right_checksum() {
    let mut port = translation(Some(GATEWAY));
    let mac = MacAddr::derived(PROGRAM);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 9);
    let asks = Neighbour::Solicitation { target: HOST6, source: Some(mac) };
    let left = outward(&mut port, &discovery(asks, PROGRAM6, group)).expect("it leaves");
    assert_eq!(message(&left), Neighbour::Solicitation { target: HOST6, source: Some(OWN) });
    let tells = |mac| Neighbour::Advertisement { target: PROGRAM6, solicited: true, replaces: true, mac };
    let left = outward(&mut port, &discovery(tells(Some(mac)), PROGRAM6, HOST6)).expect("it leaves");
    assert_eq!(message(&left), tells(Some(OWN)));
    let left = outward(&mut port, &discovery(tells(None), PROGRAM6, HOST6)).expect("it leaves");
    assert_eq!(message(&left), tells(None));
    // A solicitation from the wire is left to the switch, which knows the group.
    let mut asked = discovery(asks, HOST6, group);
    let before = asked.clone();
    assert!(port.enter(&mut asked, station) && asked == before);
    let mut answer = discovery(tells(Some(ROUTER)), HOST6, PROGRAM6);
    assert!(port.enter(&mut answer, station) && answer[..6] == mac.0);
}

#[test]
fn the_gateway_is_answered_for_and_frames_to_it_go_to_linuxs_next_hops() {
    let mut port = translation(Some(GATEWAY));
    let mac = MacAddr::derived(PROGRAM);
    assert_eq!(port.judge(&arp(PROGRAM, GATEWAY.ip)), Outward::Answered);
    let ip6 = GATEWAY.ip6.unwrap();
    let asks = Neighbour::Solicitation { target: ip6, source: Some(mac) };
    assert_eq!(port.judge(&discovery(asks, PROGRAM6, ip6)), Outward::Answered);
    assert!(port.has_answers());
    let mut seen = Seen::default();
    assert_eq!(port.poll(PORT_BUDGET, &mut seen), 2);
    assert!(!port.has_answers());
    let [arp_answer, nd_answer] = &seen.0.get_mut()[..] else { panic!("two answers") };
    assert_eq!((&arp_answer[..6], &arp_answer[22..28]), (&mac.0[..], &GATEWAY.mac().0[..]));
    assert!(matches!(message(nd_answer), Neighbour::Advertisement { target, mac: Some(mac), .. }
        if target == ip6 && mac == GATEWAY.mac()));
    let mut hop = |from, to: [u8; 4]| {
        let mut frame = udp(from, to.into(), (1, 2), 60);
        frame[..6].copy_from_slice(&GATEWAY.mac().0);
        outward(&mut port, &frame).map(|frame| MacAddr(*frame.first_chunk().unwrap()))
    };
    assert_eq!(hop(PROGRAM, [192, 0, 2, 1]), Some(ROUTER));
    assert_eq!(hop(HOST, [192, 0, 2, 1]), Some(OTHER_ROUTER), "a rule for its address");
    assert_eq!(hop(PROGRAM, [198, 51, 100, 7]), Some(OTHER_ROUTER), "the first way that fits");
    assert_eq!(hop(PROGRAM, [203, 0, 113, 7]), None, "its router is not known");
    let mut frame = ipv6(PROGRAM6.to_bits(), 1 << 100, 17, 64, &[0; 8]);
    frame[..6].copy_from_slice(&GATEWAY.mac().0);
    assert_eq!(port.judge(&frame), Outward::Dropped, "no IPv6 route, and none of IPv4 stands in");
    assert_eq!(port.counts.no_next_hop.load(Ordering::Relaxed), 2);
}

#[test]
fn a_router_or_host_that_speaks_for_the_gateway_is_seen_at_the_gateways_station() {
    let mut port = translation(Some(GATEWAY));
    let (own, gateway) = (MacAddr::derived(PROGRAM), GATEWAY.mac());
    let mut asks = arp(GATEWAY.ip, PROGRAM);
    for at in [6..12, 22..28] {
        asks[at].copy_from_slice(&OTHER_ROUTER.0);
    }
    assert!(port.enter(&mut asks, station));
    assert_eq!((&asks[..12], &asks[22..28]), (&[own.0, gateway.0].concat()[..], &gateway.0[..]));
    // The answer finds the router that Linux has.
    let mut answer = arp(PROGRAM, GATEWAY.ip);
    answer[21] = 2;
    answer[..6].copy_from_slice(&gateway.0);
    answer[32..38].copy_from_slice(&gateway.0);
    let left = outward(&mut port, &answer).expect("it leaves");
    assert_eq!((&left[..12], &left[22..28]), (&[ROUTER.0, OWN.0].concat()[..], &OWN.0[..]));
    assert_eq!(left[32..38], ROUTER.0);
    let ip6 = GATEWAY.ip6.unwrap();
    let asks = |mac| Neighbour::Solicitation { target: PROGRAM6, source: Some(mac) };
    let tells =
        |target, mac| Neighbour::Advertisement { target, solicited: true, replaces: true, mac: Some(mac) };
    for (said, source, seen) in [
        (asks(ROUTER), ip6, asks(gateway)),
        (tells(ip6, ROUTER), ip6, tells(ip6, gateway)),
        (tells(ip6, ROUTER), HOST6, tells(ip6, gateway)),
        (tells(HOST6, ROUTER), HOST6, tells(HOST6, ROUTER)),
    ] {
        let mut frame = discovery(said, source, PROGRAM6);
        frame[6..12].copy_from_slice(&ROUTER.0);
        assert!(port.enter(&mut frame, station));
        assert_eq!(message(&frame), seen);
        let from = if seen == said { ROUTER } else { gateway };
        assert_eq!(frame[6..12], from.0, "{said:?}");
    }
}

#[test]
fn a_program_that_asks_much_for_the_gateway_takes_no_others_answer() {
    let mut port = translation(Some(GATEWAY));
    for _ in 0..500 {
        assert_eq!(port.judge(&arp(PROGRAM, GATEWAY.ip)), Outward::Answered);
    }
    assert_eq!(port.judge(&arp(HOST, GATEWAY.ip)), Outward::Answered);
    let mut seen = Seen::default();
    assert_eq!(port.poll(PORT_BUDGET, &mut seen), 2);
    let to: Vec<MacAddr> =
        seen.0.get_mut().iter().map(|frame| MacAddr(*frame.first_chunk().unwrap())).collect();
    assert_eq!(to, [MacAddr::derived(PROGRAM), MacAddr::derived(HOST)]);
}

#[test]
fn a_new_view_is_taken_up_at_the_next_poll() {
    let mut port = translation(Some(GATEWAY));
    port.latest.set(View { own: ROUTER, ways: vec![way([0; 4], 0, Some(OWN))] });
    port.poll(PORT_BUDGET, &mut Seen::default());
    let mut frame = udp(PROGRAM, Ipv4Addr::new(192, 0, 2, 1), (1, 2), 60);
    frame[..6].copy_from_slice(&GATEWAY.mac().0);
    let left = outward(&mut port, &frame).expect("it leaves");
    assert_eq!((&left[..6], &left[6..12]), (&OWN.0[..], &ROUTER.0[..]));
}

#[test]
fn what_would_be_the_machines_own_stays_off_the_wire() {
    let mut port = translation(Some(GATEWAY));
    let mut other = udp(PROGRAM, HOST, (1, 2), 60);
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    let mut to_own = udp(PROGRAM, HOST, (1, 2), 60);
    to_own[..6].copy_from_slice(&OWN.0);
    for frame in [other, to_own, vec![0; 13]] {
        assert_eq!(port.judge(&frame), Outward::Dropped);
    }
    assert_eq!(port.counts.kept.load(Ordering::Relaxed), 3);
    let mut asks = arp(PROGRAM, GATEWAY.ip);
    asks[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(port.judge(&asks), Outward::Leaves(None), "no ARP, whatever it looks like");
}

proptest! {
    #[test]
    fn no_frame_is_translated_beyond_its_end_and_only_addresses_change(
        mut frame in prop::collection::vec(any::<u8>(), 14..120),
        kind in prop::sample::select(vec![[8, 0], [8, 6], [0x86, 0xdd]]),
        discovery in prop::option::of(prop::sample::select(DISCOVERY.to_vec())),
    ) {
        frame[12..14].copy_from_slice(&kind);
        if let Some(message) = discovery.filter(|_| frame.len() > 62) {
            let len = (frame.len() - 54) as u16;
            frame[12..21].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, (len >> 8) as u8, len as u8, ICMPV6]);
            frame[54] = message;
        }
        let mut port = translation(Some(GATEWAY));
        let before = frame.clone();
        if let Some(left) = outward(&mut port, &frame) {
            prop_assert_eq!(left.len(), frame.len());
            prop_assert_eq!(&left[6..12], &OWN.0);
            // The sum over an ICMPv6 message stays what it was: the addresses are made up for.
            if let Ok(Some(packet)) = decode(&left, left.len())
                && packet.protocol == ICMPV6
                && packet.part == Part::Whole
                && packet.payload.len() >= 8
            {
                let payload = |frame: &[u8]| -> Vec<u8> {
                    decode(frame, frame.len()).unwrap().unwrap().payload.to_vec()
                };
                let sum = |frame: &[u8]| Sum::new().bytes(&payload(frame)).finish() % 0xffff;
                prop_assert_eq!(sum(&left), sum(&before));
            }
        }
        port.enter(&mut frame, station);
        prop_assert_eq!(&frame[6..], &{
            let mut same = before[6..].to_vec();
            if kind == [8, 6] && before[12..14] == [8, 6] && before.len() >= ARP_FRAME && before[32..38] == OWN.0 {
                same[26..32].copy_from_slice(&frame[32..38]);
            }
            same
        }[..]);
    }
}
