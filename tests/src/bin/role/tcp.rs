//! Roles that speak TCP: services for each way of using a connection, a caller, and a relay.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use tailwater::net::{TcpKeepalive, TcpListener, TcpOptions, TcpStream, UdpSocket};
use tailwater::thread;
use tailwater_tests::stream;

use crate::{ready, say};

type Service = fn(TcpStream) -> io::Result<()>;

/// Listens on each service's port, over both families, with a thread per connection, for ever.
pub fn serve() {
    let services: [(u16, Service); 6] =
        [(7, echo), (9, hash), (19, generate), (80, http), (104, reset), (110, report_end)];
    let threads: Vec<_> = services.into_iter().map(|(port, service)| listen(port, service)).collect();
    ready();
    for thread in threads {
        thread.join().expect("listening never ends");
    }
}

fn listen(port: u16, service: Service) -> thread::JoinHandle<()> {
    let listener = TcpListener::bind(("::", port)).expect("the port is free");
    thread::spawn(move || {
        loop {
            let (stream, _) = listener.accept().expect("accept");
            // A client that disconnects ends only its own thread.
            thread::spawn(move || service(stream));
        }
    })
}

/// Echoes a stream.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len])?,
        }
    }
}

/// Reads until the client has closed its direction, then sends the hash of that in the other.
fn hash(mut stream: TcpStream) -> io::Result<()> {
    let hash = stream::receive(&mut stream)?;
    stream.write_all(hash.as_bytes())
}

/// Reads `SEED LEN` and a newline, sends that stream and closes.
fn generate(mut stream: TcpStream) -> io::Result<()> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < 64 && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&line);
    let mut words = text.split(' ').map(str::parse::<u64>);
    let (Some(Ok(seed)), Some(Ok(len))) = (words.next(), words.next()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    stream::send(&mut stream, seed, len).map(drop)
}

/// Answers enough HTTP/1.0 (RFC 1945) for curl: the path is a number of bytes, the answer a body of
/// that length.
fn http(mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < 8192 {
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            len => request.extend_from_slice(&chunk[..len]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let len: u64 = text
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|path| path.trim_start_matches('/').parse().ok())
        .unwrap_or(0);
    stream.write_all(format!("HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n").as_bytes())?;
    stream::send(&mut stream, 80, len).map(drop)
}

/// Closes while data is unread, which resets the connection (RFC 2525 section 2.17).
fn reset(stream: TcpStream) -> io::Result<()> {
    stream.peek(&mut [0])?;
    drop(stream);
    Ok(())
}

/// Prints how its connection ended.
fn report_end(mut stream: TcpStream) -> io::Result<()> {
    let ended = stream::receive(&mut stream);
    say(&format!("ended {:?}", ended.map_err(|error| error.kind()).err()));
    Ok(())
}

/// Connects to the address in PEER: sends a stream, closes its direction and prints hashes of what
/// was sent and received; or prints why it could not.
pub fn call() {
    let peer = std::env::var("PEER").expect("a peer to call");
    let len = std::env::var("LEN").expect("a length").parse().expect("a number");
    ready();
    let talk = || {
        let mut stream = TcpStream::connect(&*peer)?;
        let mut incoming = stream.try_clone()?;
        let reader = thread::spawn(move || stream::receive(&mut incoming));
        let sent = stream::send(&mut stream, 5, len)?;
        stream.shutdown(Shutdown::Write)?;
        let received = reader.join().expect("the reader does not panic")?;
        io::Result::Ok((sent, received))
    };
    match talk() {
        Ok((sent, received)) => say(&format!("sent {sent} received {received}")),
        Err(error) => say(&format!("failed {:?}", error.kind())),
    }
}

/// Connects to the address in PEER and echoes what it receives, with a keepalive probe each second;
/// prints how the connection ended, after ten probes without an answer.
pub fn keep() {
    let peer = std::env::var("PEER").expect("a peer to call");
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::default().idle(second).interval(second).probes(10);
    ready();
    let stream = TcpOptions::new().keepalive(Some(keepalive)).connect(&*peer).expect("the peer listens");
    say(&format!("ended {:?}", echo(stream).map_err(|error| error.kind()).err()));
}

/// Exchanges data with the address in PEER and with itself, and prints what happens to both when
/// the IOKernel is killed.
pub fn orphan() {
    let peer = std::env::var("PEER").expect("a peer to call");
    ready();
    let mut remote = TcpStream::connect(&*peer).expect("the peer listens");
    exchange(&mut remote).expect("the peer answers");
    let listener = TcpListener::bind((crate::own_ip(), 0)).expect("a free port");
    let own = listener.local_addr().expect("bound");
    thread::spawn(move || listener.accept().and_then(|(stream, _)| echo(stream)));
    let mut local = TcpStream::connect(own).expect("it listens");
    exchange(&mut local).expect("an answer");
    say("talking");
    // Waits for data that never arrives.
    let read = remote.read(&mut [0]).expect_err("the peer has nothing to say");
    say(&format!("a waiting read failed {:?}", read.kind()));
    let write = remote.write(b"x").expect_err("the connection is over");
    say(&format!("a later write failed {:?}", write.kind()));
    let again = TcpStream::connect(&*peer).expect_err("there is no way to the peer");
    say(&format!("a new connection failed {:?}", again.kind()));
    let answers = (0..1000).filter(|_| exchange(&mut local).is_ok()).count();
    say(&format!("{answers} answers within the program"));
}

/// Waits for a connection and a datagram, prints how that ends, then echoes one connection.
pub fn late() {
    let listener = TcpListener::bind("[::]:7").expect("the port is free");
    let socket = UdpSocket::bind("[::]:9").expect("the port is free");
    ready();
    let receiver = thread::spawn(move || socket.recv(&mut [0]).map_err(|error| error.kind()));
    let accepted = listener.accept().map(drop).map_err(|error| error.kind());
    say(&format!("accept {accepted:?}"));
    say(&format!("recv {:?}", receiver.join().expect("it does not panic")));
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NetworkDown),
        }
    };
    echo(stream).expect("the client reads");
}

/// Sends a request and reads its echo.
fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    let (request, mut answer) = (*b"request!", [0; 8]);
    stream.write_all(&request)?;
    stream.read_exact(&mut answer)?;
    if answer == request { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Relays bytes between each client of port 2222 and a connection to PEER, in both directions until
/// both ends have closed.
pub fn relay() {
    let peer = Arc::new(std::env::var("PEER").expect("a peer to relay to"));
    let listener = TcpListener::bind("[::]:2222").expect("the port is free");
    ready();
    loop {
        let (client, _) = listener.accept().expect("accept");
        let peer = Arc::clone(&peer);
        thread::spawn(move || {
            let server = TcpStream::connect(&**peer)?;
            let (client_in, server_in) = (client.try_clone()?, server.try_clone()?);
            let back = thread::spawn(move || pass(server_in, client));
            pass(client_in, server)?;
            back.join().expect("the relay does not panic")
        });
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            len => to.write_all(&buffer[..len])?,
        }
    }
}
