//! The service on a standalone runtime, asked over the runtime's own loopback network.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tailwater::net::UdpSocket;
use tailwater_spin::Spinner;
use tailwater_spin::service::{Dispatch, Service};
use tailwater_workload::spin::{Reply, Request};

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();

/// Sends `requests` one after the other, each after a datagram that is not a request, and checks
/// each reply.
fn ask(server: SocketAddr, requests: u64) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut bytes = [0; 64];
    for id in 0..requests {
        let request = Request { id, work_ns: 1_000, sent_ns: 17 };
        socket.send(b"not a request")?;
        socket.send(&request.encode())?;
        let len = socket.recv(&mut bytes)?;
        assert_eq!(Reply::decode(&bytes[..len]).unwrap().request, request);
    }
    Ok(())
}

#[test]
fn requests_are_answered_by_workers_and_by_threads_of_their_own() {
    let counts = tailwater::Builder::new().kthreads(2).run(|| {
        [Dispatch::Workers, Dispatch::SpawnPerRequest].map(|dispatch| {
            let listen = "127.0.0.1:0".parse().unwrap();
            let service = Service::start(listen, dispatch, Spinner::with_speed(1_000_000)).unwrap();
            ask(service.local_addr().unwrap(), 100).unwrap();
            service.counts_reader()
        })
    });
    for reader in counts.unwrap() {
        let counts = reader.counts();
        // The last request of each may be counted a moment after its reply was sent.
        assert!((99..=100).contains(&counts.served), "{counts:?}");
        assert!((99..=100).contains(&counts.malformed) && counts.unsent == 0, "{counts:?}");
    }
}
