//! Frames from the wire into a runtime's network stack, in any order and at any time. The stack has
//! UDP sockets, a TCP listener and a connection being opened.
//!
//! Input: a sequence of steps, each a control byte followed by its argument.
//!
//! | control byte | argument | step |
//! |---|---|---|
//! | 0-127 | length (u16, little endian), then that many bytes | a frame arrives; odd: with verified checksums |
//! | 128-191 | - | timers run, (byte - 127)² ms later |
//! | 192-223 | - | a socket sends to a host of the network: over IPv4 if even, IPv6 if odd; the last four, more than a packet holds |
//! | 224-239 | - | a UDP socket reads, closes, or is opened again |
//! | 240-247 | - | a connection with Fast Open is opened to a host of the network, with data: over IPv4 if even, IPv6 if odd |
//! | 248-255 | - | the youngest TCP connection is written to, read from, closed, or aborted, by the low two bits |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tailwater_net::udp::{Endpoint, Take};
use tailwater_net::{Ipv6Config, Mode, NetConfig, Outlet, OutletError, Single, Stack};
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Config, Segment};
use tailwater_wire::{
    ArpPacket, Checksums, EtherType, EthernetHeader, IcmpMessage, Icmpv6Message, IpProtocol, Ipv4Packet,
    Ipv6Packet, UdpDatagram, upper_layer,
};

/// Maximum number of frames in answer to one frame: its own answer, which is in as many pieces as
/// the longest packet over the narrowest path if it completes an echo request of that length; and
/// three that waited for a neighbour.
const MAX_ANSWERS: usize = 65_535 / 552 + 1 + 3;
/// Maximum number of steps in one run: more find nothing that fewer do not.
const MAX_STEPS: usize = 256;

struct Wire<'a> {
    now: Duration,
    sent: usize,
    /// Called with each frame that is sent.
    witness: &'a mut dyn FnMut(&[u8]),
}

impl Outlet<Single> for Wire<'_> {
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        self.sent += 1;
        // Every eighth frame finds no room.
        if self.sent.is_multiple_of(8) {
            return Err(OutletError::Full);
        }
        // An egress ring holds other frames' bytes before it is written.
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        check(&frame);
        (self.witness)(&frame);
        Ok(())
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn poll_by(&mut self, _deadline: Duration) {}

    fn poll_loopback(&mut self) {}
}

/// Checks that the stack accepts what it sends.
fn check(frame: &[u8]) {
    let (header, payload) = EthernetHeader::parse(frame).expect("an Ethernet header");
    if header.ethertype == EtherType::ARP {
        ArpPacket::parse(payload).expect("a well-formed ARP packet");
        return;
    }
    let (addresses, protocol, payload) = if header.ethertype == EtherType::IPV6 {
        let packet = Ipv6Packet::parse(payload).expect("a well-formed IPv6 packet");
        let upper = upper_layer(packet.header.next_header(), packet.payload).expect("extensions");
        if upper.fragment.is_some() {
            return;
        }
        (packet.header.addresses(), upper.protocol, &packet.payload[upper.at..])
    } else {
        let packet = Ipv4Packet::parse(payload, Checksums::Verify).expect("a well-formed IPv4 packet");
        if packet.header.is_fragment() {
            return;
        }
        (packet.header.addresses(), packet.header.protocol(), packet.payload)
    };
    match protocol {
        IpProtocol::ICMP => {
            IcmpMessage::parse(payload, Checksums::Verify).expect("a well-formed ICMP message");
        }
        IpProtocol::ICMPV6 => {
            Icmpv6Message::parse(payload, &addresses, Checksums::Verify)
                .expect("a well-formed ICMPv6 message");
        }
        IpProtocol::TCP => {
            let sum = addresses.pseudo_header(IpProtocol::TCP, payload.len()).bytes(payload);
            assert_eq!(sum.finish(), 0, "the checksum of a segment");
            Segment::parse(payload).expect("a well-formed segment");
        }
        _ => {
            UdpDatagram::parse(payload, &addresses, Checksums::Verify).expect("a UDP datagram");
        }
    }
}

