//! TCP sockets on user threads, through the public API, standalone: both ends in one process, over
//! the loopback queue. One runtime per process, so one test function runs all.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};
use tailwater::net::{Congestion, TcpKeepalive, TcpListener, TcpOptions, TcpStream};
use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn streams_behave_like_those_of_std() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                bytes_come_back_as_they_were_sent();
                ipv6_works_as_ipv4_does();
                a_listener_for_both_families_shows_ipv4_as_mapped();
                half_a_connection_stays_open();
                a_closed_port_refuses();
                unread_data_resets_the_peer_and_read_data_does_not();
                a_failure_is_reported_once();
                a_linger_time_of_zero_resets();
                a_linger_time_waits_for_the_peer();
                reads_and_writes_time_out();
                a_non_blocking_stream_never_waits();
                a_peek_leaves_what_it_saw();
                a_loan_shows_what_a_read_would_and_gives_back_what_is_left();
                a_loan_grows_beyond_the_window_until_its_thread_has_enough();
                a_kept_loan_stops_the_peer_and_a_consumed_one_does_not();
                a_second_loan_is_refused_until_the_first_has_ended();
                a_loan_waits_and_ends_as_a_read_does();
                buffers_are_filled_and_emptied_in_order();
                clones_share_everything_and_the_last_one_closes();
                a_shutdown_wakes_waiting_threads();
                a_full_accept_queue_makes_clients_wait();
                a_closed_listener_resets_connections_it_has_not_accepted();
                a_listener_that_is_closed_hands_out_what_was_established_and_ends();
                accepting_times_out();
                several_threads_accept_in_turn();
                cookies_alone_connect_too();
                reader_and_writer_threads_share_a_stream();
                a_relay_between_two_streams_carries_everything();
                every_congestion_control_carries_bulk();
                settings_are_kept();
                what_cannot_be_done_is_refused();
                connections_come_and_go_by_the_thousand();
                ten_thousand_connections_are_open_at_once();
                ordinary_threads_may_use_streams();
            })
            .unwrap();
    });
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the two ends of a connection: client, server.
fn pair() -> (TcpStream, TcpStream) {
    pair_with(&TcpOptions::new())
}

fn pair_with(options: &TcpOptions) -> (TcpStream, TcpStream) {
    let listener = options.listen("127.0.0.1:0").unwrap();
    let client = options.connect(listener.local_addr().unwrap()).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    (client, server)
}

/// Returns bytes that identify their position in the stream.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Lets other user threads run until `condition` holds.
fn yield_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        thread::yield_now();
    }
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// Echoes until the end of the stream.
fn echo(mut stream: TcpStream) {
    let mut buf = [0; 4096];
    loop {
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return,
            Ok(len) => stream.write_all(&buf[..len]).unwrap(),
        }
    }
}

fn bytes_come_back_as_they_were_sent() {
    let (mut client, server) = pair();
    let server = thread::spawn(move || echo(server));
    let mut back = vec![0; 100_000];
    for len in [1, 2, 64, 1448, 4096, 65_536, 100_000] {
        let data = pattern(len, len);
        let mut writer = client.try_clone().unwrap();
        let sent = data.clone();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        client.read_exact(&mut back[..len]).unwrap();
        assert_eq!(back[..len], data);
        writing.join().unwrap();
    }
    drop(client);
    server.join().unwrap();
}

fn ipv6_works_as_ipv4_does() {
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, from) = listener.accept().unwrap();
    assert!(from.ip().is_loopback() && from.is_ipv6());
    client.write_all(b"six").unwrap();
    let mut buf = [0; 3];
    server.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"six");
}

fn a_listener_for_both_families_shows_ipv4_as_mapped() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from.to_string(), format!("[::ffff:127.0.0.1]:{}", client.local_addr().unwrap().port()));
    assert_eq!(server.peer_addr().unwrap(), from);
    TcpStream::connect(("::1", port)).unwrap();
}

fn half_a_connection_stays_open() {
    let (mut client, mut server) = pair();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(kind(client.write(b"x")), ErrorKind::BrokenPipe);
    let mut all = String::new();
    server.read_to_string(&mut all).unwrap();
    assert_eq!(all, "question");
    server.write_all(&pattern(0, 200_000)).unwrap();
    drop(server);
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, pattern(0, 200_000));
}

