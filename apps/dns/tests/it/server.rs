//! The server on sockets of both kinds: connections, their bounds, and reloads under load.

use crate::common::{edns_query, name, query, secure_query, show};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater_dns::dispatched::{Dispatched, Order};
use tailwater_dns::linux::Server;
use tailwater_dns::serve::tcp::Permit;
use tailwater_dns::serve::{Datagrams, Limits, Shared, Stream};
use tailwater_dns::service::Service;
use tailwater_dns::store::{Source, Store};
use tailwater_testkit::{PATIENCE, own_process, until};

fn write_zone(file: &Path, serial: u32) {
    let mut text = format!("$TTL 60\n@ SOA ns h {serial} 2 3 4 5\n NS ns\nns A 192.0.2.1\n");
    for i in 0..200 {
        text += &format!("big A 10.0.0.{i}\n");
    }
    std::fs::write(file, text).expect("a temporary file");
}

/// Returns a folder with zone `example.`, and a server of it without threads.
fn shared(limits: Limits) -> (tempfile::TempDir, Arc<Shared>) {
    // In memory: a file that is rewritten many times would wait for a busy disk.
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let file = folder.path().join("example.zone");
    write_zone(&file, 1);
    let store = Store::open(vec![Source { origin: name("example."), file }]).expect("the zone is right");
    (folder, Arc::new(Shared::new(store, limits)))
}

fn loopback() -> [SocketAddr; 1] {
    [SocketAddr::from(([127, 0, 0, 1], 0))]
}

/// Returns the serial number of an answer to a question for the SOA record.
fn serial(answer: &[u8]) -> u32 {
    let lines = show(answer);
    let record = lines.get(1).unwrap_or_else(|| panic!("{lines:?}"));
    record.split(' ').nth(6).and_then(|serial| serial.parse().ok()).expect("a SOA record")
}

/// Queries until `stop` is set; each answer must be of the zones of a reload that was complete, or
/// later. Returns how often it queried.
fn ask_during_reloads(
    socket: &impl Datagrams,
    server: SocketAddr,
    current: &AtomicU32,
    stop: &AtomicBool,
) -> u64 {
    let mut buf = [0; 1500];
    let mut asked = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let mut message = query("example.", "SOA");
        message[..2].copy_from_slice(&(asked as u16).to_be_bytes());
        let least = current.load(Ordering::SeqCst);
        socket.send_to(&message, server).expect("sent");
        let (len, _) = socket.recv_from(&mut buf).expect("no query is lost");
        assert_eq!(buf[..2], message[..2], "the answer to this query");
        let serial = serial(&buf[..len]);
        assert!(serial >= least, "serial {serial} after {least} was loaded");
        asked += 1;
    }
    asked
}

/// Reloads many times, and until many queries were answered meanwhile, with a file that has an
/// error each third time.
fn reload(file: &Path, shared: &Shared, current: &AtomicU32) {
    const TIMES: u32 = 100;
    const QUERIES: u64 = 100;
    let (before, deadline) = (shared.counts().udp, Instant::now() + PATIENCE);
    for round in 2.. {
        if round >= TIMES + 2 && shared.counts().udp > before + QUERIES {
            return;
        }
        assert!(Instant::now() < deadline, "the clients hardly ask: {:?}", shared.counts());
        if round % 3 == 0 {
            std::fs::write(file, "@ SOA not\n").expect("a temporary file");
            let done = shared.store.reload();
            assert_eq!((done.loaded, done.kept, done.problems.len()), (0, 1, 1));
        } else {
            write_zone(file, round);
            let done = shared.store.reload();
            assert_eq!((done.loaded, done.kept), (1, 0), "{:?}", done.problems);
            current.store(round, Ordering::SeqCst);
        }
    }
}

