//! Event loops on user threads, through the public API, standalone. One runtime per process, so one
//! test function runs all.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use tailwater::events::{Batch, CommandError, Condition, EventLoop, Handle, Token};
use tailwater::net::{SharedBytes, TcpListener, TcpOptions, TcpStream, UdpSocket};
use tailwater::sync::Mutex;
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn event_loops_report_and_obey() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                a_connection_is_reported_from_its_arrival_to_its_close();
                bytes_sent_before_the_acceptance_are_reported_after_it();
                a_rejected_connection_is_reported_no_more();
                what_is_not_done_is_shown_again_in_one_piece();
                what_is_lent_stops_the_peer();
                a_send_without_room_is_cut_and_room_is_reported();
                acknowledged_bytes_are_reported_where_they_are_asked_for_and_each_once();
                shared_bytes_are_held_until_they_are_acknowledged();
                shared_bytes_without_room_are_cut_and_leave_behind_copied_ones();
                a_round_has_no_more_than_its_bound_and_passes_nobody_over();
                a_socket_that_always_has_more_stops_nobody();
                a_closed_socket_is_not_handled_later_in_its_batch();
                a_handle_or_a_place_is_of_one_socket();
                a_close_does_not_linger();
                a_failure_is_reported_behind_the_data_before_it();
                a_refused_connection_is_reported_as_closed();
                both_ends_may_be_of_one_loop();
                a_closed_socket_delivers_what_was_sent();
                bad_commands_are_refused();
                datagrams_are_lent_for_a_round();
                an_undelivered_datagram_is_reported();
                a_handler_that_waits_panics();
                conditions_that_a_handler_leaves_are_not_lost();
                a_poll_ends_at_its_time_and_when_woken();
                loops_share_a_listener();
                (0..6).for_each(every_byte_comes_back_once_and_in_order);
            })
            .unwrap();
    });
}

/// A loop, its rounds, and what it has not been asked for yet.
struct Bed {
    events: EventLoop,
    batch: Batch,
    address: SocketAddr,
}

impl Bed {
    /// Returns a loop that listens.
    fn listening() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut events = EventLoop::new();
        events.listen(listener, Token(0));
        Self { events, batch: Batch::new(), address }
    }

    /// Returns the next round's conditions.
    fn round(&mut self) -> Vec<Condition> {
        let count = self.events.poll(&mut self.batch, Some(PATIENCE));
        assert!(count > 0, "nothing happens");
        assert_eq!(count, self.batch.len());
        self.batch.iter().collect()
    }

    /// Returns the only condition of the next round.
    fn one(&mut self) -> Condition {
        let round = self.round();
        assert_eq!(round.len(), 1, "{round:?}");
        round[0]
    }

    /// Returns whether nothing is reported.
    fn is_quiet(&mut self) -> bool {
        // Long enough, on most machines, for what is under way on the loopback interface.
        self.events.poll(&mut self.batch, Some(Duration::from_millis(2))) == 0
    }

    /// Accepts a new connection as `token`; returns both ends.
    fn connection(&mut self, token: usize) -> (TcpStream, Handle) {
        let client = TcpStream::connect(self.address).unwrap();
        let Condition::Incoming { listener: Token(0), handle, peer } = self.one() else {
            panic!("nobody connects")
        };
        assert_eq!(peer, client.local_addr().unwrap());
        self.events.accept(handle, Token(token)).unwrap();
        (client, handle)
    }

    fn data(&self, handle: Handle) -> Vec<u8> {
        self.events.data(handle).unwrap().to_vec()
    }

    /// Polls until `len` bytes of a connection are on loan.
    fn until_lent(&mut self, handle: Handle, len: usize) {
        while self.data(handle).len() < len {
            assert!(matches!(self.one(), Condition::Received { fresh: 1.., .. }));
        }
    }

    fn send(&self, handle: Handle, data: &[u8]) -> Result<usize, CommandError> {
        self.events.send(handle, &[IoSlice::new(data)])
    }
}

