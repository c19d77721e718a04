mod answers;

use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_testkit::frames::{fragment, ipv6};
use tailwater_wire::MacAddr;
use tailwater_wire::packet::{TCP, UDP};

const MAC: MacAddr = MacAddr([2, 0x74, 10, 77, 0, 2]);
const IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 2);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 3);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const NO_NEXT_HEADER: u8 = 59;

fn me() -> Identity {
    Identity::new(MAC, IP, Some(OWN))
}

/// Returns a frame of this runtime.
fn sent(source: Ipv6Addr, destination: Ipv6Addr, first: u8, hop_limit: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = ipv6(source.to_bits(), destination.to_bits(), first, hop_limit, rest);
    frame[6..12].copy_from_slice(&MAC.0);
    frame
}

fn judge(frame: &[u8]) -> Result<(), Offence> {
    inspect(frame, &me()).map(|_| ())
}

/// Returns a neighbour discovery message: type, flags, target, options.
fn message(kind: u8, flags: u8, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), options].concat()
}

fn link_layer(kind: u8, mac: MacAddr) -> Vec<u8> {
    [&[kind, 1][..], &mac.0].concat()
}

fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(solicited_node(address.to_bits()))
}

#[test]
fn a_runtime_sends_from_its_own_ipv6_addresses_only() {
    let udp = [0, 5, 0, 7, 0, 8, 0, 0];
    assert_eq!(judge(&sent(OWN, OTHER, UDP, 64, &udp)), Ok(()));
    assert_eq!(judge(&sent(MAC.link_local(), OTHER, UDP, 64, &udp)), Ok(()));
    for source in
        [OTHER, MacAddr([2, 0, 0, 0, 0, 9]).link_local(), Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, NODES]
    {
        assert_eq!(judge(&sent(source, OTHER, UDP, 64, &udp)), Err(Offence::Spoofed), "{source}");
    }
    let mut frame = sent(OWN, OTHER, UDP, 64, &udp);
    frame[6] ^= 4;
    assert_eq!(judge(&frame), Err(Offence::Spoofed), "MAC");
    let stranger = Identity::new(MAC, IP, None);
    assert_eq!(inspect(&sent(OWN, OTHER, UDP, 64, &udp), &stranger), Err(Offence::Spoofed), "was given none");
}

#[test]
fn a_runtime_advertises_only_itself() {
    let own = link_layer(OPTION_TARGET_LINK, MAC);
    let advertise = |flags, target, options: &[u8], to| {
        judge(&sent(OWN, to, 58, 255, &message(v6::NEIGHBOUR_ADVERTISEMENT, flags, target, options)))
    };
    assert_eq!(advertise(0x60, OWN, &own, OTHER), Ok(()));
    assert_eq!(advertise(0x20, MAC.link_local(), &own, NODES), Ok(()));
    assert_eq!(advertise(0x60, OTHER, &own, OTHER), Err(Offence::Spoofed), "a foreign target");
    let foreign = link_layer(OPTION_TARGET_LINK, MacAddr::BROADCAST);
    assert_eq!(advertise(0x60, OWN, &foreign, OTHER), Err(Offence::Spoofed), "a foreign MAC address");
    assert_eq!(advertise(0xe0, OWN, &own, OTHER), Err(Offence::Refused), "as a router");
    assert_eq!(advertise(0x60, OWN, &own, NODES), Err(Offence::Malformed), "asked for by all nodes");
    assert_eq!(advertise(0x60, NODES, &own, OTHER), Err(Offence::Malformed), "a group");
    let second = [&own[..], &foreign].concat();
    assert_eq!(advertise(0x60, OWN, &second, OTHER), Err(Offence::Spoofed), "a second option");
    assert_eq!(advertise(0x60, OWN, &[2, 0, 0, 0, 0, 0, 0, 0], OTHER), Err(Offence::Malformed), "no length");
    assert_eq!(advertise(0x60, OWN, &[2, 2, 0, 0, 0, 0, 0, 0], OTHER), Err(Offence::Malformed), "too long");
    assert_eq!(advertise(0x60, OWN, &[9], OTHER), Err(Offence::Malformed), "half an option");
}

