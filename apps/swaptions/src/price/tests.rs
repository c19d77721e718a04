use super::*;
use crate::analytic::one_factor_price;
use crate::model::{Factor, ForwardCurve};
use proptest::prelude::*;

/// Returns a swaption two years out on a four-year swap, small enough for a test.
fn spec(factors: Vec<Factor>, strike: f64, side: Side) -> SwaptionSpec {
    SwaptionSpec {
        curve: ForwardCurve { long_rate: 0.045, short_spread: -0.02, hump: 0.01, decay_years: 2.0 },
        factors,
        step_years: 0.5,
        expiry_steps: 4,
        period_steps: 1,
        periods: 8,
        strike,
        side,
    }
}

// Volatilities of several times the market's: the drift grows with their square, the statistical
// error only with their first power, so that a wrong drift stands out.
const HULL_WHITE: Factor = Factor { level: 0.06, slope: 0.0, decay: 0.15 };
const HO_LEE: Factor = Factor { level: 0.05, slope: 0.0, decay: 0.0 };

fn three_factors() -> Vec<Factor> {
    vec![
        HULL_WHITE,
        Factor { level: 0.008, slope: -0.003, decay: 0.1 },
        Factor { level: 0.0, slope: 0.006, decay: 0.5 },
    ]
}

fn price(spec: &SwaptionSpec, trials: u64, seed: u64) -> Estimate {
    price_swaption(spec, trials, seed, &mut || {}).unwrap()
}

#[test]
fn one_factor_prices_agree_with_the_closed_form() {
    for (factor, seed) in [(HO_LEE, 1), (HULL_WHITE, 2)] {
        for side in [Side::Payer, Side::Receiver] {
            for strike in [0.03, 0.04, 0.055] {
                let spec = spec(vec![factor], strike, side);
                let (got, want) = (price(&spec, 40_000, seed), one_factor_price(&spec).unwrap());
                let errors = (got.price - want) / got.std_error;
                assert!(
                    errors.abs() < 4.0,
                    "{factor:?} {side:?} {strike}: {got:?}, exact {want}, {errors} errors"
                );
                assert!(
                    got.std_error < 0.02 * want.max(0.005),
                    "an imprecise estimate proves nothing: {got:?}"
                );
            }
        }
    }
}

#[test]
fn factors_of_the_same_shape_act_as_one() {
    // Variances add: factors of 0.6 and 0.8 equal the whole one.
    let part = |share: f64| Factor { level: HULL_WHITE.level * share, ..HULL_WHITE };
    let split = price(&spec(vec![part(0.6), part(0.8)], 0.04, Side::Payer), 40_000, 3);
    let want = one_factor_price(&spec(vec![HULL_WHITE], 0.04, Side::Payer)).unwrap();
    assert!((split.price - want).abs() < 4.0 * split.std_error, "{split:?}, exact {want}");
}

#[test]
fn payer_less_receiver_is_the_swap_under_three_factors() {
    // The same paths price both, and the swap's value today is known for any model: a check of the
    // drift.
    let (payer, receiver) =
        (spec(three_factors(), 0.04, Side::Payer), spec(three_factors(), 0.04, Side::Receiver));
    let (p, r) = (price(&payer, 60_000, 4), price(&receiver, 60_000, 4));
    let grid = payer.grid();
    let fixed_leg: f64 = payer.payment_steps().map(|j| payer.coupon() * grid.bond_price(j)).sum();
    let swap = grid.bond_price(4) - grid.bond_price(12) - fixed_leg;
    let error = (p.std_error.powi(2) + r.std_error.powi(2)).sqrt();
    assert!(
        (p.price - r.price - swap).abs() < 4.0 * error,
        "{} instead of {swap} +- {error}",
        p.price - r.price
    );
    assert!(error < 0.002, "an imprecise estimate proves nothing: {error}");
}

#[test]
fn without_volatility_the_option_is_worth_its_intrinsic_value() {
    let still = Factor { level: 0.0, slope: 0.0, decay: 0.0 };
    let spec = spec(vec![still], 0.02, Side::Payer);
    let grid = spec.grid();
    let fixed_leg: f64 = spec.payment_steps().map(|j| spec.coupon() * grid.bond_price(j)).sum();
    let intrinsic = grid.bond_price(4) - grid.bond_price(12) - fixed_leg;
    let got = price(&spec, 64, 5);
    assert!((got.price - intrinsic).abs() < 1e-14 && got.std_error < 1e-9, "{got:?}, intrinsic {intrinsic}");
}