fn a_connection_is_reported_from_its_arrival_to_its_close() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(7);
    assert!(bed.is_quiet());
    client.write_all(b"request").unwrap();
    assert_eq!(bed.one(), Condition::Received { token: Token(7), handle, fresh: 7 });
    assert_eq!(bed.data(handle), b"request");
    let slices = [IoSlice::new(b"an "), IoSlice::new(b""), IoSlice::new(b"answer")];
    assert_eq!(bed.events.send(handle, &slices), Ok(9));
    bed.events.consume(handle, 7).unwrap();
    assert!(bed.is_quiet());
    let mut answer = [0; 9];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"an answer");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(bed.one(), Condition::Eof { token: Token(7), handle });
    assert_eq!(bed.send(handle, b"the last"), Ok(8));
    bed.events.shutdown(handle).unwrap();
    assert_eq!(bed.one(), Condition::Closed { token: Token(7), handle, reason: None });
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "the last");
    assert_eq!(bed.events.len(), 2, "the handle is valid in its last round");
    assert!(bed.is_quiet());
    assert_eq!(bed.events.len(), 1, "the listener");
    assert_eq!(bed.send(handle, b"more"), Err(CommandError::UnknownHandle));
}

fn bytes_sent_before_the_acceptance_are_reported_after_it() {
    let mut bed = Bed::listening();
    let mut client = TcpStream::connect(bed.address).unwrap();
    client.write_all(b"early").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let Condition::Incoming { handle, .. } = bed.one() else { panic!("nobody connects") };
    assert!(bed.is_quiet());
    bed.events.accept(handle, Token(1)).unwrap();
    bed.until_lent(handle, 5);
    assert_eq!(bed.one(), Condition::Eof { token: Token(1), handle });
    assert_eq!(bed.data(handle), b"early");
}

fn a_rejected_connection_is_reported_no_more() {
    let mut bed = Bed::listening();
    let mut client = TcpStream::connect(bed.address).unwrap();
    let Condition::Incoming { handle, .. } = bed.one() else { panic!("nobody connects") };
    bed.events.close(handle).unwrap();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    assert!(bed.is_quiet());
}

fn what_is_not_done_is_shown_again_in_one_piece() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    client.write_all(b"half a ").unwrap();
    bed.until_lent(handle, 7);
    bed.events.consume(handle, 5).unwrap();
    assert_eq!(bed.data(handle), b"a ");
    client.write_all(b"line\n").unwrap();
    assert_eq!(bed.one(), Condition::Received { token: Token(1), handle, fresh: 5 });
    assert_eq!(bed.data(handle), b"a line\n");
    assert_eq!(bed.events.consume(handle, 8), Err(CommandError::NotLent { asked: 8, lent: 7 }));
    bed.events.consume(handle, 7).unwrap();
    assert!(bed.data(handle).is_empty());
    assert_eq!(bed.events.consume(handle, 1), Err(CommandError::NotLent { asked: 1, lent: 0 }));
}

fn what_is_lent_stops_the_peer() {
    const BUFFER: usize = 8192;
    let options = TcpOptions::new().receive_buffer(BUFFER);
    let listener = options.listen("127.0.0.1:0").unwrap();
    let mut bed = Bed { address: listener.local_addr().unwrap(), ..Bed::listening() };
    bed.events.listen(listener, Token(0));
    let (client, handle) = bed.connection(1);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let copy = data.clone();
    let writer = thread::spawn(move || (&client).write_all(&copy).map(|()| client));
    bed.until_lent(handle, BUFFER);
    // What is lent fills the window, whatever time passes.
    assert_eq!(bed.events.poll(&mut bed.batch, Some(Duration::from_millis(20))), 0);
    let mut got = Vec::new();
    loop {
        got.extend(bed.data(handle));
        bed.events.consume(handle, bed.data(handle).len()).unwrap();
        if got.len() == data.len() {
            break;
        }
        assert!(matches!(bed.one(), Condition::Received { .. }));
        assert!(bed.data(handle).len() <= BUFFER);
    }
    assert!(got == data);
    writer.join().unwrap().unwrap();
}

fn a_send_without_room_is_cut_and_room_is_reported() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    let data: Vec<u8> = (0..8_000_000u32).map(|i| (i % 249) as u8).collect();
    let mut sent = bed.send(handle, &data).unwrap();
    assert!(sent > 0 && sent < data.len(), "{sent}");
    // Nearly always zero; an acknowledgment may have made room.
    sent += bed.send(handle, &data[sent..]).unwrap();
    let size = data.len();
    let reader = thread::spawn(move || {
        let mut got = vec![0; size];
        client.read_exact(&mut got).map(|()| (got, client))
    });
    while sent < data.len() {
        let Condition::Window { token: Token(1), room: 1.., .. } = bed.one() else { panic!("{sent}") };
        // A timer may have made the room smaller since, or acknowledgments larger.
        sent += bed.send(handle, &data[sent..]).unwrap();
    }
    let (got, _client) = reader.join().unwrap().unwrap();
    assert!(got == data);
    assert!(bed.is_quiet());
}

