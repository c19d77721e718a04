//! Readiness on user threads, through the public API, standalone. One runtime per process, so one
//! test function runs all.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::internals::SpinLock;
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::readiness::{Events, Interest, Mode, Poller, Readiness, Token};
use tailwater::sync::{Notify, channel};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const READ: Interest = Interest::READABLE;
const WRITE: Interest = Interest::WRITABLE;

#[test]
fn pollers_report_what_is_ready() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                a_level_is_reported_until_it_is_used_up();
                an_edge_is_reported_once_for_each_change();
                a_one_shot_is_reported_once_until_it_is_modified();
                what_another_has_used_up_is_not_reported();
                a_connection_is_readable_at_its_end_and_when_it_failed();
                room_makes_a_connection_writable_again();
                a_connection_is_writable_when_its_handshake_is_over();
                listeners_and_datagrams_are_reported();
                both_ends_of_a_channel_are_reported();
                a_rendezvous_is_reported_to_the_end_that_waits_for_it();
                a_closed_source_is_reported_no_more();
                a_place_that_was_closed_can_be_registered_anew();
                a_deregistered_source_is_reported_no_more();
                a_suspended_source_is_not_there_until_it_is_registered_again();
                a_wait_returns_at_its_time_and_when_woken();
                a_wait_without_time_sees_what_stands_behind_a_source_used_up();
                a_wait_that_panics_leaves_the_timers_to_others();
                timers_are_reported_in_their_order();
                a_timer_set_later_shortens_a_wait();
                threads_that_wait_share_the_events();
                another_thread_takes_over_the_timers();
                a_thread_without_room_passes_events_on();
                ordinary_threads_may_wait();
                a_dropped_poller_leaves_its_sources();
            })
            .unwrap();
    });
}

fn poller() -> (Poller, Events) {
    (Poller::new(), Events::with_capacity(16))
}

/// Waits for events and returns them in the order of their tokens.
fn wait(poller: &Poller, events: &mut Events, timeout: Option<Duration>) -> Vec<Readiness> {
    let count = poller.wait(events, timeout);
    assert_eq!(count, events.len());
    let mut all: Vec<_> = events.iter().collect();
    all.sort_by_key(Readiness::token);
    all
}

fn tokens(events: &[Readiness]) -> Vec<usize> {
    events.iter().map(|event| event.token().0).collect()
}

/// Returns the two ends of a connection, non-blocking: client, server.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    (client, server)
}

fn would_block(result: std::io::Result<usize>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn a_level_is_reported_until_it_is_used_up() {
    let ((poller, mut events), (mut client, mut server)) = (poller(), pair());
    poller.register(&server, Token(3), READ, Mode::Level).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    client.write_all(b"ab").unwrap();
    for _ in 0..2 {
        assert_eq!(tokens(&wait(&poller, &mut events, None)), [3]);
        assert_eq!(server.read(&mut [0]).unwrap(), 1);
    }
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    client.write_all(b"c").unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [3]);
}

fn an_edge_is_reported_once_for_each_change() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::unbounded();
    sender.send(0).unwrap();
    poller.register(&receiver, Token(0), READ, Mode::Edge).unwrap();
    for message in 1..4 {
        assert_eq!(tokens(&wait(&poller, &mut events, None)), [0], "ready already, or changed");
        assert!(wait(&poller, &mut events, AT_ONCE).is_empty(), "reported, though not used up");
        sender.send(message).unwrap();
    }
}

fn a_one_shot_is_reported_once_until_it_is_modified() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::unbounded();
    poller.register(&receiver, Token(0), READ, Mode::OneShot).unwrap();
    sender.send(0).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
    sender.send(1).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    poller.modify(&receiver, Token(1), READ, Mode::OneShot).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [1]);
    poller.modify(&receiver, Token(2), Interest::NONE, Mode::Level).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty(), "no interest");
    poller.modify(&receiver, Token(2), READ, Mode::Level).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [2]);
}

fn what_another_has_used_up_is_not_reported() {
    let (poller, mut events) = poller();
    let notify = Arc::new(Notify::new());
    poller.register(&notify, Token(0), READ, Mode::Edge).unwrap();
    notify.notify_one();
    assert!(notify.try_wait());
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    notify.notify_one();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
}

