//! ICMP errors about segments of TCP, over both families.

use super::*;
use crate::tcp::Failure;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;
use tailwater_tcp::{Config, Error, State};

/// Codes of an error over IPv4 and over IPv6.
type Codes = (u8, u8);
/// The host that the segments are for, and a router on the way.
const TARGET: u8 = 2;
const ROUTER: u8 = 3;

/// Returns a frame in which host `n` reports `frame`, which host 1 sent, as undeliverable.
fn report(n: u8, frame: &[u8], (code4, code6): Codes) -> Vec<u8> {
    if frame[12..14] == [8, 0] {
        let quoted = smol::Ipv4Packet::new_unchecked(&frame[14..]);
        let header = smol::Ipv4Repr::parse(&quoted, &ChecksumCapabilities::default()).unwrap();
        let message = smol::Icmpv4Repr::DstUnreachable { reason: code4.into(), header, data: &frame[34..42] };
        return frames::icmp((mac(n), mac(1)), (ip(n), ip(1)), &message);
    }
    let header = smol::Ipv6Repr::parse(&smol::Ipv6Packet::new_unchecked(&frame[14..])).unwrap();
    let message = smol::Icmpv6Repr::DstUnreachable { reason: code6.into(), header, data: &frame[54..62] };
    frames::icmp6((mac(n), mac(1)), (ip6(n), ip6(1)), 64, &message)
}

/// Returns a host whose SYN to host 2 is in flight, the socket and the SYN.
fn connecting(to: SocketAddr) -> (Stack, Arc<Socket>, Vec<u8>) {
    let (one, _) = paths::pair(1500);
    let mut wire = Catch::at(T0);
    let socket = one.connect_tcp(&mut wire, to, &Config::default()).unwrap();
    (one, socket, wire.only())
}

#[test]
fn an_error_ends_an_attempt_to_connect() {
    // Codes of RFC 792 and RFC 4443; the errors of sockets are Linux's.
    let cases: [(u8, Codes, Error); 4] = [
        (ROUTER, (0, 0), Error::NetworkUnreachable),
        (ROUTER, (1, 3), Error::HostUnreachable),
        (ROUTER, (13, 1), Error::HostUnreachable),
        (TARGET, (3, 4), Error::Refused),
    ];
    for (reporter, codes, error) in cases {
        for to in [at(TARGET, 80), at6(TARGET, 80)] {
            let (one, socket, syn) = connecting(to);
            one.input(&mut Catch::at(T0), &report(reporter, &syn, codes), Verify);
            assert_eq!(socket.lock().take_failure(), Some(Failure::Protocol(error)), "{to}, {codes:?}");
        }
    }
}

#[test]
fn an_error_that_may_be_forged_ends_none() {
    // RFC 5927 section 4.1; only the host itself knows its ports.
    for to in [at(TARGET, 80), at6(TARGET, 80)] {
        let (one, socket, syn) = connecting(to);
        let mut forged = syn.clone();
        let number = if to.is_ipv4() { 38 } else { 58 };
        forged[number] ^= 0x40;
        let errors =
            [report(ROUTER, &forged, (1, 3)), report(TARGET, &forged, (3, 4)), report(ROUTER, &syn, (3, 4))];
        for error in errors {
            one.input(&mut Catch::at(T0), &error, Verify);
            assert_eq!(socket.lock().connection.state(), State::SynSent, "{to}");
        }
        assert_eq!(one.counters().icmp_ignored, 3);
    }
}
