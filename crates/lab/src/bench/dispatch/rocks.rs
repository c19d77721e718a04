//! The highest load of RocksDB at which GETs beside SCANs stay within the limit, without preemption
//! and with it.
//!
//! Owns the mixture. Where the [service](crate::rocks) is not built, the part is left out and the
//! reason printed.

use std::io::{Write, stderr};

use serde::Serialize;
use tailwater_testbed::table::Table;

use super::PLAIN;
use super::bed::Bench;
use super::bimodal::{SLO_US, search_servers};
use super::search::Loads;
use crate::rocks::{Mixture, NEEDS, service};

/// A single queue with the paper's quantum for RocksDB (section 4, figure 8).
const PREEMPTIVE: &str = "sq:15us";
const MIXTURE: Mixture = Mixture { scan_share: 0.005, scan_count: 1_000 };

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
    let (Some(plain), Some(preemptive)) = (service(PLAIN, MIXTURE)?, service(PREEMPTIVE, MIXTURE)?) else {
        skip(NEEDS)?;
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
        let mut table = Table::new(
            "RocksDB, 99.5 % GETs, 0.5 % SCANs of 1,000: per second with p99 of GETs within 50 us | \
             without preemption | quantum of 15 us | ratio",
        );
        self.measured.add_to(&mut table, "measured");
        table.to_string()
    }
}
