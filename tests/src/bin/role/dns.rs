//! The DNS server with the zone `example.` from the file in ZONE.

use std::net::SocketAddr;
use std::sync::Arc;
use tailwater_dns::serve::{Limits, Shared};
use tailwater_dns::service::Service;
use tailwater_dns::store::{Source, Store};

use crate::ready;

/// Serves on port 53, for ever.
pub fn serve() {
    let file = std::env::var_os("ZONE").expect("a zone file").into();
    // `example.` on the wire.
    let origin = domain::base::Name::from_octets(*b"\x07example\0").expect("a name");
    let source = Source { origin: tailwater_dns::name::store(&origin), file };
    let store = tailwater::blocking(|| Store::open(vec![source])).expect("the zone is right");
    let shared = Arc::new(Shared::new(store, Limits::default()));
    let service = Service::start(&[SocketAddr::from(([0, 0, 0, 0], 53))], &shared).expect("port 53 is free");
    ready();
    service.join().expect("no thread panics");
}