fn a_connection_is_readable_at_its_end_and_when_it_failed() {
    let ((poller, mut events), (client, mut server)) = (poller(), pair());
    poller.register(&server, Token(0), READ | WRITE, Mode::Edge).unwrap();
    let first = wait(&poller, &mut events, None);
    assert!(first[0].is_writable() && !first[0].is_readable() && !first[0].is_end());
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let end = wait(&poller, &mut events, None);
    assert!(end[0].is_readable() && end[0].is_end() && !end[0].is_failed());
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    // Data that the client never reads: closing it resets the connection.
    server.write_all(b"unread").unwrap();
    while client.peek(&mut [0]).is_err() {
        thread::yield_now();
    }
    drop(client);
    loop {
        let all = wait(&poller, &mut events, None);
        if all.iter().any(Readiness::is_failed) {
            break;
        }
    }
    assert_eq!(server.write(b"more").unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn room_makes_a_connection_writable_again() {
    let ((poller, mut events), (mut client, mut server)) = (poller(), pair());
    while !would_block(client.write(&[7; 4096])) {
        thread::yield_now();
    }
    poller.register(&client, Token(0), WRITE, Mode::Level).unwrap();
    // The peer's window and this side's buffer are full, or become so at once.
    let reader = thread::spawn(move || {
        server.set_nonblocking(false).unwrap();
        let mut buf = [0; 4096];
        while server.read(&mut buf).unwrap() > 0 {}
    });
    let all = wait(&poller, &mut events, None);
    assert!(all[0].is_writable() && !all[0].is_readable());
    assert!(client.write(b"more").unwrap() > 0);
    drop(client);
    reader.join().unwrap();
}

fn a_connection_is_writable_when_its_handshake_is_over() {
    let (poller, mut events) = poller();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::begin_connect(&address).unwrap();
    poller.register(&client, Token(0), WRITE, Mode::OneShot).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
    assert!(client.take_error().unwrap().is_none());
    drop(listener);
    let refused = TcpStream::begin_connect(&address).unwrap();
    poller.register(&refused, Token(1), WRITE, Mode::OneShot).unwrap();
    let all = wait(&poller, &mut events, None);
    assert!(tokens(&all) == [1] && all[0].is_failed());
    let error = refused.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

fn listeners_and_datagrams_are_reported() {
    let (poller, mut events) = poller();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    poller.register(&listener, Token(1), READ, Mode::Level).unwrap();
    poller.register(&socket, Token(2), READ, Mode::Level).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [1]);
    listener.accept().unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [2]);
    poller.modify(&socket, Token(3), READ | WRITE, Mode::Level).unwrap();
    let all = wait(&poller, &mut events, None);
    assert!(tokens(&all) == [3] && all[0].is_readable() && all[0].is_writable());
}

fn both_ends_of_a_channel_are_reported() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::bounded(1);
    poller.register(&sender, Token(0), WRITE, Mode::Level).unwrap();
    poller.register(&receiver, Token(1), READ, Mode::Level).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
    sender.send(5).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [1]);
    assert_eq!(receiver.recv(), Ok(5));
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
    drop(sender);
    let all = wait(&poller, &mut events, None);
    assert!(tokens(&all) == [1] && all[0].is_end(), "the sender's registration ended with it");
}

fn a_rendezvous_is_reported_to_the_end_that_waits_for_it() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::bounded(0);
    poller.register(&receiver, Token(0), READ, Mode::Edge).unwrap();
    let sending = thread::spawn(move || sender.send(1).unwrap());
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
    assert_eq!(receiver.try_recv(), Ok(1));
    sending.join().unwrap();
}

fn a_closed_source_is_reported_no_more() {
    let ((poller, mut events), (mut client, server)) = (poller(), pair());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (sender, receiver) = channel::unbounded();
    poller.register(&server, Token(0), READ, Mode::Level).unwrap();
    poller.register(&socket, Token(1), READ, Mode::Level).unwrap();
    poller.register(&listener, Token(2), READ, Mode::Level).unwrap();
    poller.register(&receiver, Token(3), READ, Mode::Level).unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    let _waits = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sender.send(()).unwrap();
    client.write_all(b"x").unwrap();
    let clone = server.try_clone().unwrap();
    while clone.peek(&mut [0]).is_err() {
        thread::yield_now();
    }
    drop(server);
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [0, 1, 2, 3], "a clone is open");
    drop((clone, socket, listener, receiver));
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
}

fn a_place_that_was_closed_can_be_registered_anew() {
    let (poller, mut events) = poller();
    for token in 0..100 {
        // The stack gives the closed socket's place to the next, and the allocator its memory.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_, receiver) = channel::unbounded::<u8>();
        poller.register(&socket, Token(token), READ, Mode::Edge).unwrap();
        poller.register(&listener, Token(1000), READ, Mode::Edge).unwrap();
        poller.register(&receiver, Token(1001), READ, Mode::Edge).unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert_eq!(tokens(&wait(&poller, &mut events, None)), [token, 1001]);
    }
}

