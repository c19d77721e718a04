//! The README's example: a UDP echo service with a user thread for every request.

use tailwater::{net::UdpSocket, thread};

#[tailwater::main]
fn main() -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:7")?;
    loop {
        let mut request = vec![0; 1500];
        let (len, from) = socket.recv_from(&mut request)?;
        let socket = socket.try_clone()?;
        thread::spawn(move || socket.send_to(&request[..len], from)); // a thread per request
    }
}
