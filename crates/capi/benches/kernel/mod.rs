//! `examples/swaptions/kernel.c` in Rust, line for line, without poll points and with those of
//! `preemptible`.

const STEPS: usize = 60;
const EXPIRY: usize = 20;
const PERIOD: usize = 4;
const FACTORS: usize = 3;

/// Marsaglia 2003, xorshift64.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

macro_rules! kernel {
    ($(#[$attribute:meta])* $normal:ident, $price:ident) => {
        $(#[$attribute])*
        fn $normal(state: &mut u64) -> f64 {
            let mut sum = -6.0;
            for _ in 0..12 {
                sum += (next(state) >> 11) as f64 / (1u64 << 53) as f64;
            }
            sum
        }

        $(#[$attribute])*
        pub fn $price(mut seed: u64, paths: u32) -> f64 {
            let mut volatility = [[0.0; STEPS]; FACTORS];
            for (factor, row) in volatility.iter_mut().enumerate() {
                for (i, cell) in row.iter_mut().enumerate() {
                    *cell = 0.0008 / (1 + factor) as f64 * (-0.02 * factor as f64 * i as f64).exp();
                }
            }
            let mut sum = 0.0;
            for _ in 0..paths {
                let (mut discount, mut leg, mut bond) = (0.0, 0.0, 1.0f64);
                let mut rates = [0.01; STEPS];
                for step in 0..EXPIRY {
                    discount -= rates[step];
                    for row in &volatility {
                        let draw = $normal(&mut seed);
                        for (rate, cell) in rates[step + 1..].iter_mut().zip(row) {
                            *rate += cell * draw;
                        }
                    }
                }
                for period in rates[EXPIRY..].chunks_exact(PERIOD) {
                    for rate in period {
                        bond *= 1.0 - rate;
                    }
                    leg += 0.04 * bond;
                }
                let payoff: f64 = 1.0 - bond - leg;
                sum += f64::exp(discount) * payoff.max(0.0);
            }
            sum / f64::from(paths)
        }
    };
}

kernel!(normal, swaption_price);
kernel!(
    #[tailwater::preemptible]
    normal_polled,
    swaption_price_polled
);
