//! Tailwater: user threads, synchronisation, timers and sockets for services that share a machine
//! with batch work.
//!
//! The API mirrors `std`: [`thread`], [`sync`], [`time`], [`net`]; [`blocking`](fn@blocking) is for
//! what has no counterpart here. A program becomes a Tailwater program with one attribute:
//!
//! ```no_run,standalone_crate
//! #[tailwater::main]
//! fn main() {
//!     let workers: Vec<_> = (0..100).map(|i| tailwater::thread::spawn(move || i * i)).collect();
//!     let sum: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
//!     println!("{sum}");
//! }
//! ```
//!
//! Without further settings it runs *standalone*, on its own OS threads with a loopback network.
//! With `TAILWATER_IOKERNEL` naming the control socket of a `tailwater iokernel`, the same binary
//! runs *attached*: on cores the IOKernel lends it from microsecond to microsecond, with an address
//! of its own.
//!
//! # Which way to take
//! Use threads, one for each connection or request: [`thread`] and [`net`], as with `std`. Starting
//! and joining one takes a tenth of a microsecond, and threads work together with all other ways.
//! Two kinds of requests, and two kinds of existing code, are better served otherwise:
//!
//! | if | take |
//! |---|---|
//! | requests differ much in length, and short ones wait behind long ones | [`dispatch`]: classified requests, preempted in the order of a policy |
//! | a request costs less than a switch of threads, or there are very many connections | [`events`]: a loop that handles each event to completion |
//! | the code is made of futures (hyper, tonic) | `future`, a feature that is off by default |
//! | the code is a loop around `epoll` or `mio` | `readiness`, a feature that is off by default |
//!
//! # Features
//! These are on by default. With `default-features = false` a program builds half as many crates.
//!
//! | feature | has |
//! |---|---|
//! | `config-file` | settings from the TOML file that `TAILWATER_CONFIG` names |
//! | `debug` | [dumps](dump) of all user threads, and backtraces in the stall detector's reports |
//! | `dispatch` | servers of classified requests in [`dispatch`] |
//! | `estimation` | the estimate of the [`cores`] that a program needs |
//! | `signal` | waiting for signals in [`signal`] |
//! | `tcp` | TCP sockets in [`net`], and [`events`] |
//!
//! Off by default:
//!
//! | feature | has |
//! |---|---|
//! | `future` | tasks, timers and sockets for async code in `future` |
//! | `readiness` | a poller over many sockets, channels and timers in `readiness` |
//! | `libc-waits` | waits in the C library that give the core away: `RuntimeBuilder::adopt_libc_waits` |
//! | `futures-io`, `tokio-io`, `hyper` | the reading and writing traits of these crates for the sockets of `future` |
//!
//! # What a user thread may do
//! Everything ordinary Rust does: `thread_local!`, panics, `HashMap` and allocation belong to the
//! user thread even when it is preempted and continues on another OS thread. Two things cost more
//! than they seem to: a blocking system call holds up the core's other threads, and so does waiting
//! for a `std::sync::Mutex` whose holder is not running. Use [`sync`] and [`net`]; with the feature
//! `libc-waits`, `RuntimeBuilder::adopt_libc_waits` makes the second cost little.
//!
//! # Poll points
//! A thread gives its core up quickly when it reaches a poll point: every blocking call, every
//! socket call, `spawn`, and [`poll()`], which long loops should call every microsecond or
//! so (it costs about a nanosecond). A thread that reaches none is interrupted by a signal: a few
//! microseconds later if the IOKernel reclaims the core, some milliseconds later if a
//! [`quantum`](RuntimeBuilder::quantum) is set and over.
// Under loom only the ground layer is built, for its models. The layers below do not ask for
// features: without `debug`, a dump's accessors are left over; without `dispatch`, its hooks;
// without `future` and `readiness`, what they read of sockets and channels; without `libc-waits`,
// the word that a resident waits for.
#![cfg_attr(
    any(
        loom,
        not(all(
            feature = "debug",
            feature = "dispatch",
            feature = "future",
            feature = "libc-waits",
            feature = "readiness"
        ))
    ),
    allow(dead_code, reason = "the layers above use it")
)]

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux",
    target_env = "gnu"
)))]
compile_error!(
    "Tailwater runs on x86_64-unknown-linux-gnu only: it switches stacks in x86-64 assembly and depends on glibc's thread-local storage"
);

mod ground;

#[cfg(not(loom))]
#[doc(hidden)]
#[path = "preemptible.rs"]
pub mod __preemptible;
#[cfg(not(loom))]
mod alloc;
#[cfg(not(loom))]
mod attach;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
mod boot;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
pub mod cores;
#[cfg(not(loom))]
pub mod debug;
#[cfg(all(feature = "dispatch", not(loom)))]
pub mod dispatch;
#[cfg(not(loom))]
mod egress;
#[cfg(not(loom))]
mod error;
#[cfg(all(feature = "tcp", not(loom)))]
pub mod events;
#[cfg(not(loom))]
mod exit;
#[cfg(all(feature = "future", not(loom)))]
pub mod future;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod internals;
#[cfg(all(feature = "libc-waits", not(loom)))]
mod libc_waits;
#[cfg(not(loom))]
mod mutex_protocol;
#[cfg(not(loom))]
pub mod net;
#[cfg(all(feature = "readiness", not(loom)))]
pub mod readiness;
#[cfg(not(loom))]
mod records;
#[cfg(all(feature = "readiness", not(loom)))]
#[doc(hidden)]
pub mod resident;
#[cfg(all(feature = "signal", not(loom)))]
pub mod signal;
#[cfg(not(loom))]
pub mod sync;
#[cfg(not(loom))]
pub mod testing;
#[cfg(not(loom))]
pub mod thread;
#[cfg(not(loom))]
pub mod time;
#[cfg(all(any(feature = "readiness", feature = "tcp"), not(loom)))]
mod token;
#[cfg(not(loom))]
mod verbs;

#[cfg(all(feature = "debug", not(loom)))]
pub use debug::{DumpSignal, dump};
#[cfg(all(feature = "libc-waits", not(loom)))]
pub use tailwater_libc_waits::RedirectError as LibcWaitsError;
/// Runs `main` as the first user thread of a runtime configured by the environment, and installs
/// the allocator guard.
pub use tailwater_macros::main;
/// Puts poll points into a function, an `impl` or a module.
pub use tailwater_macros::preemptible;
/// Runs a test as a user thread of the runtime that the tests of a process share: see [`testing`].
pub use tailwater_macros::test;
/// The poll point that `libtailwater` has programs of C call. No part of the API.
#[cfg(not(loom))]
#[doc(hidden)]
pub use verbs::switch::poll_keeping_registers as __poll_keeping_registers;
#[cfg(not(loom))]
pub use {
    alloc::Alloc,
    blocking::blocking,
    config::{OnIoKernelLoss, ProgramClass, RuntimeBuilder},
    error::{AttachError, ConfigError, StartError},
    ground::memory::StackError,
    ground::tls::TlsError,
    verbs::preempt::no_preempt,
    verbs::switch::poll,
};
