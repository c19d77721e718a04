//! The pricer: simulates forward-rate paths to the option's expiry and averages the discounted
//! payoff.
//!
//! Owns the inner loop of the batch job. Invariants: it does not allocate; between two calls of
//! `poll` it updates at most 64 rates or values one coupon, about 100 ns; and sums are integers, so
//! that adding blocks in any order gives the same bits.
//!
//! Neighbours: [`crate::model`] supplies the tables, [`crate::job`] splits the work into blocks.

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::model::{GridModel, MAX_FACTORS};
use crate::spec::{Side, SpecError, SwaptionSpec};

/// Trials in a block, the unit in which work is assigned and counted: about 30 us for the default
/// portfolio on an AMD EPYC virtual CPU (1.8 us a trial), so a count of blocks over 100 ms is
/// precise to 0.03 % of a core.
pub const BLOCK_TRIALS: u64 = 16;

/// Maximum number of rates updated between two polls. 64 rates under three factors take about 60
/// ns.
const CHUNK: usize = 64;

/// Payoffs are summed in units of 2^-64 of the notional.
const FIXED_POINT: f64 = 18_446_744_073_709_551_616.0;

/// A prepared swaption: tables that any number of workers read.
#[derive(Debug, Clone)]
pub struct Pricer {
    grid: GridModel,
    expiry_steps: usize,
    period_steps: usize,
    coupon: f64,
    side: Side,
}

/// Private memory of one worker: the forward curve of the current path.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    curve: Vec<f64>,
}

impl Scratch {
    /// Returns room for paths of any of `pricers`.
    #[must_use]
    pub fn new(pricers: &[Pricer]) -> Self {
        Self { curve: vec![0.0; pricers.iter().map(|p| p.grid.initial.len()).max().unwrap_or(0)] }
    }
}

impl Pricer {
    /// Builds the tables of `spec`.
    ///
    /// # Errors
    /// As [`SwaptionSpec::check`].
    pub fn new(spec: &SwaptionSpec) -> Result<Self, SpecError> {
        spec.check()?;
        Ok(Self {
            grid: spec.grid(),
            expiry_steps: spec.expiry_steps,
            period_steps: spec.period_steps,
            coupon: spec.coupon(),
            side: spec.side,
        })
    }

    /// Simulates `trials` paths with draws from `prng`, calling `poll` throughout.
    ///
    /// # Panics
    /// If `scratch` was made for shorter paths.
    pub fn run(
        &self,
        trials: u64,
        prng: &mut Xoshiro256PlusPlus,
        scratch: &mut Scratch,
        poll: &mut impl FnMut(),
    ) -> Sums {
        let curve = &mut scratch.curve[..self.grid.initial.len()];
        let mut sums = Sums::default();
        for _ in 0..trials {
            let discount = self.simulate(curve, prng, poll);
            sums.push(discount * self.payoff(curve, poll));
        }
        sums
    }

    /// Moves `curve` from today to expiry along one path; returns the path's discount factor.
    #[inline]
    fn simulate(&self, curve: &mut [f64], prng: &mut Xoshiro256PlusPlus, poll: &mut impl FnMut()) -> f64 {
        curve.copy_from_slice(&self.grid.initial);
        let mut log_discount = 0.0;
        for step in 0..self.expiry_steps {
            log_discount -= curve[step];
            let mut normals = [0.0; MAX_FACTORS];
            for normal in normals.iter_mut().take(self.grid.diffusion.len()) {
                *normal = StandardNormal.sample(prng);
            }
            self.advance(&mut curve[step + 1..], &normals, poll);
        }
        log_discount.exp()
    }

    /// One step: rates that have 0, 1, 2... whole steps left after it.
    #[inline]
    fn advance(&self, rates: &mut [f64], normals: &[f64; MAX_FACTORS], poll: &mut impl FnMut()) {
        for (chunk, rates) in rates.chunks_mut(CHUNK).enumerate() {
            let span = chunk * CHUNK..chunk * CHUNK + rates.len();
            for (rate, drift) in rates.iter_mut().zip(&self.grid.drift[span.clone()]) {
                *rate += drift;
            }
            for (diffusion, normal) in self.grid.diffusion.iter().zip(normals) {
                for (rate, volatility) in rates.iter_mut().zip(&diffusion[span.clone()]) {
                    *rate += volatility * normal;
                }
            }
            poll();
        }
    }

