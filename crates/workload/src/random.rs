//! The pseudo-random generator of all workload models, and its independent streams.
//!
//! Owns the choice of generator (xoshiro256++, whose output for a seed never changes between
//! releases, unlike `rand`'s `SmallRng`) and the conversion of its bits to reals of a few
//! distributions by functions of `libm`. So the same seed gives the same bits on every machine; the
//! C library's functions, chosen by processor and version, do not guarantee that. Never seeds
//! itself from the environment.

use core::f64::consts::TAU;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The generator that every model draws from.
pub type Prng = Xoshiro256PlusPlus;

/// Returns stream `index` of the family of `seed`.
///
/// Streams of one seed are 2^128 draws apart (`jump`), so they do not overlap in any run that ends.
/// Use one stream per purpose, for instance 0 for arrivals and 1 for service times: then a change
/// of the service-time distribution leaves every arrival in place. Costs about 1 us per unit of
/// `index`.
#[must_use]
pub fn stream(seed: u64, index: u32) -> Prng {
    let mut prng = Prng::seed_from_u64(seed);
    for _ in 0..index {
        prng.jump();
    }
    prng
}

/// Returns a uniform draw from the open-closed interval (0, 1], safe to take the logarithm of.
/// Resolution 2^-53.
pub fn unit_open_closed(prng: &mut Prng) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
    ((prng.next_u64() >> 11) + 1) as f64 * SCALE
}

/// Returns an exponential draw with mean 1, by inversion of the distribution function. At most 53
/// ln 2, about 36.7.
pub fn unit_exponential(prng: &mut Prng) -> f64 {
    -libm::log(unit_open_closed(prng))
}

/// Returns a normal draw with mean 0 and variance 1 (Box and Muller 1958; the second of their two
/// draws is not used).
pub fn standard_normal(prng: &mut Prng) -> f64 {
    let radius = libm::sqrt(2.0 * unit_exponential(prng));
    radius * libm::cos(TAU * unit_open_closed(prng))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn normal_draws_have_the_moments_and_the_tails_of_the_distribution() {
        const DRAWS: usize = 400_000;
        let mut prng = stream(3, 0);
        let draws: Vec<f64> = (0..DRAWS).map(|_| standard_normal(&mut prng)).collect();
        let moment = |k: i32| draws.iter().map(|x| x.powi(k)).sum::<f64>() / DRAWS as f64;
        for (k, expected, tolerance) in [(1, 0.0, 0.01), (2, 1.0, 0.01), (3, 0.0, 0.03), (4, 3.0, 0.06)] {
            assert!((moment(k) - expected).abs() < tolerance, "moment {k}: {}", moment(k));
        }
        let above = |x: f64| draws.iter().filter(|&&draw| draw > x).count() as f64 / DRAWS as f64;
        for (x, expected) in [(1.0, 0.158_655), (2.0, 0.022_750), (3.0, 0.001_350)] {
            assert!((above(x) / expected - 1.0).abs() < 0.1, "above {x}: {}", above(x));
        }
    }

    #[test]
    fn a_seed_gives_these_bits_on_every_machine() {
        let mut prng = stream(1, 0);
        let draws =
            [unit_open_closed, unit_exponential, standard_normal].map(|draw| draw(&mut prng).to_bits());
        assert_eq!(draws, [4_605_485_571_977_896_057, 4_598_923_716_387_423_598, 13_810_881_050_129_480_691]);
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |index| stream(7, index).next_u64();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn uniform_draws_stay_in_the_open_closed_interval() {
        let mut prng = stream(1, 0);
        let mut sum = 0.0;
        for _ in 0..100_000 {
            let u = unit_open_closed(&mut prng);
            assert!(u > 0.0 && u <= 1.0);
            sum += u;
        }
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005, "mean {}", sum / 100_000.0);
    }
}