#[test]
fn a_runtime_asks_for_anybody_with_its_own_mac_address() {
    let ask = |from, target, options: &[u8], to| {
        judge(&sent(from, to, 58, 255, &message(v6::NEIGHBOUR_SOLICITATION, 0, target, options)))
    };
    let own = link_layer(OPTION_SOURCE_LINK, MAC);
    assert_eq!(ask(OWN, OTHER, &own, solicited(OTHER)), Ok(()));
    let foreign = link_layer(OPTION_SOURCE_LINK, MacAddr([2, 0, 0, 0, 0, 9]));
    assert_eq!(ask(OWN, OTHER, &foreign, solicited(OTHER)), Err(Offence::Spoofed));
    let unspecified = Ipv6Addr::UNSPECIFIED;
    assert_eq!(ask(unspecified, OWN, &[], solicited(OWN)), Ok(()), "duplicate address detection");
    assert_eq!(
        ask(unspecified, OWN, &[14, 1, 1, 2, 3, 4, 5, 6], solicited(OWN)),
        Ok(()),
        "with a nonce (RFC 7527)"
    );
    assert_eq!(ask(unspecified, OTHER, &[], solicited(OTHER)), Err(Offence::Spoofed), "of a foreign address");
    assert_eq!(ask(unspecified, OWN, &[], OTHER), Err(Offence::Malformed), "sent to a host");
    assert_eq!(
        ask(unspecified, OWN, &own, solicited(OWN)),
        Err(Offence::Malformed),
        "with a link-layer address"
    );
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let rs = |from, options: &[u8]| {
        judge(&sent(from, routers, 58, 255, &[&[133, 0, 0, 0, 0, 0, 0, 0][..], options].concat()))
    };
    assert_eq!(rs(OWN, &own), Ok(()));
    assert_eq!(rs(OWN, &foreign), Err(Offence::Spoofed));
    assert_eq!(rs(unspecified, &[]), Err(Offence::Spoofed));
}

#[test]
fn what_only_routers_say_is_refused() {
    for kind in NOT_FOR_HOSTS {
        let body = message(kind, 0, OWN, &[]);
        assert_eq!(judge(&sent(OWN, NODES, 58, 255, &body)), Err(Offence::Refused), "{kind}");
    }
    for kind in [5, 9] {
        let mut frame = sent(OWN, NODES, 58, 255, &[]);
        frame.truncate(14);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 77, 0, 2, 10, 77, 0, 3, kind, 0, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(judge(&frame), Err(Offence::Refused), "ICMP {kind}");
        frame[34] = 8;
        assert_eq!(judge(&frame), Ok(()), "an echo request");
        frame[29] = 3;
        assert_eq!(judge(&frame), Err(Offence::Spoofed));
    }
}

/// Returns an IPv4 packet of protocol `protocol`: header and payload.
fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let header = [&[0x45, 0][..], &total.to_be_bytes(), &[0, 0, 0, 0, 64, protocol, 0, 0]].concat();
    [&header[..], &source.octets(), &destination.octets(), payload].concat()
}

/// Returns a frame of this runtime with an ICMP message.
fn icmp(kind: u8, code: u8, quote: &[u8]) -> Vec<u8> {
    let message = [&[kind, code, 0, 0, 0, 0, 5, 0][..], quote].concat();
    let packet = ipv4(IP, Ipv4Addr::new(10, 77, 0, 3), ICMP, &message);
    [&MacAddr::BROADCAST.0[..], &MAC.0, &[8, 0], &packet].concat()
}

/// Returns a frame of this runtime with an ICMPv6 message.
fn icmpv6(kind: u8, code: u8, quote: &[u8]) -> Vec<u8> {
    sent(OWN, OTHER, 58, 64, &[&[kind, code, 0, 0, 0, 0, 5, 0][..], quote].concat())
}

#[test]
fn errors_that_only_routers_send_are_refused() {
    // Each about a packet that this runtime was sent, so nothing else is wrong with it.
    let received = ipv4(Ipv4Addr::new(10, 77, 0, 3), IP, UDP, &[0, 7, 0, 5, 0, 8, 0, 0]);
    for (kind, code, expected) in [
        (3, 4, Err(Offence::Refused)), // fragmentation needed
        (3, 1, Err(Offence::Refused)), // host unreachable: the IOKernel's report of an end
        (3, 12, Err(Offence::Refused)),
        (11, 0, Err(Offence::Refused)), // time exceeded in transit
        (4, 0, Err(Offence::Refused)),  // source quench
        (3, 3, Ok(())),                 // port unreachable
        (3, 2, Ok(())),                 // protocol unreachable
        (11, 1, Ok(())),                // time exceeded in reassembly
        (12, 0, Ok(())),                // parameter problem
    ] {
        assert_eq!(judge(&icmp(kind, code, &received)), expected, "ICMP {kind}/{code}");
    }
    let received = ipv6(OTHER.to_bits(), OWN.to_bits(), UDP, 64, &[0, 7, 0, 5, 0, 8, 0, 0])[14..].to_vec();
    for (kind, code, expected) in [
        (2, 0, Err(Offence::Refused)), // packet too big
        (2, 1, Err(Offence::Refused)),
        (1, 3, Err(Offence::Refused)), // address unreachable
        (3, 0, Err(Offence::Refused)), // hop limit exceeded in transit
        (3, 1, Ok(())),                // time exceeded in reassembly
        (1, 4, Ok(())),                // port unreachable
        (4, 1, Ok(())),                // parameter problem
    ] {
        assert_eq!(judge(&icmpv6(kind, code, &received)), expected, "ICMPv6 {kind}/{code}");
    }
    let first = [&fragment(58, 0, true)[..], &[2, 0, 0, 0, 0, 0, 5, 0], &received[..40]].concat();
    assert_eq!(judge(&sent(OWN, OTHER, 44, 64, &first)), Err(Offence::Refused), "in fragments");
}

