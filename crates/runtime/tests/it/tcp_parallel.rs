//! TCP sockets under contention: more kthreads than cores, threads that are preempted by signal at
//! any point, connections that are processed on one kthread and read on another.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::net::{TcpListener, TcpOptions, TcpStream};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, Storm, own_process};

#[test]
fn streams_migrate_between_kthreads_and_lose_nothing() {
    own_process(|| {
        let quantum = Duration::from_micros(200);
        let _storm = Storm::start(quantum);
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .quantum(quantum)
            .run(|| {
                let stop = Arc::new(AtomicBool::new(false));
                // Threads that never wait: without time slices no other thread would run.
                let hogs: Vec<_> = (0..3)
                    .map(|_| {
                        let stop = Arc::clone(&stop);
                        thread::spawn(move || {
                            while !stop.load(Ordering::Relaxed) {
                                core::hint::spin_loop();
                            }
                        })
                    })
                    .collect();
                every_request_gets_its_own_answer();
                bulk_both_ways_arrives_in_order();
                stop.store(true, Ordering::Relaxed);
                hogs.into_iter().for_each(|hog| hog.join().unwrap());
                connections_come_and_go_from_many_threads();
                one_stream_is_written_by_many_and_read_by_many();
                nothing_is_left();
            })
            .unwrap();
    });
}

fn serve(options: &TcpOptions) -> SocketAddr {
    let listener = options.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buf = [0; 8192];
                while let Ok(len @ 1..) = stream.read(&mut buf) {
                    if buf[0] == b'q' && len == 1 {
                        return;
                    }
                    if stream.write_all(&buf[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn every_request_gets_its_own_answer() {
    let address = serve(&TcpOptions::new().nodelay(true));
    let clients: Vec<_> = (0..8u64)
        .map(|client| {
            thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                for request in 0..300 {
                    let data = (client << 32 | request).to_le_bytes();
                    stream.write_all(&data).unwrap();
                    let mut back = [0; 8];
                    stream.read_exact(&mut back).unwrap();
                    assert_eq!(back, data);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn bulk_both_ways_arrives_in_order() {
    const TOTAL: usize = 3 << 20;
    let address = serve(&TcpOptions::new());
    let stream = TcpStream::connect(address).unwrap();
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16)) as u8;
    let writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        for at in (0..TOTAL).step_by(7000) {
            let data: Vec<_> = (at..TOTAL.min(at + 7000)).map(byte).collect();
            (&writer).write_all(&data).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let (mut at, mut buf) = (0, vec![0; 30_000]);
    loop {
        let len = (&stream).read(&mut buf).unwrap();
        if len == 0 {
            break;
        }
        assert!(buf[..len].iter().zip(at..).all(|(&b, at)| b == byte(at)), "at {at}");
        at += len;
    }
    assert_eq!(at, TOTAL);
    writing.join().unwrap();
}

fn connections_come_and_go_from_many_threads() {
    let options = TcpOptions::new().time_wait(Duration::from_millis(10));
    let address = serve(&options);
    let clients: Vec<_> = (0..6u8)
        .map(|client| {
            let options = options.clone();
            thread::spawn(move || {
                for round in 0..150u8 {
                    let mut stream = options.connect(address).unwrap();
                    stream.write_all(&[client, round]).unwrap();
                    match round % 3 {
                        // Closed in each possible way.
                        0 => {
                            let mut back = [0; 2];
                            stream.read_exact(&mut back).unwrap();
                            assert_eq!(back, [client, round]);
                        }
                        1 => stream.set_linger(Some(Duration::ZERO)).unwrap(),
                        _ => {
                            stream.shutdown(Shutdown::Write).unwrap();
                            let mut all = Vec::new();
                            stream.read_to_end(&mut all).unwrap();
                            assert_eq!(all, [client, round]);
                        }
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn one_stream_is_written_by_many_and_read_by_many() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let writers: Vec<_> = (1..=4u8)
        .map(|n| {
            let stream = client.try_clone().unwrap();
            thread::spawn(move || (0..2000).for_each(|_| (&stream).write_all(&[n]).unwrap()))
        })
        .collect();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let stream = server.try_clone().unwrap();
            thread::spawn(move || {
                let (mut sums, mut buf) = ([0u32; 5], [0; 100]);
                loop {
                    let len = (&stream).read(&mut buf).unwrap();
                    if len == 0 {
                        return sums;
                    }
                    buf[..len].iter().for_each(|&n| sums[usize::from(n)] += 1);
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    client.shutdown(Shutdown::Write).unwrap();
    let sums = readers.into_iter().map(|reader| reader.join().unwrap());
    let total = sums.fold([0; 5], |a, b| std::array::from_fn(|i| a[i] + b[i]));
    assert_eq!(total, [0, 2000, 2000, 2000, 2000]);
}

/// Waits until all connections are closed, whichever side closed first.
fn nothing_is_left() {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if tailwater::net::counters().tcp_connections == 0 {
            return;
        }
        tailwater::time::sleep(Duration::from_millis(5));
    }
    panic!("{:?}", tailwater::net::counters());
}
