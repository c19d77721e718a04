//! `libtailwater`: the runtime for C and C++, as functions of the C ABI.
//!
//! Owns the names of `tailwater.h`, the storage of C's objects, the table of descriptors, and the
//! border: what crosses it are numbers, addresses and callbacks. Has no mechanism of its own but
//! that table ([`net::table`]): each function is one of the crate `tailwater`, with C's shape.
//! Beside the runtime's public interface it uses libc and two hidden things of the runtime:
//! `tailwater::internals` (spin locks, wait lists) and `tailwater::__poll_keeping_registers`.
//!
//! # The border
//! * A panic ends the process: every function is `extern "C"`, which aborts.
//! * A C++ exception that leaves a callback ends the process by `std::terminate`, as one that
//!   leaves a `std::thread`: see `border`.
//! * Errors are negative values of `errno`; sockets alone have POSIX's shape.
//! * Addresses that C passes are trusted, as by the C library. Their contracts are in the
//!   documentation of each function, which is that of the header.
//!
//! # Symbols
//! The shared library exports the names that begin with `tw_`, all of version `TAILWATER_0.1`
//! (`tailwater.map`). The runtime's `malloc` family is among the symbols of this crate, as in any
//! Rust program; a program that links the shared library has it from `libtailwater-malloc`
//! (`c/malloc.c`), which calls [`memory`].
//!
//! Neighbours: `include/tailwater.h` is made from this crate by cbindgen and committed; a test
//! compares the two. `include/tailwater.hpp` is C++ over that header. `xtask` links and installs.

#![allow(non_camel_case_types, reason = "these are C's names")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header documents what C must pass, in C's terms, where Rust's checks ask for a section"
)]

mod border;
pub mod channel;
pub mod clock;
pub mod control;
pub mod cores;
pub mod dispatch;
pub mod event_loop;
pub mod key;
pub mod lock;
pub mod meet;
pub mod memory;
pub mod net;
pub mod poller;
pub mod rcu;
pub mod run;
pub mod thread;

// The allocator guard of a C program, for what the runtime allocates.
tailwater::allocator!();
