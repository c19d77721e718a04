//! The archive that the tests of this crate install, as `cargo xtask install` does with a release
//! build.

pub use tailwater_capi::*;