/// Ends the clients when dropped, also by a panic.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn reloads_lose_nothing_on_linux() {
    let (folder, shared) = shared(Limits::default());
    let server = Server::start(&loopback(), 2, &shared).unwrap();
    let (address, current, stop) = (server.addresses()[0], AtomicU32::new(1), AtomicBool::new(false));
    let asked: u64 = std::thread::scope(|scope| {
        let clients = [(); 2].map(|()| {
            scope.spawn(|| {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                ask_during_reloads(&socket, address, &current, &stop)
            })
        });
        let ending = Ending(&stop);
        reload(&folder.path().join("example.zone"), &shared, &current);
        drop(ending);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    server.stop();
    let counts = shared.counts();
    assert!(counts.udp == asked && counts.unsent == 0, "{asked} asked, {counts:?}");
}

/// Both in one test: a process has one runtime.
#[test]
fn connections_carry_many_queries_and_reloads_lose_nothing_on_tailwater() {
    let (folder, shared) = shared(Limits::default());
    let (current, stop) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicBool::new(false)));
    let reloader = std::thread::spawn({
        let (shared, current, stop) = (Arc::clone(&shared), Arc::clone(&current), Arc::clone(&stop));
        move || {
            let _ending = Ending(&stop);
            until("a first query", || shared.counts().udp > 0);
            reload(&folder.path().join("example.zone"), &shared, &current);
        }
    });
    tailwater::RuntimeBuilder::new()
        .kthreads(2)
        .run(move || {
            let service = Service::start(&loopback(), &shared).unwrap();
            let address = service.addresses()[0];
            let mut stream = tailwater::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            talk(&mut stream);
            let clients = [(); 2].map(|()| {
                let (current, stop) = (Arc::clone(&current), Arc::clone(&stop));
                tailwater::thread::spawn(move || {
                    let socket = tailwater::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    ask_during_reloads(&socket, address, &current, &stop)
                })
            });
            clients.into_iter().for_each(|client| assert!(client.join().unwrap() > 0));
            all_replaced_zones_are_freed(&shared, tailwater::thread::sleep);
        })
        .unwrap();
    reloader.join().unwrap();
}

/// The same behind a dispatcher, which is inline or has a kthread of its own.
fn carry_many_queries_behind_a_dispatcher(policy: &'static str, kthreads: u16) {
    let (_folder, shared) = shared(Limits { connections: 1, ..Limits::default() });
    tailwater::RuntimeBuilder::new()
        .kthreads(kthreads)
        .run(move || {
            let order = Order { policy: policy.parse().unwrap(), dispatchers: 0 };
            let service = Dispatched::start(&loopback(), &shared, order).unwrap();
            let address = service.addresses()[0];
            let connect = || {
                let stream = tailwater::net::TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream
            };
            let mut stream = connect();
            let refused = connect().read(&mut [0]);
            assert!(!refused.is_ok_and(|len| len > 0), "one connection at a time");
            talk(&mut stream);
            let counts = service.counts();
            assert_eq!((counts.tcp, counts.ignored, counts.refused), (55, 1, 1));
        })
        .unwrap();
}

#[test]
fn connections_carry_many_queries_in_the_order_of_a_policy() {
    own_process(|| carry_many_queries_behind_a_dispatcher("mq:5us", 1));
}

#[test]
fn connections_carry_many_queries_through_a_dispatcher_with_a_kthread_of_its_own() {
    own_process(|| carry_many_queries_behind_a_dispatcher("jbsq:2,5us", 2));
}

