//! The highest load of RocksDB at which GETs beside SCANs stay within the limit, without preemption
//! and with it.
//!
//! Owns the mixture. The service is `tailwater-rocks`, a program of its own because it needs the
//! system's library; where there is none, the part is left out and the reason printed.

use std::io::{Write, stderr};
use std::sync::Arc;

use serde::Serialize;
use tailwater_loadgen::protocol::Rocks;
use tailwater_testbed::program::Program;
use tailwater_testbed::table::Table;

use super::PLAIN;
use super::bed::Bench;
use super::bimodal::{SLO_US, search_servers};
use super::search::Loads;

/// A single queue with the paper's quantum for RocksDB (section 4, figure 8).
const PREEMPTIVE: &str = "sq:15us";
const KEYS: u64 = 100_000;
const VALUE_LEN: usize = 64;
const SCAN_SHARE: f64 = 0.005;
const SCAN_COUNT: u32 = 1_000;

/// Highest loads within the limit.
#[derive(Debug, Serialize)]
pub struct Store {
    slo_us: f64,
    #[serde(flatten)]
    measured: Loads,
}

/// Searches the highest loads; `None` without the program.
///
/// # Errors
/// On a signal, or if a measurement fails after the service has started once.
pub fn run(rounds: u16, bench: &Bench) -> anyhow::Result<Option<Store>> {
    let protocol = Rocks::new(KEYS, VALUE_LEN)?.with_shares(SCAN_SHARE, 0.0)?.with_scan_count(SCAN_COUNT);
    let server = |policy| Program::rocks(policy, KEYS, VALUE_LEN, Arc::new(protocol.clone()));
    let (Some(plain), Some(preemptive)) = (server(PLAIN), server(PREEMPTIVE)) else {
        skip("there is no tailwater-rocks in PATH or beside this program; build it with --features rocksdb")?;
        return Ok(None);
    };
    if let Err(error) = bench.point(&plain, super::bed::Load::new(1_000.0, 0.1)) {
        bench.check()?;
        skip(&format!("{error:#}"))?;
        return Ok(None);
    }
    let measured = search_servers(rounds, bench, &[plain, preemptive])?;
    Ok(Some(Store { slo_us: SLO_US, measured }))
}

fn skip(reason: &str) -> std::io::Result<()> {
    writeln!(stderr(), "skipped: RocksDB: {reason}")
}

impl Store {
    /// Returns the table of the figures.
    pub fn describe(&self) -> String {
        let mut table = Table::new([
            "RocksDB, 99.5 % GETs, 0.5 % SCANs of 1,000: per second with p99 of GETs within 50 us",
            "without preemption",
            "quantum of 15 us",
            "ratio",
        ]);
        self.measured.add_to(&mut table, "measured");
        table.to_string()
    }
}
