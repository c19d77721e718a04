//! The generator against the memcached of the system, over TCP and UDP; skipped with a line where it is not installed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tailwater_loadgen::kernel_tcp::{self, Connections};
use tailwater_loadgen::kernel_udp::{self, Load, Target};
use tailwater_loadgen::protocol::{Medium, from_name};
use tailwater_loadgen::{Measurement, Plan};

struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    /// `None` where there is none.
    fn start(megabytes: u32) -> Option<Self> {
        // Free a moment ago; another is tried if somebody was faster.
        for _ in 0..10 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let port = address.port().to_string();
            let memory = megabytes.to_string();
            let child = Command::new("memcached")
                // Without `-u` it does not start as root.
                .args(["-l", "127.0.0.1", "-p", &port, "-U", &port, "-m", &memory, "-t", "1", "-u", "nobody"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let Ok(child) = child else {
                println!("skipped: memcached is not installed");
                return None;
            };
            let mut server = Self { child, address };
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(10) {
                if TcpStream::connect(address).is_ok() {
                    return Some(server);
                }
                if server.child.try_wait().unwrap().is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("memcached does not start");
    }

    fn load(&self, notation: &str, medium: Medium, schedule: &str) -> Measurement {
        let mut plan = Plan::new(schedule.parse().unwrap(), "const:0ns".parse().unwrap());
        // Long enough for any machine that runs tests.
        plan.timeout_ns = 5_000_000_000;
        let no_file = |_: &str| unreachable!();
        let protocol = from_name(notation, medium, &plan.service, "", no_file).unwrap();
        let load = Load { protocol, seed: 1, preload: true };
        let target = Target { server: self.address, core: None, wait: Duration::from_secs(5) };
        let stop = AtomicBool::new(false);
        match medium {
            Medium::Datagram => kernel_udp::run_protocol(&plan, &load, &target, &stop).unwrap(),
            Medium::Stream => {
                let connections = Connections { count: 16, pipeline: 4 };
                kernel_tcp::run(&plan, &load, connections, &target, &stop).unwrap()
            }
        }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn both_workloads_are_answered_rightly_over_both_transports() {
    let Some(server) = Memcached::start(64) else { return };
    for medium in [Medium::Stream, Medium::Datagram] {
        for notation in ["memcached:usr,keys=2000", "memcached:etc,keys=2000,get=0.9"] {
            let measurement = server.load(notation, medium, "500ms@4k");
            let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
            println!("{notation} {medium:?}: {counts:?} {oddities:?}");
            assert_eq!(
                (oddities.wrong, oddities.missed, oddities.refused),
                (0, 0, 0),
                "{notation} {medium:?}"
            );
            assert_eq!((oddities.malformed, oddities.unknown, oddities.reconnects), (0, 0, 0));
            // A datagram may be lost where the machine stalls.
            assert!(counts.completed * 100 >= counts.offered * 99, "{counts:?}");
        }
    }
}

#[test]
fn what_the_cache_has_evicted_is_counted_as_missed_and_not_as_wrong() {
    let Some(server) = Memcached::start(8) else { return };
    // Some 60 MB for a cache of 8 MB, which memcached exceeds: each size of item has a page of its own.
    let measurement = server.load("memcached:etc,keys=200000", Medium::Stream, "300ms@4k");
    let (counts, oddities) = (measurement.summary.counts(), measurement.oddities);
    assert!(oddities.missed > 100, "{oddities:?}");
    assert_eq!((oddities.wrong, counts.lost), (0, 0), "{oddities:?}");
}
