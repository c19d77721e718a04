use super::*;
use crate::{Delivery, PORT_BUDGET};
use proptest::prelude::*;
use tailwater_testkit::frames::{arp, ipv6, udp};
use tailwater_wire::{Addresses, Checksums, IpProtocol, Sum, UdpDatagram};

const OWN: MacAddr = MacAddr([0x0a, 1, 2, 3, 4, 5]);
const NEIGHBOUR_MAC: MacAddr = MacAddr([0x0a, 9, 9, 9, 9, 9]);
const ROUTER_MAC: MacAddr = MacAddr([0x0a, 8, 8, 8, 8, 8]);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const NEIGHBOUR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const GATEWAY: Gateway = Gateway { ip: Ipv4Addr::new(10, 77, 0, 1), ip6: None };

fn station(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(ip) => Some(MacAddr::derived(ip)),
        IpAddr::V6(_) => Some(MacAddr::derived(A)),
    }
}

fn view(neighbours: impl IntoIterator<Item = (IpAddr, MacAddr)>) -> View {
    let program = |ip, ip6, first: u16, listens: &[u32]| Program {
        ip,
        ip6,
        outgoing: first..=first + 99,
        listens: listens.to_vec(),
    };
    let programs = vec![
        program(A, Some(A6), 61_000, &[port_key(TCP, 6_379), port_key(UDP, 53)]),
        program(B, None, 61_100, &[port_key(TCP, 80)]),
    ];
    let way = |ip: IpAddr, len, via| Way { from: Prefix::all(ip.is_ipv4()), to: Prefix::new(ip, len), via };
    let by_router = way([0, 0, 0, 0].into(), 0, Some(ROUTER.into()));
    let ways = [way([192, 0, 2, 0].into(), 24, None), way(NEIGHBOUR6.into(), 64, None), by_router];
    let known = |(ip, mac)| (ip, Known { mac, permanent: false, stale: false });
    View::new((OWN, Some(HOST), Some(HOST6)), programs, &ways, neighbours.into_iter().map(known).collect())
}

fn all_known() -> View {
    view([(NEIGHBOUR.into(), NEIGHBOUR_MAC), (NEIGHBOUR6.into(), NEIGHBOUR_MAC), (ROUTER.into(), ROUTER_MAC)])
}

fn translation(view: View) -> Translation {
    let latest = Arc::new(Latest::default());
    latest.set(view);
    Translation::new((latest, Arc::default()), GATEWAY, Arc::default())
}

/// Returns a datagram with right checksums, from a host to the next station.
fn datagram_of((from, to): (Ipv4Addr, Ipv4Addr), ports: (u16, u16), next: MacAddr) -> Vec<u8> {
    let mut frame = udp(from, to, ports, 60);
    frame[..6].copy_from_slice(&next.0);
    seal(&mut frame);
    frame
}

/// Writes the checksums of an IPv4 header and of UDP.
fn seal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = Sum::new().bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[40..42].fill(0);
    let addresses = addresses_of(frame);
    let sum = addresses.pseudo_header(IpProtocol::UDP, frame.len() - 34).bytes(&frame[34..]).finish();
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
}

fn addresses_of(frame: &[u8]) -> Addresses {
    let packet = decode(frame, frame.len()).unwrap().unwrap();
    match packet.family {
        Family::V4 => Addresses::V4 {
            source: Ipv4Addr::from_bits(packet.source as u32),
            destination: Ipv4Addr::from_bits(packet.destination as u32),
        },
        Family::V6 => Addresses::V6 { source: packet.source.into(), destination: packet.destination.into() },
    }
}

/// Checks the checksums of an IPv4 frame with UDP.
fn is_whole(frame: &[u8]) -> bool {
    let header = Sum::new().bytes(&frame[14..34]).finish() == 0;
    header && UdpDatagram::parse(&frame[34..], &addresses_of(frame), Checksums::Verify).is_ok()
}

fn outward(translation: &mut Translation, frame: &[u8]) -> Option<Vec<u8>> {
    let Outward::Leaves(station) = translation.judge(frame) else { return None };
    let mut copy = frame.to_vec();
    translation.leave(&mut copy, station);
    Some(copy)
}

