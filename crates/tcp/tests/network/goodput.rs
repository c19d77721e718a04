//! How much comes through, by loss, round trip and congestion control: the table is the assertion.

use core::fmt::Write;
use core::time::Duration;

use tailwater_tcp::sender::{self, Algorithm};
use tailwater_tcp::{Config, Instant};

use crate::link::LinkPlan;
use crate::world::{AppPlan, Plan, SERVER, World};

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// The transfer ends after this time or these bytes.
const TIME: Duration = Duration::from_secs(3);
const BYTES: u64 = 3_000_000;
const MAX_STEPS: u32 = 4_000_000;

/// Mbit/s of a bulk transfer; the mean of three seeds, where chance has a part.
fn goodput(algorithm: Algorithm, loss: u32, rtt: Duration) -> f64 {
    let seeds = if loss == 0 { 1 } else { 3 };
    let total: f64 = (1..=seeds).map(|seed| transfer(algorithm, loss, rtt, seed)).sum();
    total / seeds as f64
}

fn transfer(algorithm: Algorithm, loss: u32, rtt: Duration, seed: u64) -> f64 {
    let config = Config {
        receive_buffer: 4 << 20,
        send_buffer: 4 << 20,
        sender: sender::Config { algorithm, ..sender::Config::default() },
        ecn: algorithm == Algorithm::Dctcp,
        ..Config::default()
    };
    // A queue of one bandwidth-delay product, 64 kB at least; marked from a quarter of that on, for
    // those who look.
    let queue = (RATE * rtt.as_micros() as u64 / 1_000_000).max(64_000);
    let forth = LinkPlan {
        rate: RATE,
        queue,
        mark_from: queue / 4,
        loss_per_million: loss,
        ..LinkPlan::perfect(rtt / 2)
    };
    let idle = AppPlan { bytes: 0, write: 1, read: 1 << 16, pause: Duration::ZERO, aborts_after: None };
    let plan = Plan {
        seed,
        configs: [config.clone(), config],
        apps: [AppPlan { bytes: BYTES, write: 1 << 16, ..idle.clone() }, idle],
        links: [forth, LinkPlan::perfect(rtt / 2)],
        path_mss: 1460,
        crossing: false,
        max_steps: MAX_STEPS,
    };
    let mut world = World::new(plan);
    let start = world.now;
    let deadline: Instant = start + TIME;
    world.run_until(|world| world.read_bytes(SERVER) == BYTES || world.now >= deadline);
    let elapsed = (world.now - start).as_secs_f64();
    world.read_bytes(SERVER) as f64 * 8.0 / 1e6 / elapsed
}

#[test]
fn goodput_by_loss_and_round_trip() {
    let mut table = String::from("Mbit/s through 100 Mbit/s\nloss     rtt      newreno    cubic    dctcp\n");
    for loss in [0, 1_000, 10_000, 30_000, 100_000] {
        for rtt_us in [100, 1_000, 10_000, 100_000] {
            let rtt = Duration::from_micros(rtt_us);
            let _ = write!(table, "{:<8} {:<8}", format!("{} %", f64::from(loss) / 1e4), format!("{rtt:?}"));
            for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
                let _ = write!(table, " {:>8.2}", goodput(algorithm, loss, rtt));
            }
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table);
}
