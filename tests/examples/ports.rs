//! The cost of the ports: round trips and frames per second between each port and Linux,
//! interleaved, medians.
//!
//! `cargo run --release -p tailwater-tests --example ports [ROUNDS]`, as root, on a quiet machine
//! with 2 CPUs or more. The port is driven directly, on CPU 0, without an IOKernel around it; the
//! other side is a spinning socket of Linux's on CPU 1.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_ports::options::PortOptions;
use tailwater_ports::{Context, Delivery, Inject, PORT_BUDGET, Port};
use tailwater_shm::{Clock, clock};
use tailwater_testkit::namespace::Namespace;
use tailwater_wire::MacAddr;

/// Length of one measurement.
const SPAN: Duration = Duration::from_millis(250);
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SERVICE_MAC: &str = "02:74:0a:4d:00:02";

/// Ports to compare: name, options, and Linux's interface at the other end.
const PORTS: [(&str, &str, &str); 6] = [
    ("TAP", "tw0", "tw0"),
    ("TAP, offload=off", "tw0,offload=off", "tw0"),
    ("TAP, napi,offload=off", "tw0,napi,offload=off", "tw0"),
    ("TAP, queues=2,offload=off", "tw0,queues=2,offload=off", "tw0"),
    ("AF_XDP, veth, native", "here0,mode=native,fill-checksums", "there0"),
    ("AF_XDP, veth, skb", "here0,mode=skb,fill-checksums", "there0"),
];

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two CPUs");
}

/// Stands in for the switch: keeps UDP frames to be sent back.
#[derive(Default)]
struct Echo {
    frames: u64,
    /// Bytes of frames of ordinary length.
    bytes: u64,
    back: Vec<Vec<u8>>,
    echo: bool,
}

impl Inject for Echo {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        if frame.len() >= 42 && frame[12..14] == [8, 0] && frame[23] == 17 {
            self.frames += 1;
            self.bytes += if frame.len() <= 1514 { frame.len() as u64 } else { 0 };
            if self.echo {
                let mut back = frame.to_vec();
                for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                    for i in 0..len {
                        back.swap(a + i, b + i);
                    }
                }
                self.back.push(back);
            }
        }
        Delivery::Delivered
    }

    fn resolve(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }
}

fn poll(port: &mut dyn Port, echo: &mut Echo) {
    let now = clock::now();
    port.poll(now, PORT_BUDGET, echo).expect("the port works");
    if !echo.back.is_empty() {
        echo.back.drain(..).for_each(|frame| {
            port.transmit(now, &frame);
        });
        port.flush();
    }
}

/// Runs `other` on CPU 1 in `namespace` while the port is polled here.
fn beside<T: Send>(
    port: &mut dyn Port,
    echo: &mut Echo,
    namespace: &Namespace,
    other: impl FnOnce() -> T + Send,
) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            namespace.enter();
            pin(1);
            let result = other();
            done.store(true, Ordering::Release);
            result
        });
        // Acquire: pairs with the Release above.
        while !done.load(Ordering::Acquire) {
            poll(port, echo);
        }
        thread.join().expect("the other side works")
    })
}

fn client() -> UdpSocket {
    let socket = UdpSocket::bind((LINUX, 0)).expect("Linux has its address");
    socket.connect((SERVICE, 7)).expect("a route");
    socket.set_nonblocking(true).expect("a flag");
    socket
}

/// Round trips of 64 bytes of payload: p50 and p99 in microseconds.
fn round_trips(port: &mut dyn Port, namespace: &Namespace) -> Option<(f64, f64)> {
    let mut echo = Echo { echo: true, ..Echo::default() };
    let mut times = beside(port, &mut echo, namespace, || {
        let (socket, mut times, mut buffer) = (client(), Vec::new(), [0; 128]);
        let end = Instant::now() + SPAN;
        while Instant::now() < end {
            let sent = Instant::now();
            socket.send(&[7; 64]).ok();
            while socket.recv(&mut buffer).is_err() {
                if sent.elapsed() > Duration::from_millis(20) {
                    break;
                }
            }
            times.push(sent.elapsed());
        }
        times
    });
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
    (at(0.5) < 20_000.0).then(|| (at(0.5), at(0.99)))
}

/// Frames per second that Linux sends and the port takes in.
fn received(port: &mut dyn Port, namespace: &Namespace) -> f64 {
    let mut echo = Echo::default();
    let begun = Instant::now();
    beside(port, &mut echo, namespace, || {
        let socket = client();
        let end = Instant::now() + SPAN;
        while Instant::now() < end {
            for _ in 0..64 {
                socket.send(&[7; 64]).ok();
            }
        }
    });
    echo.frames as f64 / begun.elapsed().as_secs_f64()
}