#[test]
fn the_iokernels_reports_of_an_end_are_refused_to_programs() {
    // They quote a bare IP header, whose protocol says whether one of two instances has ended.
    for protocol in [TCP, NO_NEXT_HEADER] {
        let quote = ipv4(Ipv4Addr::new(10, 77, 0, 3), IP, protocol, &[]);
        assert_eq!(judge(&icmp(3, 1, &quote)), Err(Offence::Refused), "about protocol {protocol}");
        assert_eq!(judge(&icmp(3, 2, &quote)), Ok(()), "protocol unreachable is no such report");
        let quote = ipv6(OTHER.to_bits(), OWN.to_bits(), protocol, 64, &[])[14..].to_vec();
        assert_eq!(judge(&icmpv6(1, 3, &quote)), Err(Offence::Refused), "ICMPv6, about protocol {protocol}");
        assert_eq!(judge(&icmpv6(4, 1, &quote)), Ok(()), "nor is an unknown next header");
    }
}

#[test]
fn a_runtime_reports_only_packets_that_were_sent_to_it() {
    let (third, other) = (Ipv4Addr::new(10, 77, 0, 4), Ipv4Addr::new(10, 77, 0, 3));
    let foreign = ipv4(other, third, UDP, &[0, 7, 0, 5, 0, 8, 0, 0]);
    for (kind, code) in [(3, 3), (3, 13), (11, 1), (12, 0)] {
        assert_eq!(judge(&icmp(kind, code, &foreign)), Err(Offence::Spoofed), "ICMP {kind}/{code}");
        assert_eq!(judge(&icmp(kind, code, &foreign[..12])), Err(Offence::Malformed), "cut {kind}/{code}");
    }
    let third = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 4);
    let about = |to: Ipv6Addr| ipv6(OTHER.to_bits(), to.to_bits(), UDP, 64, &[0; 8])[14..].to_vec();
    for (kind, code) in [(1, 4), (1, 0), (3, 1), (4, 1)] {
        assert_eq!(judge(&icmpv6(kind, code, &about(third))), Err(Offence::Spoofed), "ICMPv6 {kind}/{code}");
        assert_eq!(judge(&icmpv6(kind, code, &[0; 9])), Err(Offence::Malformed), "cut {kind}/{code}");
    }
    assert_eq!(judge(&icmpv6(4, 2, &about(NODES))), Ok(()), "about a packet to a group");
    assert_eq!(judge(&icmpv6(1, 4, &about(MAC.link_local()))), Ok(()));
    let cut = [&fragment(58, 0, true)[..], &[1, 4, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(judge(&sent(OWN, OTHER, 44, 64, &cut)), Err(Offence::Malformed), "the quote follows later");
}

#[test]
fn a_runtime_may_report_whatever_it_was_sent() {
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let chains: [(&str, u8, Vec<u8>); 6] = [
        ("hop-by-hop options that are not first", 60, [options(0), options(UDP)].concat()),
        ("an authentication header that is too long", 51, vec![UDP, 255, 0, 0, 0, 0, 0, 0]),
        ("a mobility header that is too long", 135, vec![UDP, 255, 0, 0, 0, 0, 0, 0]),
        ("the beginning of options", 60, vec![60, 200, 0x80, 0, 0, 0, 0, 0]),
        ("half a header", 140, vec![UDP, 0, 0]),
        ("more headers than are read", 60, options(60).repeat(20)),
    ];
    let third = Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 4);
    for (what, first, chain) in chains {
        let about = |to: Ipv6Addr| ipv6(OTHER.to_bits(), to.to_bits(), first, 64, &chain)[14..].to_vec();
        for (kind, code) in [(1, 4), (3, 1), (4, 0), (4, 1), (4, 2)] {
            assert_eq!(judge(&icmpv6(kind, code, &about(OWN))), Ok(()), "{what}: {kind}/{code}");
            assert_eq!(judge(&icmpv6(kind, code, &about(third))), Err(Offence::Spoofed), "{what}");
        }
    }
}

