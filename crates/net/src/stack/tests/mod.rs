//! Stacks in virtual time: hosts joined by a hub that may lose, repeat and delay frames.

mod arp;
mod departed;
mod ending;
mod fast_open;
mod frames;
mod hostile;
mod hub;
mod icmp;
mod instances;
mod ipv6;
mod paths;
mod platform;
mod tcp;
mod tcp_errors;
mod udp;

use super::ICMP_ERRORS_BURST;
use crate::tcp::Socket as AnySocket;
use crate::udp::{Endpoint as AnyEndpoint, SocketError, Take};
use crate::{
    InputBatch, Ipv6Config, LoopbackBatch, MAX_DATAGRAM, Mode, NetConfig, Outlet, OutletError, Progress,
    SendError,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;
use tailwater_wire::Checksums::{Trust, Verify};
use tailwater_wire::{
    ArpOperation, ArpPacket, Checksums, EtherType, EthernetHeader, Icmpv6Message, IpProtocol, Ipv6Packet,
    MacAddr, Sum, UdpDatagram,
};

use platform::Threads;

type Stack = crate::Stack<Threads>;
type Socket = AnySocket<Threads>;
type Endpoint = AnyEndpoint<Threads>;

/// A moment after which there is room for the past.
const T0: Duration = Duration::from_secs(1000);

/// Catches what a stack sends.
struct Catch {
    now: Duration,
    frames: Vec<Vec<u8>>,
    /// Frames there is room for.
    room: usize,
    /// Earliest `poll_by`.
    poll_by: Option<Duration>,
    /// Calls of `poll_loopback`.
    loopback_polls: usize,
    /// True if TCP checksums may be left out; then the number of frames in which they may have
    /// been.
    completes: bool,
    incomplete: u32,
    /// Frames caught when it was corked, while it is, and how many left together at each uncorking.
    corked: Option<usize>,
    together: Vec<usize>,
    /// Frames passed on to an earlier instance.
    passed_on: Vec<(Vec<u8>, Checksums)>,
}

impl Catch {
    fn at(now: Duration) -> Self {
        Self {
            now,
            frames: Vec::new(),
            room: usize::MAX,
            poll_by: None,
            loopback_polls: 0,
            completes: false,
            incomplete: 0,
            corked: None,
            together: Vec::new(),
            passed_on: Vec::new(),
        }
    }

    /// Returns the only frame caught since the last call.
    fn only(&mut self) -> Vec<u8> {
        assert_eq!(self.frames.len(), 1, "{:02x?}", self.frames);
        self.frames.pop().unwrap()
    }

    fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Outlet<Threads> for Catch {
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        if self.frames.len() >= self.room {
            return Err(OutletError::Full);
        }
        // What an egress ring holds before it is written: other frames' bytes.
        let mut frame = vec![0xa5; len];
        fill(&mut frame);
        self.frames.push(frame);
        Ok(())
    }

    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        self.incomplete += 1;
        self.transmit(len, fill)
    }

    fn pass_on(&mut self, frame: &[u8], checksums: Checksums) {
        self.passed_on.push((frame.to_vec(), checksums));
    }

    fn cork(&mut self) -> bool {
        let open = self.corked.is_none();
        self.corked.get_or_insert(self.frames.len());
        open
    }

    fn uncork(&mut self) {
        let before = self.corked.take().expect("corked before");
        self.together.push(self.frames.len() - before);
    }

    fn completes(&self) -> bool {
        self.completes
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn poll_loopback(&mut self) {
        self.loopback_polls += 1;
    }

    fn poll_by(&mut self, deadline: Duration) {
        self.poll_by = Some(self.poll_by.map_or(deadline, |old| old.min(deadline)));
    }
}

/// A batch that keeps all sockets.
#[derive(Default)]
struct Deferred(Vec<Arc<Socket>>);

impl InputBatch<Threads> for Deferred {
    fn defer(&mut self, socket: &Arc<Socket>) -> bool {
        self.0.push(Arc::clone(socket));
        true
    }

    fn traced(&self) -> Option<<Threads as crate::Platform>::Request> {
        None
    }
}

/// Longest packet to a peer on the same machine.
const LOCAL_MTU: u16 = 9000;
/// Bytes offered to a peer on the same machine.
const MACHINE_WINDOW: u32 = 180_000;

/// Host number `n` of the test network 10.0.0.0/24.
fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn at(n: u8, port: u16) -> SocketAddr {
    SocketAddr::new(ip(n).into(), port)
}

fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

fn config(n: u8) -> NetConfig {
    NetConfig {
        ip: ip(n),
        prefix: 24,
        gateway: Some(ip(254)),
        ipv6: None,
        mac: mac(n).0,
        mtu: 1500,
        local_mtu: LOCAL_MTU,
        mode: Mode::Attached,
        udp_receive_bytes: 16 * 1024,
        machine_window: MACHINE_WINDOW,
        tcp_connections: 1000,
    }
}

/// Returns the IPv6 address of host `n`, in fd00::/64.
fn ip6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

fn at6(n: u8, port: u16) -> SocketAddr {
    SocketAddr::new(ip6(n).into(), port)
}

fn everywhere6(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)
}

