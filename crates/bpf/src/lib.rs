//! eBPF programs, assembled and loaded without a compiler or a library.
//!
//! Owns the encoding of instructions ([`assembler`]) and their names, the requests of bpf(2)
//! ([`sys`], all `unsafe` code of this crate), and what Linux spends the time of cores on, by
//! tracepoints ([`core_time`]).
//! The programs of AF_XDP are the IOKernel's, which loads them through [`sys`]. Knows no program,
//! core or thread of Tailwater. Needs `CAP_BPF`, or root.
#![deny(unsafe_code)]

pub mod assembler;
pub mod core_time;
mod disassembly;
pub mod sys;
