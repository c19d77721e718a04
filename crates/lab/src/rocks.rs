//! The RocksDB service under GETs and SCANs, as `bench dispatch` and `reproduce` measure it.
//!
//! Owns the store's size. The service is `tailwater-rocks`, a program of its own because it needs
//! the system's library.

use std::sync::Arc;

use tailwater_loadgen::protocol::Rocks;
use tailwater_testbed::program::Program;

/// What a measurement of the service needs, where it is not there.
pub const NEEDS: &str =
    "there is no tailwater-rocks in PATH or beside this program; build it with --features rocksdb";
/// Keys of the store, and bytes of each value.
const KEYS: u64 = 100_000;
const VALUE_LEN: usize = 64;

/// Part of the requests that are SCANs, and how many entries each reads; the others are GETs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mixture {
    /// From 0 to 1.
    pub scan_share: f64,
    pub scan_count: u32,
}

/// Returns the service with nothing beside it, its requests in the order of `policy`; `None` where
/// it is not built.
///
/// # Errors
/// If the mixture is out of range.
pub fn service(policy: &str, mixture: Mixture) -> anyhow::Result<Option<Program>> {
    let Mixture { scan_share, scan_count } = mixture;
    let protocol = Rocks::new(KEYS, VALUE_LEN)?.with_shares(scan_share, 0.0)?.with_scan_count(scan_count);
    Ok(Program::rocks(policy, KEYS, VALUE_LEN, Arc::new(protocol)))
}
