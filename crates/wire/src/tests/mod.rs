//! The wire formats against smoltcp's, in both directions, and against arbitrary bytes.

mod built_by_smoltcp;
mod v4;
mod v6;
