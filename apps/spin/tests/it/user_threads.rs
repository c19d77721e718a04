//! The service on a standalone runtime, asked over the runtime's own loopback network.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tailwater_testkit::{PATIENCE, own_process};

use tailwater::net::UdpSocket;
use tailwater_spin::background::Background;
use tailwater_spin::classes::Classes;
use tailwater_spin::service::{Dispatch, Service};
use tailwater_spin::{Counts, Spinner};
use tailwater_workload::spin::{Reply, Request};

/// Sends `requests` one after the other, each after a datagram that is not a request, and checks
/// each reply.
fn ask(server: SocketAddr, requests: u64) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
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

/// Starts a service, asks it, and returns its counts.
fn serve(dispatch: Dispatch) -> Counts {
    let listen = "127.0.0.1:0".parse().unwrap();
    let service = Service::start(listen, dispatch, Spinner::with_speed(1_000_000)).unwrap();
    ask(service.local_addr().unwrap(), 100).unwrap();
    let reader = service.counts_reader();
    let all = |counts: Counts| (counts.served, counts.malformed) == (100, 100);
    // A datagram may be counted a moment after a later one was answered.
    let begin = Instant::now();
    while !all(reader.counts()) && begin.elapsed() < PATIENCE {
        tailwater::thread::sleep(Duration::from_millis(1));
    }
    reader.counts()
}

#[test]
fn requests_are_answered_by_workers_by_threads_of_their_own_by_class_and_beside_a_background() {
    own_process(|| {
        let counts = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            let classes = ["500ns=50us", "10us=1ms"].map(|class| class.parse().unwrap());
            let by_class = Classes::new("mq:5us".parse().unwrap(), classes.into());
            let ahead = Classes::new("jbsq:2,5us".parse().unwrap(), Vec::new());
            let ways = [
                Dispatch::Workers,
                Dispatch::SpawnPerRequest,
                Dispatch::Policy(by_class),
                Dispatch::Policy(ahead),
            ];
            let mut all_counts = ways.map(serve).to_vec();
            let background = Background::start().unwrap();
            all_counts.push(serve(Dispatch::Workers));
            let begin = Instant::now();
            while background.trials_done() == 0 && begin.elapsed() < PATIENCE {
                tailwater::thread::sleep(Duration::from_millis(1));
            }
            assert!(background.trials_done() > 0, "it runs where no request does");
            all_counts
        });
        for counts in counts.unwrap() {
            assert_eq!((counts.served, counts.malformed, counts.unsent), (100, 100, 0), "{counts:?}");
        }
    });
}
