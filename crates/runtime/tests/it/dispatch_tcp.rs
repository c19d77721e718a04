//! Dispatchers behind TCP listeners on one kthread: requests in any pieces, the order of replies,
//! and what becomes of connections that send something else, too much, or do not read.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{ConnectionStats, Frame, Framing, RequestClass, Service, Settings, TcpServer};
use tailwater::net::{TcpListener, TcpOptions, TcpStream, UdpSocket};
use tailwater::{thread, time};
use tailwater_testkit::{PATIENCE, own_process};

/// Length of a long reply.
const LONG: usize = 64 << 10;

#[test]
fn tcp_servers_on_one_kthread() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            // A turn in which Linux does not run the kthread is not cut short.
            .stall_timeout(Duration::ZERO)
            .run(|| {
                requests_in_any_pieces_are_answered_in_order();
                numbered_replies_overtake();
                replies_follow_the_end_of_the_requests();
                what_is_no_request_closes_its_own_connection();
                a_panic_closes_the_connection_after_the_replies_before();
                replies_arrive_whatever_follows_the_requests();
                a_connection_is_open_until_its_replies_are_acknowledged();
                a_client_that_acknowledges_nothing_is_reset();
                a_client_that_reads_too_slowly_is_reset();
                a_client_that_does_not_read_holds_up_no_other();
                a_full_queue_holds_requests_back();
                a_class_that_fills_its_places_holds_up_no_other();
                a_budget_bounds_what_all_connections_hold();
                datagrams_share_the_dispatcher();
                connections_have_a_bound();
                a_silent_connection_is_closed();
                bounds_out_of_range_are_refused();
            })
            .unwrap();
    });
}

/// Lines. A line that begins with `w`, or with `z`, for which the handler sleeps, is replied to
/// when `go` is set; `x` is malformed, `c` panics
/// in the classifier, `p` in the handler; `-` has no reply, and `l` a long one.
#[derive(Clone, Default)]
struct Lines {
    go: Arc<AtomicBool>,
    begun: Arc<AtomicU32>,
    handled: Arc<AtomicU32>,
}

impl Service for Lines {
    fn classify(&self, line: &[u8]) -> usize {
        assert_ne!(line[0], b'c', "expected by this test");
        usize::from(matches!(line[0], b'w' | b'z'))
    }

    fn reply_len(&self, head: &[u8]) -> usize {
        if head[0] == b'l' { LONG } else { 0 }
    }

    fn handle_datagram(&self, line: &[u8], reply: &mut Vec<u8>) {
        reply.push(b'd');
        self.handle(line, reply);
    }

    fn handle(&self, line: &[u8], reply: &mut Vec<u8>) {
        self.begun.fetch_add(1, Relaxed);
        assert_ne!(line[0], b'p', "expected by this test");
        let start = Instant::now();
        while line[0] == b'w' && !self.go.load(Relaxed) {
            assert!(start.elapsed() < PATIENCE, "nobody lets it go on");
            tailwater::poll();
        }
        while line[0] == b'z' && !self.go.load(Relaxed) {
            assert!(start.elapsed() < PATIENCE, "it is not let go on");
            time::sleep(Duration::from_millis(1));
        }
        self.handled.fetch_add(1, Relaxed);
        match line[0] {
            b'-' => {}
            b'l' => reply.resize(LONG, b'l'),
            _ => reply.extend(line.to_ascii_uppercase()),
        }
    }
}

fn lines() -> Framing {
    Framing::new(|bytes, seen| match bytes[seen..].iter().position(|&byte| byte == b'\n') {
        _ if bytes[0] == b'x' => Frame::Malformed,
        Some(end) => Frame::Request(seen + end + 1),
        None => Frame::Partial,
    })
    .longest(1_000)
}

fn settings() -> Settings {
    Settings::new("sq:5us".parse().unwrap())
        .class(RequestClass::new("short"))
        .class(RequestClass::new("long"))
}

fn server(service: &Lines, framing: Framing) -> TcpServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpServer::start(listener, framing, service.clone(), settings()).unwrap()
}

fn connect(server: &TcpServer) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[track_caller]
fn expect(stream: &mut TcpStream, wanted: &str) {
    let mut bytes = vec![0; wanted.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), wanted);
}

