//! A program that is killed while others wait for it, and one that waits.

use crate::{ready, say};
use std::io::Read;
use std::time::{Duration, Instant};
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::thread;

/// Accepts connections at port 21 and datagrams at port 22, and answers none.
pub fn serve() {
    let listener = TcpListener::bind("[::]:21").expect("the port is free");
    let _socket = UdpSocket::bind("[::]:22").expect("the port is free");
    ready();
    let mut open = Vec::new();
    loop {
        let (stream, _) = listener.accept().expect("accept");
        open.push(stream);
        say("accepted");
    }
}

/// Waits for a stream and for a datagram of PEER, an address, and prints how both ends; then tries
/// to reach it, and prints how long that takes.
pub fn watch() {
    let peer = std::env::var("PEER").expect("a peer to call");
    let (tcp, udp) = (format!("{peer}:21"), format!("{peer}:22"));
    ready();
    let mut stream = TcpStream::connect(&*tcp).expect("the peer listens");
    let socket = UdpSocket::bind("[::]:0").expect("a free port");
    socket.connect(&*udp).expect("a route");
    let reader = thread::spawn(move || stream.read(&mut [0]).map_err(|error| error.kind()));
    let receiver = thread::spawn(move || {
        let first = socket.recv(&mut [0; 8]).map_err(|error| error.kind());
        (socket, first)
    });
    say("waiting");
    say(&format!("read {:?}", reader.join().expect("it does not panic")));
    let (socket, received) = receiver.join().expect("it does not panic");
    say(&format!("recv {received:?}"));
    let began = Instant::now();
    let connected = TcpStream::connect(&*tcp).map(drop).map_err(|error| error.kind());
    let answered = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 8])).map_err(|error| error.kind());
    say(&format!("connect {connected:?}"));
    say(&format!("answer {answered:?}"));
    // Address resolution alone would give up after seconds.
    say(if began.elapsed() < Duration::from_secs(2) { "at once" } else { "late" });
}