fn a_closed_port_refuses() {
    let (listener, address) = listen();
    drop(listener);
    let before = tailwater::net::counters().tcp_resets_sent;
    assert_eq!(kind(TcpStream::connect(address)), ErrorKind::ConnectionRefused);
    assert_eq!(
        kind(TcpStream::connect_timeout(&address, Duration::from_secs(3600))),
        ErrorKind::ConnectionRefused
    );
    // A SYN whose answer takes a second is repeated, and refused again.
    assert!(tailwater::net::counters().tcp_resets_sent - before >= 2);
}

fn unread_data_resets_the_peer_and_read_data_does_not() {
    let (mut client, server) = pair();
    client.write_all(b"never read").unwrap();
    while server.peek(&mut [0; 10]).unwrap() < 10 {}
    drop(server);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset);
    let (mut client, mut server) = pair();
    client.write_all(b"read").unwrap();
    server.read_exact(&mut [0; 4]).unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

fn a_failure_is_reported_once() {
    let (client, server) = pair();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    assert_eq!(kind((&client).read(&mut [0])), ErrorKind::ConnectionReset);
    assert_eq!((&client).read(&mut [0]).unwrap(), 0, "as on Linux: told once, then the end");
    assert_eq!(kind((&client).write(b"x")), ErrorKind::BrokenPipe);
    assert!(client.take_error().unwrap().is_none());
    assert_eq!(kind(client.shutdown(Shutdown::Write)), ErrorKind::NotConnected);
    let (client, server) = pair();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    let error = loop {
        match client.take_error().unwrap() {
            Some(error) => break error,
            None => thread::yield_now(),
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
}

fn a_linger_time_of_zero_resets() {
    let (mut client, mut server) = pair();
    server.write_all(b"lost").unwrap();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    let waiting = thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).map(|_| all)
    });
    drop(server);
    assert_eq!(kind(waiting.join().unwrap()), ErrorKind::ConnectionReset);
}

fn a_linger_time_waits_for_the_peer() {
    let (mut client, mut server) = pair();
    server.set_linger(Some(2 * PATIENCE)).unwrap();
    server.write_all(b"all of it").unwrap();
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < PATIENCE, "it is acknowledged soon");
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert_eq!(all, "all of it");
    // A peer that reads nothing: the timeout passes first.
    let options = TcpOptions::new().receive_buffer(4096);
    let (client, mut server) = pair_with(&options);
    server.set_linger(Some(Duration::from_millis(50))).unwrap();
    server.write_all(&[0; 100_000]).unwrap();
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    drop(client);
}

