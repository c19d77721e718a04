//! Policies under scenarios of many programs and cores.

mod allocation;
mod arbiter;
mod target_policies;
mod world;
