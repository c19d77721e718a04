//! The service on a standalone runtime, asked over the runtime's own loopback network.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwater::net::{TcpStream, UdpSocket};
use tailwater_rocks::request::Limits;
use tailwater_rocks::service::{Config, IN_FLIGHT, PER_CONNECTION, Service};
use tailwater_rocks::{Store, store};
use tailwater_testkit::{PATIENCE, memory_folder, own_process};
use tailwater_workload::rocks::{HEADER_LEN, Header, Operation, ScanSum, Status, write_value};

const KEYS: u64 = 10_000;
const VALUE: usize = 100;
/// Minimum time by which the runtime's stack delays an acknowledgement.
const DELAYED_ACK: Duration = Duration::from_millis(2);

fn loaded(folder: &tempfile::TempDir) -> Arc<Store> {
    let store = Store::open(&store::Config::new(&folder.path().join("db"))).unwrap();
    store.load(KEYS, VALUE).unwrap();
    Arc::new(store)
}

fn start(store: Arc<Store>, idle: Duration) -> Service {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let limits = Limits { scan: KEYS as u32, idle, ..Limits::default() };
    Service::start(&Config { listen, policy: "sq:15us".parse().unwrap(), dispatchers: 0, limits }, store)
        .unwrap()
}

fn value(key: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_value(key, VALUE, &mut bytes);
    bytes
}

fn request(operation: Operation, id: u64, key: u64, count: u32, body: &[u8]) -> Vec<u8> {
    let header = Header { body_len: body.len() as u32, ..Header::request(operation, id, key, count) };
    [&header.encode()[..], body].concat()
}

/// Reads one reply: its header and its body.
fn reply(stream: &mut impl Read) -> io::Result<(Header, Vec<u8>)> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header)?;
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body)?;
    Ok((header, body))
}

#[test]
fn the_service_answers() {
    own_process(|| {
        let folder = memory_folder();
        let store = loaded(&folder);
        let run = tailwater::RuntimeBuilder::new().kthreads(2).run(move || {
            let service = start(Arc::clone(&store), PATIENCE);
            let server = service.local_addr();
            let counts = service.clone();
            datagrams_are_answered_and_others_dropped(server);
            // Another user thread may have answered the requests behind one that is not counted
            // yet.
            let begin = Instant::now();
            while counts.counts().malformed < 200 {
                assert!(begin.elapsed() < PATIENCE, "{:?}", counts.counts());
                tailwater::thread::yield_now();
            }
            assert_eq!(counts.counts().malformed, 200);
            a_get_is_answered_before_the_scans_asked_for_earlier(server);
            replies_do_not_wait_for_the_acknowledgement_of_others(server);
            many_connections_read_what_they_wrote(server);
            a_connection_with_something_else_is_closed(server);
            a_client_that_does_not_read_holds_up_nobody_else(server, &counts);
            assert_eq!((counts.counts().failed, counts.counts().dropped), (0, 0));
            for class in counts.classes() {
                assert!(class.finished > 0 && class.dropped + class.panicked == 0, "{class}");
            }
            assert!(counts.classes()[2].preemptions > 0, "no SCAN gave way");
            a_policy_that_needs_the_work_is_refused(&store);
            let impatient = start(store, Duration::from_millis(200));
            who_takes_nothing_or_says_nothing_is_closed(&impatient);
        });
        run.unwrap();
    });
}

fn a_policy_that_needs_the_work_is_refused(store: &Arc<Store>) {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config =
        Config { listen, policy: "srpt".parse().unwrap(), dispatchers: 0, limits: Limits::default() };
    let error = Service::start(&config, Arc::clone(store)).unwrap_err().to_string();
    assert!(error.contains("use mq:5us"), "{error}");
}

fn datagrams_are_answered_and_others_dropped(server: SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = vec![0; 2_000];
    let mut ask = |request: Vec<u8>| {
        socket.send(&request).unwrap();
        let len = socket.recv(&mut bytes).unwrap();
        reply(&mut &bytes[..len]).unwrap()
    };
    for id in 0..200u64 {
        let key = id * 37 % KEYS;
        socket.send(b"not a request").unwrap();
        let (header, body) = ask(request(Operation::Get, id, key, 0, b""));
        assert_eq!((header.id, header.key, header.status), (id, key, Some(Status::Done)));
        assert_eq!(body, value(key));
    }
    let (header, body) = ask(request(Operation::Scan, 1, KEYS - 5, 100, b""));
    assert_eq!((header.count, ScanSum::decode(&body)), (5, Some(ScanSum::expected(KEYS - 5, 5, VALUE))));
    assert_eq!(ask(request(Operation::Put, 2, 1 << 50, 0, b"far")).0.status, Some(Status::Done));
    assert_eq!(ask(request(Operation::Get, 3, 1 << 50, 0, b"")).1, b"far");
    assert_eq!(ask(request(Operation::Get, 4, 1 << 51, 0, b"")).0.status, Some(Status::NotFound));
    let (header, _) = ask(request(Operation::Scan, 5, 0, KEYS as u32 + 1, b""));
    assert_eq!(header.status, Some(Status::Refused));
}

fn a_get_is_answered_before_the_scans_asked_for_earlier(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // All requests arrive together, and the SCANs are started first.
    let scan = |id| request(Operation::Scan, id, 0, KEYS as u32, b"");
    let requests = [scan(1), scan(2), scan(3), request(Operation::Get, 4, 4, 0, b"")].concat();
    // Nearly always the first round: a SCAN takes a few hundred quanta. Where threads run to their
    // end, the GET is begun after two SCANs have ended, and never comes first.
    let (begin, mut is_early) = (Instant::now(), false);
    while !is_early {
        assert!(begin.elapsed() < PATIENCE, "the GET never came first");
        stream.write_all(&requests).unwrap();
        let order: Vec<u64> = (0..4).map(|_| reply(&mut stream).unwrap().0.id).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3, 4]);
        is_early = order[0] == 4;
    }
}