/// Returns the IPv4 address of host `n` of the seeds; this host is number 1.
pub(crate) fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// Returns the IPv6 address of host `n`.
pub(crate) fn ip6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn stack() -> Stack<Single> {
    let config = NetConfig {
        ip: ip(1),
        prefix: 24,
        gateway: Some(ip(254)),
        ipv6: Some(Ipv6Config { ip: ip6(1), prefix: 64, gateway: Some(ip6(254)) }),
        mac: MAC,
        mtu: 1500,
        local_mtu: 9000,
        mode: Mode::Attached,
        udp_receive_bytes: 4096,
        tcp_connections: 1000,
        machine_window: 180_000,
    };
    Stack::new(config, 1).expect("a possible configuration")
}

/// Passes arbitrary frames to a stack with sockets and neighbours.
pub fn receive(data: &[u8]) {
    run(data, &mut |_| {});
}

/// As [`receive`], and calls `witness` with each frame that is sent.
pub(crate) fn run(data: &[u8], witness: &mut dyn FnMut(&[u8])) {
    let stack = stack();
    let mut wire = Wire { now: Duration::from_secs(1000), sent: 0, witness };
    let open =
        |port| stack.bind_udp(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).expect("a free port");
    let plain = open(7);
    let connected = open(8);
    stack.connect_udp(connected, SocketAddr::new(ip(2).into(), 9)).expect("a neighbour");
    let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 7);
    let listening = ListenConfig { syn_queue: 2, fast_open: 2, ..ListenConfig::default() };
    let listening = stack.listen_tcp(everywhere, 4, listening).expect("a free port");
    let mut streams: Vec<_> = stack
        .connect_tcp(&mut wire, SocketAddr::new(ip(2).into(), 9), &Config::default())
        .into_iter()
        .collect();
    let mut third: Option<&Endpoint<Single>> = Some(open(9));
    let mut rest = data;
    for _ in 0..MAX_STEPS {
        let Some((&step, tail)) = rest.split_first() else { break };
        rest = tail;
        match step {
            0..=127 => {
                let Some((length, tail)) = rest.split_at_checked(2) else { break };
                let length = usize::from(u16::from_le_bytes([length[0], length[1]])).min(tail.len());
                let (frame, tail) = tail.split_at(length);
                rest = tail;
                let before = wire.sent;
                let checksums = if step & 1 == 1 { Checksums::Trust } else { Checksums::Verify };
                stack.input(&mut wire, frame, checksums);
                streams.extend(listening.lock().accept());
                assert!(wire.sent - before <= MAX_ANSWERS, "one frame caused {} answers", wire.sent - before);
            }
            128..=191 => {
                let steps = u64::from(step) - 127;
                wire.now += Duration::from_millis(steps * steps);
                stack.poll_timers(&mut wire);
            }
            192..=223 => {
                // A refusal is allowed: no neighbour yet, no room.
                let n = step - 190;
                let ip = if step & 1 == 0 { IpAddr::V4(ip(n)) } else { IpAddr::V6(ip6(n)) };
                let to = SocketAddr::new(ip, 9);
                let from = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 7);
                let long = [0x5a; 3000];
                let data = if step >= 220 { &long[..] } else { &data[..data.len().min(100)] };
                let _ = stack.send_udp(&mut wire, plain, from, to, data);
            }
            248..=255 => {
                let Some(stream) = streams.last() else { continue };
                match step & 3 {
                    // A refusal is allowed.
                    0 => drop(stream.lock().send(&[0x5a; 4000])),
                    1 => drop(stream.lock().receive(&mut [0; 4000], false)),
                    2 => drop(stream.lock().connection.close()),
                    _ => stack.abort_tcp(&mut wire, stream),
                }
                stack.flush_tcp(&mut wire, stream);
            }
            240..=247 => {
                // A refusal is allowed: no neighbour yet, no room.
                let ip = if step & 1 == 0 { IpAddr::V4(ip(2)) } else { IpAddr::V6(ip6(2)) };
                let config = Config { fast_open: true, ..Config::default() };
                let to = SocketAddr::new(ip, 9);
                let begun = stack.connect_tcp_with(&mut wire, to, &config, b"request");
                streams.extend(begun.map(|(stream, _)| stream));
            }
            224..=239 => match third.take() {
                Some(endpoint) if step & 1 == 0 => {
                    let _ = endpoint.inbound().receive(&mut [0; 64], Take::Remove);
                    third = Some(endpoint);
                }
                Some(endpoint) => stack.close_udp(endpoint),
                None => third = Some(open(9)),
            },
        }
    }
    streams.iter().for_each(|stream| stack.release_tcp(&mut wire, stream));
    stack.close_listening(&mut wire, &listening);
    stack.counters();
}
