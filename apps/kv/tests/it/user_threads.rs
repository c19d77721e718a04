//! The store on a standalone runtime, asked over the runtime's own loopback network.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwater::net::{TcpStream, UdpSocket};
use tailwater_kv::clock::Clock;
use tailwater_kv::server::{Running, user_threads};
use tailwater_kv::service::{Mode, Service, Settings, Sizes};
use tailwater_kv::store::{Config, Store};
use tailwater_testkit::{PATIENCE, own_process};

fn try_start(
    max_connections: u32,
    idle_timeout: u32,
    udp_port: u16,
    mode: Mode,
) -> io::Result<(Arc<Service>, Running)> {
    let config = Config { memory: 16 << 20, max_item: 1 << 20, evict: true, secret: [1, 2] };
    let settings =
        Settings { tcp_port: 0, udp_port, max_connections, idle_timeout, mode, ..Settings::default() };
    let service = Service::new(Store::new(config).unwrap(), settings);
    let listening = user_threads::start(&service, Clock::start())?;
    Ok((service, listening))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends `request` and checks what comes back.
fn expect(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    try_expect(stream, request, answer).unwrap();
}

/// As `expect`; fails if the connection ends first.
fn try_expect(stream: &mut TcpStream, request: &[u8], answer: &[u8]) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let request = request.to_vec();
    let sender = tailwater::thread::spawn(move || writer.write_all(&request));
    let mut bytes = vec![0; answer.len()];
    let read = stream.read_exact(&mut bytes);
    sender.join().unwrap()?;
    read?;
    assert!(bytes == answer);
    Ok(())
}

/// Returns a connection that has been used by `talk`. On a busy machine the server may find a new
/// connection idle for too long before this thread has sent anything: then another is made.
fn connection_after(address: SocketAddr, talk: impl Fn(&mut TcpStream) -> io::Result<()>) -> TcpStream {
    let begin = Instant::now();
    loop {
        let mut stream = connect(address);
        match talk(&mut stream) {
            Ok(()) => return stream,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tailwater::thread::sleep(Duration::from_millis(1));
    }
}

/// A process has one runtime, so this is one test.
#[test]
fn the_store_serves_on_user_threads() {
    own_process(|| {
        let served = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            for (mode, udp_port) in [(Mode::Threads, 11211), (Mode::Events, 11212)] {
                connections_and_datagrams_are_served(mode, udp_port);
                bad_input_ends_its_own_connection_only(mode);
                one_connection_too_many_is_told_so_and_a_place_is_free_again(mode);
                a_silent_connection_is_closed(mode);
                a_connection_that_takes_no_answers_is_closed(mode);
            }
            for policy in ["c-fcfs", "sq:5us", "mq:5us"] {
                large_retrievals_are_a_class_of_their_own(policy);
            }
            dispatchers_that_cannot_serve_are_refused();
        });
        served.unwrap();
    });
}

