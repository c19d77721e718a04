//! The key of a connection, and its hash.
//!
//! The hash is keyed, because peers choose their ports and, in part, their addresses, and could
//! otherwise make keys collide. Each step multiplies two 64-bit halves and folds the product, which
//! takes three cycles where SipHash takes thirty.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::IpAddr;
use tailwater_tcp::Flow;

/// Both addresses and ports. IPv4 addresses as IPv4-mapped ones, which no packet may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    addresses: [u64; 4],
    ports: u32,
}

impl From<&Flow> for Key {
    #[inline]
    fn from(flow: &Flow) -> Self {
        let halves = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => [0, 0xffff_0000_0000 | u64::from(ip.to_bits())],
            IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
        };
        let ([a, b], [c, d]) = (halves(flow.local), halves(flow.remote));
        let ports = u32::from(flow.local_port) << 16 | u32::from(flow.remote_port);
        Self { addresses: [a, b, c, d], ports }
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addresses.iter().for_each(|&half| state.write_u64(half));
        state.write_u64(self.ports.into());
    }
}

/// Makes hashers of one key.
#[derive(Debug, Clone, Copy)]
pub struct Seeds([u64; 2]);

impl Seeds {
    /// Derives keys from `seed`, which is secret.
    pub fn new(seed: u64) -> Self {
        // Two numbers that differ even if the seed is small; the constants are digits of pi.
        let mix = |n: u64| fold(seed ^ 0x243f_6a88_85a3_08d3, n ^ 0x1319_8a2e_0370_7344);
        Self([mix(1) ^ seed, mix(2) ^ seed.rotate_left(32)])
    }
}

impl BuildHasher for Seeds {
    type Hasher = Fold;
    #[inline]
    fn build_hasher(&self) -> Fold {
        Fold { state: self.0[0], key: self.0[1] }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Fold {
    state: u64,
    key: u64,
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl Hasher for Fold {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.key).wrapping_add(word.rotate_left(23));
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state, self.key ^ 0xa409_3822_299f_31d0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn key(remote: u32, port: u16) -> Key {
        Key::from(&Flow {
            local: [10, 0, 0, 1].into(),
            remote: Ipv4Addr::from_bits(remote).into(),
            local_port: 80,
            remote_port: port,
        })
    }

    #[test]
    fn neighbouring_flows_spread_over_the_shards_under_every_seed() {
        for seed in [0, 1, 2, u64::MAX, 0x1234_5678] {
            let seeds = Seeds::new(seed);
            let mut shards = [0u32; 64];
            for remote in 0..64 {
                for port in 1024..1088 {
                    shards[(seeds.hash_one(key(remote, port)) >> 32) as usize % 64] += 1;
                }
            }
            // 64 each on average; a binomial distribution has them within seven standard
            // deviations.
            assert!(shards.iter().all(|n| (8..=120).contains(n)), "seed {seed}: {shards:?}");
        }
    }

    #[test]
    fn an_ipv4_flow_is_not_that_of_another_direction() {
        let flow = |local: u8, remote: u8, local_port, remote_port| {
            Key::from(&Flow {
                local: [10, 0, 0, local].into(),
                remote: [10, 0, 0, remote].into(),
                local_port,
                remote_port,
            })
        };
        assert_ne!(flow(1, 2, 80, 90), flow(2, 1, 90, 80));
        assert_ne!(flow(1, 2, 80, 90), flow(1, 2, 90, 80));
        assert_eq!(flow(1, 2, 80, 90), flow(1, 2, 80, 90));
    }
}
