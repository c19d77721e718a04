//! UDP sockets under contention: more kthreads than cores, threads that share sockets, timeouts
//! that race datagrams.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tailwater::net::UdpSocket;
use tailwater::thread;
use tailwater_testkit::own_process;

#[test]
fn sockets_shared_by_many_threads_lose_and_repeat_nothing() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                every_request_gets_its_own_reply();
                datagrams_and_timeouts_race_without_loss();
                sockets_come_and_go();
            })
            .unwrap();
    });
}

fn every_request_gets_its_own_reply() {
    const CLIENTS: u64 = 8;
    const REQUESTS: u64 = 2000;
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let served = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (server, served) = (server.try_clone().unwrap(), Arc::clone(&served));
            thread::spawn(move || {
                let mut buf = [0; 16];
                loop {
                    let (len, from) = server.recv_from(&mut buf).unwrap();
                    if len == 0 {
                        return;
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                    server.send_to(&buf[..len], from).unwrap();
                }
            })
        })
        .collect();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            thread::spawn(move || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(address).unwrap();
                let mut buf = [0; 16];
                for request in 0..REQUESTS {
                    let data = (client << 32 | request).to_le_bytes();
                    socket.send(&data).unwrap();
                    assert_eq!(socket.recv(&mut buf).unwrap(), 8);
                    assert_eq!(buf[..8], data);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    for _ in &workers {
        server.send_to(b"", address).unwrap();
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), CLIENTS * REQUESTS);
}

/// Readers give up after a few microseconds, about when datagrams arrive: each datagram is read by
/// exactly one of them.
fn datagrams_and_timeouts_race_without_loss() {
    const DATAGRAMS: u64 = 5000;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    socket.set_read_timeout(Some(Duration::from_micros(5))).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (socket, done) = (socket.try_clone().unwrap(), Arc::clone(&done));
            thread::spawn(move || {
                let mut read = Vec::new();
                let mut buf = [0; 8];
                loop {
                    // Before the read: a datagram sent before `done` must still be found.
                    let last = done.load(Ordering::Acquire);
                    match socket.recv(&mut buf) {
                        Ok(_) => read.push(u64::from_le_bytes(buf)),
                        Err(e) if e.kind() == ErrorKind::WouldBlock && last => return read,
                        Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
                    }
                }
            })
        })
        .collect();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for i in 0..DATAGRAMS {
        sender.send_to(&i.to_le_bytes(), address).unwrap();
        if i % 8 == 0 {
            thread::yield_now();
        }
    }
    done.store(true, Ordering::Release);
    let mut all: Vec<u64> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..DATAGRAMS).collect::<Vec<_>>());
}

fn sockets_come_and_go() {
    let threads: Vec<_> = (0..8)
        .map(|i| {
            thread::spawn(move || {
                for _ in 0..200 {
                    let (a, b) =
                        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
                    a.connect(b.local_addr().unwrap()).unwrap();
                    a.send(&[i]).unwrap();
                    let mut buf = [0; 8];
                    assert_eq!(b.recv_from(&mut buf).unwrap(), (1, a.local_addr().unwrap()));
                    assert_eq!(buf[0], i);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(tailwater::net::counters().udp_sockets, 0);
}
