use super::*;
use crate::random::stream;
use alloc::string::ToString;
use proptest::prelude::*;

fn parsed(spec: &str) -> ServiceTime {
    spec.parse().unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Returns the sample mean and variance of `draws` values.
fn moments(service: &ServiceTime, draws: u32) -> (f64, f64) {
    let mut prng = stream(42, 1);
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..draws {
        let x = service.sample_ns(&mut prng) as f64;
        sum += x;
        squares += x * x;
    }
    let mean = sum / f64::from(draws);
    (mean, squares / f64::from(draws) - mean * mean)
}

#[test]
fn samples_agree_with_the_exact_mean_and_variance() {
    // Tolerances are several standard errors of 400,000 draws, wider for the fourth moments of the
    // heavy tails.
    for (spec, mean_tolerance, variance_tolerance) in [
        ("const:10us", 1e-12, 1e-9),
        ("exp:10us", 0.01, 0.03),
        ("bimodal:0.9*5us+0.1*55us", 0.01, 0.02),
        ("modes:0.7*2us+0.2*20us+0.1*50us", 0.01, 0.02),
        ("lognormal:10us,sigma=0.8", 0.01, 0.1),
        ("pareto:10us,alpha=5", 0.01, 0.2),
        ("pareto:10us,alpha=1.2,max=1ms", 0.03, 0.1),
        ("pareto:10us,alpha=1,max=200us", 0.02, 0.1),
        ("pareto:10us,alpha=0.5,max=100us", 0.02, 0.05),
    ] {
        let service = parsed(spec);
        let (mean, variance) = moments(&service, 400_000);
        assert!((mean / service.mean_ns() - 1.0).abs() < mean_tolerance, "{spec}: mean {mean}");
        let scale = service.variance_ns2().max(1.0);
        assert!(
            (variance - service.variance_ns2()).abs() / scale < variance_tolerance,
            "{spec}: variance {variance}"
        );
    }
}

#[test]
fn a_bimodal_mean_is_the_weighted_sum() {
    let service = parsed("bimodal:0.9*5us+0.1*55us");
    assert!((service.mean_ns() - 10_000.0).abs() < 1e-9);
    assert!((service.variance_ns2() - (0.9 * 25e6 + 0.1 * 45_000f64.powi(2))).abs() < 1.0);
}

#[test]
fn a_pareto_without_second_moment_says_infinity() {
    assert_eq!(parsed("pareto:10us,alpha=2").variance_ns2(), f64::INFINITY);
    assert!(parsed("pareto:10us,alpha=2.1").variance_ns2().is_finite());
}

#[test]
fn an_exponential_has_its_median_at_ln_2() {
    let service = parsed("exp:10us");
    let mut prng = stream(3, 0);
    let below = (0..200_000).filter(|_| service.sample_ns(&mut prng) < 6_931).count();
    assert!((below as f64 / 200_000.0 - 0.5).abs() < 0.005, "{below}");
}

#[test]
fn a_bounded_pareto_never_exceeds_its_bound() {
    let service = parsed("pareto:10us,alpha=1.1,max=300us");
    let mut prng = stream(5, 0);
    let largest = (0..200_000).map(|_| service.sample_ns(&mut prng)).max();
    assert!(largest.is_some_and(|x| x <= 300_000 && x > 200_000), "{largest:?}");
}

#[test]
fn bad_notations_are_refused_with_advice() {
    for (spec, fragment) in [
        ("", "for instance exp:10us"),
        ("gauss:10us", "`gauss`"),
        ("exp", "decimal number"),
        ("exp:10", "add one of ns"),
        ("exp:10us,sigma=2", "`sigma=2`"),
        ("lognormal:10us", "lacks sigma="),
        ("lognormal:10us,sigma=x", "sigma=x"),
        ("lognormal:10us,sigma=NaN", "above 0"),
        ("lognormal:10us,sigma=1,sigma=2", "given twice"),
        ("pareto:10us,alpha=1", "above 1"),
        ("pareto:10us,alpha=2,max=10us", "above the mean"),
        ("pareto:1us,alpha=0.1,max=100h", "small enough"),
        ("pareto:0us,alpha=2", "at least 1 ns"),
        ("bimodal:0.9*5us", "exactly two"),
        ("modes:0.9*5us+0.2*1us", "sum to 1"),
        ("modes:-0.5*5us+1.5*1us", "0..=1"),
        ("modes:5us", "PROBABILITY*DURATION"),
        ("modes:", "PROBABILITY*DURATION"),
    ] {
        let message = spec.parse::<ServiceTime>().expect_err(spec).to_string();
        assert!(message.contains(fragment), "{spec}: {message}");
    }
}

#[test]
fn serde_uses_the_notation() {
    let service = parsed("bimodal:0.9*5us+0.1*55us");
    let json = serde_json::to_string(&service).unwrap();
    assert_eq!(json, "\"bimodal:0.9*5us+0.1*55us\"");
    assert_eq!(serde_json::from_str::<ServiceTime>(&json).unwrap(), service);
}

fn any_service() -> impl Strategy<Value = ServiceTime> {
    let mean = 1u64..1_000_000_000;
    prop_oneof![
        any::<u64>().prop_map(ServiceTime::constant),
        mean.clone().prop_map(ServiceTime::exponential),
        (0.0..=1.0f64, any::<u64>(), any::<u64>()).prop_map(|(p, a, b)| ServiceTime::modes(&[
            (p, a),
            (1.0 - p, b)
        ])
        .unwrap()),
        (mean.clone(), 0.01..3.0f64).prop_map(|(m, s)| ServiceTime::log_normal(m, s).unwrap()),
        (mean.clone(), 1.01..9.0f64).prop_map(|(m, a)| ServiceTime::pareto(m, a).unwrap()),
        (mean, 1.0..9.0f64, 2u64..100)
            .prop_map(|(m, a, k)| ServiceTime::bounded_pareto(m, a, m * k).unwrap()),
    ]
}

proptest! {
    #[test]
    fn the_notation_reads_back(service in any_service()) {
        let text = service.to_string();
        prop_assert_eq!(text.parse::<ServiceTime>(), Ok(service), "{}", text);
    }

    #[test]
    fn a_bounded_pareto_has_the_mean_that_was_asked_for(mean in 1u64..10_000_000, alpha in 0.5..9.0f64, k in 2u64..1000) {
        let max = mean * k;
        if let Ok(ServiceTime(Law::BoundedPareto { low_ns, .. })) = ServiceTime::bounded_pareto(mean, alpha, max) {
            let got = bounded_pareto_moment(1.0, low_ns, alpha, max as f64);
            prop_assert!((got / mean as f64 - 1.0).abs() < 1e-9, "low {} gives {}", low_ns, got);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(const|exp|modes|bimodal|lognormal|pareto|):?[0-9a-z*+=.,]{0,24}") {
        let _ = text.parse::<ServiceTime>();
    }
}
