//! `libtailwater_posix.so`: sockets and epoll of programs that were not written for Tailwater, by
//! `LD_PRELOAD`.
//!
//! Exports functions of the C library for descriptors, and for what a thread must do on its own OS
//! thread; all else stays the C library's. Nothing is started before the program uses a socket that
//! Tailwater serves, so shells, daemons and masters of other processes cost nothing.
//!
//! ```text
//! calls     the C interface: pointers and errno                 unsafe
//! real      the C library's own functions                       unsafe
//! table     descriptor -> File                                  pure
//! file      what a descriptor is: connection, listener, UDP socket, set
//! datagrams the second side of a UDP socket
//! set       one epoll set: Tailwater's objects and the kernel's
//! ready     poll(2) and select(2) over both
//! kept      epoll registrations of sockets that may be served later
//! kernel    waits for the kernel's descriptors, one thread
//! own       descriptors of the library itself
//! start     when the runtime starts, and which addresses it serves
//! ```
//!
//! # Descriptors
//! A number is a descriptor of the kernel, always. A connection that Tailwater serves has the
//! number of a kernel socket that is not connected, so a call that this library does not know fails
//! with `ENOTCONN` instead of reaching something else. A listener is both: the kernel's, which
//! keeps the port and takes Linux's clients, and Tailwater's. So is a UDP socket.
//!
//! # Threads
//! A thread that calls for a served descriptor runs on a kthread from then on
//! ([`tailwater::resident`]), and goes home for what waits in the C library.
//!
//! The library's own code, the runtime's too, calls these functions as any other: a call with
//! preemption off, or of a thread of the runtime, is the C library's.
//!
//! # Neighbours
//! The runtime (`tailwater`) has the stack, the pollers and the threads; `tailwater run --posix`
//! starts programs with this library.

mod address;
mod calls;
mod datagrams;
mod file;
mod forked;
mod kept;
mod kernel;
mod own;
mod ready;
mod real;
mod set;
mod start;
mod table;
mod transfer;

tailwater::allocator!();