fn connections_and_datagrams_are_served(mode: Mode, udp_port: u16) {
    let (service, listening) = try_start(1000, 0, udp_port, mode).unwrap();
    let clients: Vec<_> = (0..50)
        .map(|client| {
            tailwater::thread::spawn(move || {
                let mut stream = connect(listening.tcp);
                for round in 0..20 {
                    let value = format!("{client} {round}").repeat(1 + round * 10);
                    let set = format!("set k{client} 0 0 {}\r\n{value}\r\nget k{client}\r\n", value.len());
                    let answer = format!("STORED\r\nVALUE k{client} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                    expect(&mut stream, set.as_bytes(), answer.as_bytes());
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let large = "l".repeat(900_000);
    let set = format!("set large 0 0 900000\r\n{large}\r\nget large large\r\n");
    let item = format!("VALUE large 0 900000\r\n{large}\r\n");
    expect(&mut connect(listening.tcp), set.as_bytes(), format!("STORED\r\n{item}{item}END\r\n").as_bytes());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"\0\x07\0\0\0\x01\0\0mn\r\n", listening.udp.unwrap()).unwrap();
    let mut bytes = [0; 100];
    let len = socket.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"\0\x07\0\0\0\x01\0\0MN\r\n");
    assert_eq!(service.store.totals(Clock::start().now()).items, 51);
}

fn bad_input_ends_its_own_connection_only(mode: Mode) {
    let (_, listening) = try_start(1000, 0, 0, mode).unwrap();
    let mut good = connect(listening.tcp);
    for bad in [&b"x".repeat(5000)[..], b"\x80\x01\0\x05\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let mut stream = connect(listening.tcp);
        stream.write_all(bad).unwrap();
        // Its end may be a reset: not all was read.
        let _ = stream.read_to_end(&mut Vec::new());
        expect(&mut good, b"mn\r\n", b"MN\r\n");
    }
}

fn one_connection_too_many_is_told_so_and_a_place_is_free_again(mode: Mode) {
    let (service, listening) = try_start(2, 0, 0, mode).unwrap();
    let mut streams = [connect(listening.tcp), connect(listening.tcp)];
    streams.iter_mut().for_each(|stream| expect(stream, b"mn\r\n", b"MN\r\n"));
    let mut refused = String::new();
    connect(listening.tcp).read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    let [first, _second] = streams;
    drop(first);
    wait_until("the first connection has ended", || service.connections() == 1);
    expect(&mut connect(listening.tcp), b"mn\r\n", b"MN\r\n");
}

fn a_silent_connection_is_closed(mode: Mode) {
    let (service, listening) = try_start(10, 1, 0, mode).unwrap();
    let mut stream = connection_after(listening.tcp, |stream| try_expect(stream, b"mn\r\n", b"MN\r\n"));
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    assert!(service.idle_kicks.load(std::sync::atomic::Ordering::Relaxed) >= 1);
}

fn a_connection_that_takes_no_answers_is_closed(mode: Mode) {
    let (service, listening) = try_start(10, 1, 0, mode).unwrap();
    // More than the buffers on the way hold.
    let large = "l".repeat(900_000);
    let set = format!("set large 0 0 900000\r\n{large}\r\n");
    let get = format!("get{}\r\n", " large".repeat(50));
    let stream = connection_after(listening.tcp, |stream| {
        try_expect(stream, set.as_bytes(), b"STORED\r\n")?;
        stream.write_all(get.as_bytes())?;
        // The answer has begun.
        if stream.peek(&mut [0])? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    });
    wait_until("the connection is closed", || service.connections() == 0);
    drop(stream);
    assert!(service.idle_kicks.load(std::sync::atomic::Ordering::Relaxed) >= 1);
    let pinned = || service.store.totals(Clock::start().now()).pinned_cells;
    wait_until("the answer's memory is free again", || pinned() == 0);
}

fn dispatched(policy: &str) -> Mode {
    Mode::Dispatch(Sizes { policy: policy.parse().unwrap(), dispatchers: 0, large: 100 })
}

fn large_retrievals_are_a_class_of_their_own(policy: &str) {
    const ROUNDS: u64 = 20;
    let (_, listening) = try_start(1000, 0, 0, dispatched(policy)).unwrap();
    let value = "v".repeat(400);
    let item = format!("VALUE key 0 400\r\n{value}\r\n");
    let set = format!("set key 0 0 400\r\n{value}\r\n");
    expect(&mut connect(listening.tcp), set.as_bytes(), b"STORED\r\n");
    // Some clients pipeline a large retrieval, which takes several turns, between two short ones;
    // the others send short ones.
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let item = item.clone();
            tailwater::thread::spawn(move || {
                let mut stream = connect(listening.tcp);
                for _ in 0..ROUNDS {
                    let counts = if client < 2 { vec![1, 1_000, 1] } else { vec![1, 99] };
                    let get = |count: &usize| format!("get{}\r\n", " key".repeat(*count));
                    let answer = |count: &usize| format!("{}END\r\n", item.repeat(*count));
                    let request: String = counts.iter().map(get).collect();
                    let answers: String = counts.iter().map(answer).collect();
                    expect(&mut stream, request.as_bytes(), answers.as_bytes());
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let classes = listening.turns.as_deref().unwrap().stats();
    // 400 kB in turns of about 32 KiB.
    assert!(classes[1].finished >= 2 * ROUNDS * 10, "{}", classes[1]);
    assert!(classes[0].finished >= 8 * ROUNDS, "{}", classes[0]);
    for class in &classes {
        assert_eq!((class.dropped, class.panicked), (0, 0), "{class}");
    }
}

fn dispatchers_that_cannot_serve_are_refused() {
    for (udp_port, policy, advice) in [(11213, "sq:5us", "leave -U"), (0, "srpt", "use mq:5us")] {
        let error = try_start(10, 0, udp_port, dispatched(policy)).unwrap_err().to_string();
        assert!(error.contains(advice), "{error}");
    }
}
