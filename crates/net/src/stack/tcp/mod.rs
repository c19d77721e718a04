//! TCP in the stack: segments in, segments out, timers, and the calls of programs.

pub(super) mod ending;
mod expiry;
mod input;
mod listen;
mod open;
mod output;

pub use crate::tcp::ListenError;
pub use open::ConnectError;
