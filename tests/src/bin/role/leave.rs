//! Programs that end while peers still wait for what they have sent, and the peer of one.

use crate::{ready, say};
use std::io::Read;
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::thread;
use tailwater_tests::stream;

/// Bytes written last: more than the first window.
const LEN: u64 = 100_000;
/// Datagrams sent last.
const DATAGRAMS: u8 = 20;

/// How a program ends.
#[derive(Clone, Copy)]
pub enum Way {
    /// By a return from `main`.
    Return,
    /// By `std::process::exit`, in a user thread.
    Exit,
    /// By a panic of `main`.
    Panic,
}

/// Accepts two connections at port 21. A thread goes on reading the first, the second gets a stream
/// and is closed; then the program ends.
pub fn serve(way: Way) {
    let listener = TcpListener::bind("[::]:21").expect("the port is free");
    ready();
    let (mut open, _) = listener.accept().expect("accept");
    thread::spawn(move || {
        let ended = open.read(&mut [0]);
        say(&format!("the reader was woken: {ended:?}"));
    });
    // The only kthread runs it until it waits.
    thread::yield_now();
    let (mut stream, _) = listener.accept().expect("accept");
    stream::send(&mut stream, 7, LEN).expect("the peer reads");
    drop(stream);
    end(way);
}

/// Writes a stream to an accepted connection, once its peer has sent a byte, and ends without
/// closing it.
pub fn keep_open() {
    let listener = TcpListener::bind("[::]:21").expect("the port is free");
    ready();
    let (mut stream, _) = listener.accept().expect("accept");
    stream.read_exact(&mut [0]).expect("the peer sees the connection");
    stream::send(&mut stream, 7, LEN).expect("the peer reads");
    end(Way::Exit);
}

fn end(way: Way) {
    match way {
        Way::Return => {}
        Way::Exit => std::process::exit(0),
        Way::Panic => panic!("the end of this program"),
    }
}

/// Sends datagrams to the client station, whose address is not known yet, and ends.
pub fn part() {
    let socket = UdpSocket::bind("0.0.0.0:7").expect("the port is free");
    ready();
    for number in 0..DATAGRAMS {
        socket.send_to(&[number], "10.77.200.1:4000").expect("it is taken");
    }
}

/// Connects twice to PEER; prints the hash of the second stream, then how the first ends.
pub fn watch() {
    let peer = std::env::var("PEER").expect("a peer to call");
    ready();
    let mut open = TcpStream::connect(&*peer).expect("the peer listens");
    let mut stream = TcpStream::connect(&*peer).expect("the peer listens");
    say(&format!("received {}", stream::receive(&mut stream).expect("a stream and its end")));
    say(&format!("ended {:?}", open.read(&mut [0]).map_err(|error| error.kind())));
}
