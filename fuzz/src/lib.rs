//! Fuzz targets over everything that reads bytes a peer wrote, as functions of those bytes.
//!
//! Owns the inputs of each target and the properties that must hold afterwards. Each function takes
//! any bytes, panics if a property is violated, and has no lasting effect. The binaries in
//! `fuzz_targets/` pass them to libFuzzer; the test `fuzz_corpus` of the system tests replays
//! `corpus/` and `regressions/` through them.
//!
//! | target | the untrusted side | what must hold |
//! |---|---|---|
//! | [`receive`] | another host | the stack does not panic, answers with at most four frames, and what it sends parses |
//! | [`egress`] | a runtime with its shared memory | the IOKernel does not panic, no forged frame leaves it, the neighbour keeps its registration |
//! | [`firewall`] | rules and packets as operations | compiled rules decide and count as a naive evaluator does |
//! | [`control`] | a client at the control socket | a message or a typed error; a message survives a round trip |
//! | [`spin`] | a client of the spin server | a request or a typed error; what decodes encodes back to the same bytes |
//! | [`kv_stream`] | a client of the store over TCP | invariants, memory limit, bounded buffers; pieces do not change answers |
//! | [`kv_datagram`] | a client of the store over UDP | the same; answers are numbered messages |
//! | [`tcp_segment`] | another host | a segment or a typed error; a parsed segment can be written; listeners and connections do not panic |
//! | [`tcp_operations`] | a network, and forgers in it | invariants after each operation, bounded memory, every byte or an error, quiescence at the end |
//! | [`dns_query`] | a client of the DNS server | an answer that parses, is within the length limit, and repeats the question; or none if the bytes are not a query |
//! | [`dns_zone`] | the author of a master file | a zone with all of its names, or problems |

mod dns;
mod egress;
mod firewall;
mod messages;
mod receive;
pub mod seeds;

pub use dns::{dns_query, dns_zone};
pub use egress::egress;
pub use firewall::firewall;
pub use messages::{control, spin};
pub use receive::receive;
pub use tailwater_kv::fuzzing::{datagram as kv_datagram, stream as kv_stream};
pub use tailwater_tcp::fuzzing::{operations as tcp_operations, segment as tcp_segment};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets by the name of their corpus.
pub const TARGETS: [(&str, Target); 11] = [
    ("receive", receive),
    ("egress", egress),
    ("firewall", firewall),
    ("control", control),
    ("spin", spin),
    ("kv_stream", kv_stream),
    ("kv_datagram", kv_datagram),
    ("tcp_segment", tcp_segment),
    ("tcp_operations", tcp_operations),
    ("dns_query", dns_query),
    ("dns_zone", dns_zone),
];
