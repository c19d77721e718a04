//! The one pseudo-random generator of all workload models, and how to get independent streams of it.
//!
//! Owns: the choice of generator (xoshiro256++, whose output for a seed never changes between releases, unlike
//! `rand`'s `SmallRng`) and the conversion of its bits to uniform reals. Never seeds itself from the environment.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The generator that every model draws from.
pub type Prng = Xoshiro256PlusPlus;

/// Stream `index` of the family that belongs to `seed`.
///
/// Streams of one seed are 2^128 draws apart (`jump`), so they do not overlap in any run that ends. Use one stream per
/// purpose, for instance 0 for arrivals and 1 for service times: then a change of the service-time distribution leaves
/// every arrival where it was. Costs about 1 us per unit of `index`.
#[must_use]
pub fn stream(seed: u64, index: u32) -> Prng {
    let mut prng = Prng::seed_from_u64(seed);
    for _ in 0..index {
        prng.jump();
    }
    prng
}

/// A uniform draw from the open-closed interval (0, 1], safe to take the logarithm of. Resolution 2^-53.
pub fn unit_open_closed(prng: &mut Prng) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
    ((prng.next_u64() >> 11) + 1) as f64 * SCALE
}

/// An exponential draw with mean 1, by inversion of the distribution function. At most 53 ln 2, about 36.7.
pub fn unit_exponential(prng: &mut Prng) -> f64 {
    -libm::log(unit_open_closed(prng))
}

#[cfg(test)]
mod tests {
    use super::*;

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