/// Host `n` with both families.
fn config6(n: u8) -> NetConfig {
    let ipv6 = Ipv6Config { ip: ip6(n), prefix: 64, gateway: Some(ip6(254)) };
    NetConfig { ipv6: Some(ipv6), ..config(n) }
}

/// Host `n`, which has announced itself already.
fn host(n: u8) -> Stack {
    announced(Stack::new(config(n), n.into()).unwrap())
}

/// Returns the same, with both families.
fn host6(n: u8) -> Stack {
    announced(Stack::new(config6(n), n.into()).unwrap())
}

fn announced(stack: Stack) -> Stack {
    for i in 0..2 {
        stack.poll_timers(&mut Catch::at(Duration::from_secs(2 * i)));
    }
    stack
}

/// Returns an ARP frame from host `from`'s station to `to`.
fn arp_frame(to: MacAddr, packet: ArpPacket) -> Vec<u8> {
    let header = EthernetHeader { destination: to, source: packet.sender_mac, ethertype: EtherType::ARP };
    // Ethernet's shortest frame has 60 bytes: ARP packets come padded.
    let mut frame = [&header.to_bytes()[..], &packet.encode()].concat();
    frame.resize(60, 0);
    frame
}

/// Returns an ARP reply from host `from` to host `to`.
fn arp_reply(from: u8, to: u8) -> Vec<u8> {
    let packet = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: mac(from),
        sender_ip: ip(from),
        target_mac: mac(to),
        target_ip: ip(to),
    };
    arp_frame(mac(to), packet)
}

/// Returns the ARP packet in `frame` and the station it is for.
fn parse_arp(frame: &[u8]) -> (MacAddr, ArpPacket) {
    let (header, packet) = EthernetHeader::parse(frame).unwrap();
    assert_eq!(header.ethertype, EtherType::ARP);
    (header.destination, ArpPacket::parse(packet).unwrap())
}

/// Host 1 with a neighbour 2 that it knows.
fn acquainted() -> Stack {
    acquaint(host(1))
}

/// Returns the same, with both families.
fn acquainted6() -> Stack {
    let stack = acquaint(host6(1));
    let message = smoltcp::wire::NdiscRepr::NeighborSolicit {
        target_addr: ip6(1),
        lladdr: Some(smoltcp::wire::EthernetAddress(mac(2).0).into()),
    };
    let message = smoltcp::wire::Icmpv6Repr::Ndisc(message);
    let frame = frames::icmp6((mac(2), mac(1)), (ip6(2), ip6(1)), 255, &message);
    stack.input(&mut Catch::at(T0), &frame, Verify);
    stack
}

fn acquaint(stack: Stack) -> Stack {
    let request = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: mac(2),
        sender_ip: ip(2),
        target_mac: MacAddr::ZERO,
        target_ip: ip(1),
    };
    stack.input(&mut Catch::at(T0), &arp_frame(MacAddr::BROADCAST, request), Verify);
    stack
}

/// Returns the next datagram at `endpoint`.
fn recv(endpoint: &Endpoint) -> Result<Option<(Vec<u8>, SocketAddr)>, SocketError> {
    let mut buf = vec![0; MAX_DATAGRAM];
    let received = endpoint.inbound().receive(&mut buf, Take::Remove)?;
    Ok(received.map(|received| {
        buf.truncate(received.len);
        (buf, received.source)
    }))
}

/// Returns a datagram over IPv6 from host 2, port 9, to host 1.
fn datagram6(port: u16, data: &[u8]) -> Vec<u8> {
    frames::udp6((mac(2), mac(1)), (ip6(2), 9), (ip6(1), port), data)
}

/// Returns a datagram from host 2, port 9, to host 1.
fn datagram(port: u16, data: &[u8]) -> Vec<u8> {
    frames::udp((mac(2), mac(1)), (ip(2), 9), (ip(1), port), data)
}
