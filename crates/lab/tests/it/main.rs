//! The command `tailwater-lab`, run as a user runs it.

mod bench_cores;
mod bench_dispatch;
mod bench_energy;
mod bench_events;
mod bench_hostile;
mod bench_neighbour;
mod bench_ports;
mod bench_programs;
mod bench_services;
mod bench_threads;
mod commands;
mod common;
mod measure;
mod reproduce;
