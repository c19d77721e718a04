//! The cost of a datagram on its way through the network stack, in ns, on one core with warm
//! caches.
//!
//! * `receive`: a frame from the ring to the socket's queue to the reader's buffer, checksums
//!   verified;
//! * `transmit`: from the caller's buffer to a frame in the egress ring, neighbour known;
//! * `loopback`: `send_to` to `recv_from` between two sockets of the process;
//! * `checksum`, `checksum_slices`: the Internet checksum alone, of one piece and of two.
//!
//! Runs on a user thread, so that turning preemption off costs as much as in service.

mod platform;

use criterion::{BenchmarkId, Criterion, Throughput};
use platform::{Kthreads, Stack};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tailwater::net::UdpSocket;
use tailwater_net::udp::Take;
use tailwater_net::{Mode, NetConfig, Outlet, OutletError};
use tailwater_wire::Checksums::Verify;
use tailwater_wire::{Sum, checksum};

tailwater::allocator!();

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Data bytes of a 64-byte frame (with its frame check sequence), of a spin reply, and of a full
/// one.
const SIZES: [usize; 3] = [18, 40, 1472];
/// Size of the simulated egress ring in bytes.
const RING: usize = 256 * 1024;

/// An egress ring that is always empty.
struct Ring {
    memory: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new() -> Self {
        Self { memory: vec![0; RING], at: 0 }
    }
}

impl Outlet<Kthreads> for Ring {
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        if self.at + len > RING {
            self.at = 0;
        }
        fill(&mut self.memory[self.at..self.at + len]);
        self.at = (self.at + len).next_multiple_of(64);
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn poll_by(&mut self, _deadline: Duration) {}

    fn poll_loopback(&mut self) {}
}

fn stack(ip: Ipv4Addr, mac: [u8; 6]) -> Stack {
    let config = NetConfig { prefix: 24, mac, mode: Mode::Attached, ..NetConfig::standalone(ip) };
    Stack::new(config, 1).expect("the configuration is possible")
}

/// Returns two stacks that have each other's addresses.
fn pair() -> (Stack, Stack) {
    let (own, peer) = (stack(OWN, OWN_MAC), stack(PEER, PEER_MAC));
    let frame = |from: &Stack| {
        let endpoint = from.bind_udp(SocketAddr::new(from.ip().into(), 0)).expect("ports are free");
        let mut ring = Ring::new();
        let to = if from.ip() == OWN { PEER } else { OWN };
        let to = SocketAddr::new(to.into(), 9);
        from.send_udp(&mut ring, endpoint, endpoint.binding().local, to, b"").expect("there is room");
        from.close_udp(endpoint);
        ring.memory[..42].to_vec()
    };
    let question = frame(&own);
    let mut answer = Ring::new();
    peer.input(&mut answer, &question, Verify);
    own.input(&mut Ring::new(), &answer.memory[..42], Verify);
    (own, peer)
}

fn receive(c: &mut Criterion) {
    let (own, peer) = pair();
    let mut group = c.benchmark_group("receive");
    for size in SIZES {
        let at = SocketAddr::new(OWN.into(), 7);
        let endpoint = own.bind_udp(at).expect("the port is free");
        let sender = peer.bind_udp(SocketAddr::new(PEER.into(), 9)).expect("the port is free");
        let mut ring = Ring::new();
        let local = sender.binding().local;
        peer.send_udp(&mut ring, sender, local, at, &vec![7; size]).expect("the neighbour is known");
        let frame = &ring.memory[..42 + size];
        let mut outlet = Ring::new();
        let mut buf = vec![0; 2048];
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                own.input(&mut outlet, black_box(frame), Verify);
                let received = endpoint.inbound().receive(&mut buf, Take::Remove);
                assert!(received.is_ok_and(|r| r.is_some_and(|r| r.len == size)));
            });
        });
        own.close_udp(endpoint);
        peer.close_udp(sender);
    }
}

fn transmit(c: &mut Criterion) {
    let (own, _) = pair();
    let mut group = c.benchmark_group("transmit");
    for size in SIZES {
        let endpoint = own.bind_udp(SocketAddr::new(OWN.into(), 7)).expect("the port is free");
        let local = endpoint.binding().local;
        let to = SocketAddr::new(PEER.into(), 9);
        let mut ring = Ring::new();
        let data = vec![7; size];
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| own.send_udp(&mut ring, endpoint, local, to, black_box(&data)).expect("there is room"));
        });
        own.close_udp(endpoint);
    }
}

fn loopback(c: &mut Criterion) {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
    let (a, b) = (a.expect("ports are free"), b.expect("ports are free"));
    let to = b.local_addr().expect("it is bound");
    let mut group = c.benchmark_group("loopback");
    for size in SIZES {
        let data = vec![7; size];
        let mut buf = vec![0; 2048];
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            bench.iter(|| {
                a.send_to(black_box(&data), to).expect("it is sent");
                assert!(b.recv_from(&mut buf).is_ok_and(|(len, _)| len == size));
            });
        });
    }
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for size in [20, 64, 1500] {
        let data = vec![7; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| b.iter(|| checksum(black_box(&data))));
    }
}

/// A full segment's data, in one piece and in the two pieces of a ring buffer that wraps at an odd
/// place.
fn slices(c: &mut Criterion) {
    let data = vec![7; 1460];
    let mut group = c.benchmark_group("checksum_slices");
    group.throughput(Throughput::Bytes(1460));
    for cut in [1460, 730, 731] {
        let (a, b) = data.split_at(cut);
        group.bench_function(BenchmarkId::from_parameter(cut), |bench| {
            bench.iter(|| Sum::new().slices(black_box(a), black_box(b)).finish());
        });
    }
}

fn main() {
    let run = || {
        let mut c = Criterion::default().configure_from_args();
        receive(&mut c);
        transmit(&mut c);
        loopback(&mut c);
        checksums(&mut c);
        slices(&mut c);
        c.final_summary();
    };
    // Criterion's analysis needs a stack like an ordinary thread's.
    if let Err(e) = tailwater::RuntimeBuilder::new().kthreads(1).stack_size(8 << 20).run(run) {
        panic!("{e}");
    }
}
