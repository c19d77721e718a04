//! The windows compared with the formulas that define them.

use proptest::prelude::*;

use super::*;

const MSS: u32 = 1_000;

/// Delivers a full window in a round trip, segment by segment, evenly spread.
fn round(congestion: &mut Congestion, start: Instant, rtt: Duration, marked: u32) {
    let segments = congestion.cwnd / MSS;
    for segment in 0..segments {
        let now = start + rtt * segment / segments;
        let ack = Delivery {
            bytes: MSS,
            marked: segment < marked,
            window_limited: true,
            new_round: segment == 0,
            after_timeout: false,
            rtt: Some(rtt),
            srtt: rtt,
            mss: MSS,
        };
        congestion.on_delivered(&ack, now);
    }
}

/// Returns a state in congestion avoidance, after a loss with `window` segments.
fn after_loss(algorithm: Algorithm, window: u32) -> Congestion {
    let mut congestion = Congestion::new(algorithm, MSS);
    congestion.cwnd = window * MSS;
    congestion.on_congestion(window * MSS, MSS, false);
    congestion.cwnd = congestion.ssthresh;
    congestion
}

proptest! {
    /// RFC 9438 section 4.2, evaluated directly, where it is above NewReno's window (section 4.3).
    #[test]
    fn cubic_follows_its_formula(window in 100_u32..2_000, rtt_ms in 40_u64..200) {
        let mut congestion = after_loss(Algorithm::Cubic, window);
        let (w_max, start) = (f64::from(window), f64::from(congestion.cwnd) / f64::from(MSS));
        let k = libm::cbrt((w_max - start) / 0.4);
        let rtt = Duration::from_millis(rtt_ms);
        let mut now = Instant(0);
        while now < Instant(20_000_000_000) {
            round(&mut congestion, now, rtt, 0);
            now = now + rtt;
            let t = (now - Instant(0)).as_secs_f64();
            let curve = 0.4 * libm::pow(t - k, 3.0) + w_max;
            let (got, slack) = (f64::from(congestion.cwnd) / f64::from(MSS), curve * 0.02 + 3.0);
            // The window that a NewReno flow can have reached, at one segment for each round trip.
            let reno = start + t / rtt.as_secs_f64();
            // The window aims a round trip ahead and follows within one.
            let ahead = 0.4 * libm::pow(t + 2.0 * rtt.as_secs_f64() - k, 3.0) + w_max;
            prop_assert!(got >= curve.min(got * 1.5) - slack, "{got} at {t} s, not {curve}");
            prop_assert!(got <= ahead.max(reno) + slack, "{got} at {t} s, not {ahead} or {reno}");
        }
    }

    /// RFC 9438 section 4.3: with short round trips, at least NewReno's window, by its own rate of
    /// growth.
    #[test]
    fn cubic_is_as_fast_as_newreno_on_short_paths(window in 20_u32..200, rtt_us in 100_u64..2_000) {
        let mut congestion = after_loss(Algorithm::Cubic, window);
        let (start, rtt) = (f64::from(congestion.cwnd), Duration::from_micros(rtt_us));
        for index in 0_u32..30 {
            round(&mut congestion, Instant(0) + rtt * index, rtt, 0);
        }
        let grown = (f64::from(congestion.cwnd) - start) / f64::from(MSS);
        let alpha = 3.0 * (1.0 - 0.7) / (1.0 + 0.7);
        prop_assert!(grown > 30.0 * alpha - 3.0 && grown < 34.0, "{grown} segments in 30 round trips");
    }
}

#[test]
fn cubic_gives_more_away_when_it_did_not_come_back() {
    // RFC 9438 section 4.7: the second loss occurs below the first window.
    let mut congestion = after_loss(Algorithm::Cubic, 100);
    assert_eq!(congestion.ssthresh, 70 * MSS);
    congestion.on_congestion(70 * MSS, MSS, false);
    congestion.cwnd = congestion.ssthresh;
    assert_eq!(congestion.ssthresh, 49 * MSS);
    let k = libm::cbrt((70.0 * 0.85 - 49.0) / 0.4);
    // The round trips are so long that a NewReno flow would be slower.
    let rtt = Duration::from_millis(300);
    let mut now = Instant(0);
    while now < Instant((k * 1e9) as u64) {
        round(&mut congestion, now, rtt, 0);
        now = now + rtt;
    }
    let plateau = f64::from(congestion.cwnd) / f64::from(MSS);
    assert!((plateau - 59.5).abs() < 2.0, "flat at {plateau}, not at 59.5");
}

