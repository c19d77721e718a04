//! Studies: users' questions, answered by many simulated points.
//!
//! Each study owns its description (readable from TOML), its defaults, and the conversion of
//! results into tables, JSON rows and plots. Neighbours: `cli` parses arguments into descriptions;
//! `reproduce` runs them with the papers' parameters.

pub mod allocators;
pub mod beside;
pub mod connections;
pub mod demo;
pub mod fleet;
pub mod pareto;
pub mod plan;
pub mod policies;

use serde::{Deserialize, Serialize};

use crate::measure::Budget;

/// The amount to run, shared by all studies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Effort {
    /// Requests measured per replication of each point, at least 100; a fifth as many warm up
    /// before.
    pub requests: u64,
    /// Independent replications of each point.
    pub replications: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads; 0 for as many as the machine has. Changes only the time it takes.
    pub threads: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { requests: 200_000, replications: 4, seed: 1, threads: 0 }
    }
}

impl Effort {
    /// Returns the measuring budget of one replication.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let requests = self.requests.max(100);
        Budget { warmup: requests / 5, requests, batches: 10 }
    }

    /// Returns the number of threads to use.
    #[must_use]
    pub fn threads(&self) -> usize {
        if self.threads == 0 { crate::scenario::default_threads() } else { self.threads }
    }
}
