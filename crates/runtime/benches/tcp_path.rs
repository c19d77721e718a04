//! The cost of TCP in the network stack, in ns, on one core with warm caches: both ends of a
//! connection between two stacks, without threads or a scheduler.
//!
//! * `round`: a request and its answer of a given size. Each side receives one segment (look-up,
//!   lock, protocol, copy out) and sends one (copy in, protocol, frame with checksum), so a service
//!   pays half of it for a request;
//! * `bulk`: full segments one way, one or 40 for each read, acknowledgments included; read by a
//!   copy or on loan;
//! * `overtaken`: batches of sixteen full segments, in order and with the second half first, as
//!   when another kthread takes over a ring. The difference is the cost of resequencing, including
//!   the answers with SACK and their processing by the sender.
//!
//! Runs on a user thread, so that turning preemption off costs as much as in service.

mod platform;

use criterion::{BenchmarkId, Criterion, Throughput};
use platform::{Kthreads, Stack};
use std::collections::VecDeque;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tailwater_net::tcp::Socket;
use tailwater_net::{Mode, NetConfig, Outlet, OutletError};
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Buffer, Config, Events};
use tailwater_wire::Checksums::Verify;

tailwater::allocator!();

const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const PORT: u16 = 7;

/// Frames sent by one host. Buffers are reused.
struct Wire {
    now: Duration,
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Outlet<Kthreads> for Wire {
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        fill(&mut frame);
        self.frames.push_back(frame);
        Ok(())
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn poll_by(&mut self, _deadline: Duration) {}

    fn poll_loopback(&mut self) {}
}

/// Two hosts and a connection between them.
struct Pair {
    hosts: [Stack; 2],
    wires: [Wire; 2],
    ends: Vec<Arc<Socket<Kthreads>>>,
}

impl Pair {
    fn new() -> Self {
        let host = |i: usize| {
            let mac = [2, 0, 0, 0, 0, i as u8 + 1];
            // A network's segments: the more of them, the more there is to put in order.
            let config = NetConfig {
                prefix: 24,
                mac,
                local_mtu: 1500,
                mode: Mode::Attached,
                ..NetConfig::standalone(IPS[i])
            };
            Stack::new(config, 1).expect("the configuration is possible")
        };
        let wire = || Wire { now: Duration::from_secs(1), frames: VecDeque::new(), spare: Vec::new() };
        let mut pair = Self { hosts: [host(0), host(1)], wires: [wire(), wire()], ends: Vec::new() };
        let config = Config { nodelay: true, ..Config::default() };
        let listening = ListenConfig { connection: config.clone(), ..ListenConfig::default() };
        let to = SocketAddr::new(IPS[1].into(), PORT);
        let listening = pair.hosts[1].listen_tcp(to, 1, listening).expect("the port is free");
        let client = pair.hosts[0].connect_tcp(&mut pair.wires[0], to, &config).expect("there is room");
        while pair.deliver(0) + pair.deliver(1) > 0 {}
        let server = listening.lock().accept().expect("the handshake is complete");
        pair.ends = vec![client, server];
        pair
    }

    /// Delivers the frames that host `from` has sent; returns how many.
    fn deliver(&mut self, from: usize) -> usize {
        let mut count = 0;
        while let Some(frame) = self.wires[from].frames.pop_front() {
            self.hosts[1 - from].input(&mut self.wires[1 - from], &frame, Verify);
            self.wires[from].spare.push(frame);
            count += 1;
        }
        count
    }

    /// Delivers the frames that host 0 has sent in two batches, the later one first if `swapped`,
    /// each acknowledged once.
    fn deliver_halves(&mut self, swapped: bool) {
        let frames: Vec<_> = self.wires[0].frames.drain(..).collect();
        let (first, second) = frames.split_at(frames.len() / 2);
        for half in if swapped { [second, first] } else { [first, second] } {
            half.iter().for_each(|frame| self.hosts[1].input(&mut self.wires[1], frame, Verify));
        }
        self.wires[0].spare.extend(frames);
    }

    fn pass(&mut self, time: Duration) {
        self.wires.iter_mut().for_each(|wire| wire.now += time);
    }

    fn write(&mut self, n: usize, data: &[u8]) {
        let now = Stack::tcp_now(&self.wires[n]);
        let mut inner = self.ends[n].lock();
        assert_eq!(inner.send(data), Ok(data.len()));
        self.hosts[n].settle(&mut self.wires[n], &self.ends[n], &mut inner, Events::empty(), now);
    }