#[derive(Default)]
struct Seen(Vec<Vec<u8>>);

impl Inject for Seen {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.0.push(frame.to_vec());
        Delivery::Delivered
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        Some(MacAddr::derived(ip))
    }
}

#[test]
fn a_frame_finds_the_program_by_its_port_and_the_answer_leaves_as_the_host() {
    let mut wire = translation(all_known());
    let mut frame = datagram_of((NEIGHBOUR, HOST), (4_000, 53), OWN);
    assert!(wire.enter(&mut frame, station));
    assert_eq!((&frame[..6], &frame[6..12]), (&MacAddr::derived(A).0[..], &GATEWAY.mac().0[..]));
    assert_eq!((&frame[26..30], &frame[30..34]), (&NEIGHBOUR.octets()[..], &A.octets()[..]));
    assert!(is_whole(&frame));
    let answer = datagram_of((A, NEIGHBOUR), (53, 4_000), GATEWAY.mac());
    let sent = outward(&mut wire, &answer).expect("it leaves");
    assert_eq!((&sent[..6], &sent[6..12]), (&NEIGHBOUR_MAC.0[..], &OWN.0[..]));
    assert_eq!((&sent[26..30], &sent[30..34]), (&HOST.octets()[..], &NEIGHBOUR.octets()[..]));
    assert!(is_whole(&sent));
    let far = outward(&mut wire, &datagram_of((A, FAR), (61_050, 9), GATEWAY.mac())).expect("it leaves");
    assert_eq!(far[..6], ROUTER_MAC.0);
    for (port, program) in [(61_000, Some(A)), (61_199, Some(B)), (61_200, None), (80, None), (54, None)] {
        let mut frame = datagram_of((NEIGHBOUR, HOST), (4_000, port), OWN);
        let found =
            wire.enter(&mut frame, station).then(|| Ipv4Addr::from_octets(frame[30..34].try_into().unwrap()));
        assert_eq!(found, program, "{port}");
    }
    let mut elsewhere = datagram_of((NEIGHBOUR, FAR), (4_000, 53), OWN);
    assert!(!wire.enter(&mut elsewhere, station));
}

#[test]
fn nothing_leaves_from_a_port_that_is_not_the_programs() {
    let mut wire = translation(all_known());
    // Linux's, the other program's, of the range, and its own of the other protocol.
    for port in [22, 80, 61_100, 61_500, 6_379] {
        assert_eq!(
            outward(&mut wire, &datagram_of((A, NEIGHBOUR), (port, 9), GATEWAY.mac())),
            None,
            "{port}"
        );
    }
    assert_eq!(wire.counts.foreign_ports.load(Ordering::Relaxed), 5);
    // Nor what has no port, or another station in mind.
    let mut ping = datagram_of((A, NEIGHBOUR), (0x0800, 0), GATEWAY.mac());
    ping[23] = 1;
    assert_eq!(outward(&mut wire, &ping), None);
    let mut other = datagram_of((A, NEIGHBOUR), (53, 9), GATEWAY.mac());
    other[23] = 47;
    assert_eq!(outward(&mut wire, &other), None);
    assert_eq!(outward(&mut wire, &datagram_of((A, NEIGHBOUR), (53, 9), NEIGHBOUR_MAC)), None);
    assert_eq!(
        outward(&mut wire, &datagram_of((Ipv4Addr::new(10, 77, 0, 9), NEIGHBOUR), (53, 9), GATEWAY.mac())),
        None
    );
    assert_eq!(outward(&mut wire, &arp(A, NEIGHBOUR)), None, "neighbours are Linux's");
    // A later fragment alone, and behind a first one of the other program.
    let fragment = |ip, port, offset: u16| {
        let mut frame = datagram_of((ip, NEIGHBOUR), (port, 9), GATEWAY.mac());
        frame[20..22].copy_from_slice(&offset.to_be_bytes());
        frame
    };
    assert_eq!(outward(&mut wire, &fragment(A, 22, 1)), None);
    assert_eq!(outward(&mut wire, &fragment(A, 22, 0x2000)), None);
    assert_eq!(outward(&mut wire, &fragment(A, 22, 1)), None);
    assert!(outward(&mut wire, &fragment(A, 53, 0x2000)).is_some());
    assert!(outward(&mut wire, &fragment(A, 22, 1)).is_some());
    assert_eq!(outward(&mut wire, &fragment(B, 22, 1)), None);
}