#[test]
fn queries_that_take_hashes_are_a_class_of_their_own() {
    own_process(|| {
        let (folder, shared) = shared(Limits::default());
        let file = folder.path().join("example.zone");
        let zone = std::fs::read_to_string(&file).unwrap() + "@ NSEC3PARAM 1 0 100 AABB\nsub NS ns.else.\n";
        std::fs::write(&file, zone).unwrap();
        assert_eq!(shared.store.reload().loaded, 1);
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .run(move || {
                let order = Order { policy: "mq:5us".parse().unwrap(), dispatchers: 0 };
                let service = Dispatched::start(&loopback(), &shared, order).unwrap();
                let socket = tailwater::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(service.addresses()[0]).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut stream = tailwater::net::TcpStream::connect(service.addresses()[0]).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let accepted =
                    || -> Vec<_> { service.classes().iter().map(|(_, class)| class.accepted).collect() };
                let mut expected = vec![0, 0];
                for (question, class) in [
                    (query("no.example.", "A"), 0),
                    (secure_query("ns.example.", "A"), 0),
                    (secure_query("ns.example.", "ANY"), 0),
                    (secure_query("elsewhere.", "A"), 0),
                    (secure_query("no.example.", "A"), 1),
                    (secure_query("ns.example.", "TXT"), 1),
                    (secure_query("a.sub.example.", "A"), 1),
                ] {
                    socket.send(&question).unwrap();
                    socket.recv(&mut [0; 1500]).unwrap();
                    stream.write_all(&framed(&[question])).unwrap();
                    read_message(&mut stream);
                    expected[class] += 2;
                    assert_eq!(accepted(), expected);
                }
                // A datagram without an answer.
                socket.send(&[0; 5]).unwrap();
                until("it is counted", || service.counts().ignored == 1);
                assert_eq!((service.counts().udp, service.counts().tcp), (7, 7));
            })
            .unwrap();
    });
}

#[test]
fn a_kernel_socket_that_was_shut_down_is_an_error_and_no_panic() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    // Linux returns ENOTCONN and shuts the socket down all the same.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Read);
    let error = Datagrams::recv_from(&socket, &mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}

fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    messages
        .iter()
        .flat_map(|message| [&(message.len() as u16).to_be_bytes()[..], message].concat())
        .collect()
}

fn read_message(stream: &mut impl Read) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("a length");
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message).expect("a message");
    message
}

/// Several queries at once, one in single octets, and answers in order; the same for both kinds of
/// sockets.
fn talk(stream: &mut (impl Read + Write)) {
    let queries = [query("example.", "SOA"), edns_query("big.example.", "A", 512), query("no.example.", "A")];
    stream.write_all(&framed(&queries)).unwrap();
    assert_eq!(serial(&read_message(stream)), 1);
    assert_eq!(show(&read_message(stream)).len(), 204, "the whole set, the server and its address");
    assert_eq!(show(&read_message(stream))[0], "NXDOMAIN aa");
    for octet in framed(&queries[..1]) {
        stream.write_all(&[octet]).unwrap();
    }
    assert_eq!(serial(&read_message(stream)), 1);
    // More answers than are collected, while the client does not read.
    let many = vec![queries[1].clone(); 50];
    stream.write_all(&framed(&many)).unwrap();
    for _ in &many {
        assert_eq!(show(&read_message(stream)).len(), 204);
    }
    // A message that is not a query ends the connection, after the answers before it.
    let mut answer = queries[0].clone();
    answer[2] |= 0x80;
    stream.write_all(&framed(&[queries[2].clone(), answer])).unwrap();
    assert_eq!(show(&read_message(stream))[0], "NXDOMAIN aa");
    assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
}

#[test]
fn connections_carry_many_queries_on_linux() {
    let (_folder, shared) = shared(Limits::default());
    let server = Server::start(&loopback(), 1, &shared).unwrap();
    let mut stream = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    talk(&mut stream);
    assert_eq!(shared.counts().tcp, 55);
}

