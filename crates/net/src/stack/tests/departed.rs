//! Reports of the IOKernel that a program of this machine has ended.

use super::*;
use crate::tcp::Failure;
use tailwater_tcp::{Config, Error, State};
use tailwater_wire::{
    Addresses, DEFAULT_TTL, Fragmenting, IcmpHeader, Icmpv6Header, Ipv4Header, Ipv6Header, PacketInfo,
    Report, Stations,
};

const GONE: u8 = 2;
const OTHER: u8 = 3;

/// Returns an error about a packet without a transport header from host 1 to host `about`, in the
/// name of host `by`.
fn report(by: IpAddr, about: IpAddr, why: Report) -> Vec<u8> {
    report_about(by, about, why, IpProtocol::NO_NEXT_HEADER)
}

/// As [`report`], about a packet of this protocol.
pub(super) fn report_about(by: IpAddr, about: IpAddr, why: Report, protocol: IpProtocol) -> Vec<u8> {
    let own = if by.is_ipv4() { IpAddr::V4(ip(1)) } else { IpAddr::V6(ip6(1)) };
    let packet = |source, destination, protocol| PacketInfo {
        addresses: Addresses::new(source, destination).unwrap(),
        protocol,
        hop_limit: DEFAULT_TTL,
        traffic_class: 0,
    };
    let quoted = packet(own, about, protocol);
    let back = Addresses::new(by, own).unwrap();
    let message = match back {
        Addresses::V4 { .. } => {
            let quote = Ipv4Header::of(&quoted, Fragmenting::Forbidden, 0).to_bytes();
            [&IcmpHeader::error(why, [&quote, &[]]).unwrap().to_bytes()[..], &quote[..]].concat()
        }
        Addresses::V6 { .. } => {
            let quote = Ipv6Header::of(&quoted, protocol, 0).to_bytes();
            [&Icmpv6Header::error(&back, why, [&quote, &[]]).to_bytes()[..], &quote[..]].concat()
        }
    };
    let protocol = if by.is_ipv4() { IpProtocol::ICMP } else { IpProtocol::ICMPV6 };
    let error = packet(by, own, protocol);
    let front = error.overhead_of(Fragmenting::Forbidden);
    let mut frame = vec![0; front];
    let stations = Stations { source: mac(GONE), destination: mac(1) };
    error.write_headers(&mut frame, stations, Fragmenting::Forbidden, message.len());
    frame.extend_from_slice(&message);
    frame
}

/// Returns a host with an established connection to port 80 of `to`, which reads, and the peer.
fn connected(to: SocketAddr) -> (Stack, Stack, Arc<Socket>) {
    let (one, two) = paths::pair(1500);
    let listening = two.listen_tcp(everywhere6(80), 8, Default::default()).unwrap();
    let mut wire = Catch::at(T0);
    let socket = one.connect_tcp(&mut wire, to, &Config::default()).unwrap();
    let mut back = Catch::at(T0);
    two.input(&mut back, &wire.only(), Trust);
    one.input(&mut wire, &back.only(), Trust);
    two.input(&mut back, &wire.only(), Trust);
    assert_eq!(socket.lock().connection.state(), State::Established);
    let accepted = listening.lock().accept();
    assert!(accepted.is_some());
    (one, two, socket)
}

#[test]
fn the_end_of_a_program_resets_its_connections_and_no_others() {
    for (to, other) in [(at(GONE, 80), at(OTHER, 80)), (at6(GONE, 80), at6(OTHER, 80))] {
        let (one, _two, socket) = connected(to);
        one.input(&mut Catch::at(T0), &report(other.ip(), other.ip(), Report::Host), Trust);
        assert_eq!(socket.lock().connection.state(), State::Established, "another program has ended");
        one.input(&mut Catch::at(T0), &report(to.ip(), to.ip(), Report::Host), Trust);
        assert_eq!(socket.lock().take_failure(), Some(Failure::Protocol(Error::Reset)), "{to}");
        assert_eq!(one.counters().tcp_connections, 0);
        assert_eq!(one.counters().peers_departed, 2);
    }
}