    /// Returns the value of the option at expiry, given the curve at that time.
    #[inline]
    fn payoff(&self, curve: &[f64], poll: &mut impl FnMut()) -> f64 {
        let mut log_bond = 0.0;
        let mut bond = 1.0;
        let mut fixed_leg = 0.0;
        for period in curve[self.expiry_steps..].chunks_exact(self.period_steps) {
            log_bond -= period.iter().sum::<f64>();
            bond = log_bond.exp();
            fixed_leg += self.coupon * bond;
            poll();
        }
        let receiver = fixed_leg + bond - 1.0;
        match self.side {
            Side::Payer => (-receiver).max(0.0),
            Side::Receiver => receiver.max(0.0),
        }
    }
}

/// Sums over trials, in fixed point: addition is exact, so the order of blocks does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    trials: u64,
    payoff: u128,
    square: u128,
}

impl Sums {
    /// Adds one discounted payoff. Capped at 2^16 notionals, so that 2^32 trials of any kind fit;
    /// real payoffs are below 1 and leave room for 2^64.
    fn push(&mut self, payoff: f64) {
        let payoff = payoff.min(65_536.0);
        self.trials += 1;
        self.payoff += (payoff * FIXED_POINT) as u128;
        self.square += (payoff * payoff * FIXED_POINT) as u128;
    }

    /// Adds other trials of the same swaption.
    pub fn add(&mut self, other: &Sums) {
        self.trials += other.trials;
        self.payoff += other.payoff;
        self.square += other.square;
    }

    /// Returns the price estimate from these trials; zeros if there were none.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        if self.trials == 0 {
            return Estimate::default();
        }
        let n = self.trials as f64;
        let price = self.payoff as f64 / FIXED_POINT / n;
        let variance = (self.square as f64 / FIXED_POINT / n - price * price).max(0.0);
        Estimate { price, std_error: (variance / (n - 1.0).max(1.0)).sqrt(), trials: self.trials }
    }
}

/// A Monte Carlo price on a notional of 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Mean discounted payoff.
    pub price: f64,
    /// Standard error of that mean.
    pub std_error: f64,
    /// Number of trials.
    pub trials: u64,
}

/// Returns the random stream of block `block` of swaption `swaption`.
///
/// Every block starts at a hashed point of the generator's period of 2^256 - 1. Jumping block by
/// block would keep the streams apart for certain but costs time that grows with the block's
/// number; from hashed points, 10^9 blocks of 10^5 draws overlap with probability below 10^-50
/// (Vigna, "On the probability of overlap of random subsequences of pseudorandom number
/// generators", 2020).
#[must_use]
pub fn block_prng(seed: u64, swaption: u64, block: u64) -> Xoshiro256PlusPlus {
    let mut bytes = [0; 32];
    for (lane, word) in bytes.chunks_exact_mut(8).enumerate() {
        let key = mix(mix(mix(seed.wrapping_add(lane as u64)) ^ swaption) ^ block);
        word.copy_from_slice(&key.to_le_bytes());
    }
    Xoshiro256PlusPlus::from_seed(bytes)
}

/// Returns the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA'14, figure 17) over one
/// of its steps.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Prices one swaption with `trials` paths. The result depends on `spec`, `trials` and `seed` only.
///
/// `poll` is called about every 200 ns of computing on current server cores.
///
/// # Errors
/// As [`SwaptionSpec::check`].
pub fn price_swaption(
    spec: &SwaptionSpec,
    trials: u64,
    seed: u64,
    poll: &mut impl FnMut(),
) -> Result<Estimate, SpecError> {
    let pricers = [Pricer::new(spec)?];
    let mut scratch = Scratch::new(&pricers);
    let mut sums = Sums::default();
    for block in 0..trials.div_ceil(BLOCK_TRIALS) {
        let count = BLOCK_TRIALS.min(trials - block * BLOCK_TRIALS);
        sums.add(&pricers[0].run(count, &mut block_prng(seed, 0, block), &mut scratch, poll));
    }
    Ok(sums.estimate())
}

#[cfg(test)]
mod tests;
