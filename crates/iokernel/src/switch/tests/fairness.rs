//! What senders that never end leave to the others, as a table.

use std::fmt::Write;
use tailwater_shm::control::Class::LatencyCritical;

use super::{EGRESS_BATCH, ip};
use crate::fixture::Sandbox;

/// Frames that the receiver reads in each iteration.
const READ: u32 = 16;
/// Iterations.
const ROUNDS: u32 = 9_000;

/// Frames that came of those that were sent, in percent.
struct Outcome {
    honest: f64,
    greedy: Vec<f64>,
}

/// An honest program sends nine tenths of an equal share of what the receiver reads, and greedy
/// ones as much as an iteration takes. All send to the receiver, the last runtime.
fn flood(greedy: u32) -> Outcome {
    let receiver = greedy + 1;
    let mut sandbox = Sandbox::new(receiver as u16 + 1, Vec::new());
    for id in 0..=receiver {
        sandbox.add(id, 1, 1, LatencyCritical);
        sandbox.peer(id).queue(0, 1);
    }
    sandbox.settle();
    let (mut sent, mut due) = (0_u32, 0.0);
    let mut came = vec![0_u32; receiver as usize];
    for _ in 0..ROUNDS {
        for id in 1..=greedy {
            (0..EGRESS_BATCH).for_each(|_| sandbox.peer(id).send_udp(0, ip(receiver), 5));
        }
        due += f64::from(READ) / f64::from(greedy + 1) * 0.9;
        while f64::from(sent) + 1.0 <= due {
            sandbox.peer(0).send_udp(0, ip(receiver), 5);
            sent += 1;
        }
        sandbox.pass(1_000);
        for _ in 0..READ {
            let Some(frame) = sandbox.peer(receiver).receive(0) else { break };
            // The last byte of the sender's IPv4 address (RFC 791 section 3.1).
            came[usize::from(frame[29] - 10)] += 1;
        }
    }
    let all = f64::from(ROUNDS * READ);
    let greedy = came[1..].iter().map(|&frames| f64::from(frames) / all * 100.0).collect();
    // Some of the last ones are still in the ring.
    Outcome { honest: (f64::from(came[0]) / f64::from(sent) * 100.0).round(), greedy }
}

#[test]
fn an_honest_sender_beside_greedy_ones_loses_nothing_of_its_share() {
    let mut table =
        "greedy | honest sender's frames that came | each greedy one's part of the ring\n".to_owned();
    for greedy in [1, 2, 4, 8] {
        let outcome = flood(greedy);
        let least = outcome.greedy.iter().copied().fold(f64::MAX, f64::min);
        let most = outcome.greedy.iter().copied().fold(0.0, f64::max);
        writeln!(table, "{greedy} | {} % | {least:.0} to {most:.0} %", outcome.honest).unwrap();
    }
    let expected = "greedy | honest sender's frames that came | each greedy one's part of the ring\n\
                    1 | 100 % | 55 to 55 %\n\
                    2 | 100 % | 35 to 35 %\n\
                    4 | 100 % | 20 to 21 %\n\
                    8 | 100 % | 11 to 11 %\n";
    assert_eq!(table, expected);
}
