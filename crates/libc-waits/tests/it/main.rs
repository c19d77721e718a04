//! The decoding of real libraries: see [`libraries`].

mod libraries;
mod stubs;
