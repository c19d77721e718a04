//! TCP in the stack: segments in, segments out, timers, and the calls of programs.

mod ending;
mod expiry;
mod input;
mod listen;
mod open;
mod output;

pub use crate::tcp::ListenError;
pub use ending::Ending;
pub use open::ConnectError;