fn a_deregistered_source_is_reported_no_more() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::unbounded();
    poller.register(&receiver, Token(0), READ, Mode::Level).unwrap();
    sender.send(()).unwrap();
    poller.deregister(&receiver).unwrap();
    sender.send(()).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    assert_eq!(
        poller.modify(&receiver, Token(0), READ, Mode::Level).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    poller.register(&receiver, Token(1), READ, Mode::Level).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, None)), [1]);
}

fn a_suspended_source_is_not_there_until_it_is_registered_again() {
    let (poller, mut events) = poller();
    let (sender, receiver) = channel::unbounded();
    poller.register(&receiver, Token(1), READ, Mode::Level).unwrap();
    sender.send(1).unwrap();
    poller.suspend(&receiver).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    let again = [poller.suspend(&receiver), poller.modify(&receiver, Token(1), READ, Mode::Level)];
    assert!(again.iter().all(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound)));
    sender.send(2).unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
    poller.register(&receiver, Token(2), READ, Mode::Edge).unwrap();
    assert_eq!(wait(&poller, &mut events, AT_ONCE)[0].token(), Token(2), "what came meanwhile");
    let twice = poller.register(&receiver, Token(3), READ, Mode::Edge);
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::AlreadyExists);
    sender.send(3).unwrap();
    assert_eq!(wait(&poller, &mut events, AT_ONCE).len(), 1);
}

fn a_wait_returns_at_its_time_and_when_woken() {
    let (poller, mut events) = poller();
    let start = Instant::now();
    assert!(wait(&poller, &mut events, Some(Duration::from_millis(2))).is_empty());
    assert!(start.elapsed() >= Duration::from_millis(2));
    let poller = Arc::new(poller);
    let waker = Arc::clone(&poller);
    let waking = thread::spawn(move || waker.wake());
    assert!(wait(&poller, &mut events, None).is_empty());
    waking.join().unwrap();
}

fn a_wait_without_time_sees_what_stands_behind_a_source_used_up() {
    let (poller, mut events) = (Poller::new(), Events::with_capacity(1));
    let channels: Vec<_> = (0..3).map(|_| channel::unbounded()).collect();
    for (token, (_, receiver)) in channels.iter().enumerate() {
        poller.register(receiver, Token(token), READ, Mode::Level).unwrap();
    }
    // Both are listed again, as they are registered by level.
    for (sender, _) in &channels[..2] {
        sender.send(()).unwrap();
        assert_eq!(wait(&poller, &mut events, None).len(), 1);
    }
    channels[..2].iter().for_each(|(_, receiver)| receiver.recv().unwrap());
    channels[2].0.send(()).unwrap();
    assert_eq!(tokens(&wait(&poller, &mut events, AT_ONCE)), [2]);
    channels[2].1.recv().unwrap();
    assert!(wait(&poller, &mut events, AT_ONCE).is_empty());
}

fn a_wait_that_panics_leaves_the_timers_to_others() {
    let (poller, mut events) = (Arc::new(Poller::new()), Events::with_capacity(1));
    let start = Instant::now();
    poller.set_timer(Token(0), start + Duration::from_secs(3600));
    let panics = thread::spawn({
        let poller = Arc::clone(&poller);
        move || {
            let lock = SpinLock::new(());
            let _held = lock.lock();
            poller.wait(&mut Events::with_capacity(1), None)
        }
    });
    assert!(panics.join().is_err(), "a thread with a spin lock may not wait");
    poller.set_timer(Token(0), Instant::now() + Duration::from_millis(20));
    assert_eq!(tokens(&wait(&poller, &mut events, Some(PATIENCE))), [0]);
    assert!(start.elapsed() < PATIENCE, "no thread watched the timer");
}

fn timers_are_reported_in_their_order() {
    let (poller, mut events) = poller();
    let start = Instant::now();
    let ms = Duration::from_millis(1);
    poller.set_timer(Token(2), start + 3 * ms);
    poller.set_timer(Token(1), start + 2 * ms);
    poller.set_timer(Token(3), start + ms);
    assert!(poller.clear_timer(Token(3)));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        poller.wait(&mut events, None);
        assert!(start.elapsed() >= 2 * ms && events.iter().all(|event| event.is_timer()));
        seen.extend(events.iter().map(|event| event.token().0));
    }
    assert_eq!(seen, [1, 2]);
}

fn a_timer_set_later_shortens_a_wait() {
    let (poller, mut events) = poller();
    let poller = Arc::new(poller);
    for hours in [None, Some(1)] {
        if let Some(hours) = hours {
            poller.set_timer(Token(9), Instant::now() + Duration::from_secs(3600 * hours));
        }
        let other = Arc::clone(&poller);
        let setting = thread::spawn(move || other.set_timer(Token(0), Instant::now()));
        assert_eq!(tokens(&wait(&poller, &mut events, None)), [0]);
        setting.join().unwrap();
    }
}

