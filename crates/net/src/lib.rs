//! The network stack of one host as a pure machine: frames and time go in, frames and data come
//! out.
//!
//! Owns the host's addresses, its neighbours, fragments under reassembly, path MTUs, UDP and TCP
//! sockets with their queues and timers, and the counters of all these. It reads no clock, sends
//! nothing by itself, starts no thread and has no global state: an [`Outlet`] comes with every call
//! that may need time or a way out, so a test can join two stacks with a queue and drive them
//! through hours of virtual time. A runtime adds sockets that block, a clock and packet rings.
//!
//! | module | is |
//! |---|---|
//! | [`stack`] | [`Stack`]: frames in and out, one file for each protocol |
//! | [`udp`] | UDP sockets: their queues, and the table that finds them |
//! | [`tcp`] | TCP sockets around `tailwater_tcp`'s connections, and the tables that find them |
//! | `neighbour` | the neighbour caches, read without a lock |
//! | [`outlet`] | what a call into the stack needs of its caller |
//! | [`platform`] | locks and waiting threads, supplied by the program around the stack |
//!
//! The feature `tcp`, on by default, has TCP. Without it a host answers TCP as any protocol that it
//! does not speak.
//!
//! # Locks without threads
//! The stack runs on many kthreads at once, so its state is divided among many locks, and the
//! ordinary send takes none of them: that division is part of the stack and lives here. What a lock
//! and a waiting thread are is not: both are types of a [`Platform`], chosen at compile time, so
//! the calls are inlined. The runtime supplies its spin lock, which keeps preemption off, and its
//! lists of user threads; [`Single`] supplies cells that panic when they are locked twice, for
//! programs with one thread. Moving the locks out to the runtime instead, around a core with `&mut
//! self`, would put one lock around all sockets, or the tables that find sockets into the runtime.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "tcp"), allow(dead_code, reason = "TCP uses it"))]

extern crate alloc;

mod addressing;
mod announcer;
mod arrived;
mod config;
mod counters;
mod error;
mod hash;
mod limiter;
mod loopback;
mod neighbour;
pub mod outlet;
mod padded;
mod path_mtu;
pub mod platform;
mod reassembly;
pub mod single;
pub mod stack;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod udp;

pub use config::{
    ConfigError, DEFAULT_CONNECTIONS, DEFAULT_UDP_RECEIVE_BYTES, Ipv6Config, MAX_MTU, Mode, NetConfig,
};
pub use counters::{CountedEvent, NetCounters};
pub use error::{MAX_DATAGRAM, SendError};
pub use loopback::{LocalPacket, LoopbackBatch};
pub use outlet::{InputBatch, NoBatch, Outlet, OutletError, RETRY};
pub use platform::{Outcome, Platform};
pub use single::Single;
pub use stack::ending::{Ending, Owed};
pub use stack::{Instance, Progress, Stack};
