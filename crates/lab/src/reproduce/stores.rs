//! The common part of figures with key-value stores: requests, medium and conditions.

use std::sync::Arc;

use tailwater_loadgen::protocol::{Medium, Memcached, Protocol};
use tailwater_workload::keyvalue::Workload;

use tailwater_testbed::port::CONNECTIONS;
use tailwater_testbed::program::Program;

/// The name of this project's curve.
pub const TAILWATER: &str = "Tailwater, kv";
pub const MEMCACHED: &str = "Linux, memcached";
/// The name of the curve of the same memcached on Tailwater.
pub const MEMCACHED_AS_IT_IS: &str = "Tailwater, memcached";
/// The unit of the loads.
pub const UNIT: &str = "thousand requests/s";
/// Maximum number of requests of the generator on kernel sockets, in this unit.
pub const MAX_GENERATOR_RATE: f64 = 300.0;
/// The medium of the requests, as in the papers.
pub const MEDIUM: Medium = Medium::Stream;
/// Keys of the store, all stored before each point.
const KEYS: u64 = 20_000;

/// Returns the requests of a generator to a store.
pub fn requests(workload: Workload) -> Arc<dyn Protocol> {
    Arc::new(Memcached::new(workload, KEYS, MEDIUM).expect("the number of keys is in bounds"))
}

/// Returns the conditions of every comparison with memcached.
pub fn conditions() -> [String; 3] {
    [
        format!(
            "Requests of both are over TCP: {} connections, up to {} requests unanswered on each. {KEYS} keys are stored before \
             each point, and every answer is checked.",
            CONNECTIONS.count, CONNECTIONS.pipeline
        ),
        "On Linux the generator is on kernel sockets on the core that polls otherwise; memcached has one thread per shared \
         core, unless its curve says otherwise, and the highest priority."
            .to_owned(),
        match Program::memcached(1, requests(Workload::Usr)) {
            Some(_) => "The machine's own memcached, with its settings as they come.".to_owned(),
            None => "memcached is not installed: it is left out.".to_owned(),
        },
    ]
}