#[test]
fn the_standard_error_describes_the_spread_over_seeds() {
    let spec = spec(three_factors(), 0.04, Side::Payer);
    let estimates: Vec<Estimate> = (0..40).map(|seed| price(&spec, 1_000, seed)).collect();
    let mean = estimates.iter().map(|e| e.price).sum::<f64>() / 40.0;
    let spread = (estimates.iter().map(|e| (e.price - mean).powi(2)).sum::<f64>() / 39.0).sqrt();
    let claimed = estimates.iter().map(|e| e.std_error).sum::<f64>() / 40.0;
    assert!((spread / claimed - 1.0).abs() < 0.35, "spread {spread}, claimed {claimed}");
}

#[test]
fn a_seed_fixes_the_price_and_another_changes_it() {
    let spec = spec(three_factors(), 0.04, Side::Payer);
    assert_eq!(price(&spec, 1_000, 7), price(&spec, 1_000, 7));
    assert_ne!(price(&spec, 1_000, 7).price, price(&spec, 1_000, 8).price);
}

#[test]
fn polls_are_never_more_than_a_part_apart() {
    let polls_of_a_trial = |spec: &SwaptionSpec| {
        let mut polls = 0u64;
        price_swaption(spec, 10, 1, &mut || polls += 1).unwrap();
        polls / 10
    };
    // 3 factors on 220 rates: 3 steps stay below 2,048 products, so 20 steps are 7 parts. Then 200
    // coupons in parts of 32.
    let wide = SwaptionSpec { expiry_steps: 20, periods: 200, ..spec(three_factors(), 0.04, Side::Payer) };
    assert_eq!(polls_of_a_trial(&wide), 7 + 7);
    // The longest grid: a part for each step.
    let longest =
        SwaptionSpec { expiry_steps: 1_000, periods: 24, ..spec(vec![HO_LEE; 4], 0.04, Side::Payer) };
    assert_eq!(polls_of_a_trial(&longest), 1_000 + 1);
}

#[test]
fn parts_do_not_change_the_price() {
    let spec = SwaptionSpec { expiry_steps: 20, periods: 200, ..spec(three_factors(), 0.04, Side::Payer) };
    let whole = Pricer::new(&spec).unwrap();
    let stepwise = Pricer { part_steps: 1, ..whole.clone() };
    let run = |pricer: &Pricer| {
        let mut scratch = Scratch::new(std::slice::from_ref(pricer));
        pricer.run(500, &mut block_prng(3, 0, 0), &mut scratch, &mut || {}).estimate()
    };
    assert!((run(&whole).price - run(&stepwise).price).abs() < 1e-12);
}

#[test]
fn rates_and_tables_of_an_ordinary_swaption_are_in_one_page() {
    let portfolio = crate::Portfolio::generate(1, 1).unwrap();
    let pricers = [Pricer::new(&portfolio.swaptions()[0]).unwrap()];
    let mut scratch = Scratch::new(&pricers);
    let path = scratch.path(&pricers[0].grid);
    let page = |place: *const f64| place.addr() / (PAGE * size_of::<f64>());
    assert_eq!(page(path.rates.as_ptr()), page(&raw const *path.diffusion.last().unwrap()));
}

#[test]
fn no_trials_give_no_price() {
    assert_eq!(price(&spec(vec![HO_LEE], 0.04, Side::Payer), 0, 1), Estimate::default());
}

#[test]
fn streams_of_neighbouring_blocks_share_nothing() {
    use rand_xoshiro::rand_core::Rng;
    let mut seen = std::collections::HashSet::new();
    for (seed, swaption, block) in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 1, 0)] {
        let mut prng = block_prng(seed, swaption, block);
        assert!((0..1_000).all(|_| seen.insert(prng.next_u64())), "{seed} {swaption} {block}");
    }
}

proptest! {
    #[test]
    fn sums_do_not_depend_on_the_order(payoffs in prop::collection::vec(0.0..2.0f64, 1..200), split in 0usize..200) {
        let sum = |values: &[f64]| values.iter().fold(Sums::default(), |mut s, &v| { s.push(v); s });
        let (left, right) = payoffs.split_at(split.min(payoffs.len()));
        let mut joined = sum(right);
        joined.add(&sum(left));
        prop_assert_eq!(joined, sum(&payoffs));
        let mean = payoffs.iter().sum::<f64>() / payoffs.len() as f64;
        prop_assert!((joined.estimate().price - mean).abs() < 1e-12);
    }
}
