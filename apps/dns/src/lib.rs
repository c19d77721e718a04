//! An authoritative DNS server over UDP and TCP, on Tailwater or on kernel sockets.
//!
//! Owns the pure part, [names](name), [record data](rdata), [zones](zone), [catalogs](catalog) and
//! [answers](answer), which uses neither sockets nor clocks, and of the runtime only a poll point
//! between two hashes; the zones being served and their [reload](store); the [server](serve) on
//! either kind of sockets, or [behind dispatchers](dispatched); its [command line](cli). The wire
//! format is the crate `domain`'s.

#![forbid(unsafe_code)]

pub mod answer;
pub mod catalog;
pub mod cli;
pub mod dispatched;
pub mod linux;
pub mod name;
pub mod rdata;
pub mod serve;
pub mod service;
pub mod store;
pub mod zone;
