//! UDP sockets on user threads, through the public API, standalone. One kthread and no preemption:
//! a thread runs until it blocks, so "all are waiting now" is a fact and not a hope. One runtime
//! per process, so one test function runs all.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::net::UdpSocket;
use tailwater::sync::Mutex;
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn sockets_behave_like_those_of_std() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            // A turn in which Linux does not run the kthread is not cut short.
            .stall_timeout(Duration::ZERO)
            .run(|| {
                datagrams_keep_their_bounds_and_senders();
                ipv6_works_within_the_process_as_ipv4_does();
                a_socket_for_both_families_shows_ipv4_as_mapped();
                names_of_the_hosts_file_are_looked_up_and_others_refused();
                a_short_buffer_gets_the_beginning_and_the_rest_is_gone();
                waiting_threads_are_served_in_order_one_datagram_each();
                a_peek_leaves_the_datagram_and_passes_its_wake_up_on();
                a_read_times_out_and_a_datagram_in_time_does_not();
                a_non_blocking_socket_never_waits();
                a_refusal_wakes_the_reader_of_a_connected_socket();
                a_refusal_is_reported_once_by_the_first_call();
                a_connected_socket_has_one_peer();
                dropping_a_clone_wakes_nobody_and_the_last_frees_the_port();
                a_socket_that_nobody_reads_drops_and_counts();
                what_cannot_be_done_is_refused();
                settings_are_kept_and_shared_by_clones();
                ordinary_threads_may_use_sockets();
            })
            .unwrap();
    });
}

fn bind() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Lets every other thread run until it blocks or ends.
fn let_others_block(started: &AtomicUsize, threads: usize) {
    while started.load(Ordering::Relaxed) < threads {
        thread::yield_now();
    }
}

fn datagrams_keep_their_bounds_and_senders() {
    let ((a, at_a), (b, at_b)) = (bind(), bind());
    let mut buf = [0; 70_000];
    for data in [&b""[..], b"x", b"a datagram", &[7; 65_507]] {
        assert_eq!(a.send_to(data, at_b).unwrap(), data.len());
        assert_eq!(b.recv_from(&mut buf).unwrap(), (data.len(), at_a));
        assert_eq!(&buf[..data.len()], data);
    }
    let everywhere = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    let port = everywhere.local_addr().unwrap().port();
    everywhere.send_to(b"?", at_a).unwrap();
    assert_eq!(a.recv_from(&mut buf).unwrap(), (1, SocketAddr::from(([127, 0, 0, 1], port))));
}