fn acknowledged_bytes_are_reported_where_they_are_asked_for_and_each_once() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    assert_eq!(bed.send(handle, &[1; 1000]), Ok(1000));
    assert!(bed.is_quiet(), "nothing waits for room");
    client.read_exact(&mut [0; 1000]).unwrap();
    bed.events.report_acknowledged(handle, true).unwrap();
    let sent = 300_000;
    let reader = thread::spawn(move || {
        let mut got = vec![0; sent];
        client.read_exact(&mut got).map(|()| client)
    });
    let (mut left, mut acknowledged) = (sent, 0);
    while acknowledged < 1000 + sent {
        let len = left.min(10_000);
        left -= bed.send(handle, &vec![2; len]).unwrap();
        if let Condition::Window { token: Token(1), acknowledged: some @ 1.., .. } = bed.one() {
            acknowledged += some;
        }
    }
    assert_eq!((left, acknowledged), (0, 1000 + sent));
    let mut client = reader.join().unwrap().unwrap();
    bed.events.report_acknowledged(handle, false).unwrap();
    assert_eq!(bed.send(handle, &[1; 10]), Ok(10));
    assert!(bed.is_quiet());
    client.read_exact(&mut [0; 10]).unwrap();
    assert!(bed.is_quiet());
}

fn shared_bytes_are_held_until_they_are_acknowledged() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    let (_other, closed) = bed.connection(2);
    let memory: Arc<[u8]> = Arc::from(vec![7; 16 << 10]);
    let bytes = SharedBytes::from(Arc::clone(&memory));
    assert_eq!(bed.events.send_shared(handle, &bytes), Ok(16 << 10));
    assert_eq!(bed.events.send_shared(closed, &bytes), Ok(16 << 10));
    drop(bytes);
    assert_eq!(Arc::strong_count(&memory), 3, "the two connections hold it");
    // The round ends, and the peer takes and acknowledges everything.
    let reader = thread::spawn(move || {
        let mut got = vec![0; 16 << 10];
        client.read_exact(&mut got).map(|()| (got, client))
    });
    bed.events.close(closed).unwrap();
    let began = Instant::now();
    while Arc::strong_count(&memory) > 1 {
        assert!(began.elapsed() < PATIENCE, "what was acknowledged is still held");
        bed.events.poll(&mut bed.batch, Some(Duration::from_millis(1)));
    }
    let (got, _client) = reader.join().unwrap().unwrap();
    assert!(got == memory[..]);
}

fn shared_bytes_without_room_are_cut_and_leave_behind_copied_ones() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    let data: Vec<u8> = (0..8_000_000u32).map(|i| (i % 249) as u8).collect();
    let size = data.len();
    assert_eq!(bed.send(handle, &data[..1000]), Ok(1000));
    let mut rest = SharedBytes::from(data.clone()).slice(1000..);
    rest.advance(bed.events.send_shared(handle, &rest).unwrap());
    assert!(!rest.is_empty() && rest.len() < size - 1000, "{}", rest.len());
    let reader = thread::spawn(move || {
        let mut got = vec![0; size];
        client.read_exact(&mut got).map(|()| (got, client))
    });
    while !rest.is_empty() {
        let Condition::Window { token: Token(1), room: 1.., .. } = bed.one() else { panic!("{rest:?}") };
        rest.advance(bed.events.send_shared(handle, &rest).unwrap());
    }
    let (got, _client) = reader.join().unwrap().unwrap();
    assert!(got == data);
    assert!(bed.is_quiet());
}