#[test]
fn a_connection_without_a_whole_query_ends_however_busily_it_drips() {
    let idle = Duration::from_millis(200);
    let (_folder, shared) = shared(Limits { idle, ..Limits::default() });
    let server = Server::start(&loopback(), 1, &shared).unwrap();
    for drips in [false, true] {
        let began = Instant::now();
        let mut stream = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // A query of 65,535 octets that never ends.
        stream.write_all(&[0xff, 0xff]).unwrap();
        loop {
            match stream.read(&mut [0; 1]) {
                Ok(_) => break,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            assert!(began.elapsed() < PATIENCE, "the connection goes on");
            if drips && stream.write_all(&[0]).is_err() {
                break;
            }
        }
        assert!(began.elapsed() >= idle, "closed after {:?}", began.elapsed());
    }
}

/// A client with one query that reads one octet of the answer at a time, each after a pause.
struct Dripping {
    query: std::io::Cursor<Vec<u8>>,
    taken: usize,
}

impl Read for Dripping {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.query.read(buf)
    }
}

impl Write for Dripping {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(20));
        self.taken += 1;
        Ok(buf.len().min(1))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for Dripping {
    fn set_read_timeout(&self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }

    fn set_write_timeout(&self, timeout: Duration) -> std::io::Result<()> {
        assert!(!timeout.is_zero());
        Ok(())
    }

    fn set_nodelay(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_connection_whose_answer_is_not_taken_ends_however_busily_it_drips() {
    let idle = Duration::from_millis(200);
    let (_folder, shared) = shared(Limits { idle, connections: 1 });
    let query = std::io::Cursor::new(framed(&[query("big.example.", "A")]));
    let mut stream = Dripping { query, taken: 0 };
    let ended = Permit::take(&shared).expect("a place").serve(&mut stream);
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    // None if this machine stands still for as long before the first.
    assert!(stream.taken <= 11, "{} octets of more than 3,000 were taken", stream.taken);
    assert!(Permit::take(&shared).is_some(), "its place is free");
}

#[test]
fn replaced_zones_are_freed_by_whoever_sweeps_and_not_by_whoever_answers() {
    let (_folder, shared) = shared(Limits::default());
    let mut reader = shared.store.reader();
    let before = Arc::downgrade(&shared.store.zones());
    shared.store.reload();
    assert_eq!(shared.store.sweep(), 1, "the reader may be answering from them");
    reader.zones();
    assert!(before.upgrade().is_some(), "they are freed on the way of a query");
    assert_eq!(shared.store.sweep(), 0);
    assert!(before.upgrade().is_none());
}

#[test]
fn threads_that_get_no_queries_let_go_of_replaced_zones() {
    let (_folder, shared) = shared(Limits::default());
    let server = Server::start(&loopback(), 2, &shared).unwrap();
    // One thread answers, so that both have probably begun; it makes no difference if not.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(&query("example.", "SOA"), server.addresses()[0]).unwrap();
    socket.recv_from(&mut [0; 1500]).unwrap();
    for _ in 0..3 {
        shared.store.reload();
    }
    all_replaced_zones_are_freed(&shared, std::thread::sleep);
}

/// No query is sent any more.
fn all_replaced_zones_are_freed(shared: &Shared, sleep: impl Fn(Duration)) {
    let deadline = Instant::now() + PATIENCE;
    while shared.store.sweep() > 0 {
        assert!(Instant::now() < deadline, "an idle thread keeps what was replaced");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_beyond_the_limit_are_closed_and_their_places_come_back() {
    let (_folder, shared) = shared(Limits { connections: 2, ..Limits::default() });
    let server = Server::start(&loopback(), 1, &shared).unwrap();
    let connect = || {
        let stream = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let asks = |stream: &mut std::net::TcpStream| {
        let asked = stream.write_all(&framed(&[query("example.", "SOA")])).is_ok();
        asked && stream.read(&mut [0; 512]).is_ok_and(|len| len > 0)
    };
    let (mut first, mut second, mut third) = (connect(), connect(), connect());
    assert!(asks(&mut first) && asks(&mut second));
    assert!(!asks(&mut third));
    assert_eq!(shared.counts().refused, 1);
    drop(first);
    let deadline = Instant::now() + PATIENCE;
    while !asks(&mut connect()) {
        assert!(Instant::now() < deadline, "no place becomes free");
    }
    assert!(asks(&mut second), "the earlier connection stays");
}