fn reads_and_writes_time_out() {
    let options = TcpOptions::new().receive_buffer(4096).send_buffer(4096);
    let (mut client, _server) = pair_with(&options);
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let begin = Instant::now();
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::WouldBlock);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    let begin = Instant::now();
    let error = loop {
        if let Err(error) = client.write(&[0; 1000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

fn a_non_blocking_stream_never_waits() {
    let (listener, address) = listen();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    let options = TcpOptions::new().send_buffer(4096);
    let client = options.connect(address).unwrap();
    let server = loop {
        match listener.accept() {
            Ok((server, _)) => break server,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        thread::yield_now();
    };
    client.set_nonblocking(true).unwrap();
    assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
    let mut sent = 0;
    let full = 'full: {
        // The peer's buffer, this side's, and the data in flight between them.
        for _ in 0..10_000 {
            match (&client).write(&[7; 1000]) {
                Ok(len) => sent += len,
                Err(error) => break 'full error,
            }
        }
        panic!("{sent} bytes went into a connection that the peer does not read");
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    drop(client);
    let mut all = Vec::new();
    (&server).read_to_end(&mut all).unwrap();
    assert_eq!(all, vec![7; sent]);
}

fn a_peek_leaves_what_it_saw() {
    let (mut client, mut server) = pair();
    client.write_all(b"seen twice").unwrap();
    let (mut a, mut b) = ([0; 10], [0; 10]);
    while server.peek(&mut a).unwrap() < 10 {}
    server.read_exact(&mut b).unwrap();
    assert_eq!((&a, &b), (b"seen twice", b"seen twice"));
}

fn a_loan_shows_what_a_read_would_and_gives_back_what_is_left() {
    let (mut client, mut server) = pair();
    client.write_all(b"lent and read").unwrap();
    while server.peek(&mut [0; 13]).unwrap() < 13 {}
    let mut loan = server.recv_loan().unwrap();
    assert_eq!(*loan, *b"lent and read");
    client.write_all(b", and more").unwrap();
    let mut behind = [0; 10];
    server.try_clone().unwrap().read_exact(&mut behind).unwrap();
    assert_eq!(&behind, b", and more", "what is on loan is the loan's");
    loan.consume(5);
    assert_eq!(*loan, *b"and read");
    drop(loan);
    let mut rest = [0; 8];
    server.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"and read");
    client.write_all(b"the end").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    while server.peek(&mut [0; 7]).unwrap() < 7 {}
    server.recv_loan().unwrap().consume_all();
    assert!(server.recv_loan().unwrap().is_empty(), "the end of the stream");
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "consumed data is no reason for a reset");
}

fn a_loan_grows_beyond_the_window_until_its_thread_has_enough() {
    let options = TcpOptions::new().receive_buffer(16 << 10);
    for kept in [0, 90_000] {
        let (mut client, mut server) = pair_with(&options);
        let message = pattern(0, 100_000);
        let sent = message.clone();
        let sender = thread::spawn(move || client.write_all(&sent).map(|()| client).unwrap());
        let mut loan = server.recv_loan().unwrap();
        while loan.len() < message.len() {
            assert!(loan.extend().unwrap() > 0);
        }
        assert!(*loan == message[..]);
        loan.consume(message.len() - kept);
        drop(loan);
        let mut rest = vec![0; kept];
        server.read_exact(&mut rest).unwrap();
        assert!(rest == message[message.len() - kept..], "what was kept is there once");
        drop(sender.join().unwrap());
        let mut end = server.recv_loan().unwrap();
        assert_eq!((end.len(), end.extend().unwrap()), (0, 0));
    }
}

fn a_kept_loan_stops_the_peer_and_a_consumed_one_does_not() {
    let options = TcpOptions::new().receive_buffer(8192).send_buffer(8192);
    let (mut client, server) = pair_with(&options);
    client.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut written = 0;
    let mut fill = || {
        while let Ok(bytes) = client.write(&[1; 4096]) {
            written += bytes;
        }
        written
    };
    fill();
    let loan = server.recv_loan().unwrap();
    // What is in the send buffer may still arrive.
    assert!(fill() <= 2 * 8192 && loan.len() <= 8192, "what is lent keeps its room");
    loan.consume_all();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    let bytes = 1 << 20;
    let sender = thread::spawn(move || client.write_all(&vec![2; bytes]).unwrap());
    let mut twos = 0;
    while twos < bytes {
        let loan = server.recv_loan().unwrap();
        twos += loan.iter().filter(|&&byte| byte == 2).count();
        loan.consume_all();
    }
    sender.join().unwrap();
}

fn a_second_loan_is_refused_until_the_first_has_ended() {
    let (mut client, server) = pair();
    client.write_all(b"first").unwrap();
    let loan = server.recv_loan().unwrap();
    client.write_all(b"second").unwrap();
    let other = server.try_clone().unwrap();
    assert_eq!(other.recv_loan().unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(loan);
    let mut loan = other.recv_loan().unwrap();
    while loan.len() < 11 {
        assert!(loan.extend().unwrap() > 0);
    }
    assert_eq!(*loan, *b"firstsecond");
}

fn a_loan_waits_and_ends_as_a_read_does() {
    let (client, server) = pair();
    server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert_eq!(server.recv_loan().unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_read_timeout(None).unwrap();
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv_loan().unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(false).unwrap();
    (&client).write_all(b"kept").unwrap();
    let loan = server.recv_loan().unwrap();
    drop(loan);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    while server.take_error().unwrap().is_none() {
        thread::yield_now();
    }
    let (client, server) = pair();
    (&client).write_all(b"never read").unwrap();
    drop(server.recv_loan().unwrap());
    drop(server);
    assert_eq!(kind((&client).read(&mut [0])), ErrorKind::ConnectionReset, "unread data was lost");
}

fn buffers_are_filled_and_emptied_in_order() {
    let (mut client, mut server) = pair();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two "), IoSlice::new(b"three")];
    assert_eq!(client.write_vectored(&parts).unwrap(), 13);
    while server.peek(&mut [0; 13]).unwrap() < 13 {}
    let (mut a, mut b, mut c) = ([0; 5], [0; 0], [0; 20]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
    assert_eq!(server.read_vectored(&mut bufs).unwrap(), 13);
    assert_eq!((&a, &c[..8]), (b"one t", &b"wo three"[..]));
    assert_eq!(server.read(&mut []).unwrap(), 0);
    assert_eq!(server.write(&[]).unwrap(), 0);
}

fn clones_share_everything_and_the_last_one_closes() {
    let (client, mut server) = pair();
    let clone = client.try_clone().unwrap();
    clone.set_nonblocking(true).unwrap();
    assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
    clone.set_nonblocking(false).unwrap();
    drop(client);
    (&clone).write_all(b"still open").unwrap();
    let mut buf = [0; 10];
    server.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"still open");
    drop(clone);
    assert_eq!(server.read(&mut buf).unwrap(), 0);
}

fn a_shutdown_wakes_waiting_threads() {
    let (client, _server) = pair();
    let reader = client.try_clone().unwrap();
    let reading = thread::spawn(move || (&reader).read(&mut [0]).unwrap());
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(reading.join().unwrap(), 0);
    let options = TcpOptions::new().receive_buffer(1024).send_buffer(1024);
    let (client, _server) = pair_with(&options);
    let writer = client.try_clone().unwrap();
    let writing = thread::spawn(move || (&writer).write_all(&[0; 1 << 20]));
    while client.stats().bytes_sent == 0 {
        thread::yield_now();
    }
    client.shutdown(Shutdown::Both).unwrap();
    assert_eq!(kind(writing.join().unwrap()), ErrorKind::BrokenPipe);
}

fn a_full_accept_queue_makes_clients_wait() {
    let listener = TcpOptions::new().backlog(2).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let before = tailwater::net::counters();
    let first: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    let short = Duration::from_millis(30);
    assert_eq!(kind(TcpStream::connect_timeout(&address, short)), ErrorKind::TimedOut);
    // On a busy machine its SYN may be processed after its time, and repeated before.
    let overflowed = || tailwater::net::counters().tcp_listen_overflows > before.tcp_listen_overflows;
    yield_until("the SYN is refused for want of room", overflowed);
    assert_eq!(tailwater::net::counters().tcp_accepted - before.tcp_accepted, 2);
    // A waiting client is accepted when its SYN is repeated after there is room.
    let late = thread::spawn(move || TcpStream::connect(address).unwrap());
    for client in &first {
        assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    }
    let (_server, from) = listener.accept().unwrap();
    assert_eq!(late.join().unwrap().local_addr().unwrap(), from);
}

fn a_listener_that_is_closed_hands_out_what_was_established_and_ends() {
    let (listener, address) = listen();
    let mut first = TcpStream::connect(address).unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let handle = listener.try_clone().unwrap();
            thread::spawn(move || {
                let served = handle.incoming().map(|stream| stream.unwrap().write_all(b"served").unwrap());
                served.fold(0, |count, ()| count + 1)
            })
        })
        .collect();
    let (poller, mut events) = (Poller::new(), Events::with_capacity(4));
    poller.register(&listener, Token(7), Interest::READABLE, Mode::Level).unwrap();
    let future = tailwater::future::net::TcpListener::from(listener.try_clone().unwrap());
    let future = tailwater::future::spawn(async move { future.accept().await.map(drop) });
    listener.close();
    listener.close();
    // One of four has the connection; the waits of all end.
    let counts: i32 = waiting.into_iter().map(|thread| thread.join().unwrap()).sum();
    let awaited = tailwater::future::block_on(future);
    assert_eq!(counts + i32::from(matches!(awaited, Ok(Ok(())))), 1, "{awaited:?}");
    if counts == 1 {
        let mut answer = [0; 6];
        first.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"served");
    }
    poller.wait(&mut events, Some(PATIENCE));
    assert_eq!(events.iter().count(), 1, "a closed listener does not make its poller wait");
    for error in [listener.accept().unwrap_err(), listener.accept_timeout(PATIENCE).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let _next = TcpListener::bind(address).expect("the port is free at once");
    drop(listener);
    TcpStream::connect(address).expect("dropping the closed one leaves the next alone");
}

fn accepting_times_out() {
    let (listener, address) = listen();
    let begun = Instant::now();
    let error = listener.accept_timeout(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let client = TcpStream::connect(address).unwrap();
    let (_, from) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!(from, client.local_addr().unwrap());
}

fn a_closed_listener_resets_connections_it_has_not_accepted() {
    let (listener, address) = listen();
    let mut client = TcpStream::connect(address).unwrap();
    // Until the server's side has seen the end of the handshake, it has no connection.
    let before = tailwater::net::counters().tcp_accepted;
    let another = TcpStream::connect(address).unwrap();
    yield_until("the second is accepted", || tailwater::net::counters().tcp_accepted > before);
    drop(listener);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset);
    drop(another);
}

fn several_threads_accept_in_turn() {
    let (listener, address) = listen();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let listener = listener.try_clone().unwrap();
            thread::spawn(move || (0..25).map(|_| listener.accept().unwrap()).collect::<Vec<_>>())
        })
        .collect();
    let mut clients: Vec<_> =
        (0..100).map(|_| TcpStream::connect(address).unwrap().local_addr().unwrap()).collect();
    let mut accepted: Vec<_> =
        threads.into_iter().flat_map(|t| t.join().unwrap()).map(|(_, from)| from).collect();
    clients.sort();
    accepted.sort();
    assert_eq!(accepted, clients);
}

