//! The program's own name for a socket or a timer.
//!
//! Owns [`Token`], which event loops and pollers return with each event and never read.

/// A value that a program chooses for a socket or timer, and that comes back with every event of
/// it; usually an index into the program's own table.
///
/// # Examples
/// ```
/// use tailwater::events::Token;
///
/// assert_ne!(Token(1), Token(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub usize);
