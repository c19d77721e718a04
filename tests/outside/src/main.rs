//! Logs, shares state between user threads, and exchanges datagrams with itself over UDP; exits
//! with 0 if all of that worked.
//!
//! The subscriber allocates memory and zeroes it, which crashed the compiler before
//! `tailwater::Alloc` kept its functions out of line (see there).

use std::io;
use tailwater::net::UdpSocket;
use tailwater::sync::Mutex;
use tailwater::thread;

const REQUESTS: u32 = 100;

static SERVED: Mutex<u32> = Mutex::new(0);

/// Answers `REQUESTS` datagrams, each in a user thread of its own.
fn serve(socket: UdpSocket) -> io::Result<()> {
    let mut workers = Vec::new();
    for _ in 0..REQUESTS {
        let mut buf = vec![0; 1500];
        let (len, from) = socket.recv_from(&mut buf)?;
        let socket = socket.try_clone()?;
        workers.push(thread::spawn(move || {
            *SERVED.lock().unwrap() += 1;
            socket.send_to(&buf[..len], from).map(drop)
        }));
    }
    workers.into_iter().try_for_each(|worker| worker.join().unwrap())
}

#[tailwater::main]
fn main() -> io::Result<()> {
    tracing_subscriber::fmt().init();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let address = socket.local_addr()?;
    let server = thread::spawn(move || serve(socket));
    let client = UdpSocket::bind("0.0.0.0:0")?;
    for request in 0..REQUESTS {
        client.send_to(&request.to_le_bytes(), ("127.0.0.1", address.port()))?;
        let mut answer = [0; 4];
        assert_eq!(client.recv(&mut answer)?, 4);
        assert_eq!(u32::from_le_bytes(answer), request);
    }
    server.join().unwrap()?;
    assert_eq!(*SERVED.lock().unwrap(), REQUESTS);
    tracing::info!(requests = REQUESTS, "served");
    Ok(())
}
