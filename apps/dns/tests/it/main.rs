//! The name server against the RFCs, other name servers and a model.

mod answers;
mod command;
mod common;
mod differential;
mod model;
mod references;
mod rfc_examples;
mod server;
mod types;
mod zone_files;

tailwater::allocator!();
