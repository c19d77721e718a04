//! The simulator: exact results, and a snapshot of the demo.

mod engine;
mod snapshot;
