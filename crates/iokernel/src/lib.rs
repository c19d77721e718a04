//! The IOKernel: one polling thread that switches frames between runtimes and ports and lends cores to runtimes.
#![deny(unsafe_code)]

pub mod frame;
pub mod port;
