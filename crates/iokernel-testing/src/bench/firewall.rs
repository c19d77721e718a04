//! The cost of judging a packet by firewall rules alone.
//!
//! Owns a rule set in which only the last rule matches, which is the worst case of its size, and
//! times it on frames that are in the cache, as they are when the switch has read their first line.

use tailwater_iokernel::firewall::{
    Action, Direction, FirewallConfig, Guard, PortRange, Prefix, Protocol, Rule, Ruling,
};
use tailwater_iokernel::stats::FirewallStats;
use tailwater_shm::{Clock, clock};
use tailwater_wire::MacAddr;

use crate::wire::{Endpoint, udp};

/// Packets per timing: long compared with the clock's own 20 ns, short compared with the time
/// between two interruptions.
const BATCH: usize = 256;
const BATCHES: usize = 400;

/// Returns a rule about one port of one host.
fn rule(number: u16) -> Rule {
    let host = std::net::Ipv4Addr::from_bits(0xc000_0200 + u32::from(number));
    let port = 1_000 + number;
    Rule {
        direction: Direction::Ingress,
        action: Action::Allow,
        protocol: Some(Protocol::UDP),
        remote: vec![Prefix::new(host.into(), 32).expect("a whole address has no further bits")],
        local_port: vec![PortRange { first: port, last: port }],
        ..Rule::default()
    }
}

/// Returns the nanoseconds per packet of 64 bytes under `rules` rules, of which the last matches:
/// median over batches.
pub(super) fn judge_ns(rules: u16, clock: Clock) -> f64 {
    let last = rules.saturating_sub(1);
    let config = FirewallConfig { rules: (0..rules).map(rule).collect(), ..FirewallConfig::default() };
    let stats = FirewallStats::new(&config);
    let Some(mut guard) = Guard::compile(&config, "bench", clock.hz()) else { return 0.0 };
    let end = |ip: [u8; 4], port| Endpoint { mac: MacAddr::BROADCAST, ip: ip.into(), port };
    let from = end((0xc000_0200 + u32::from(last)).to_be_bytes(), 9);
    let frame = udp(from, end([10, 77, 0, 2], 1_000 + last), &[0; 22]);
    let mut samples: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = clock::now();
            for _ in 0..BATCH {
                let shown = std::hint::black_box(&frame[..48]);
                let ruling = guard.judge(Direction::Ingress, shown, frame.len(), began, &stats);
                debug_assert_eq!(std::hint::black_box(ruling), Ruling::Pass);
            }
            clock.to_ns(clock::now() - began) as f64 / BATCH as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[BATCHES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_judgement_is_timed_and_no_rules_cost_nothing() {
        let clock = Clock::calibrate(5);
        assert_eq!(judge_ns(0, clock), 0.0);
        assert!(judge_ns(10, clock) > 0.0);
    }
}
