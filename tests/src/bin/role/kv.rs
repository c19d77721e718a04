//! The store as a role.

use tailwater_kv::clock::Clock;
use tailwater_kv::server::user_threads;
use tailwater_kv::service::{Service, Settings};
use tailwater_kv::store::{Config, Store};

use crate::ready;

/// Serves memcached's port over TCP and UDP, for ever.
pub fn serve() {
    let config = Config { memory: 64 << 20, max_item: 1 << 20, evict: true, secret: [1, 2] };
    let settings = Settings { udp_port: 11211, listen: "0.0.0.0".to_owned(), ..Settings::default() };
    let service = Service::new(Store::new(config).expect("64 MiB of address space"), settings);
    user_threads::start(&service, Clock::start()).expect("the ports are free");
    ready();
    loop {
        tailwater::thread::park();
    }
}
