//! Everything of this crate that is unsafe: the loaded libraries, the entry, and the change of the
//! libraries' code.

pub mod entry;
pub mod loaded;
pub mod patch;