fn a_round_has_no_more_than_its_bound_and_passes_nobody_over() {
    const CLIENTS: usize = 5;
    let mut bed = Bed::listening();
    let mut clients: Vec<_> = (0..CLIENTS).map(|i| bed.connection(i)).collect();
    bed.events.set_batch(2).unwrap();
    // The loop takes a little of each connection, so each has more behind its first condition.
    for (client, _) in &mut clients {
        client.write_all(b"x").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 2 * CLIENTS {
        let round = bed.round();
        assert!(round.len() <= 2, "{round:?}");
        seen.extend(round);
    }
    let of = |handle| seen.iter().filter(move |it| it.handle() == Some(handle));
    for (_, handle) in clients {
        let own: Vec<_> = of(handle).collect();
        assert!(matches!(own[..], [Condition::Received { .. }, Condition::Eof { .. }]), "{own:?}");
    }
}

fn a_socket_that_always_has_more_stops_nobody() {
    const FLOOD: usize = 50;
    let mut bed = Bed::listening();
    bed.events.set_batch(1).unwrap();
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (flooded, other, probe, client) = (bind(), bind(), bind(), bind());
    probe.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = |socket: &UdpSocket| socket.local_addr().unwrap();
    let (to_flooded, to_other) = (address(&flooded), address(&other));
    // The loopback interface delivers in order, so what was sent before a probe has arrived.
    let arrive = || {
        client.send_to(b"probe", address(&probe)).unwrap();
        probe.recv(&mut [0; 9]).unwrap();
    };
    for _ in 0..FLOOD {
        client.send_to(b"flood", to_flooded).unwrap();
    }
    arrive();
    bed.events.bind(flooded, Token(1));
    assert!(matches!(bed.one(), Condition::Datagram { token: Token(1), .. }));
    bed.events.bind(other, Token(2));
    client.send_to(b"one", to_other).unwrap();
    arrive();
    bed.events.waker().wake();
    let few: Vec<_> = (0..6).map(|_| bed.one()).collect();
    assert!(few.contains(&Condition::Woken), "{few:?}");
    let is_other = |it: &Condition| matches!(it, Condition::Datagram { token: Token(2), .. });
    assert!(few.iter().any(is_other), "{few:?}");
}

fn a_closed_socket_is_not_handled_later_in_its_batch() {
    let mut bed = Bed::listening();
    let ports: Vec<_> = (0..2).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = ports.iter().map(|port| port.local_addr().unwrap()).collect();
    let handles: Vec<_> = ports.into_iter().map(|port| bed.events.bind(port, Token(1))).collect();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    probe.set_read_timeout(Some(PATIENCE)).unwrap();
    for to in [addresses[0], addresses[1], probe.local_addr().unwrap()] {
        client.send_to(b"x", to).unwrap();
    }
    probe.recv(&mut [0; 9]).unwrap();
    // Both are in one batch, and the handler of the first closes both.
    let waker = bed.events.waker();
    bed.events.run(|events, condition| match condition {
        Condition::Datagram { .. } => {
            handles.iter().for_each(|&handle| events.close(handle).unwrap());
            waker.wake();
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Break(()),
    });
    assert_eq!(bed.events.len(), 1, "the listener");
}

fn a_handle_or_a_place_is_of_one_socket() {
    let mut beds = [Bed::listening(), Bed::listening()];
    let (_first, handle) = beds[0].connection(1);
    let (_second, other) = beds[1].connection(1);
    assert_ne!(handle, other);
    assert_eq!(beds[1].send(handle, b"another loop's"), Err(CommandError::UnknownHandle));
    let [bed, _] = &mut beds;
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = sockets[0].local_addr().unwrap();
    let [receiver, bystander] = sockets.map(|socket| bed.events.bind(socket, Token(2)));
    bed.events.send_to(bystander, Some(to), &[IoSlice::new(b"private")]).unwrap();
    let Condition::Datagram { range, .. } = bed.one() else { panic!("no datagram") };
    assert_eq!(bed.events.datagram(bystander, range), Err(CommandError::OtherSocket));
    assert_eq!(bed.events.datagram(receiver, range), Ok(&b"private"[..]));
}

fn a_close_does_not_linger() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_linger(Some(PATIENCE)).unwrap();
    let mut events = EventLoop::new();
    let handle = events.register(stream, Token(1));
    events.waker().wake();
    events.run(|events, _| {
        // More than the peer acknowledges, for it reads nothing. Waiting would panic.
        assert!(events.send(handle, &[IoSlice::new(&vec![0; 1 << 22])]).unwrap() > 0);
        events.close(handle).unwrap();
        ControlFlow::Break(())
    });
}

fn a_failure_is_reported_behind_the_data_before_it() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    client.write_all(b"the end").unwrap();
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    bed.until_lent(handle, 7);
    let reason = Some(ErrorKind::ConnectionReset);
    assert_eq!(bed.one(), Condition::Closed { token: Token(1), handle, reason });
    assert_eq!(bed.data(handle), b"the end");
    assert_eq!(bed.send(handle, b"no"), Err(CommandError::Over));
    assert_eq!(bed.events.shutdown(handle), Err(CommandError::Over));
}

