//! TCP in the stack: segments in, segments out, timers, and the calls of programs.

mod expiry;
mod input;
mod listen;
mod open;
mod output;

pub use open::{ConnectError, ListenError};