fn ipv6_works_within_the_process_as_ipv4_does() {
    let (a, b) = (UdpSocket::bind("[::1]:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let mut buf = vec![0; 70_000];
    for data in [&b""[..], b"x", &[7; 65_507]] {
        a.send_to(data, at_b).unwrap();
        assert_eq!(b.recv_from(&mut buf).unwrap(), (data.len(), at_a));
        assert_eq!(&buf[..data.len()], data);
    }
    a.connect(at_b).unwrap();
    drop(b);
    a.send(b"?").unwrap();
    assert_eq!(a.recv(&mut buf).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // No network beyond the process.
    assert_eq!(a.send_to(b"?", "[fd00::1]:7").unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    assert_eq!(UdpSocket::bind("[fd00::1]:0").unwrap_err().kind(), ErrorKind::AddrNotAvailable);
}

fn a_socket_for_both_families_shows_ipv4_as_mapped() {
    let both = UdpSocket::bind("[::]:0").unwrap();
    let port = both.local_addr().unwrap().port();
    assert!(UdpSocket::bind(("0.0.0.0", port)).is_err(), "it has IPv4's port as well");
    let mut buf = [0; 10];
    let (four, at_four) = bind();
    four.send_to(b"four", ("127.0.0.1", port)).unwrap();
    let (len, from) = both.recv_from(&mut buf).unwrap();
    let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), at_four.port());
    assert_eq!((&buf[..len], from), (&b"four"[..], mapped));
    // Sent to the address as it was reported, and connected to it.
    both.send_to(b"back", from).unwrap();
    assert_eq!(four.recv_from(&mut buf).unwrap().0, 4);
    both.connect(from).unwrap();
    assert_eq!(both.peer_addr().unwrap(), mapped);
    assert_eq!(both.local_addr().unwrap().ip(), mapped.ip());
    let six = UdpSocket::bind("[::1]:0").unwrap();
    assert_eq!(six.send_to(b"?", at_four).unwrap_err().raw_os_error(), Some(97), "EAFNOSUPPORT");
}

fn names_of_the_hosts_file_are_looked_up_and_others_refused() {
    let by_name = UdpSocket::bind("localhost:0").unwrap();
    assert!(by_name.local_addr().unwrap().ip().is_loopback());
    let error = by_name.send_to(b"?", "no-such-host.invalid:7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

fn a_short_buffer_gets_the_beginning_and_the_rest_is_gone() {
    let ((a, _), (b, at_b)) = (bind(), bind());
    a.send_to(b"long datagram", at_b).unwrap();
    a.send_to(b"next", at_b).unwrap();
    let mut buf = [0; 4];
    assert_eq!(b.recv(&mut buf).unwrap(), 4);
    assert_eq!(&buf, b"long");
    assert_eq!(b.recv(&mut buf).unwrap(), 4);
    assert_eq!(&buf, b"next");
}

fn waiting_threads_are_served_in_order_one_datagram_each() {
    const THREADS: usize = 8;
    let ((a, _), (b, at_b)) = (bind(), bind());
    let started = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (b, started) = (b.try_clone().unwrap(), Arc::clone(&started));
            thread::spawn(move || {
                let place = started.fetch_add(1, Ordering::Relaxed);
                let mut buf = [0; 8];
                b.recv(&mut buf).unwrap();
                (place, usize::from(buf[0]))
            })
        })
        .collect();
    let_others_block(&started, THREADS);
    for i in 0..THREADS as u8 {
        a.send_to(&[i], at_b).unwrap();
    }
    for thread in threads {
        let (place, datagram) = thread.join().unwrap();
        assert_eq!(place, datagram, "the thread that waited longest gets the oldest");
    }
    b.set_nonblocking(true).unwrap();
    assert_eq!(b.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn a_peek_leaves_the_datagram_and_passes_its_wake_up_on() {
    let ((a, at_a), (b, at_b)) = (bind(), bind());
    let started = Arc::new(AtomicUsize::new(0));
    let spawn = |peek: bool| {
        let (b, started) = (b.try_clone().unwrap(), Arc::clone(&started));
        thread::spawn(move || {
            started.fetch_add(1, Ordering::Relaxed);
            let mut buf = [0; 8];
            let (len, from) = if peek { b.peek_from(&mut buf) } else { b.recv_from(&mut buf) }.unwrap();
            (buf[..len].to_vec(), from)
        })
    };
    // Both peeks wait longer than the receiver; one datagram must be enough for all three.
    let threads = [spawn(true), spawn(true), spawn(false)];
    let_others_block(&started, 3);
    a.send_to(b"one", at_b).unwrap();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), (b"one".to_vec(), at_a));
    }
    a.send_to(b"two", at_b).unwrap();
    let mut buf = [0; 2];
    assert_eq!(b.peek(&mut buf).unwrap(), 2, "a peek into a short buffer takes nothing away");
    assert_eq!(b.recv(&mut [0; 8]).unwrap(), 3);
}

fn a_read_times_out_and_a_datagram_in_time_does_not() {
    let ((a, _), (b, at_b)) = (bind(), bind());
    let timeout = Duration::from_millis(20);
    b.set_read_timeout(Some(timeout)).unwrap();
    let start = Instant::now();
    assert_eq!(b.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() >= timeout);
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let reader = {
        let (b, started) = (b.try_clone().unwrap(), Arc::clone(&started));
        thread::spawn(move || {
            started.fetch_add(1, Ordering::Relaxed);
            b.recv(&mut [0; 8]).unwrap()
        })
    };
    let_others_block(&started, 1);
    a.send_to(b"in time", at_b).unwrap();
    assert_eq!(reader.join().unwrap(), 7);
}

fn a_non_blocking_socket_never_waits() {
    let ((a, _), (b, at_b)) = (bind(), bind());
    b.set_nonblocking(true).unwrap();
    assert_eq!(b.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(b.peek(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    a.send_to(b"now", at_b).unwrap();
    assert_eq!(b.recv(&mut [0; 8]).unwrap(), 3);
}

/// Returns an address without a listener.
fn closed_port() -> SocketAddr {
    bind().1
}

fn a_refusal_wakes_the_reader_of_a_connected_socket() {
    let (a, _) = bind();
    a.connect(closed_port()).unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let reader = {
        let (a, started) = (a.try_clone().unwrap(), Arc::clone(&started));
        thread::spawn(move || {
            started.fetch_add(1, Ordering::Relaxed);
            a.recv(&mut [0; 8]).unwrap_err().kind()
        })
    };
    let_others_block(&started, 1);
    a.send(b"anybody?").unwrap();
    assert_eq!(reader.join().unwrap(), ErrorKind::ConnectionRefused);
}

fn a_refusal_is_reported_once_by_the_first_call() {
    let (a, _) = bind();
    a.connect(closed_port()).unwrap();
    a.set_nonblocking(true).unwrap();
    let receive = |a: &UdpSocket| a.recv(&mut [0; 8]).unwrap_err().kind();
    a.send(b"1").unwrap();
    assert_eq!(receive(&a), ErrorKind::ConnectionRefused);
    assert_eq!(receive(&a), ErrorKind::WouldBlock);
    a.send(b"2").unwrap();
    assert_eq!(a.send(b"3").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(receive(&a), ErrorKind::WouldBlock, "the refused send sent nothing");
    a.send(b"4").unwrap();
    assert_eq!(a.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionRefused);
    assert!(a.take_error().unwrap().is_none());
    let unconnected = bind().0;
    unconnected.send_to(b"5", closed_port()).unwrap();
    assert!(unconnected.take_error().unwrap().is_none(), "one of many peers may be gone");
}

fn a_connected_socket_has_one_peer() {
    let ((a, at_a), (b, at_b), (c, _)) = (bind(), bind(), bind());
    a.connect(at_b).unwrap();
    assert_eq!(a.peer_addr().unwrap(), at_b);
    c.send_to(b"c", at_a).unwrap();
    b.send_to(b"b", at_a).unwrap();
    let mut buf = [0; 8];
    assert_eq!(a.recv_from(&mut buf).unwrap(), (1, at_b));
    a.send(b"to b").unwrap();
    assert_eq!(b.recv_from(&mut buf).unwrap(), (4, at_a));
    let everywhere = UdpSocket::bind("0.0.0.0:0").unwrap();
    assert!(everywhere.local_addr().unwrap().ip().is_unspecified());
    everywhere.connect(at_b).unwrap();
    assert_eq!(everywhere.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
}

fn dropping_a_clone_wakes_nobody_and_the_last_frees_the_port() {
    let ((a, _), (b, at_b)) = (bind(), bind());
    assert_eq!(UdpSocket::bind(at_b).unwrap_err().kind(), ErrorKind::AddrInUse);
    let (started, woken) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let reader = {
        let (b, started, woken) = (b.try_clone().unwrap(), Arc::clone(&started), Arc::clone(&woken));
        thread::spawn(move || {
            started.fetch_add(1, Ordering::Relaxed);
            let result = b.recv(&mut [0; 8]);
            *woken.lock().unwrap() = Some(result.unwrap());
        })
    };
    let_others_block(&started, 1);
    drop(b);
    for _ in 0..100 {
        thread::yield_now();
        assert_eq!(*woken.lock().unwrap(), None);
    }
    assert_eq!(UdpSocket::bind(at_b).unwrap_err().kind(), ErrorKind::AddrInUse, "the reader's clone is open");
    a.send_to(b"wake", at_b).unwrap();
    reader.join().unwrap();
    assert_eq!(*woken.lock().unwrap(), Some(4));
    let again = UdpSocket::bind(at_b).unwrap();
    again.set_nonblocking(true).unwrap();
    assert_eq!(again.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn a_socket_that_nobody_reads_drops_and_counts() {
    let ((a, _), (b, at_b)) = (bind(), bind());
    let before = tailwater::net::counters();
    for _ in 0..1000 {
        a.send_to(&[1; 1000], at_b).unwrap();
    }
    let after = tailwater::net::counters();
    let (kept, dropped) =
        (after.udp_received - before.udp_received, after.udp_overflows - before.udp_overflows);
    assert_eq!(
        (kept, dropped, after.udp_sent - before.udp_sent),
        (260, 740, 1000),
        "256 KiB of 1008 bytes each"
    );
    b.set_nonblocking(true).unwrap();
    let mut read = 0;
    while b.recv(&mut [0; 1000]).is_ok() {
        read += 1;
    }
    assert_eq!(read, 260);
}

fn what_cannot_be_done_is_refused() {
    let (a, at_a) = bind();
    let kind = |result: std::io::Result<usize>| result.unwrap_err().kind();
    assert_eq!(kind(a.send_to(b"x", "192.0.2.1:7")), ErrorKind::NetworkUnreachable);
    assert_eq!(a.send_to(b"x", "[::1]:7").unwrap_err().raw_os_error(), Some(97), "EAFNOSUPPORT");
    assert_eq!(kind(a.send_to(b"x", "no-such-host.invalid:7")), ErrorKind::NotFound);
    assert_eq!(kind(a.send_to(b"x", "127.0.0.1:0")), ErrorKind::InvalidInput);
    assert_eq!(a.send_to(&[0; 65_508], at_a).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
    assert_eq!(a.send(b"x").unwrap_err().raw_os_error(), Some(89), "EDESTADDRREQ");
    assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(a.connect("192.0.2.1:7").unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    assert_eq!(UdpSocket::bind("192.0.2.1:7").unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    for ttl in [0, 256] {
        assert_eq!(a.set_ttl(ttl).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

fn settings_are_kept_and_shared_by_clones() {
    let (a, address) = bind();
    let clone = a.try_clone().unwrap();
    let timeout = Some(Duration::from_nanos(1_234_567));
    a.set_read_timeout(timeout).unwrap();
    a.set_write_timeout(timeout).unwrap();
    a.set_ttl(17).unwrap();
    a.set_broadcast(true).unwrap();
    assert_eq!((clone.read_timeout().unwrap(), clone.write_timeout().unwrap()), (timeout, timeout));
    assert_eq!((clone.ttl().unwrap(), clone.broadcast().unwrap()), (17, true));
    a.set_read_timeout(None).unwrap();
    assert_eq!(clone.read_timeout().unwrap(), None);
    assert_eq!(format!("{a:?}"), format!("UdpSocket {{ addr: {address} }}"));
}

fn ordinary_threads_may_use_sockets() {
    let ((a, at_a), (b, at_b)) = (bind(), bind());
    let echo = std::thread::spawn(move || {
        let mut buf = [0; 8];
        let (len, from) = b.recv_from(&mut buf).unwrap();
        b.send_to(&buf[..len], from).unwrap();
    });
    a.send_to(b"echo", at_b).unwrap();
    let mut buf = [0; 8];
    assert_eq!(a.recv_from(&mut buf).unwrap(), (4, at_b));
    assert_eq!(&buf[..4], b"echo");
    assert_eq!(a.local_addr().unwrap(), at_a);
    echo.join().unwrap();
}
