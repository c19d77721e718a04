//! Procedural macros of the tailwater crate
