//! What the figures with key-value stores have in common: what a store is asked, over what, and what their readers must know.

use std::sync::Arc;

use tailwater_loadgen::protocol::{Medium, Memcached, Protocol};
use tailwater_workload::keyvalue::Workload;

use crate::testbed::port::CONNECTIONS;
use crate::testbed::program::Program;

/// Names of the curves.
pub const TAILWATER: &str = "Tailwater, kv";
pub const MEMCACHED: &str = "Linux, memcached";
/// Of the loads.
pub const UNIT: &str = "thousand requests/s";
/// What the generator on kernel sockets sends at most, in these.
pub const GENERATORS_MOST: f64 = 300.0;
/// What carries the requests, as in the papers.
pub const MEDIUM: Medium = Medium::Stream;
/// Keys of the store, all of them stored before each point.
const KEYS: u64 = 20_000;

/// What a generator asks of a store.
pub fn asked(workload: Workload) -> Arc<dyn Protocol> {
    Arc::new(Memcached::new(workload, KEYS, MEDIUM).expect("the number of keys is in bounds"))
}

/// What a reader must know of any comparison with memcached.
pub fn conditions() -> [String; 3] {
    [
        format!(
            "Requests of both are over TCP: {} connections, up to {} requests unanswered on each. {KEYS} keys are stored before \
             each point, and every answer is checked.",
            CONNECTIONS.count, CONNECTIONS.pipeline
        ),
        "On Linux the generator is on kernel sockets on the core that polls otherwise; memcached has one \
         thread per shared core and the highest priority."
            .to_owned(),
        match Program::memcached(1, asked(Workload::Usr)) {
            Some(_) => "The machine's own memcached, with its settings as they come.".to_owned(),
            None => "memcached is not installed: it is left out.".to_owned(),
        },
    ]
}
