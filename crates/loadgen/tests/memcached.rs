//! The generator against the memcached of the system, over TCP and UDP; skipped with a message if
//! memcached is not installed.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use tailwater_loadgen::kernel_tcp::{self, Connections};
use tailwater_loadgen::kernel_udp::{self, Load, Target};
use tailwater_loadgen::protocol::{Medium, from_name};
use tailwater_loadgen::{Measurement, Plan};
use tailwater_testkit::{PATIENCE, Program, is_installed, loopback_address, unless_too_busy, until};

struct Memcached {
    _program: Program,
    address: SocketAddr,
}

impl Memcached {
    /// `None` if it is not installed.
    fn start(megabytes: u32) -> Option<Self> {
        if !is_installed("memcached", "memcached") {
            return None;
        }
        let address = loopback_address();
        let (ip, port, memory) =
            (address.ip().to_string(), address.port().to_string(), megabytes.to_string());
        let mut command = Command::new("memcached");
        // Without `-u` it does not start as root.
        command.args(["-l", &ip, "-p", &port, "-U", &port, "-m", &memory, "-t", "1", "-u", "nobody"]);
        let mut program = Program::start(&mut command);
        until("memcached listens", || {
            assert!(program.is_running(), "memcached ended: {}", program.errors());
            TcpStream::connect(address).is_ok()
        });
        Some(Self { _program: program, address })
    }

    /// `None` if the server gets no core for minutes.
    fn load(&self, notation: &str, medium: Medium, schedule: &str) -> Option<Measurement> {
        let mut plan = Plan::new(schedule.parse().unwrap(), "const:0ns".parse().unwrap());
        // Time until a datagram counts as lost, which a busy machine may lose.
        plan.timeout_ns = 60_000_000_000;
        let no_file = |_: &str| unreachable!();
        let protocol = from_name(notation, medium, &plan.service, "", no_file).unwrap();
        let load = Load { protocol, seed: 1, preload: true };
        let target = Target { server: self.address, core: None, wait: PATIENCE };
        let stop = AtomicBool::new(false);
        unless_too_busy(|| match medium {
            Medium::Datagram => {
                kernel_udp::run_protocol(&plan, &load, &target, &stop).map_err(|error| error.to_string())
            }
            Medium::Stream => {
                let connections = Connections { count: 16, pipeline: 4 };
                kernel_tcp::run(&plan, &load, connections, &target, &stop).map_err(|error| error.to_string())
            }
        })
    }
}

#[test]
fn both_workloads_are_answered_rightly_over_both_transports() {
    let Some(server) = Memcached::start(64) else { return };
    for medium in [Medium::Stream, Medium::Datagram] {
        for notation in ["memcached:usr,keys=2000", "memcached:etc,keys=2000,get=0.9"] {
            let Some(measurement) = server.load(notation, medium, "500ms@4k") else { return };
            let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
            println!("{notation} {medium:?}: {counts:?} {oddities:?}");
            assert_eq!(
                (oddities.wrong, oddities.missed, oddities.refused),
                (0, 0, 0),
                "{notation} {medium:?}"
            );
            assert_eq!((oddities.malformed, oddities.unknown, oddities.reconnects), (0, 0, 0));
            // A busy machine may lose datagrams, but not bytes of a stream.
            assert!(counts.completed > 0 && counts.completed + counts.lost == counts.offered, "{counts:?}");
            assert!(counts.lost == 0 || matches!(medium, Medium::Datagram), "{counts:?}");
        }
    }
}

#[test]
fn what_the_cache_has_evicted_is_counted_as_missed_and_not_as_wrong() {
    let Some(server) = Memcached::start(8) else { return };
    // About 60 MB for a cache of 8 MB, which memcached exceeds: each size of item has its own page.
    let etc = "memcached:etc,keys=200000";
    let Some(measurement) = server.load(etc, Medium::Stream, "300ms@4k") else { return };
    let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
    assert!(oddities.missed > 100, "{oddities:?}");
    assert_eq!((oddities.wrong, counts.lost), (0, 0), "{oddities:?}");
}