#[test]
fn neighbour_discovery_does_not_pass_in_fragments_or_behind_headers() {
    let foreign = message(v6::NEIGHBOUR_ADVERTISEMENT, 0x60, OTHER, &[]);
    let own = message(v6::NEIGHBOUR_ADVERTISEMENT, 0x60, OWN, &[]);
    for (offset, more, body, expected) in [
        (0, false, &own, Err(Offence::Refused)),
        (0, true, &own, Err(Offence::Refused)),
        (0, true, &foreign, Err(Offence::Refused)),
        (3, false, &foreign, Ok(())),
    ] {
        let rest = [&fragment(58, offset, more)[..], body].concat();
        assert_eq!(judge(&sent(OWN, OTHER, 44, 255, &rest)), expected, "{offset} {more}");
    }
    let hidden = [&fragment(60, 0, true)[..], &[58, 9, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(
        judge(&sent(OWN, OTHER, 44, 255, &hidden)),
        Err(Offence::Malformed),
        "header chain cut (RFC 7112)"
    );
    let options = [&[60, 0, 0, 0, 0, 0, 0, 0][..], &[58, 0, 0, 0, 0, 0, 0, 0], &foreign].concat();
    assert_eq!(judge(&sent(OWN, OTHER, 0, 255, &options)), Err(Offence::Spoofed), "behind two headers");
    assert_eq!(judge(&sent(OWN, OTHER, 58, 64, &own)), Err(Offence::Refused), "through a router");
    let mut coded = own.clone();
    coded[1] = 1;
    assert_eq!(judge(&sent(OWN, OTHER, 58, 255, &coded)), Err(Offence::Malformed), "code 1");
    assert_eq!(judge(&sent(OWN, OTHER, 58, 255, &own[..20])), Err(Offence::Malformed), "short");
    assert_eq!(judge(&sent(OWN, OTHER, 58, 255, &[])), Err(Offence::Malformed), "empty");
}

#[test]
fn source_routes_and_cut_headers_are_refused() {
    let routed = [&[6u8, 2, 4, 1][..], &[0; 20], &[0; 20]].concat();
    assert_eq!(judge(&sent(OWN, OTHER, 43, 64, &routed)), Err(Offence::Refused));
    let tiny = [&fragment(TCP, 0, true)[..], &[0; 8]].concat();
    assert_eq!(judge(&sent(OWN, OTHER, 44, 64, &tiny)), Err(Offence::Malformed));
}

#[test]
fn listener_reports_need_no_address_yet_and_echo_requests_do() {
    let report = [143, 0, 0, 0, 0, 0, 0, 0];
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let unspecified = Ipv6Addr::UNSPECIFIED;
    assert_eq!(judge(&sent(unspecified, routers, 58, 1, &report)), Ok(()));
    let alert = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &report].concat();
    assert_eq!(
        judge(&sent(unspecified, routers, 0, 1, &alert)),
        Ok(()),
        "with a router alert, as RFC 3810 asks"
    );
    assert_eq!(judge(&sent(unspecified, OTHER, 58, 64, &[128, 0, 0, 0, 0, 0, 0, 0])), Err(Offence::Spoofed));
}

proptest! {
    /// A packet that passes has no foreign address in a place that a receiver trusts. The
    /// oracle looks for neighbour advertisements at fixed places only.
    #[test]
    fn nothing_passes_that_speaks_for_others(mut rest in prop::collection::vec(any::<u8>(), 0..120), own in any::<bool>(),
        target in any::<bool>(), first in prop::sample::select(vec![58u8, 58, 0, 60, 43, 44, 51, 6]), hop_limit in prop::sample::select(vec![1u8, 64, 255]),
        kind in 128u8..144) {
        let at = if first == 58 { 0 } else { 8 };
        if rest.len() >= at + 24 {
            if first != 58 {
                (rest[0], rest[1]) = (58, if first == 51 { 0 } else { rest[1] % 2 });
            }
            (rest[at], rest[at + 1]) = (kind, 0);
            rest[at + 8..at + 24].copy_from_slice(&if target { OWN } else { OTHER }.octets());
        }
        let frame = sent(if own { OWN } else { OTHER }, OTHER, first, hop_limit, &rest);
        if judge(&frame).is_ok() {
            prop_assert!(own);
            if first == 58 && rest.first() == Some(&v6::NEIGHBOUR_ADVERTISEMENT) {
                prop_assert_eq!(&rest[8..24], &OWN.octets());
                prop_assert_eq!(hop_limit, 255);
            }
            prop_assert!(first != 58 || rest.first().is_none_or(|kind| !NOT_FOR_HOSTS.contains(kind)));
        }
    }
}