#[test]
fn an_attempt_to_connect_to_an_ended_program_is_refused() {
    for to in [at(GONE, 80), at6(GONE, 80)] {
        let (one, _) = paths::pair(1500);
        let socket = one.connect_tcp(&mut Catch::at(T0), to, &Config::default()).unwrap();
        one.input(&mut Catch::at(T0), &report(to.ip(), to.ip(), Report::Host), Trust);
        assert_eq!(socket.lock().take_failure(), Some(Failure::Protocol(Error::Refused)), "{to}");
    }
}

#[test]
fn a_report_that_the_link_does_not_vouch_for_or_of_another_host_ends_nothing() {
    for (to, other) in [(at(GONE, 80), at(OTHER, 80)), (at6(GONE, 80), at6(OTHER, 80))] {
        let (one, _two, socket) = connected(to);
        for (frame, checksums) in [
            (report(to.ip(), to.ip(), Report::Host), Verify),
            (report(other.ip(), to.ip(), Report::Host), Trust),
            (report(to.ip(), to.ip(), Report::Port), Trust),
        ] {
            one.input(&mut Catch::at(T0), &frame, checksums);
            assert_eq!(socket.lock().connection.state(), State::Established, "{to}");
        }
        assert_eq!(one.counters().peers_departed, 0);
    }
}

#[test]
fn only_the_iokernels_report_of_an_ended_instance_probes_connections() {
    for to in [at(GONE, 80), at6(GONE, 80)] {
        let (one, _two, _socket) = connected(to);
        for (why, protocol, checksums, probes) in [
            // A program may send this one.
            (Report::Protocol { pointer: 6 }, IpProtocol::TCP, Trust, 0),
            (Report::Protocol { pointer: 6 }, IpProtocol::NO_NEXT_HEADER, Trust, 0),
            (Report::Host, IpProtocol::UDP, Trust, 0),
            (Report::Host, IpProtocol::TCP, Verify, 0),
            (Report::Host, IpProtocol::TCP, Trust, 1),
        ] {
            let mut catch = Catch::at(T0);
            one.input(&mut catch, &report_about(to.ip(), to.ip(), why, protocol), checksums);
            assert_eq!(catch.frames.len(), probes, "{why:?} about {protocol:?}, {checksums:?}, {to}");
        }
        assert_eq!(one.counters().peers_departed, 0);
    }
}

#[test]
fn a_connection_that_the_program_had_closed_ends_as_it_would_have() {
    let (one, two, socket) = connected(at(GONE, 80));
    // The peer closes: what it sent is complete.
    let mut wire = Catch::at(T0);
    let peer = {
        let mut found = None;
        two.tcp.table.for_each(|socket| found = Some(Arc::clone(socket)));
        found.unwrap()
    };
    {
        let inner = &mut *peer.lock();
        let events = inner.connection.close();
        two.settle(&mut wire, &peer, inner, events, Stack::tcp_now(&Catch::at(T0)));
    }
    one.input(&mut Catch::at(T0), &wire.only(), Trust);
    assert_eq!(socket.lock().connection.state(), State::CloseWait);
    one.input(&mut Catch::at(T0), &report(at(GONE, 0).ip(), at(GONE, 0).ip(), Report::Host), Trust);
    let inner = &mut *socket.lock();
    assert_eq!(inner.receive(&mut [0; 8], false), Ok(0), "the end of the stream, no error");
    assert!(!inner.has_failed());
}

#[test]
fn a_datagram_socket_connected_to_an_ended_program_is_told() {
    for (to, other) in [(at(GONE, 9), at(OTHER, 9)), (at6(GONE, 9), at6(OTHER, 9))] {
        let (one, _) = paths::pair(1500);
        let sockets = [to, other].map(|peer| {
            let endpoint = one.bind_udp(everywhere6(0)).unwrap();
            one.connect_udp(endpoint, peer).unwrap();
            endpoint
        });
        let unconnected = one.bind_udp(everywhere6(0)).unwrap();
        one.input(&mut Catch::at(T0), &report(to.ip(), to.ip(), Report::Host), Trust);
        assert_eq!(sockets[0].take_error(), Some(SocketError::Refused));
        assert_eq!((sockets[1].take_error(), unconnected.take_error()), (None, None));
    }
}
