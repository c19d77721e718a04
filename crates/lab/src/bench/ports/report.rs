//! The figures of `bench ports`, and how they are printed: medians over the rounds, their range,
//! the bars, and the host's stalls, without which a p99 means nothing.

use std::fmt::Write as _;

use serde::Serialize;
use tailwater_loadgen::noise::{GapFigures, Gaps};
use tailwater_testbed::table::{Table, number};

use super::{Round, Variant};
use crate::bench::median;

/// Bars: throughput at 64 connections over that of the kernel's way, and p99 over its p99.
const LEAST_RPS: f64 = 0.6;
const MOST_P99: f64 = 1.5;
/// Part of a core's time in stalls from which on they decide a p99.
const NOISY: f64 = 0.005;

/// The figures of a run; a variant that was not asked for is absent.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    tap: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_veth: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loopback: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    veth: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tap_unpinned: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tap_client: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loopback_unpinned: Option<Figures>,
    host: Vec<Core>,
}

/// A core while nothing but a spinning thread runs there.
#[derive(Debug, Clone, Copy, Serialize)]
struct Core {
    core: usize,
    #[serde(flatten)]
    stalls: GapFigures,
}

/// Medians over the rounds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    rps_1: f64,
    rps_64: f64,
    p50_us: f64,
    p99_us: f64,
    /// Least and most in a round.
    p99_range_us: [f64; 2],
    win_p99_us: f64,
    /// Data over one connection to the client, and from it.
    bulk_to_gbps: f64,
    bulk_from_gbps: f64,
    /// Times that the client waited for each answer, over 64 connections.
    waits_64: f64,
    /// As [`Round::long_yields`], means.
    #[serde(skip_serializing_if = "Option::is_none")]
    long_yields: Option<[f64; 2]>,
}

impl Report {
    /// `host`: what each core lost while nothing else ran there.
    pub(super) fn new(rounds: &[(Variant, Vec<Round>)], host: &[(usize, Gaps)]) -> Self {
        let of = |variant| {
            let (_, rounds) = rounds.iter().find(|(one, _)| *one == variant)?;
            Some(Figures::of(rounds))
        };
        Self {
            tap: of(Variant::Tap),
            xdp_veth: of(Variant::XdpVeth),
            loopback: of(Variant::Loopback),
            veth: of(Variant::Veth),
            tap_unpinned: of(Variant::TapUnpinned),
            tap_client: of(Variant::TapClient),
            loopback_unpinned: of(Variant::LoopbackUnpinned),
            host: host.iter().map(|(core, gaps)| Core { core: *core, stalls: gaps.figures() }).collect(),
        }
    }
}

impl Figures {
    fn of(rounds: &[Round]) -> Self {
        let median = |of: fn(&Round) -> f64| median(rounds.iter().map(of));
        let p99s = || rounds.iter().map(|round| round.open.p99_us);
        let mean = |at: usize| {
            let all = rounds.iter().filter_map(|round| Some(round.long_yields?[at]));
            all.sum::<f64>() / rounds.len() as f64
        };
        Self {
            rps_1: median(|round| round.closed[0].rps),
            rps_64: median(|round| round.closed[1].rps),
            p50_us: median(|round| round.open.p50_us),
            p99_us: median(|round| round.open.p99_us),
            p99_range_us: [p99s().fold(f64::INFINITY, f64::min), p99s().fold(0.0, f64::max)],
            win_p99_us: median(|round| round.open.win_p99_us),
            bulk_to_gbps: median(|round| round.bulk[0]),
            bulk_from_gbps: median(|round| round.bulk[1]),
            waits_64: median(|round| round.closed[1].waits),
            long_yields: rounds[0].long_yields.map(|_| [mean(0), mean(1)]),
        }
    }
}

/// Returns the table, the ratios and the host's stalls.
pub(super) fn describe(report: &Report) -> String {
    let Report { tap, xdp_veth, loopback, veth, tap_unpinned, tap_client, loopback_unpinned, host } = report;
    let mut table = Table::new(
        "TCP echo of 64 bytes | 1 connection, answers/s | 64 connections, answers/s | \
         8,000/s, p50 us | p99 us | in rounds | of 100 ms | bulk to the client, Gbit/s | from it",
    );
    for (name, figures) in [
        ("Tailwater over TAP", tap),
        ("Linux over loopback", loopback),
        ("Tailwater over AF_XDP on veth", xdp_veth),
        ("Linux over veth", veth),
        ("Tailwater over TAP, client on any core", tap_unpinned),
        ("Tailwater over TAP, `run --client`", tap_client),
        ("Linux over loopback, client on any core", loopback_unpinned),
    ] {
        let Some(figures) = figures else { continue };
        let cells = [figures.rps_1, figures.rps_64, figures.p50_us, figures.p99_us].map(number);
        let range = figures.p99_range_us.map(number).join(" to ");
        let bulk = [figures.bulk_to_gbps, figures.bulk_from_gbps].map(number);
        let rest = [range, number(figures.win_p99_us)].into_iter().chain(bulk);
        table.row([name.to_owned()].into_iter().chain(cells).chain(rest));
    }
    let mut text = format!("{table}\n");
    for (name, ours, linux) in [
        ("TAP", tap, loopback),
        ("AF_XDP on veth", xdp_veth, veth),
        ("TAP, client on any core", tap_unpinned, loopback_unpinned),
        ("TAP, `run --client`", tap_client, loopback_unpinned),
    ] {
        let (Some(ours), Some(linux)) = (ours, linux) else { continue };
        let (rps, p99) = (ours.rps_64 / linux.rps_64, ours.p99_us / linux.p99_us);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name}: {rps:.2} of Linux's throughput (bar {LEAST_RPS}), {p99:.2} times its p99 (bar {MOST_P99}), {:.2} times \
             that of 100 ms",
            ours.win_p99_us / linux.win_p99_us
        );
        if let Some([calls, ms]) = ours.long_yields {
            let _ = writeln!(
                text,
                "{name}: per round {calls:.1} waits of the polling thread for its core of over 1 ms, {ms:.1} ms without yielding"
            );
        }
    }
    text.push_str(&describe_host(host));
    text
}

fn describe_host(host: &[Core]) -> String {
    let lines = host.iter().map(|Core { core, stalls }| {
        format!(
            "core {core} by itself: {:.0} stalls of over 50 us a second, {:.2} % of the time, the longest {:.0} us\n",
            stalls.gaps_per_s,
            stalls.lost_fraction * 100.0,
            stalls.longest_us
        )
    });
    let mut text: String = lines.collect();
    if host.iter().any(|core| core.stalls.lost_fraction > NOISY) {
        text.push_str(
            "Caution: this machine stalls so much that its stalls decide the p99; compare that of 100 ms.\n",
        );
    }
    text
}