fn replies_do_not_wait_for_the_acknowledgement_of_others(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let requests = [request(Operation::Get, 1, 1, 0, b""), request(Operation::Get, 2, 2, 0, b"")].concat();
    let times = std::iter::repeat_with(|| {
        let begin = Instant::now();
        stream.write_all(&requests).unwrap();
        (0..2).for_each(|_| drop(reply(&mut stream).unwrap()));
        begin.elapsed()
    });
    // The first segments of a connection are acknowledged at once. If replies waited, each later
    // round would take as long as this client delays its acknowledgement. On a busy machine some
    // take as long anyway.
    let begin = Instant::now();
    let mut in_time = times.skip(10).take_while(|_| begin.elapsed() < PATIENCE);
    let quick = in_time.find(|&time| time < DELAYED_ACK);
    assert!(quick.is_some(), "all rounds wait for an acknowledgement");
}

fn many_connections_read_what_they_wrote(server: SocketAddr) {
    let clients: Vec<_> = (0..8u64)
        .map(|client| {
            tailwater::thread::spawn(move || {
                let mut stream = TcpStream::connect(server).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                for round in 0..100u64 {
                    let (key, body) =
                        (KEYS + client * 1_000 + round, vec![client as u8; round as usize * 20]);
                    stream.write_all(&request(Operation::Put, 2 * round, key, 0, &body)).unwrap();
                    assert_eq!(reply(&mut stream).unwrap().0.status, Some(Status::Done));
                    stream.write_all(&request(Operation::Get, 2 * round + 1, key, 0, b"")).unwrap();
                    assert_eq!(reply(&mut stream).unwrap().1, body);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
}

fn a_connection_with_something_else_is_closed(server: SocketAddr) {
    let answer = Header { status: Some(Status::Done), ..Header::request(Operation::Get, 1, 2, 0) }.encode();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &answer] {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        // An end or a reset, not a timeout.
        let end = stream.read(&mut [0; 1]);
        assert!(
            !matches!(&end, Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::TimedOut)
        );
        assert!(!matches!(end, Ok(1..)));
    }
}

fn a_client_that_does_not_read_holds_up_nobody_else(server: SocketAddr, counts: &Service) {
    let mut other = TcpStream::connect(server).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let big = vec![7; 1 << 20];
    other.write_all(&request(Operation::Put, 1, 1 << 40, 0, &big)).unwrap();
    assert_eq!(reply(&mut other).unwrap().0.status, Some(Status::Done));
    // More replies than all buffers on the path hold, and more than one connection has in flight.
    let mut deaf = TcpStream::connect(server).unwrap();
    let asks = (0..IN_FLIGHT as u64).flat_map(|id| request(Operation::Get, id, 1 << 40, 0, b""));
    deaf.write_all(&asks.collect::<Vec<u8>>()).unwrap();
    for key in 0..100 {
        other.write_all(&request(Operation::Get, key, key, 0, b"")).unwrap();
        assert_eq!(reply(&mut other).unwrap().1, value(key));
    }
    // The memory of read requests without written replies is bounded, however many requests were
    // sent. The other connection's last reply is short.
    let begin = Instant::now();
    loop {
        let held = counts.held();
        assert!(held <= PER_CONNECTION as u64 + 4_096, "{held} bytes for one connection");
        if held > 2 << 20 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "only {held} bytes are held for the client that does not read");
        tailwater::thread::yield_now();
    }
    for _ in 0..IN_FLIGHT {
        assert_eq!(reply(&mut deaf).unwrap().1, big);
    }
}

/// The key that this stores has a value of 1 MiB already.
fn who_takes_nothing_or_says_nothing_is_closed(service: &Service) {
    let (server, counts) = (service.local_addr(), service);
    let asks: Vec<u8> =
        (0..IN_FLIGHT as u64).flat_map(|id| request(Operation::Get, id, 1 << 40, 0, b"")).collect();
    let drips = Header { body_len: 1 << 20, ..Header::request(Operation::Put, 1, 1, 0) }.encode();
    for (said, answered) in [(&asks[..], true), (&drips, false), (b"", false)] {
        let begin = Instant::now();
        // On a busy machine a connection may be closed before this thread has sent anything: then
        // another is made.
        let mut stream = loop {
            assert!(begin.elapsed() < PATIENCE, "every connection is closed at once");
            let mut stream = TcpStream::connect(server).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let sent = stream.write_all(said);
            if sent.is_ok() && (!answered || matches!(stream.peek(&mut [0]), Ok(1..))) {
                break stream;
            }
        };
        // Replies that the client does not read are counted when they are given up.
        while answered && counts.counts().unsent == 0 {
            assert!(begin.elapsed() < PATIENCE, "it is still open");
            tailwater::thread::sleep(Duration::from_millis(5));
        }
        // An end or a reset, not a timeout.
        let mut taken = Vec::new();
        let end = stream.read_to_end(&mut taken);
        assert!(
            !matches!(&end, Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::TimedOut)
        );
        assert_eq!(taken.is_empty(), !answered);
    }
    let begin = Instant::now();
    while counts.held() > 0 {
        assert!(begin.elapsed() < PATIENCE, "{} bytes are still held", counts.held());
        tailwater::thread::sleep(Duration::from_millis(5));
    }
}