fn threads_that_wait_share_the_events() {
    const MESSAGES: usize = 2000;
    let poller = Arc::new(Poller::new());
    let channels: Arc<Vec<_>> = Arc::new((0..8).map(|_| channel::unbounded::<usize>()).collect());
    for (token, (_, receiver)) in channels.iter().enumerate() {
        poller.register(receiver, Token(token), READ, Mode::OneShot).unwrap();
    }
    let received = Arc::new(AtomicUsize::new(0));
    let in_use: Arc<Vec<_>> = Arc::new((0..8).map(|_| AtomicUsize::new(0)).collect());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (poller, channels) = (Arc::clone(&poller), Arc::clone(&channels));
            let (received, in_use) = (Arc::clone(&received), Arc::clone(&in_use));
            thread::spawn(move || {
                let mut events = Events::with_capacity(2);
                while received.load(Ordering::Relaxed) < MESSAGES {
                    poller.wait(&mut events, None);
                    for event in &events {
                        let token = event.token();
                        assert_eq!(in_use[token.0].fetch_add(1, Ordering::Relaxed), 0, "one thread each");
                        thread::yield_now();
                        let count = channels[token.0].1.try_iter().count();
                        received.fetch_add(count, Ordering::Relaxed);
                        in_use[token.0].fetch_sub(1, Ordering::Relaxed);
                        poller.modify(&channels[token.0].1, token, READ, Mode::OneShot).unwrap();
                    }
                }
                // Each passes the end on to the next.
                poller.wake();
            })
        })
        .collect();
    for message in 0..MESSAGES {
        channels[message % 8].0.send(message).unwrap();
        if message % 7 == 0 {
            thread::yield_now();
        }
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(received.load(Ordering::Relaxed), MESSAGES);
}

fn another_thread_takes_over_the_timers() {
    let poller = Arc::new(Poller::new());
    let (reports, reported) = channel::unbounded();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (poller, reports) = (Arc::clone(&poller), reports.clone());
            thread::spawn(move || {
                // Each takes one event and waits no more: the others have to watch the rest.
                let mut events = Events::with_capacity(1);
                poller.wait(&mut events, None);
                reports.send(events.iter().map(|event| event.token().0).next()).unwrap();
            })
        })
        .collect();
    let start = Instant::now();
    for token in 0..3 {
        poller.set_timer(Token(token), start + Duration::from_millis(1 + token as u64));
    }
    let mut all: Vec<_> = (0..3).map(|_| reported.recv().unwrap()).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    all.sort_unstable();
    assert_eq!(all, [Some(0), Some(1), Some(2)]);
}

fn ordinary_threads_may_wait() {
    let poller = Arc::new(Poller::new());
    let (sender, receiver) = channel::unbounded();
    poller.register(&receiver, Token(4), READ, Mode::Level).unwrap();
    let waiting = std::thread::spawn({
        let poller = Arc::clone(&poller);
        move || {
            let mut events = Events::with_capacity(4);
            poller.wait(&mut events, None);
            tokens(&events.iter().collect::<Vec<_>>())
        }
    });
    sender.send(()).unwrap();
    assert_eq!(tailwater::blocking(|| waiting.join().unwrap()), [4]);
}

fn a_dropped_poller_leaves_its_sources() {
    let (sender, receiver) = channel::unbounded();
    let (first, second) = (Poller::new(), Poller::new());
    first.register(&receiver, Token(0), READ, Mode::Level).unwrap();
    second.register(&receiver, Token(1), READ, Mode::Level).unwrap();
    drop(first);
    sender.send(()).unwrap();
    let mut events = Events::with_capacity(4);
    assert_eq!(tokens(&wait(&second, &mut events, None)), [1]);
}

fn a_thread_without_room_passes_events_on() {
    let poller = Arc::new(Poller::new());
    let channels: Vec<_> = (0..3).map(|_| channel::unbounded::<()>()).collect();
    for (token, (_, receiver)) in channels.iter().enumerate() {
        poller.register(receiver, Token(token), READ, Mode::Edge).unwrap();
    }
    channels.iter().for_each(|(sender, _)| sender.send(()).unwrap());
    // Three changes, without a waiting thread: each thread has room for one event.
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let poller = Arc::clone(&poller);
            thread::spawn(move || {
                let mut events = Events::with_capacity(1);
                poller.wait(&mut events, None);
                events.iter().next().unwrap().token().0
            })
        })
        .collect();
    let mut all: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2]);
}
