//! RocksDB service: GET, SCAN and PUT of an ordered store, the service of Shinjuku's evaluation
//! (NSDI'19, section 4).
//!
//! Owns the `store`, the execution of a request (`request`), the `service` on Tailwater, the same
//! on kernel sockets (`linux`) for baselines with the conversion of a connection's bytes into
//! messages (`stream`), and the [command line](cli). The protocol is [`tailwater_workload::rocks`].
//!
//! Every system under comparison runs `request::handle`, so they differ only in what carries the
//! request to it.
//!
//! Everything except the command line needs the feature `rocksdb` and the system's librocksdb;
//! without them, [`cli::run`] returns an error that says so.
//!
//! `unsafe` is in `store` and below, which calls C.

#![deny(unsafe_code)]

pub mod cli;
#[cfg(feature = "rocksdb")]
pub mod linux;
#[cfg(feature = "rocksdb")]
pub mod request;
#[cfg(feature = "rocksdb")]
pub mod service;
#[cfg(feature = "rocksdb")]
pub mod store;
#[cfg(feature = "rocksdb")]
pub mod stream;

#[cfg(feature = "rocksdb")]
pub use request::Counts;
#[cfg(feature = "rocksdb")]
pub use store::Store;