fn cookies_alone_connect_too() {
    let listener = TcpOptions::new().syn_queue(0).listen("127.0.0.1:0").unwrap();
    let before = tailwater::net::counters().tcp_cookies_accepted;
    for i in 0..10 {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(&[i]).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut buf = [0];
        server.read_exact(&mut buf).unwrap();
        assert_eq!(buf, [i]);
    }
    assert_eq!(tailwater::net::counters().tcp_cookies_accepted - before, 10);
}

fn reader_and_writer_threads_share_a_stream() {
    let (client, server) = pair();
    const TOTAL: usize = 4 << 20;
    let send = |stream: &TcpStream| {
        let stream = stream.try_clone().unwrap();
        thread::spawn(move || {
            for at in (0..TOTAL).step_by(10_000) {
                (&stream).write_all(&pattern(at, 10_000.min(TOTAL - at))).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
        })
    };
    let receive = |stream: TcpStream| {
        thread::spawn(move || {
            let (mut at, mut buf) = (0, vec![0; 50_000]);
            loop {
                let len = (&stream).read(&mut buf).unwrap();
                if len == 0 {
                    return at;
                }
                assert_eq!(buf[..len], pattern(at, len), "at {at}");
                at += len;
            }
        })
    };
    let writers = [send(&client), send(&server)];
    let readers = [receive(client), receive(server)];
    for reader in readers {
        assert_eq!(reader.join().unwrap(), TOTAL);
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

/// Copies one direction, then closes it.
fn forward(from: &TcpStream, to: &TcpStream) {
    let mut buf = [0; 8192];
    loop {
        let len = (&*from).read(&mut buf).unwrap();
        if len == 0 {
            break;
        }
        (&*to).write_all(&buf[..len]).unwrap();
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn a_relay_between_two_streams_carries_everything() {
    let (client, front) = pair();
    let (back, server) = pair();
    let (front2, back2) = (front.try_clone().unwrap(), back.try_clone().unwrap());
    let there = thread::spawn(move || forward(&front, &back));
    let home = thread::spawn(move || forward(&back2, &front2));
    let serving = thread::spawn(move || {
        // Records: a length, then that many bytes, answered in the same format, as TLS does.
        let mut stream = server;
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut record = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut record).unwrap();
            record.reverse();
            stream.write_all(&length).unwrap();
            stream.write_all(&record).unwrap();
        }
    });
    let mut client = client;
    for i in 0..300usize {
        let record = pattern(i, (i * i * 7) % 16_384);
        client.write_all(&(record.len() as u16).to_be_bytes()).unwrap();
        client.write_all(&record).unwrap();
        let mut answer = vec![0; record.len() + 2];
        client.read_exact(&mut answer).unwrap();
        answer[2..].reverse();
        assert_eq!(answer[2..], record);
    }
    drop(client);
    for thread in [there, home, serving] {
        thread.join().unwrap();
    }
}

fn every_congestion_control_carries_bulk() {
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
        let (mut client, mut server) = pair_with(&TcpOptions::new().congestion(congestion));
        let data = pattern(0, 2_000_000);
        let expected = data.clone();
        let sending = thread::spawn(move || client.write_all(&data).unwrap());
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert!(all == expected, "{congestion:?}");
        sending.join().unwrap();
    }
}

fn settings_are_kept() {
    let (client, server) = pair();
    assert!(!client.nodelay().unwrap());
    client.set_nodelay(true).unwrap();
    assert!(client.nodelay().unwrap() && !server.nodelay().unwrap());
    client.set_ttl(7).unwrap();
    assert_eq!((client.ttl().unwrap(), server.ttl().unwrap()), (7, 64));
    assert_eq!(client.keepalive().unwrap(), None);
    let keepalive = TcpKeepalive::default().idle(Duration::from_secs(1));
    client.set_keepalive(Some(keepalive)).unwrap();
    assert_eq!(client.keepalive().unwrap(), Some(keepalive));
    for linger in [None, Some(Duration::ZERO), Some(Duration::from_secs(3))] {
        client.set_linger(linger).unwrap();
        assert_eq!(client.linger().unwrap(), linger);
    }
    client.set_linger(None).unwrap();
    client.set_receive_buffer(5000).unwrap();
    client.set_send_buffer(6000).unwrap();
    assert_eq!((client.receive_buffer().unwrap(), client.send_buffer().unwrap()), (5000, 6000));
    assert_eq!(client.user_timeout().unwrap(), Duration::from_secs(300));
    assert!(format!("{client:?}").starts_with("TcpStream { addr: 127.0.0.1:"));
}

fn what_cannot_be_done_is_refused() {
    let (listener, address) = listen();
    assert_eq!(kind(TcpListener::bind(address)), ErrorKind::AddrInUse);
    assert_eq!(kind(TcpListener::bind(("0.0.0.0", address.port()))), ErrorKind::AddrInUse);
    assert_eq!(kind(TcpListener::bind("192.0.2.1:0")), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(TcpStream::connect("192.0.2.1:80")), ErrorKind::NetworkUnreachable);
    assert_eq!(kind(TcpStream::connect(("127.0.0.1", 0))), ErrorKind::InvalidInput);
    assert_eq!(kind(TcpStream::connect_timeout(&address, Duration::ZERO)), ErrorKind::InvalidInput);
    let client = TcpStream::connect(address).unwrap();
    assert_eq!(kind(client.set_read_timeout(Some(Duration::ZERO))), ErrorKind::InvalidInput);
    assert_eq!(kind(client.set_ttl(256)), ErrorKind::InvalidInput);
    assert_eq!(kind(listener.set_ttl(0)), ErrorKind::InvalidInput);
}

fn connections_come_and_go_by_the_thousand() {
    let listener = TcpOptions::new().time_wait(Duration::from_millis(10)).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        for _ in 0..3000 {
            echo(listener.accept().unwrap().0);
        }
    });
    let options = TcpOptions::new().time_wait(Duration::from_millis(10));
    for i in 0..3000u32 {
        let mut client = options.connect(address).unwrap();
        client.write_all(&i.to_le_bytes()).unwrap();
        let mut back = [0; 4];
        client.read_exact(&mut back).unwrap();
        assert_eq!(u32::from_le_bytes(back), i);
    }
    serving.join().unwrap();
}

fn ten_thousand_connections_are_open_at_once() {
    let (listener, address) = listen();
    let mut ends = Vec::new();
    for _ in 0..10_000 {
        let client = TcpStream::connect(address).unwrap();
        ends.push((client, listener.accept().unwrap().0));
    }
    // Connections of earlier tests may still be closing.
    assert!(tailwater::net::counters().tcp_connections >= 20_000);
    for (i, (client, server)) in ends.iter().enumerate() {
        (&*client).write_all(&i.to_le_bytes()).unwrap();
        let mut buf = [0; 8];
        (&*server).read_exact(&mut buf).unwrap();
        assert_eq!(usize::from_le_bytes(buf), i);
    }
}

fn ordinary_threads_may_use_streams() {
    let (mut client, server) = pair();
    let serving = std::thread::spawn(move || echo(server));
    client.write_all(b"across").unwrap();
    let mut back = [0; 6];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"across");
    drop(client);
    while !serving.is_finished() {
        thread::yield_now();
    }
    serving.join().unwrap();
}
