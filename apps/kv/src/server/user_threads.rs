//! The store on Tailwater: user threads on sockets of the runtime's own network stack.
//!
//! A user thread per connection: it waits in `read` without holding a core, and the runtime steals it like any other. Every
//! socket call is a poll point, and between two of them lies at most a batch of requests that fit a connection's buffers. The
//! service runs until its process ends: the IOKernel takes back what a process held.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::thread;

use super::{Clock, Listening, MAX_REQUEST, TOO_MANY, crawl, idle_timeout, serve};
use crate::protocol::UdpServer;
use crate::service::Service;

/// Pause after a failure to accept, which is a lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Opens the ports that the service's settings name and serves on them until the process ends. Call it on
/// a user thread.
///
/// # Errors
/// When an address is taken or not ours, or no thread can be started.
pub fn start(service: &Arc<Service>, clock: Clock) -> io::Result<Listening> {
    let settings = &service.settings;
    let listen = settings.listen.as_str();
    let tcp = TcpListener::bind((listen, settings.tcp_port))?;
    let mut listening = Listening { tcp: tcp.local_addr()?, udp: None };
    if settings.udp_port != 0 {
        let socket = Arc::new(UdpSocket::bind((listen, settings.udp_port))?);
        listening.udp = Some(socket.local_addr()?);
        for _ in 0..settings.threads.max(1) {
            let (service, socket) = (Arc::clone(service), Arc::clone(&socket));
            spawn("kv-udp", move || serve_udp(&service, &socket, clock))?;
        }
    }
    let (crawled, accepted) = (Arc::clone(service), Arc::clone(service));
    spawn("kv-crawler", move || crawl(&crawled, clock, thread::sleep))?;
    spawn("kv-accept", move || accept(&accepted, &tcp, clock))?;
    Ok(listening)
}

fn spawn<T: Send + 'static>(name: &str, main: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(main)?;
    Ok(())
}

fn accept(service: &Arc<Service>, listener: &TcpListener, clock: Clock) -> ! {
    loop {
        let Ok((stream, address)) = listener.accept() else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let Some(registered) = service.register(address, clock.now()) else {
            refuse(&stream);
            continue;
        };
        let of_thread = Arc::clone(service);
        let started = spawn("kv-connection", move || {
            // Fails only on a connection that is gone.
            let prepared =
                stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(idle_timeout(&of_thread)));
            if prepared.is_ok() {
                serve(&stream, &of_thread, &registered, clock);
            }
        });
        if started.is_err() {
            service.rejected_connections.fetch_add(1, Relaxed);
        }
    }
}

/// Tells a client why it is not served. The words fit the buffer of a new connection, so this does not wait.
fn refuse(stream: &TcpStream) {
    let mut stream = stream;
    // Who does not read them has gone.
    let _ = io::Write::write_all(&mut stream, TOO_MANY);
}

fn serve_udp(service: &Arc<Service>, socket: &UdpSocket, clock: Clock) -> ! {
    let (mut server, mut request) = (UdpServer::new(service), vec![0; MAX_REQUEST]);
    loop {
        // Errors tell of earlier answers that reached nobody.
        let Ok((len, client)) = socket.recv_from(&mut request) else { continue };
        service.bytes_read.fetch_add(len as u64, Relaxed);
        server.handle(&request[..len], clock.now(), |datagram| {
            if let Ok(len) = socket.send_to(datagram, client) {
                service.bytes_written.fetch_add(len as u64, Relaxed);
            }
        });
    }
}