    fn read(&mut self, n: usize, buf: &mut [u8]) -> usize {
        let now = Stack::tcp_now(&self.wires[n]);
        let mut inner = self.ends[n].lock();
        let len = inner.receive(buf, false).expect("something is there");
        if inner.connection.wants_transmit(now) {
            self.hosts[n].settle(&mut self.wires[n], &self.ends[n], &mut inner, Events::empty(), now);
        }
        len
    }

    /// As [`read`](Self::read), on loan: looks at a byte of each cache line.
    fn read_lent(&mut self, n: usize) -> usize {
        let now = Stack::tcp_now(&self.wires[n]);
        let (mut lent, mut inner) = (Buffer::default(), self.ends[n].lock());
        let len = inner.lend(&mut lent).expect("something is there");
        drop(inner);
        look(lent.as_slice());
        let mut inner = self.ends[n].lock();
        inner.connection.recv_done(len);
        lent.consume(len);
        inner.return_loan(&mut lent);
        if inner.connection.wants_transmit(now) {
            self.hosts[n].settle(&mut self.wires[n], &self.ends[n], &mut inner, Events::empty(), now);
        }
        len
    }
}

/// Reads a byte of each cache line.
fn look(bytes: &[u8]) {
    black_box(bytes.iter().step_by(64).fold(0u8, |sum, &byte| sum.wrapping_add(byte)));
}

fn round(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp_round");
    for size in [8, 64, 1024] {
        let mut pair = Pair::new();
        let (data, mut buf) = (vec![7; size], vec![0; 4096]);
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                for (from, to) in [(0, 1), (1, 0)] {
                    pair.write(from, &data);
                    pair.pass(Duration::from_micros(5));
                    assert!(pair.deliver(from) >= 1, "and perhaps an early acknowledgment");
                    assert_eq!(pair.read(to, &mut buf), size);
                }
            });
        });
    }
}

fn bulk(c: &mut Criterion) {
    const SEGMENT: usize = 1448;
    let mut group = c.benchmark_group("tcp_bulk");
    for segments in [1, 40] {
        let (data, mut buf) = (vec![7; segments * SEGMENT], vec![0; 64 << 10]);
        group.throughput(Throughput::Bytes(data.len() as u64));
        for (name, lent) in [("read", false), ("lent", true)] {
            let mut pair = Pair::new();
            group.bench_function(BenchmarkId::new(name, data.len()), |b| {
                b.iter(|| {
                    pair.write(0, &data);
                    let mut left = data.len();
                    // More than one turn while the congestion window grows.
                    while left > 0 {
                        pair.pass(Duration::from_micros(1));
                        pair.deliver(0);
                        left -= if lent {
                            pair.read_lent(1)
                        } else {
                            let len = pair.read(1, &mut buf);
                            look(&buf[..len]);
                            len
                        };
                        pair.deliver(1);
                    }
                });
            });
        }
    }
}

fn overtaken(c: &mut Criterion) {
    const BATCH: usize = 16;
    let mut group = c.benchmark_group("tcp_overtaken");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, swapped) in [("in_order", false), ("second_half_first", true)] {
        let mut pair = Pair::new();
        let (data, mut buf) = (vec![7; BATCH * 1448], vec![0; 64 << 10]);
        group.bench_function(name, |b| {
            b.iter(|| {
                let (mut left, mut swapped) = (data.len(), swapped);
                pair.write(0, &data);
                // Bounded by the congestion window's growth; segments that were considered lost are
                // sent again after a while.
                while left > 0 {
                    pair.pass(Duration::from_micros(100));
                    pair.hosts[0].poll_timers(&mut pair.wires[0]);
                    pair.deliver_halves(core::mem::take(&mut swapped));
                    pair.deliver(1);
                    let ready = pair.ends[1].lock().connection.readable_bytes();
                    if ready > 0 {
                        left -= pair.read(1, &mut buf);
                        pair.deliver(1);
                    }
                }
            });
        });
    }
}

fn main() {
    let run = || {
        let mut c = Criterion::default().configure_from_args();
        round(&mut c);
        bulk(&mut c);
        overtaken(&mut c);
        c.final_summary();
    };
    // Criterion's analysis needs a stack like an ordinary thread's.
    if let Err(e) = tailwater::RuntimeBuilder::new().kthreads(1).stack_size(8 << 20).run(run) {
        panic!("{e}");
    }
}
