//! eBPF programs, assembled and loaded without a compiler or a library.
//!
//! Owns the encoding of instructions ([`assembler`]) and their names, the requests of bpf(2)
//! ([`sys`], all `unsafe` code of this crate), and what Linux does on cores, by tracepoints: added
//! up ([`core_time`]) and event by event ([`core_events`]).
//! The programs of AF_XDP are the IOKernel's, which loads them through [`sys`]. Knows no program,
//! core or thread of Tailwater. Needs `CAP_BPF`, or root.
#![deny(unsafe_code)]

pub mod assembler;
pub mod core_events;
pub mod core_time;
mod disassembly;
pub mod sys;
