//! Bulk transfers over one emulated path in real time: Linux to Linux with CUBIC, and a connection
//! of this crate to the same Linux receiver.
//!
//! Owns network namespaces with a TUN device each, and the relay between the two devices: rate,
//! queue, delay and seeded loss are those of the virtual network (`link.rs`). Needs root and
//! `/dev/net/tun`; says so and skips without.
//!
//! The comparison is by option, for it measures time and wants the machine to itself:
//! `TAILWATER_BESIDE_LINUX=1 cargo test --release -p tailwater-tcp --test network beside_linux --
//! --nocapture`, with `BESIDE_LINUX_SEEDS` (5) transfers of each kind, `BESIDE_LINUX_MS` (4000)
//! long, over a round trip of `BESIDE_LINUX_RTT_MS` (10). A transfer that ends with its bytes
//! always runs, so that the relay cannot rot.

mod namespace;
mod ours;
mod relay;

use core::time::Duration;

use crate::link::LinkPlan;
use relay::{Limit, Peer, transfer};

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// Bytes of the bottleneck's queue: one bandwidth-delay product, this much at least.
const LEAST_QUEUE: u64 = 64_000;

fn links(rtt: Duration, loss_per_million: u32) -> [LinkPlan; 2] {
    let queue = (RATE * rtt.as_micros() as u64 / 1_000_000).max(LEAST_QUEUE);
    let forth = LinkPlan { rate: RATE, queue, loss_per_million, ..LinkPlan::perfect(rtt / 2) };
    [forth, LinkPlan::perfect(rtt / 2)]
}

fn option(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn a_transfer_to_linux_over_a_bad_path_arrives_whole() {
    const BYTES: u64 = 200_000;
    // A fraction of a second on an idle machine.
    let limit = Limit { time: Duration::from_secs(120), bytes: BYTES };
    match transfer(&Peer::Ours(Box::default()), &links(Duration::from_millis(10), 10_000), 1, limit) {
        Ok(bytes) => assert!(bytes >= BYTES, "{bytes} bytes"),
        Err(why) => eprintln!("skipped: {why}"),
    }
}

#[test]
fn goodput_is_within_a_tenth_of_that_of_linux() {
    if std::env::var_os("TAILWATER_BESIDE_LINUX").is_none() {
        return eprintln!("skipped: measures time; set TAILWATER_BESIDE_LINUX=1");
    }
    let time = Duration::from_millis(option("BESIDE_LINUX_MS", 4_000));
    let rtt = Duration::from_millis(option("BESIDE_LINUX_RTT_MS", 10));
    let seeds = option("BESIDE_LINUX_SEEDS", 5);
    let mbits = |bytes: u64| bytes as f64 * 8.0 / 1e6 / time.as_secs_f64();
    let mut behind = Vec::new();
    println!("Mbit/s through 100 Mbit/s, {rtt:?}, {time:?}, seeds 1 to {seeds}");
    for loss in [0, 1_000, 10_000] {
        let mut sums = [0.0; 2];
        for seed in 1..=seeds {
            // Interleaved, so that what else the machine does meets both.
            for (peer, sum) in [Peer::Linux, Peer::Ours(Box::default())].iter().zip(&mut sums) {
                match transfer(peer, &links(rtt, loss), seed, Limit { time, bytes: u64::MAX }) {
                    Ok(bytes) => {
                        print!(" {:.2}", mbits(bytes));
                        *sum += mbits(bytes) / seeds as f64;
                    }
                    Err(why) => return eprintln!("skipped: {why}"),
                }
            }
        }
        let [linux, ours] = sums;
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
