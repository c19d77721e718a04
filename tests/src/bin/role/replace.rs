//! A service of which a later instance takes the place, and a client that notices if it does.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::signal::{SIGTERM, Signals};
use tailwater::thread;

use crate::{own_ip, ready, say};

/// Connections that stay open.
const OPEN: usize = 4;

/// Accepts connections at port 21 until SIGTERM, and answers each byte with the `number` of this
/// instance; answers each datagram at port 22 likewise. Ends after its last connection. Opens its
/// sockets when it reads a line, and asks the earlier instance to end at the next.
pub fn serve(number: u8) {
    let mut signals = Signals::new([SIGTERM]).expect("a descriptor");
    ready();
    let next_line = || io::stdin().lock().read_line(&mut String::new()).expect("standard input");
    tailwater::blocking(next_line);
    let listener = TcpListener::bind("[::]:21").expect("the port is free");
    let socket = UdpSocket::bind("[::]:22").expect("the port is free");
    thread::spawn(move || {
        let mut byte = [0];
        while let Ok((_, from)) = socket.recv_from(&mut byte) {
            socket.send_to(&[number], from).expect("it is taken");
        }
    });
    say("listens");
    let ending = listener.try_clone().expect("a handle");
    thread::spawn(move || {
        signals.wait();
        say("ends");
        ending.close();
    });
    thread::spawn(move || {
        tailwater::blocking(next_line);
        tailwater::signal::end_earlier();
    });
    thread::scope(|scope| {
        for stream in listener.incoming() {
            scope.spawn(move || stream.and_then(|stream| answer(stream, number)));
        }
    });
    // The runtime delivers the last answers before the process ends.
    std::process::exit(0);
}

fn answer(mut stream: TcpStream, number: u8) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&[number])?;
    }
    Ok(())
}

/// What the threads of the client count.
#[derive(Default)]
struct Seen {
    /// Exchanges on connections that stay open, in all.
    open: AtomicU64,
    /// Short connections, and the instance that has answered the last one.
    short: AtomicU64,
    latest: AtomicU64,
    /// The instance that has answered the last datagram.
    datagram: AtomicU64,
    closing: AtomicBool,
    ending: AtomicBool,
}

/// Keeps connections to port 21 of `PEER` open, each of which is to be answered by one instance,
/// and makes short ones all the time, and sends datagrams to port 22. Prints `open N short N latest
/// I datagram I` every 20 ms, and `failed WHY` for each error. Closes the open connections when it
/// reads a line, prints `closed`, and opens others; ends with its input.
pub fn call() {
    let peer = std::env::var("PEER").expect("a peer to call");
    let seen = Arc::new(Seen::default());
    let tcp = format!("{peer}:21");
    let short = {
        let (seen, tcp) = (Arc::clone(&seen), tcp.clone());
        thread::spawn(move || {
            while !seen.ending.load(Relaxed) {
                note(connect_once(&tcp, &seen));
            }
        })
    };
    let datagrams = {
        let seen = Arc::clone(&seen);
        thread::spawn(move || send_datagrams(&format!("{peer}:22"), &seen).expect("a socket"))
    };
    let reporter = thread::spawn({
        let seen = Arc::clone(&seen);
        move || report(&seen)
    });
    let mut input = BufReader::new(io::stdin());
    let mut said = false;
    loop {
        seen.closing.store(false, Relaxed);
        let start = |_| {
            let (seen, tcp) = (Arc::clone(&seen), tcp.clone());
            thread::spawn(move || note(keep_open(&tcp, &seen)))
        };
        let open: Vec<_> = (0..OPEN).map(start).collect();
        if !core::mem::replace(&mut said, true) {
            ready();
        }
        let goes_on = tailwater::blocking(|| input.read_line(&mut String::new()).expect("input")) > 0;
        seen.closing.store(true, Relaxed);
        open.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        say("closed");
        if !goes_on {
            break;
        }
    }
    seen.ending.store(true, Relaxed);
    for thread in [short, datagrams, reporter] {
        thread.join().expect("it does not panic");
    }
}

fn note(result: io::Result<()>) {
    if let Err(error) = result {
        say(&format!("failed {error:?}"));
        thread::sleep(Duration::from_millis(1));
    }
}

fn exchange(stream: &mut TcpStream) -> io::Result<u8> {
    let mut byte = [0];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn connect_once(peer: &str, seen: &Seen) -> io::Result<()> {
    let mut stream = TcpStream::connect(peer)?;
    seen.latest.store(exchange(&mut stream)?.into(), Relaxed);
    seen.short.fetch_add(1, Relaxed);
    Ok(())
}

fn keep_open(peer: &str, seen: &Seen) -> io::Result<()> {
    let mut stream = TcpStream::connect(peer)?;
    let first = exchange(&mut stream)?;
    while !seen.closing.load(Relaxed) {
        let instance = exchange(&mut stream)?;
        if instance != first {
            return Err(io::Error::other(format!("answered by instances {first} and {instance}")));
        }
        seen.open.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A datagram may be lost.
fn send_datagrams(peer: &str, seen: &Seen) -> io::Result<()> {
    let socket = UdpSocket::bind((own_ip(), 0))?;
    socket.connect(peer)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut byte = [0];
    while !seen.ending.load(Relaxed) {
        if socket.send(&byte).and_then(|_| socket.recv(&mut byte)).is_ok() {
            seen.datagram.store(byte[0].into(), Relaxed);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn report(seen: &Seen) {
    while !seen.ending.load(Relaxed) {
        let [open, short, latest, datagram] =
            [&seen.open, &seen.short, &seen.latest, &seen.datagram].map(|count| count.load(Relaxed));
        say(&format!("open {open} short {short} latest {latest} datagram {datagram}"));
        thread::sleep(Duration::from_millis(20));
    }
}