#[test]
fn newreno_halves_and_cubic_takes_three_tenths() {
    for (algorithm, left) in [(Algorithm::NewReno, 50), (Algorithm::Cubic, 70), (Algorithm::Dctcp, 50)] {
        assert_eq!(after_loss(algorithm, 100).ssthresh, left * MSS);
        let mut least = Congestion::new(algorithm, MSS);
        least.cwnd = MSS;
        least.on_congestion(MSS, MSS, false);
        assert_eq!(least.ssthresh, 2 * MSS, "never below two segments");
    }
}

#[test]
fn dctcp_cuts_by_half_the_part_that_was_marked() {
    // RFC 8257 section 3.3, with a quarter of each window marked.
    let mut congestion = after_loss(Algorithm::Dctcp, 200);
    let rtt = Duration::from_micros(100);
    let mut expected = 1.0;
    for index in 0_u32..100 {
        congestion.cwnd = 100 * MSS;
        round(&mut congestion, Instant(0) + rtt * index, rtt, 25);
        let Kind::Dctcp(dctcp) = &congestion.kind else { unreachable!() };
        if index > 0 {
            expected = expected * (1.0 - 1.0 / 16.0) + 0.25 / 16.0;
        }
        // The first round's estimate was made when only its first segment was known.
        assert!((dctcp.alpha() - expected).abs() < 0.08, "{} not {expected} in round {index}", dctcp.alpha());
    }
    let before = congestion.cwnd;
    congestion.on_congestion(before, MSS, true);
    let cut = 1.0 - f64::from(congestion.ssthresh) / f64::from(before);
    assert!((cut - 0.125).abs() < 0.01, "{cut}");
}

#[test]
fn dctcp_without_marks_forgets_them() {
    let mut congestion = after_loss(Algorithm::Dctcp, 20);
    for index in 0_u32..400 {
        congestion.cwnd = 10 * MSS;
        round(&mut congestion, Instant(u64::from(index)), Duration::from_micros(100), 0);
    }
    let Kind::Dctcp(dctcp) = &congestion.kind else { unreachable!() };
    assert!(dctcp.alpha() < 1e-4, "{}", dctcp.alpha());
}

#[test]
fn slow_start_ends_when_round_trips_grow_for_five_rounds() {
    // RFC 9406 section 4.2: growth divided by four, then congestion avoidance.
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    let base = Duration::from_millis(50);
    round(&mut congestion, Instant(0), base, 0);
    round(&mut congestion, Instant(1), base, 0);
    assert_eq!(congestion.cwnd, 40 * MSS);
    let slow = base + Duration::from_millis(10);
    round(&mut congestion, Instant(2), slow, 0);
    let window = congestion.cwnd;
    assert!(window < 60 * MSS, "{window}");
    for index in 0..4 {
        assert!(congestion.in_slow_start(), "round {index}");
        round(&mut congestion, Instant(3), slow, 0);
    }
    round(&mut congestion, Instant(4), slow, 0);
    assert!(!congestion.in_slow_start());
}

#[test]
fn slow_start_resumes_when_round_trips_were_not_growing_after_all() {
    let mut congestion = Congestion::new(Algorithm::NewReno, MSS);
    let base = Duration::from_millis(50);
    round(&mut congestion, Instant(0), base, 0);
    round(&mut congestion, Instant(1), base + Duration::from_millis(10), 0);
    let window = congestion.cwnd;
    for index in 2..10 {
        round(&mut congestion, Instant(index), base - Duration::from_millis(1), 0);
    }
    assert!(congestion.in_slow_start() && congestion.cwnd > 16 * window, "{window} to {}", congestion.cwnd);
}
