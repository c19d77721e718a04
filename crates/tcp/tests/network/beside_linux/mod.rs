//! Bulk transfers over one emulated path in real time: Linux to Linux, and a connection of this
//! crate to the same Linux receiver, both with the same congestion control.
//!
//! Owns network namespaces with a TUN device each, and the relay between the two devices: rate,
//! queue, delay and seeded loss are those of the virtual network (`link.rs`). Needs root and
//! `/dev/net/tun`; says so and skips without.
//!
//! The comparison is by option, for it measures time and wants the machine to itself:
//! `TAILWATER_BESIDE_LINUX=1 cargo test --release -p tailwater-tcp --test network beside_linux --
//! --nocapture`. Its command line are variables:
//!
//! | variable | default | what |
//! |---|---|---|
//! | `BESIDE_LINUX_IP` | 4 | 4 or 6: the version of IP |
//! | `BESIDE_LINUX_ALGORITHM` | `cubic` | `cubic` or `newreno`, of both senders |
//! | `BESIDE_LINUX_RTT_MS` | 10 | round trip |
//! | `BESIDE_LINUX_MS` | 4000 | length of a transfer |
//! | `BESIDE_LINUX_SEEDS` | 5 | transfers of each sender at each loss |
//!
//! A transfer that ends with its bytes always runs over each version of IP, so that the relay
//! cannot rot.

mod family;
mod namespace;
mod ours;
mod relay;

use core::time::Duration;

use crate::link::LinkPlan;
use family::Family;
use relay::{Limit, PATIENCE, Path, Peer, transfer};
use tailwater_tcp::Config;
use tailwater_tcp::sender::{self, Algorithm};

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// Bytes of the bottleneck's queue: one bandwidth-delay product, this much at least.
const LEAST_QUEUE: u64 = 64_000;

fn path(family: Family, rtt: Duration, loss_per_million: u32, seed: u64) -> Path {
    let queue = (RATE * rtt.as_micros() as u64 / 1_000_000).max(LEAST_QUEUE);
    let perfect = LinkPlan { ip_header: family.header(), ..LinkPlan::perfect(rtt / 2) };
    let forth = LinkPlan { rate: RATE, queue, loss_per_million, ..perfect.clone() };
    Path { family, links: [forth, perfect], seed }
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.into())
}

fn number(name: &str, default: &str) -> u64 {
    let value = variable(name, default);
    value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}"))
}

/// What is compared with what, over which path.
struct Comparison {
    family: Family,
    algorithm: String,
    senders: [Peer; 2],
    rtt: Duration,
    time: Duration,
    seeds: u64,
}

impl Comparison {
    fn from_variables() -> Self {
        let family = match number("BESIDE_LINUX_IP", "4") {
            4 => Family::V4,
            6 => Family::V6,
            other => panic!("BESIDE_LINUX_IP is 4 or 6, not {other}"),
        };
        let algorithm = variable("BESIDE_LINUX_ALGORITHM", "cubic");
        let (of_linux, of_ours) = match algorithm.as_str() {
            "cubic" => ("cubic", Algorithm::Cubic),
            "newreno" => ("reno", Algorithm::NewReno),
            other => panic!("BESIDE_LINUX_ALGORITHM is cubic or newreno, not {other:?}"),
        };
        let sender = sender::Config { algorithm: of_ours, ..sender::Config::default() };
        let ours = Config { sender, ..Config::default() };
        Self {
            family,
            algorithm,
            senders: [Peer::Linux(of_linux), Peer::Ours(Box::new(ours))],
            rtt: Duration::from_millis(number("BESIDE_LINUX_RTT_MS", "10")),
            time: Duration::from_millis(number("BESIDE_LINUX_MS", "4000")),
            seeds: number("BESIDE_LINUX_SEEDS", "5"),
        }
    }

    /// Returns the goodput of Linux and of this crate at a loss in millionths, in Mbit/s: the means
    /// over the seeds. Prints that of each transfer.
    fn goodput(&self, loss: u32) -> Result<[f64; 2], String> {
        let mut means = [0.0; 2];
        for seed in 1..=self.seeds {
            // Interleaved, so that what else the machine does meets both.
            for (sender, mean) in self.senders.iter().zip(&mut means) {
                let limit = Limit { time: self.time, bytes: u64::MAX };
                let bytes = transfer(sender, &path(self.family, self.rtt, loss, seed), limit)?;
                let mbits = bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64();
                print!(" {mbits:.2}");
                *mean += mbits / self.seeds as f64;
            }
        }
        Ok(means)
    }
}

#[test]
fn a_transfer_to_linux_over_a_bad_path_arrives_whole() {
    const BYTES: u64 = 200_000;
    for family in [Family::V4, Family::V6] {
        // A fraction of a second on an idle machine.
        let limit = Limit { time: PATIENCE, bytes: BYTES };
        let path = path(family, Duration::from_millis(10), 10_000, 1);
        match transfer(&Peer::Ours(Box::default()), &path, limit) {
            Ok(bytes) => assert!(bytes >= BYTES, "{bytes} bytes over {family:?}"),
            Err(why) => eprintln!("skipped over {family:?}: {why}"),
        }
    }
}

#[test]
fn goodput_is_within_a_tenth_of_that_of_linux() {
    if std::env::var_os("TAILWATER_BESIDE_LINUX").is_none() {
        return eprintln!("skipped: measures time; set TAILWATER_BESIDE_LINUX=1");
    }
    let comparison = Comparison::from_variables();
    let Comparison { family, algorithm, rtt, time, seeds, .. } = &comparison;
    let mut behind = Vec::new();
    println!("Mbit/s through 100 Mbit/s, IP{family:?}, {algorithm}, {rtt:?}, {time:?}, seeds 1 to {seeds}");
    for loss in [0, 1_000, 10_000] {
        let [linux, ours] = match comparison.goodput(loss) {
            Ok(means) => means,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        println!(
            "\nloss {} %: linux {linux:.2} ours {ours:.2} ratio {:.3}",
            f64::from(loss) / 1e4,
            ours / linux
        );
        if ours < 0.9 * linux {
            behind.push((loss, ours, linux));
        }
    }
    assert!(behind.is_empty(), "behind by more than a tenth (loss in millionths, ours, Linux): {behind:?}");
}
