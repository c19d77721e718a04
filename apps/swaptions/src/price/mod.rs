//! The pricer: simulates forward-rate paths to the option's expiry and averages the discounted
//! payoff.
//!
//! Owns the inner loops of the batch job. Invariants: they do not allocate; between two calls of
//! `poll` they do at most `PART` products or one step, and value at most `COUPONS` coupons; and
//! sums are integers, so that adding blocks in any order gives the same bits.
//!
//! The loops do not poll: they run in parts, with a poll after each. So there is one copy of them,
//! whatever `poll` is, and a poll costs nothing that can be measured (below 0.5 %).
//!
//! Neighbours: [`crate::model`] supplies the tables, [`crate::job`] splits the work into blocks.

use std::ops::Range;

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::model::GridModel;
use crate::spec::{Side, SpecError, SwaptionSpec};

/// Trials in a block, the unit in which work is assigned and counted: about 30 us for the default
/// portfolio on an AMD EPYC virtual CPU (1.8 us a trial), so a count of blocks over 100 ms is
/// precise to 0.03 % of a core.
pub const BLOCK_TRIALS: u64 = 16;

/// Maximum number of products of a volatility and a normal between two polls, unless one step has
/// more (4,092 in the longest grid with all factors, 1 us). With their normals they take 0.6 us on
/// an AMD EPYC. With half as many the job takes 1 % longer, polls or none.
const PART: usize = 2048;

/// Maximum number of coupons valued between two polls; an exponential for each is most of the work.
const COUPONS: usize = 32;

/// Numbers in a page of memory.
const PAGE: usize = 512;

/// Payoffs are summed in units of 2^-64 of the notional.
const FIXED_POINT: f64 = 18_446_744_073_709_551_616.0;

/// A prepared swaption: tables that any number of workers read.
#[derive(Debug, Clone)]
pub struct Pricer {
    grid: GridModel,
    expiry_steps: usize,
    period_steps: usize,
    /// Steps of the simulation between two polls.
    part_steps: usize,
    coupon: f64,
    side: Side,
}

/// Private memory of one worker: the forward rates of a path, and behind them the tables of the
/// swaption that is priced, from the beginning of a page on.
///
/// Vectors of rates are seldom aligned, since a step moves one rate less than the step before. A
/// store of such a vector into two pages costs tens of cycles: where an allocator put the rates on
/// the border of two pages, a trial took 1.31 us instead of 1.11 (AMD EPYC). So chance decided
/// whether the job was faster on kernel threads or on user threads. Up to 512 / (3 + factors)
/// steps, 85 for three factors, all of it fits in a page.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    memory: Vec<f64>,
}

/// The current path, and the tables that it is simulated with.
struct Path<'a> {
    rates: &'a mut [f64],
    initial: &'a [f64],
    drift: &'a [f64],
    /// That of each factor, one behind the other.
    diffusion: &'a [f64],
}

impl Scratch {
    /// Returns room for paths of any of `pricers`.
    #[must_use]
    pub fn new(pricers: &[Pricer]) -> Self {
        let room = |pricer: &Pricer| pricer.grid.steps() * (1 + pricer.grid.tables().count());
        Self { memory: vec![0.0; PAGE + pricers.iter().map(room).max().unwrap_or(0)] }
    }

    /// Returns a path, with a copy of the tables of `grid`.
    fn path(&mut self, grid: &GridModel) -> Path<'_> {
        let page = self.memory.as_ptr().align_offset(PAGE * size_of::<f64>());
        let (rates, tables) = self.memory[page..].split_at_mut(grid.steps());
        for (copy, table) in tables.chunks_exact_mut(grid.steps()).zip(grid.tables()) {
            copy.copy_from_slice(table);
        }
        let (initial, tables) = tables.split_at(grid.steps());
        let (drift, tables) = tables.split_at(grid.steps());
        Path { rates, initial, drift, diffusion: &tables[..grid.steps() * grid.diffusion.len()] }
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
            part_steps: (PART / (spec.total_steps() * spec.factors.len())).max(1),
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
        let mut path = scratch.path(&self.grid);
        let mut sums = Sums::default();
        for _ in 0..trials {
            let discount = self.simulate(&mut path, prng, poll);
            sums.push(discount * self.payoff(path.rates, poll));
        }
        sums
    }

    /// Simulates the path from today to expiry; returns its discount factor.
    fn simulate(&self, path: &mut Path, prng: &mut Xoshiro256PlusPlus, poll: &mut impl FnMut()) -> f64 {
        path.rates.copy_from_slice(path.initial);
        let mut log_discount = 0.0;
        for first in (0..self.expiry_steps).step_by(self.part_steps) {
            log_discount -= path.advance(first..self.expiry_steps.min(first + self.part_steps), prng);
            poll();
        }
        log_discount.exp()
    }

    /// Returns the value of the option at expiry, given the curve at that time.
    fn payoff(&self, curve: &[f64], poll: &mut impl FnMut()) -> f64 {
        let mut bond = Bond { log: 0.0, price: 1.0 };
        let mut fixed_leg = 0.0;
        for rates in curve[self.expiry_steps..].chunks(COUPONS * self.period_steps) {
            fixed_leg += self.coupon * bond.annuity(rates, self.period_steps);
            poll();
        }
        let receiver = fixed_leg + bond.price - 1.0;
        match self.side {
            Side::Payer => (-receiver).max(0.0),
            Side::Receiver => receiver.max(0.0),
        }
    }
}

impl Path<'_> {
    /// Simulates some steps; returns the sum of the short rates on the way.
    #[inline(never)]
    fn advance(&mut self, steps: Range<usize>, prng: &mut Xoshiro256PlusPlus) -> f64 {
        let mut short_rates = 0.0;
        for step in steps {
            short_rates += self.rates[step];
            // Rates that have 0, 1, 2... whole steps left after this one.
            let rates = &mut self.rates[step + 1..];
            for (rate, drift) in rates.iter_mut().zip(self.drift) {
                *rate += drift;
            }
            for diffusion in self.diffusion.chunks_exact(self.drift.len()) {
                let normal: f64 = StandardNormal.sample(prng);
                for (rate, volatility) in rates.iter_mut().zip(diffusion) {
                    *rate += volatility * normal;
                }
            }
        }
        short_rates
    }
}

/// A bond that pays 1 at the end of a coupon period.
struct Bond {
    log: f64,
    price: f64,
}

impl Bond {
    /// Moves the payment by the periods of `rates`; returns the sum of the prices on the way.
    #[inline(never)]
    fn annuity(&mut self, rates: &[f64], period_steps: usize) -> f64 {
        let mut sum = 0.0;
        for period in rates.chunks_exact(period_steps) {
            self.log -= period.iter().sum::<f64>();
            self.price = self.log.exp();
            sum += self.price;
        }
        sum
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
/// `poll` is called after each half microsecond of computing on current server cores.
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
mod speed;
#[cfg(test)]
mod tests;
