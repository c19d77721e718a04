//! A service whose requests end only when all its workers run one at the same time.

use super::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater::cores;
use tailwater::dispatch::{Service, Settings, UdpServer};
use tailwater::net::UdpSocket;
use tailwater::thread;

struct Gather {
    workers: usize,
    /// Requests that have begun.
    begun: AtomicUsize,
}

impl Service for Gather {
    fn classify(&self, _request: &[u8]) -> usize {
        0
    }

    /// Waits until as many requests have begun as there are workers, counted in such rounds;
    /// replies with the core on which it then runs.
    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        let round = self.begun.fetch_add(1, Ordering::SeqCst) / self.workers;
        while self.begun.load(Ordering::SeqCst) < (round + 1) * self.workers {
            tailwater::poll();
        }
        reply.extend_from_slice(request);
        reply.extend((rustix::thread::sched_getcpu() as u16).to_be_bytes());
    }
}

/// Serves port 7 by a dispatcher on a core of its own and this many workers, which requests their
/// cores.
pub fn run(workers: usize) {
    cores::request(workers);
    let socket = UdpSocket::bind("[::]:7").expect("port 7 is free");
    let settings = Settings::new("jbsq:2".parse().expect("a policy"));
    let gather = Gather { workers, begun: AtomicUsize::new(0) };
    let _server = UdpServer::start(socket, gather, settings).expect("it starts");
    ready();
    loop {
        thread::park();
    }
}
