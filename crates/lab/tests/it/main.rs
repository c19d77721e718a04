//! The command `tailwater-lab`, run as a user runs it.

mod bench;
mod bench_hostile;
mod bench_programs;
mod commands;
mod common;
mod measure;
mod reproduce;
mod shape;
