//! Highest request rate at which one generator thread keeps its schedule over kernel sockets.
//!
//! Raw echo of 64 bytes on the loopback device against one thread of this process, or any server
//! given as `PROTOCOL ADDRESS` in the variable `LOAD_SERVER` (for instance
//! `memcached:usr 127.0.0.1:11211`). The rate is raised by a quarter until less than 98 % of it is
//! achieved or more than 5 % of the requests leave late; the last rate before that is printed. On
//! the loopback device the sending thread also runs the kernel's receiving side, so this is a lower
//! bound for a real network. In test mode each transport runs once, at a low rate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tailwater_loadgen::kernel_tcp::{self, Connections};
use tailwater_loadgen::kernel_udp::{self, Load, Target};
use tailwater_loadgen::protocol::{Medium, from_name};
use tailwater_loadgen::{Plan, Report};

/// Bytes of an echo.
const ECHO: usize = 64;

/// Starts a thread that echoes datagrams, and one for each connection; they end with the process.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let socket = UdpSocket::bind(address).expect("the same port");
    std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((len, client)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..len], client);
        }
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut bytes = [0; 64 << 10];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..len]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// One run; zero connections is UDP.
fn run(notation: &str, server: SocketAddr, connections: u32, rate: u64, preload: bool) -> Report {
    let medium = if connections == 0 { Medium::Datagram } else { Medium::Stream };
    let service = "const:0ns".parse().expect("a service time");
    let plan = Plan::new(format!("500ms@{rate}").parse().expect("a schedule"), service);
    let no_file = |_: &str| Err(std::io::Error::from(std::io::ErrorKind::Unsupported));
    let protocol =
        from_name(notation, medium, &plan.service, &server.to_string(), no_file).expect("a protocol");
    let load = Load { protocol, seed: 1, preload };
    let target = Target { server, core: None, wait: Duration::from_secs(2) };
    let stop = AtomicBool::new(false);
    let measurement = if connections == 0 {
        kernel_udp::run_protocol(&plan, &load, &target, &stop).expect("a run")
    } else {
        let connections = Connections { count: connections, pipeline: 64 };
        kernel_tcp::run(&plan, &load, connections, &target, &stop).expect("a run")
    };
    measurement.report()
}

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let given = std::env::var("LOAD_SERVER").ok();
    let (notation, server) = match given.as_deref().and_then(|given| given.split_once(' ')) {
        Some((notation, address)) => (notation.to_owned(), address.parse().expect("an address and a port")),
        None => (format!("echo:{ECHO}"), echo_server()),
    };
    for (name, connections) in [("UDP", 0), ("TCP, 1 connection", 1), ("TCP, 64 connections", 64)] {
        if !measured {
            let report = run(&notation, server, connections, 200, true);
            assert!(report.oddities.wrong == 0 && report.figures.achieved_rps > 0.0, "{report:?}");
            continue;
        }
        let (mut rate, mut best) = (20_000, None);
        loop {
            let report = run(&notation, server, connections, rate, best.is_none());
            let (figures, offered) = (&report.figures, report.figures.offered_rps.max(1.0));
            let late = figures.late as f64 / (offered * 0.5);
            assert_eq!(report.oddities.wrong, 0, "{report:?}");
            if figures.achieved_rps < 0.98 * offered || late > 0.05 {
                break;
            }
            best = Some((rate, figures.p50_us.unwrap_or_default(), figures.p99_us.unwrap_or_default(), late));
            rate += rate / 4;
        }
        match best {
            None => println!("{notation:14} {name:20} below {rate} a second"),
            Some((rate, p50, p99, late)) => println!(
                "{notation:14} {name:20} {rate:8} a second, p50 {p50:.1} us, p99 {p99:.1} us, {:.1} % late",
                100.0 * late
            ),
        }
    }
}
