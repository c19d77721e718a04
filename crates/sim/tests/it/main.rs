//! The simulator: exact results, snapshots of tables, and the plan for a fleet.

mod engine;
mod fleet;
mod snapshot;
