//! The README's example: a UDP echo service with a user thread for every request.

use tailwater::net::UdpSocket;
use tailwater::sync::Mutex;
use tailwater::thread;

static SERVED: Mutex<u64> = Mutex::new(0);

#[tailwater::main]
fn main() -> std::io::Result<()> {
    let socket = std::sync::Arc::new(UdpSocket::bind("0.0.0.0:7")?);
    let mut buf = [0; 1500];
    loop {
        let (n, from) = socket.recv_from(&mut buf)?;
        let (socket, request) = (socket.clone(), buf[..n].to_vec());
        thread::spawn(move || {
            *SERVED.lock().unwrap() += 1;
            let _ = socket.send_to(&request, from);
        });
    }
}