#[test]
fn later_fragments_and_errors_find_the_program_of_the_first_and_of_the_quoted_packet() {
    let mut wire = translation(all_known());
    let fragment = |port, offset: u16| {
        let mut frame = datagram_of((NEIGHBOUR, HOST), (9, port), OWN);
        frame[20..22].copy_from_slice(&offset.to_be_bytes());
        frame
    };
    assert!(!wire.enter(&mut fragment(53, 2), station), "it comes first");
    assert!(wire.enter(&mut fragment(53, 0x2000), station));
    let mut later = fragment(1, 2);
    assert!(wire.enter(&mut later, station));
    assert_eq!(later[30..34], A.octets());
    // An error about what program B has sent, whose sum is right before and after.
    let quoted = datagram_of((HOST, FAR), (61_150, 9), OWN);
    let mut error = datagram_of((ROUTER, HOST), (0, 0), OWN);
    error.truncate(34);
    error[23] = 1;
    error.extend_from_slice(&[3, 4, 0, 0, 0, 0, 5, 0]);
    error.extend_from_slice(&quoted[14..42]);
    error[16..18].copy_from_slice(&56u16.to_be_bytes());
    let sum = Sum::new().bytes(&error[34..]).finish();
    error[36..38].copy_from_slice(&sum.to_be_bytes());
    assert!(wire.enter(&mut error, station));
    assert_eq!((&error[30..34], &error[54..58]), (&B.octets()[..], &B.octets()[..]));
    assert_eq!(Sum::new().bytes(&error[34..]).finish(), 0, "the sum of the error");
    assert_eq!(Sum::new().bytes(&error[42..62]).finish(), 0, "the sum of the quoted header");
    // The answer of a program to what its port has received, and to what another one has.
    for (port, leaves) in [(53, true), (80, false)] {
        let quoted = datagram_of((NEIGHBOUR, A), (9, port), OWN);
        let mut error = datagram_of((A, NEIGHBOUR), (0, 0), GATEWAY.mac());
        error.truncate(34);
        error[23] = 1;
        error.extend_from_slice(&[3, 3, 0, 0, 0, 0, 0, 0]);
        error.extend_from_slice(&quoted[14..42]);
        error[16..18].copy_from_slice(&56u16.to_be_bytes());
        let sent = outward(&mut wire, &error);
        assert_eq!(sent.is_some(), leaves, "{port}");
        assert!(sent.is_none_or(|sent| sent[58..62] == HOST.octets()), "the quoted destination");
    }
}

#[test]
fn programs_reach_each_other_by_the_hosts_address() {
    let mut wire = translation(all_known());
    let mut frame = datagram_of((B, HOST), (61_101, 53), GATEWAY.mac());
    assert_eq!(wire.judge(&frame), Outward::Answered);
    let mut switch = Seen::default();
    assert!(wire.has_answers());
    wire.poll(PORT_BUDGET, &mut switch);
    let [came] = &switch.0[..] else { panic!("{} frames", switch.0.len()) };
    assert_eq!((&came[26..30], &came[30..34]), (&HOST.octets()[..], &A.octets()[..]));
    assert!(is_whole(came) && came[..6] == MacAddr::derived(A).0);
    // Linux's port: nothing comes back.
    frame[36..38].copy_from_slice(&22u16.to_be_bytes());
    wire.judge(&frame);
    wire.poll(PORT_BUDGET, &mut switch);
    assert_eq!(switch.0.len(), 1);
}