fn a_refused_connection_is_reported_as_closed() {
    let mut bed = Bed::listening();
    // Port 1 is no client's: the SYN does not meet itself.
    let closed = SocketAddr::from(([127, 0, 0, 1], 1));
    let handle = bed.events.connect(closed, Token(3)).unwrap();
    let reason = Some(ErrorKind::ConnectionRefused);
    assert_eq!(bed.one(), Condition::Closed { token: Token(3), handle, reason });
}

fn both_ends_may_be_of_one_loop() {
    let mut bed = Bed::listening();
    let client = bed.events.connect(bed.address, Token(1)).unwrap();
    bed.send(client, b"first").unwrap();
    let (mut connected, mut got) = (false, Vec::new());
    while !connected || got.len() < 5 {
        for condition in bed.round() {
            match condition {
                Condition::Connected { token: Token(1), handle } => {
                    assert_eq!(handle, client);
                    connected = true;
                }
                Condition::Incoming { handle, .. } => bed.events.accept(handle, Token(2)).unwrap(),
                Condition::Received { token: Token(2), handle, fresh } => {
                    got.extend(bed.data(handle));
                    bed.events.consume(handle, fresh).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(got, b"first");
}

fn a_closed_socket_delivers_what_was_sent() {
    let mut bed = Bed::listening();
    let (mut client, handle) = bed.connection(1);
    assert_eq!(bed.send(handle, b"farewell"), Ok(8));
    bed.events.close(handle).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert_eq!(all, "farewell");
    // What was not done counts as never read.
    let (mut client, handle) = bed.connection(2);
    client.write_all(b"ignored").unwrap();
    bed.until_lent(handle, 7);
    bed.events.close(handle).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn bad_commands_are_refused() {
    let mut bed = Bed::listening();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = bed.events.listen(listener, Token(9));
    assert_eq!(bed.send(listener, b"x"), Err(CommandError::WrongKind));
    assert_eq!(bed.events.data(listener), Err(CommandError::WrongKind));
    assert_eq!(bed.events.send_to(listener, None, &[]), Err(CommandError::WrongKind));
    let _client = TcpStream::connect(address).unwrap();
    let Condition::Incoming { listener: Token(9), handle, .. } = bed.one() else { panic!("nobody connects") };
    assert_eq!(bed.send(handle, b"x"), Err(CommandError::NotAccepted));
    assert_eq!(bed.events.shutdown(handle), Err(CommandError::NotAccepted));
    bed.events.accept(handle, Token(1)).unwrap();
    assert_eq!(bed.events.accept(handle, Token(2)), Err(CommandError::Accepted));
    bed.events.shutdown(handle).unwrap();
    assert_eq!(bed.events.shutdown(handle), Err(CommandError::ShutDown));
    assert_eq!(bed.send(handle, b"x"), Err(CommandError::ShutDown));
    bed.events.close(handle).unwrap();
    let calls = [
        bed.events.close(handle),
        bed.events.accept(handle, Token(3)),
        bed.events.consume(handle, 0),
        bed.events.shutdown(handle),
        bed.events.data(handle).map(drop),
        bed.send(handle, b"x").map(drop),
    ];
    assert_eq!(calls, [Err(CommandError::UnknownHandle); 6]);
    // The place is used again, under another handle.
    let next = bed.events.connect(address, Token(4)).unwrap();
    assert_ne!(next, handle);
    assert_eq!(bed.events.close(handle), Err(CommandError::UnknownHandle));
    assert_eq!(bed.events.set_batch(300), Err(CommandError::Batch(300)));
}

fn datagrams_are_lent_for_a_round() {
    const DATAGRAMS: usize = 100;
    let mut bed = Bed::listening();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let handle = bed.events.bind(socket, Token(5));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    bed.events.set_batch(8).unwrap();
    let mut seen = Vec::new();
    for burst in 0..2 {
        for number in 0..DATAGRAMS {
            client.send_to(&[burst, number as u8], address).unwrap();
        }
        let mut left = DATAGRAMS;
        while left > 0 {
            let round = bed.round();
            assert!(round.len() <= 8);
            left -= round.len();
            for condition in round {
                let Condition::Datagram { token: Token(5), from, range, .. } = condition else { panic!() };
                assert_eq!(from, client.local_addr().unwrap());
                seen.push((bed.events.datagram(handle, range).unwrap().to_vec(), range));
            }
        }
    }
    let sent = (0..2).flat_map(|burst| (0..DATAGRAMS).map(move |number| vec![burst, number as u8]));
    assert!(seen.iter().map(|(data, _)| data.clone()).eq(sent));
    assert_eq!(bed.events.datagram(handle, seen[0].1), Err(CommandError::Returned));
    let slices = [IoSlice::new(b"in two "), IoSlice::new(b"pieces")];
    bed.events.send_to(handle, client.local_addr().ok(), &slices).unwrap();
    let mut answer = [0; 20];
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = client.recv(&mut answer).unwrap();
    assert_eq!(&answer[..len], b"in two pieces");
    assert!(matches!(bed.events.send_to(handle, None, &slices), Err(CommandError::Refused(_))), "no peer");
}

fn an_undelivered_datagram_is_reported() {
    let mut bed = Bed::listening();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()).unwrap();
    let handle = bed.events.bind(socket, Token(5));
    bed.events.send_to(handle, None, &[IoSlice::new(b"to nobody")]).unwrap();
    let reason = ErrorKind::ConnectionRefused;
    assert_eq!(bed.one(), Condition::Undelivered { token: Token(5), handle, reason });
    assert!(bed.is_quiet());
}

fn a_handler_that_waits_panics() {
    let lock = Mutex::new(());
    let held = lock.lock().unwrap();
    let never = std::sync::Arc::new(tailwater::sync::Event::new());
    let waits: [&dyn Fn(&mut EventLoop); 5] = [
        &|_| thread::sleep(Duration::from_millis(1)),
        &|_| drop(lock.lock()),
        &|_| never.wait(),
        &|_| {
            let never = std::sync::Arc::clone(&never);
            let _ = thread::spawn(move || never.wait()).join();
        },
        &|events| {
            events.poll(&mut Batch::new(), None);
        },
    ];
    for (number, wait) in waits.into_iter().enumerate() {
        let mut events = EventLoop::new();
        events.waker().wake();
        let run = AssertUnwindSafe(|| {
            events.run(|events, _| {
                wait(events);
                ControlFlow::Break(())
            });
        });
        let panic = catch_unwind(run).expect_err(&format!("{number} waits"));
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
        assert!(message.contains("let another thread do what waits"), "{number}: {message}");
        // The thread may wait again.
        thread::sleep(Duration::from_nanos(1));
    }
    never.set();
    drop(held);
}

fn conditions_that_a_handler_leaves_are_not_lost() {
    const CLIENTS: usize = 4;
    let mut bed = Bed::listening();
    let mut clients: Vec<_> = (0..CLIENTS).map(|i| bed.connection(i).0).collect();
    clients.iter_mut().for_each(|client| client.write_all(b"once").unwrap());
    let mut seen = 0;
    while seen < CLIENTS * 4 {
        seen += bed.events.run(|events, condition| {
            let Condition::Received { handle, .. } = condition else { panic!("{condition:?}") };
            let data = events.data(handle).unwrap().len();
            events.consume(handle, data).unwrap();
            ControlFlow::Break(data)
        });
    }
    assert!(bed.is_quiet());
}

fn a_poll_ends_at_its_time_and_when_woken() {
    let mut bed = Bed::listening();
    assert_eq!(bed.events.poll(&mut bed.batch, Some(Duration::from_millis(1))), 0);
    let waker = bed.events.waker();
    thread::spawn(move || waker.wake());
    assert_eq!(bed.one(), Condition::Woken);
}

fn loops_share_a_listener() {
    const CLIENTS: usize = 40;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let start = || {
        let listener = listener.try_clone().unwrap();
        let (sender, receiver) = tailwater::sync::channel::unbounded();
        let served = thread::spawn(move || {
            let mut events = EventLoop::new();
            sender.send(events.waker()).unwrap();
            events.listen(listener, Token(0));
            let mut served = 0;
            events.run(|events, condition| {
                if condition == Condition::Woken {
                    return ControlFlow::Break(served);
                }
                served += usize::from(matches!(condition, Condition::Incoming { .. }));
                echo(events, condition, &mut |all| all);
                ControlFlow::Continue(())
            })
        });
        (receiver.recv().unwrap(), served)
    };
    let loops = [start(), start()];
    for _ in 0..CLIENTS {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"ping").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        client.read_to_string(&mut all).unwrap();
        assert_eq!(all, "ping");
    }
    let served: usize = loops
        .into_iter()
        .map(|(waker, served)| {
            waker.wake();
            served.join().unwrap()
        })
        .sum();
    assert_eq!(served, CLIENTS);
}

/// Echoes as much of what is lent as `part` says.
fn echo(events: &mut EventLoop, condition: Condition, part: &mut dyn FnMut(usize) -> usize) {
    let result = match condition {
        Condition::Incoming { handle, .. } => events.accept(handle, Token(1)),
        Condition::Received { handle, .. }
        | Condition::Window { handle, .. }
        | Condition::Eof { handle, .. } => answer(events, handle, part),
        Condition::Closed { reason: None, .. } => Ok(()),
        other => panic!("{other:?}"),
    };
    result.unwrap();
}

fn answer(
    events: &mut EventLoop,
    handle: Handle,
    part: &mut dyn FnMut(usize) -> usize,
) -> Result<(), CommandError> {
    let data = events.data(handle)?;
    let (first, rest) = data.split_at(part(data.len()));
    let (left, right) = first.split_at(first.len() / 3);
    let sent = events.send(handle, &[IoSlice::new(left), IoSlice::new(right)])?;
    let all = sent == first.len() && rest.is_empty();
    events.consume(handle, sent)?;
    if events.is_eof(handle)? && all {
        events.shutdown(handle)?;
    }
    Ok(())
}

/// Clients send and read at random paces; the loop answers at random sizes, leaves data on loan for
/// later rounds, and changes the bound.
fn every_byte_comes_back_once_and_in_order(seed: u64) {
    const CLIENTS: u64 = 6;
    let mut random = SmallRng::seed_from_u64(seed);
    let buffer = [1024, 4096, 65_536][random.random_range(0..3)];
    let listener =
        TcpOptions::new().receive_buffer(buffer).send_buffer(buffer).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<_> =
        (0..CLIENTS).map(|i| thread::spawn(move || converse(address, seed * CLIENTS + i))).collect();
    let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    events.listen(listener, Token(0));
    // Connections with data that was left on loan.
    let (mut owed, mut closed) = (Vec::new(), 0);
    while closed < CLIENTS {
        let bound = random.random_range(1..=8);
        events.set_batch(bound).unwrap();
        // With something left to do the loop does not wait.
        let wait = if owed.is_empty() { PATIENCE } else { Duration::ZERO };
        let count = events.poll(&mut batch, Some(wait));
        assert!(count <= bound && (count > 0 || !owed.is_empty()), "seed {seed}: nothing happens");
        for condition in batch.iter() {
            closed += u64::from(matches!(condition, Condition::Closed { .. }));
            echo(&mut events, condition, &mut |len| random.random_range(0..=len));
            owed.extend(condition.handle().filter(|handle| !owed.contains(handle)));
        }
        owed.retain(|&handle| {
            if random.random_ratio(1, 3) {
                // All that is left, as far as there is room. An error is that it was answered.
                let _ = answer(&mut events, handle, &mut |len| len);
            }
            events.data(handle).is_ok_and(|data| !data.is_empty())
        });
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    events.poll(&mut batch, Some(Duration::ZERO));
    assert_eq!(events.len(), 1, "the listener is left");
}

/// Sends at random sizes, reads at random sizes, and compares.
fn converse(address: SocketAddr, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut data = vec![0; random.random_range(1..60_000)];
    random.fill_bytes(&mut data);
    let (stream, copy) = (TcpStream::connect(address).unwrap(), data.clone());
    let mut sender = stream.try_clone().unwrap();
    let mut pace = SmallRng::seed_from_u64(!seed);
    let writer = thread::spawn(move || {
        let mut rest = &copy[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(pace.random_range(1..=rest.len().min(5000)));
            sender.write_all(part).unwrap();
            rest = behind;
        }
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let (mut stream, mut got) = (stream, Vec::new());
    loop {
        let mut buffer = vec![0; random.random_range(1..5000)];
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            len => got.extend_from_slice(&buffer[..len]),
        }
    }
    writer.join().unwrap();
    assert!(got == data, "seed {seed}: {} bytes of {}", got.len(), data.len());
}