/// Reads to the end, however the server closes the connection.
#[track_caller]
fn expect_end(stream: &mut TcpStream) {
    match stream.read(&mut [0]) {
        Ok(len) => assert_eq!(len, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it does not come to pass");
        thread::yield_now();
    }
}

fn requests_in_any_pieces_are_answered_in_order() {
    let service = Lines::default();
    let server = server(&service, lines());
    let mut client = connect(&server);
    for byte in b"one\ntwo" {
        client.write_all(&[*byte]).unwrap();
        thread::yield_now();
    }
    expect(&mut client, "ONE\n");
    // The one that waits does so until the later ones have been handled.
    client.write_all(b"\nwait\n-\nthree\n-\n").unwrap();
    expect(&mut client, "TWO\n");
    wait_until(|| service.handled.load(Relaxed) == 5);
    service.go.store(true, Relaxed);
    expect(&mut client, "WAIT\nTHREE\n");
    let stats = server.stats();
    assert_eq!((stats[0].accepted, stats[1].accepted), (5, 1));
    assert!(stats[1].preemptions > 0);
    client.write_all(b"amid").unwrap();
    drop(client);
    wait_until(|| server.connections().cut == 1);
}

fn numbered_replies_overtake() {
    let service = Lines::default();
    let server = server(&service, lines().numbered());
    let mut client = connect(&server);
    client.write_all(b"wait\nshort\n").unwrap();
    expect(&mut client, "SHORT\n");
    service.go.store(true, Relaxed);
    expect(&mut client, "WAIT\n");
}

fn replies_follow_the_end_of_the_requests() {
    let service = Lines::default();
    let server = server(&service, lines());
    let mut client = connect(&server);
    client.write_all(b"wait\nshort\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_until(|| service.handled.load(Relaxed) == 1);
    service.go.store(true, Relaxed);
    expect(&mut client, "WAIT\nSHORT\n");
    expect_end(&mut client);
    assert_eq!(server.connections(), stats(|stats| stats.accepted = 1));
}

/// Returns the counters that `set` sets, and 0 for the others.
fn stats(set: impl FnOnce(&mut ConnectionStats)) -> ConnectionStats {
    let mut stats = ConnectionStats::default();
    set(&mut stats);
    stats
}

fn what_is_no_request_closes_its_own_connection() {
    let service = Lines::default();
    let server = server(&service, lines());
    let mut good = connect(&server);
    good.write_all(b"one\n").unwrap();
    expect(&mut good, "ONE\n");
    let long = [b'a'; 1_000];
    for bytes in [&b"xyz\n"[..], &long, b"class?\n"] {
        let mut bad = connect(&server);
        bad.write_all(bytes).unwrap();
        expect_end(&mut bad);
    }
    good.write_all(b"two\n").unwrap();
    expect(&mut good, "TWO\n");
    let wanted = stats(|stats| {
        (stats.accepted, stats.malformed, stats.too_long, stats.unclassified) = (4, 1, 1, 1);
    });
    assert_eq!(server.connections(), wanted);
}

fn a_panic_closes_the_connection_after_the_replies_before() {
    let service = Lines::default();
    let server = server(&service, lines());
    let mut client = connect(&server);
    client.write_all(b"wait\npanic\nlost\n").unwrap();
    wait_until(|| server.stats()[0].finished == 2);
    service.go.store(true, Relaxed);
    expect(&mut client, "WAIT\n");
    expect_end(&mut client);
    drop(client);
    // As soon as the last thread has left the connection.
    wait_until(|| server.connections().unsent == 1);
    assert_eq!(server.stats()[0].panicked, 1);
}

/// Connects with little room for replies.
fn connect_with_little_room(server: &TcpServer) -> TcpStream {
    let stream = TcpOptions::new().receive_buffer(LONG).connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn replies_arrive_whatever_follows_the_requests() {
    for end in ["x", "panic\n", "class?\n", "amid"] {
        let server = server(&Lines::default(), lines());
        let mut client = connect_with_little_room(&server);
        client.write_all(format!("l\nl\nl\n{end}").as_bytes()).unwrap();
        // Bytes that nothing asks for, when the connection is over or soon before.
        client.write_all(&[b'a'; 100_000]).unwrap();
        let mut replies = vec![0; 3 * LONG];
        client.read_exact(&mut replies).unwrap_or_else(|error| panic!("{end:?}: {error}"));
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{end:?}");
    }
}

/// Waits until a server of one connection serves the next.
#[track_caller]
fn wait_for_room(server: &TcpServer) {
    let start = Instant::now();
    loop {
        let mut next = connect(server);
        let mut reply = [0; 4];
        if next.write_all(b"two\n").is_ok() && next.read_exact(&mut reply).is_ok() {
            break assert_eq!(&reply, b"TWO\n");
        }
        assert!(start.elapsed() < PATIENCE, "the place is not free");
    }
}

fn a_connection_is_open_until_its_replies_are_acknowledged() {
    let service = Lines::default();
    let server = server(&service, lines().connections(1));
    let mut client = connect_with_little_room(&server);
    client.write_all(b"l\nl\nl\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    wait_until(|| service.handled.load(Relaxed) == 3);
    // The send buffer has room for all replies: the writer leaves them there.
    (0..1_000).for_each(|_| thread::yield_now());
    expect_end(&mut connect(&server));
    assert_eq!(server.connections().refused, 1);
    let mut replies = vec![0; 3 * LONG];
    client.read_exact(&mut replies).unwrap();
    wait_for_room(&server);
}

fn a_client_that_acknowledges_nothing_is_reset() {
    let service = Lines::default();
    let server = server(&service, lines().connections(1).idle(Duration::from_millis(50)));
    let mut client = connect_with_little_room(&server);
    // On a busy machine the connection is closed before this.
    let _ = client.write_all(b"l\nl\nl\n");
    let _ = client.shutdown(Shutdown::Write);
    wait_for_room(&server);
    let mut replies = vec![0; 3 * LONG];
    client.read_exact(&mut replies).unwrap_err();
}

fn a_client_that_reads_too_slowly_is_reset() {
    let listener = TcpOptions::new().send_buffer(LONG / 4).listen("127.0.0.1:0").unwrap();
    let framing = lines().idle(Duration::from_millis(500));
    let server = TcpServer::start(listener, framing, Lines::default(), settings()).unwrap();
    let mut client = TcpOptions::new().receive_buffer(4 << 10).connect(server.local_addr()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // On a busy machine the connection is closed before this.
    let _ = client.write_all("l\n".repeat(200).as_bytes());
    // Each wait of the writer is short, but 64 KiB take a second.
    let start = Instant::now();
    while server.connections().idle == 0 {
        assert!(start.elapsed() < PATIENCE, "it holds the connection");
        let _ = client.read(&mut [0; 64]);
        time::sleep(Duration::from_millis(1));
    }
}

fn a_client_that_does_not_read_holds_up_no_other() {
    const REQUESTS: usize = 100;
    let service = Lines::default();
    let listener = TcpOptions::new().send_buffer(LONG).listen("127.0.0.1:0").unwrap();
    let server = TcpServer::start(listener, lines().outstanding(4), service, settings()).unwrap();
    let mut slow = connect_with_little_room(&server);
    slow.write_all("l\n".repeat(REQUESTS).as_bytes()).unwrap();
    // Four of its requests are outstanding, and buffers hold some replies.
    wait_until(|| server.stats()[0].finished >= 4);
    let mut other = connect(&server);
    for _ in 0..100 {
        other.write_all(b"short\n").unwrap();
        expect(&mut other, "SHORT\n");
    }
    let accepted = server.stats()[0].accepted - 100;
    assert!(accepted < REQUESTS as u64 / 2, "{accepted} requests of a client that does not read");
    let mut replies = vec![0; REQUESTS * LONG];
    slow.read_exact(&mut replies).unwrap();
    assert!(replies.iter().all(|&byte| byte == b'l'));
    assert_eq!(server.stats()[0].accepted, 100 + REQUESTS as u64);
}

fn a_full_queue_holds_requests_back() {
    let service = Lines::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TcpServer::start(listener, lines(), service.clone(), settings().queue(1)).unwrap();
    let mut clients = [connect(&server), connect(&server)];
    for client in &mut clients {
        client.write_all("a\n".repeat(50).as_bytes()).unwrap();
    }
    for client in &mut clients {
        expect(client, &"A\n".repeat(50));
    }
    let class = &server.stats()[0];
    assert_eq!((class.accepted, class.dropped), (100, 0));
}

fn a_class_that_fills_its_places_holds_up_no_other() {
    let service = Lines::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Each class has one place, and a request that blocks keeps the only lane.
    let settings = settings().queue(2).blocked(0);
    let server = TcpServer::start(listener, lines(), service.clone(), settings).unwrap();
    let (mut greedy, mut other) = (connect(&server), connect(&server));
    greedy.write_all(b"zzz\n").unwrap();
    wait_until(|| service.begun.load(Relaxed) == 1);
    greedy.write_all("zzz\n".repeat(9).as_bytes()).unwrap();
    // One runs and one has the place; the third waits, and has arrived.
    wait_until(|| server.stats()[1].accepted == 2 && server.connections().held_back == 1);
    other.write_all(b"short\n").unwrap();
    wait_until(|| server.stats()[0].accepted == 1);
    const DELAY: Duration = Duration::from_millis(20);
    time::sleep(DELAY);
    service.go.store(true, Relaxed);
    expect(&mut other, "SHORT\n");
    expect(&mut greedy, &"ZZZ\n".repeat(10));
    wait_until(|| server.stats()[1].finished == 10);
    let delays = &server.stats()[1].queue_delay;
    assert!(delays.quantile(0.9) >= DELAY, "the third has waited, too: {delays:?}");
}

fn a_budget_bounds_what_all_connections_hold() {
    const REQUESTS: usize = 100;
    // A connection accepts while it holds less than one long reply, and one more takes room.
    const MOST: usize = 2 * (LONG + 2);
    let listener = TcpOptions::new().send_buffer(LONG / 4).listen("127.0.0.1:0").unwrap();
    let framing = lines().held(LONG).budget(MOST + LONG);
    let server = TcpServer::start(listener, framing, Lines::default(), settings()).unwrap();
    let mut slow = connect_with_little_room(&server);
    slow.write_all("l\n".repeat(REQUESTS).as_bytes()).unwrap();
    wait_until(|| server.connections().held >= LONG as u64);
    let mut other = connect(&server);
    for _ in 0..100 {
        other.write_all(b"short\nl\n").unwrap();
        expect(&mut other, "SHORT\n");
        expect(&mut other, &"l".repeat(LONG));
        assert!(server.connections().held <= (MOST + LONG) as u64);
    }
    assert!(server.stats()[0].accepted < 200 + REQUESTS as u64);
    let mut replies = vec![0; REQUESTS * LONG];
    slow.read_exact(&mut replies).unwrap();
    wait_until(|| server.connections().held == 0);
    // A request larger than the budget takes all of it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TcpServer::start(listener, lines().budget(1), Lines::default(), settings()).unwrap();
    let mut client = connect(&server);
    client.write_all(b"one\ntwo\n").unwrap();
    expect(&mut client, "ONE\nTWO\n");
}

fn datagrams_share_the_dispatcher() {
    let service = Lines::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Each class has one place, and a request that blocks keeps the only lane.
    let settings = settings().queue(2).blocked(0);
    let server = TcpServer::start(listener, lines(), service.clone(), settings).unwrap();
    let datagrams = server.serve_udp(UdpSocket::bind(address).unwrap()).unwrap();
    assert_eq!(datagrams.local_addr().unwrap(), address);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(address).unwrap();
    let mut reply = [0; 10];
    client.send(b"one").unwrap();
    assert_eq!(client.recv(&mut reply).unwrap(), 4);
    assert_eq!(&reply[..4], b"dONE");
    // A request of a connection keeps the lane, one has the place of its class.
    let mut stream = connect(&server);
    stream.write_all(b"zz\n").unwrap();
    wait_until(|| server.stats()[1].held == 1);
    client.send(b"z").unwrap();
    wait_until(|| server.stats()[1].accepted == 2);
    client.send(b"zzz").unwrap();
    wait_until(|| datagrams.stats()[1].dropped == 1);
    service.go.store(true, Relaxed);
    assert_eq!(client.recv(&mut reply).unwrap(), 2);
    assert_eq!(&reply[..2], b"dZ");
    expect(&mut stream, "ZZ\n");
    client.send(b"crash").unwrap();
    wait_until(|| datagrams.unclassified() == 1);
    assert_eq!((server.stats()[0].accepted, server.stats()[1].accepted, datagrams.unsent()), (1, 2, 0));
}

fn connections_have_a_bound() {
    let service = Lines::default();
    let server = server(&service, lines().connections(1));
    let mut first = connect(&server);
    first.write_all(b"one\n").unwrap();
    expect(&mut first, "ONE\n");
    expect_end(&mut connect(&server));
    assert_eq!(server.connections(), stats(|stats| (stats.accepted, stats.refused) = (2, 1)));
    assert_eq!(server.open_connections(), 1);
    drop(first);
    wait_until(|| server.open_connections() == 0);
    // When its threads have ended.
    wait_for_room(&server);
}

fn a_silent_connection_is_closed() {
    let service = Lines::default();
    let server = server(&service, lines().idle(Duration::from_millis(20)));
    expect_end(&mut connect(&server));
    let mut amid = connect(&server);
    // On a busy machine it is closed before this.
    let _ = amid.write_all(b"on");
    expect_end(&mut amid);
    assert_eq!(server.connections(), stats(|stats| (stats.accepted, stats.idle) = (2, 2)));
}

fn bounds_out_of_range_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = TcpServer::start(listener, lines().longest(0), Lines::default(), settings()).unwrap_err();
    assert!(error.to_string().contains("the longest request"), "{error}");
    // Nothing listens any more.
    let listener = TcpListener::bind(address).unwrap();
    let error = TcpServer::start(listener, lines(), Lines::default(), settings().queue(0)).unwrap_err();
    assert!(error.to_string().contains("a queue of 0"), "{error}");
    TcpListener::bind(address).unwrap();
}