#[test]
fn a_frame_waits_for_its_neighbour_and_leaves_when_linux_has_found_it() {
    let latest = Arc::new(Latest::default());
    latest.set(view([]));
    let wanted = Arc::new(Wanted::default());
    let mut wire = Translation::new((Arc::clone(&latest), Arc::clone(&wanted)), GATEWAY, Arc::default());
    let frame = datagram_of((A, NEIGHBOUR), (53, 9), GATEWAY.mac());
    assert_eq!(wire.judge(&frame), Outward::Answered);
    assert_eq!(wanted.take(), [IpAddr::V4(NEIGHBOUR)]);
    let mut switch = Seen::default();
    wire.poll(PORT_BUDGET, &mut switch);
    assert!(wire.take_ready().is_empty());
    latest.set(all_known());
    wire.poll(PORT_BUDGET, &mut switch);
    let ready = wire.take_ready();
    assert_eq!(ready.len(), 1);
    assert!(ready[0][..6] == NEIGHBOUR_MAC.0 && is_whole(&ready[0]));
    // One that asks is answered where its frame came from, also before Linux knows it.
    let mut wire = translation(view([]));
    let mut question = datagram_of((NEIGHBOUR, HOST), (9, 53), OWN);
    question[6..12].copy_from_slice(&NEIGHBOUR_MAC.0);
    assert!(wire.enter(&mut question, station));
    assert_eq!(outward(&mut wire, &frame).expect("it leaves")[..6], NEIGHBOUR_MAC.0);
    // What has waited too long is dropped, and so is what its program may send no more.
    let hour = Duration::from_secs(3_600);
    for (late, has_port) in [(true, true), (false, false)] {
        let latest = Arc::new(Latest::default());
        latest.set(view([]));
        let mut wire = Translation::new((Arc::clone(&latest), Arc::default()), GATEWAY, Arc::default());
        wire.judge(&frame);
        if late {
            wire.waiting.values_mut().for_each(|(since, _)| *since -= hour);
        }
        let mut next = all_known();
        if !has_port {
            next.programs.clear();
        }
        latest.set(next);
        wire.poll(PORT_BUDGET, &mut switch);
        assert!(wire.take_ready().is_empty() && wire.waiting.is_empty());
        assert_eq!(wire.counts.no_next_hop.load(Ordering::Relaxed), u64::from(late));
    }
    // No program fills the place of the others.
    for host in 10..=255 {
        let to = Ipv4Addr::new(192, 0, 2, host);
        wire.judge(&datagram_of((A, to), (53, 9), GATEWAY.mac()));
        assert!(wire.waiting.len() <= MOST_WAITING_OF_ONE);
    }
}

#[test]
fn linux_checks_a_neighbour_that_is_stale_or_known_by_its_frames_only() {
    let mut stale = all_known();
    stale.neighbours.values_mut().for_each(|known| known.stale = true);
    let (latest, wanted) = (Arc::new(Latest::default()), Arc::new(Wanted::default()));
    latest.set(stale);
    let mut wire = Translation::new((Arc::clone(&latest), Arc::clone(&wanted)), GATEWAY, Arc::default());
    let frame = datagram_of((A, NEIGHBOUR), (53, 9), GATEWAY.mac());
    assert!(outward(&mut wire, &frame).is_some());
    assert_eq!(wanted.take(), [IpAddr::V4(NEIGHBOUR)]);
    assert!(outward(&mut wire, &frame).is_some() && wanted.is_empty(), "not for each frame");
    latest.set(view([]));
    wire.checked.0 -= CHECK_PAUSE;
    let mut switch = Seen::default();
    wire.poll(PORT_BUDGET, &mut switch);
    let mut question = datagram_of((NEIGHBOUR, HOST), (9, 53), OWN);
    question[6..12].copy_from_slice(&NEIGHBOUR_MAC.0);
    assert!(wire.enter(&mut question, station));
    assert!(outward(&mut wire, &frame).is_some());
    assert_eq!(wanted.take(), [IpAddr::V4(NEIGHBOUR)]);
    // One that has sent nothing for a minute may have another station.
    wire.heard.values_mut().for_each(|(_, heard)| *heard -= HEARD);
    latest.set(view([]));
    wire.poll(PORT_BUDGET, &mut switch);
    assert_eq!(wire.judge(&frame), Outward::Answered, "it waits");
}

#[test]
fn no_frame_of_the_wire_comes_from_the_own_address() {
    let mut wire = translation(all_known());
    // An echo's to itself, and one in the name of a program of this machine.
    for port in [53, 61_105] {
        assert!(!wire.enter(&mut datagram_of((HOST, HOST), (port, 53), OWN), station), "{port}");
    }
}

