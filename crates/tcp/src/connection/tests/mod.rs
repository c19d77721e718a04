//! Connections against each other and against forgeries, in virtual time.

mod acks;
mod attacks;
mod closing;
mod every_state;
mod fast_open;
mod loans;
mod memory;
mod opening;
mod options;
mod pair;
mod shared;
mod timeouts;
mod windows;