/// Bits per second of frames that the port takes in while Linux sends bundles of 44 datagrams of
/// 1472 bytes.
fn bulk(port: &mut dyn Port, namespace: &Namespace) -> f64 {
    let mut echo = Echo::default();
    let begun = Instant::now();
    beside(port, &mut echo, namespace, || {
        let (socket, size) = (client(), 1472 as libc::c_int);
        // SAFETY: the option takes an int, which is passed with its size.
        let set = unsafe {
            let (value, len) = ((&raw const size).cast(), size_of::<libc::c_int>() as libc::socklen_t);
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, value, len)
        };
        assert_eq!(set, 0, "this kernel sends no bundles of datagrams (UDP_SEGMENT)");
        let (bundle, end) = (vec![7; 44 * 1472], Instant::now() + SPAN);
        while Instant::now() < end {
            socket.send(&bundle).ok();
        }
    });
    echo.bytes as f64 * 8.0 / begun.elapsed().as_secs_f64()
}

/// Returns the frames per second that the port sends and a socket of Linux receives, which does
/// nothing else.
fn transmitted(port: &mut dyn Port, namespace: &Namespace, mac: &str) -> f64 {
    let bytes = |text: &str| text.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect::<Vec<u8>>();
    let mut frame = [bytes(mac), bytes(SERVICE_MAC), vec![8, 0]].concat();
    frame.extend([0x45, 0, 0, 92, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    let sum: u32 = frame[14..].chunks(2).map(|w| u32::from(w[0]) * 256 + u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    // No UDP checksum (RFC 768).
    frame.extend([0, 7, 0x1f, 0x90, 0, 72, 0, 0]);
    frame.extend([7; 64]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            namespace.enter();
            pin(1);
            let socket = UdpSocket::bind((LINUX, 8080)).expect("Linux has its address");
            socket.set_nonblocking(true).expect("a flag");
            let (mut count, mut buffer, begun) = (0u64, [0; 128], Instant::now());
            while begun.elapsed() < SPAN {
                count += (0..64).filter(|_| socket.recv(&mut buffer).is_ok()).count() as u64;
            }
            done.store(true, Ordering::Release);
            count as f64 / begun.elapsed().as_secs_f64()
        });
        let mut echo = Echo::default();
        // Acquire: pairs with the Release above.
        while !done.load(Ordering::Acquire) {
            for _ in 0..PORT_BUDGET {
                port.transmit(0, &frame);
            }
            port.flush();
            poll(port, &mut echo);
        }
        receiver.join().expect("the receiver works")
    })
}

/// One port in fresh namespaces: p50, p99, frames per second in and out, bits per second in.
fn measure(words: &str, interface: &str) -> [f64; 5] {
    let (here, there) = (Namespace::new().expect("root"), Namespace::new().expect("root"));
    here.join("here0", &there, "there0", 1);
    let tap = words.starts_with("tw0");
    let linux = if tap { &here } else { &there };
    let options = if tap {
        PortOptions { tap: Some(words.to_owned()), host_ip: Some(LINUX), ..PortOptions::default() }
    } else {
        linux.ip(&["addr", "add", "10.77.0.1/16", "dev", interface]);
        PortOptions { xdp: Some(words.to_owned()), ..PortOptions::default() }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            here.enter();
            pin(0);
            let mut port = options.build().expect("the words are right").pop().expect("one port");
            let context = Context { clock: Clock::calibrate(20), mtu: 1500, prefix_len: 16, network6: None };
            port.start(&context).unwrap_or_else(|e| panic!("{e}"));
            linux.ip(&["neigh", "replace", "10.77.0.2", "lladdr", SERVICE_MAC, "dev", interface]);
            let shown = linux.run("ip", &["-j", "link", "show", "dev", interface]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            let mac = shown[0]["address"].as_str().expect("an address").to_owned();
            let (p50, p99) = round_trips(&mut *port, linux).unwrap_or((f64::NAN, f64::NAN));
            [
                p50,
                p99,
                received(&mut *port, linux),
                transmitted(&mut *port, linux, &mac),
                bulk(&mut *port, linux),
            ]
        });
        thread.join().expect("the port works")
    })
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(5, |n| n.parse().expect("a number of rounds"));
    let mut all = vec![Vec::new(); PORTS.len()];
    for _ in 0..rounds {
        for (results, (_, words, interface)) in all.iter_mut().zip(PORTS) {
            results.push(measure(words, interface));
        }
    }
    println!(
        "| port | round trip p50 us | p99 us | in, million frames/s | out, million frames/s | bulk in, Gbit/s |\n|---|---|---|---|---|---|"
    );
    for (results, (name, ..)) in all.iter().zip(PORTS) {
        let median = |i: usize| {
            let mut values: Vec<f64> = results.iter().map(|result: &[f64; 5]| result[i]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (inward, outward) = (median(2) / 1e6, median(3) / 1e6);
        let (p50, p99, bulk) = (median(0), median(1), median(4) / 1e9);
        println!("| {name} | {p50:.1} | {p99:.1} | {inward:.2} | {outward:.2} | {bulk:.1} |");
    }
}