#[test]
fn fragments_are_told_apart_behind_an_authentication_header() {
    let mut wire = translation(all_known());
    let fragment = |offset: u16, identification: u8, port: u16| {
        let authentication = [&[44, 4, 0, 0][..], &[0; 20]].concat();
        let header = [&[UDP, 0][..], &offset.to_be_bytes(), &[0, 0, 0, identification]].concat();
        let ports = [&9u16.to_be_bytes()[..], &port.to_be_bytes(), &[0; 44]].concat();
        ipv6(NEIGHBOUR6.to_bits(), HOST6.to_bits(), 51, 64, &[authentication, header, ports].concat())
    };
    assert!(wire.enter(&mut fragment(1, 7, 53), station));
    assert!(!wire.enter(&mut fragment(9, 8, 1), station), "of another datagram");
    assert!(wire.enter(&mut fragment(9, 7, 1), station));
}

#[test]
fn the_gateway_answers_and_ipv6_is_translated_too() {
    let mut wire = translation(all_known());
    assert_eq!(wire.judge(&arp(A, GATEWAY.ip)), Outward::Answered);
    let mut switch = Seen::default();
    wire.poll(PORT_BUDGET, &mut switch);
    assert_eq!(switch.0[0][22..28], GATEWAY.mac().0);
    let datagram = |from: Ipv6Addr, to: Ipv6Addr, ports: (u16, u16)| {
        let mut bytes =
            [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat();
        let addresses = Addresses::V6 { source: from, destination: to };
        let sum = addresses.pseudo_header(IpProtocol::UDP, bytes.len()).bytes(&bytes).finish();
        bytes[6..8].copy_from_slice(&sum.to_be_bytes());
        ipv6(from.to_bits(), to.to_bits(), UDP, 64, &bytes)
    };
    let whole =
        |frame: &[u8]| UdpDatagram::parse(&frame[54..66], &addresses_of(frame), Checksums::Verify).is_ok();
    let mut frame = datagram(NEIGHBOUR6, HOST6, (9, 53));
    assert!(wire.enter(&mut frame, station) && whole(&frame));
    assert_eq!(frame[38..54], A6.octets());
    let mut answer = datagram(A6, NEIGHBOUR6, (53, 9));
    answer[..6].copy_from_slice(&GATEWAY.mac().0);
    let sent = outward(&mut wire, &answer).expect("it leaves");
    assert!(whole(&sent) && sent[22..38] == HOST6.octets() && sent[..6] == NEIGHBOUR_MAC.0);
}

proptest! {
    #[test]
    fn whatever_leaves_has_a_port_of_its_program(
        bytes in prop::collection::vec(any::<u8>(), 14..120),
        (ports, protocol, fragment, mac) in (any::<(u16, u16)>(), prop::sample::select(vec![1u8, 6, 17, 58]), any::<u16>(), any::<bool>()),
    ) {
        let mut wire = translation(all_known());
        let mut frame = bytes;
        let honest = datagram_of((A, NEIGHBOUR), ports, GATEWAY.mac());
        let kept = frame.len().min(if mac { 38 } else { 12 });
        frame[..kept].copy_from_slice(&honest[..kept]);
        if let Some(place) = frame.get_mut(23) { *place = protocol; }
        if let Some(place) = frame.get_mut(20..22) { place.copy_from_slice(&fragment.to_be_bytes()); }
        if let Some(sent) = outward(&mut wire, &frame) {
            let packet = decode(&sent, sent.len()).unwrap().unwrap();
            prop_assert_eq!(address(&packet, packet.source), IpAddr::V4(HOST));
            let own = |port, protocol| wire.view.programs[0].has_port(protocol, port);
            match (packet.ports(), packet.quoted()) {
                (Some((port, _)), _) => prop_assert!(own(port, packet.protocol)),
                (None, Some(quoted)) => prop_assert!(own(quoted.ports().unwrap().1, quoted.protocol)),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        // From the wire, any bytes are taken without a panic.
        wire.enter(&mut frame, station);
    }
}
