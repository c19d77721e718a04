//! Keyed hashes for numbers that must be hard to guess: ports, identifications, buckets.

use core::hash::{Hash, Hasher};
use siphasher::sip::SipHasher13;

/// Returns the SipHash-1-3 of `what`, which contains the secret seed.
pub fn hash(what: &impl Hash) -> u64 {
    let mut hasher = SipHasher13::new();
    what.hash(&mut hasher);
    hasher.finish()
}
