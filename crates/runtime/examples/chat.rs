//! A chat over UDP with a thread per connection, where a connection is all datagrams from one
//! peer's address.
//!
//! ```text
//! TAILWATER_IOKERNEL=@tailwater cargo run -p tailwater --release --example chat -- serve
//! cargo run -p tailwater --release --example chat
//! ```
//!
//! The first serves every host that can reach this program's address (`nc -u ADDRESS 7777`); the
//! second runs a server and three guests within one process. A guest's first datagram is its name,
//! `/quit` is its last, and everything between goes to all guests.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tailwater::net::{UdpSocket, local_ip};
use tailwater::sync::channel::{Receiver, Sender, bounded};
use tailwater::sync::{Barrier, Mutex};
use tailwater::thread;
use tailwater::time::Duration;

const PORT: u16 = 7777;
/// Time after which a silent guest is removed.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of datagrams waiting for a connection's thread; more are lost, as on any network.
const BEHIND: usize = 32;

#[tailwater::main]
fn main() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let room = Arc::new(Room { socket, guests: Mutex::default() });
    match std::env::args().nth(1).as_deref() {
        Some("serve") => room.serve(),
        None => {
            thread::spawn(move || room.serve());
            let conversation = converse(&["Ada", "Grace", "Barbara"])?;
            tailwater::blocking(|| conversation.iter().for_each(|line| println!("{line}")));
            Ok(())
        }
        Some(_) => Err(io::Error::other("usage: chat [serve]")),
    }
}

struct Room {
    socket: UdpSocket,
    /// The queue of each connection's thread.
    guests: Mutex<HashMap<SocketAddr, Sender<String>>>,
}

impl Room {
    /// Passes every datagram to the thread of its sender, and starts one for a new sender.
    fn serve(self: &Arc<Self>) -> io::Result<()> {
        let mut buf = [0; 1500];
        loop {
            let (len, peer) = self.socket.recv_from(&mut buf)?;
            let text = String::from_utf8_lossy(&buf[..len]).trim().to_owned();
            let mut guests = self.guests.lock().unwrap();
            let inbox = guests.entry(peer).or_insert_with(|| {
                let (sender, inbox) = bounded(BEHIND);
                let room = Arc::clone(self);
                thread::spawn(move || room.attend(peer, &inbox));
                sender
            });
            // A full queue loses the datagram; one that has just ended loses its last.
            let _ = inbox.try_send(text);
        }
    }

    /// Serves one connection to its end, written as if there were no other.
    fn attend(&self, peer: SocketAddr, inbox: &Receiver<String>) {
        if let Ok(name) = inbox.recv_timeout(SILENCE) {
            self.say(&format!("* {name} is here"));
            while let Ok(text) = inbox.recv_timeout(SILENCE) {
                if text == "/quit" {
                    break;
                }
                self.say(&format!("{name}: {text}"));
            }
            self.say(&format!("* {name} has left"));
        }
        self.guests.lock().unwrap().remove(&peer);
    }

    /// Sends `line` to all guests. One that cannot be reached misses it.
    fn say(&self, line: &str) {
        let peers: Vec<SocketAddr> = self.guests.lock().unwrap().keys().copied().collect();
        for peer in peers {
            let _ = self.socket.send_to(line.as_bytes(), peer);
        }
    }
}

/// Makes guests of these names greet each other; returns what the first of them received.
fn converse(names: &[&str]) -> io::Result<Vec<String>> {
    let all_here = Barrier::new(names.len());
    let all_heard = Barrier::new(names.len());
    thread::scope(|s| {
        let guests: Vec<_> =
            names.iter().map(|name| s.spawn(|| greet(name, names.len(), &all_here, &all_heard))).collect();
        let heard: io::Result<Vec<_>> = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
        Ok(heard?.swap_remove(0))
    })
}

fn greet(name: &str, guests: usize, all_here: &Barrier, all_heard: &Barrier) -> io::Result<Vec<String>> {
    let socket = UdpSocket::bind((local_ip(), 0))?;
    socket.connect((local_ip(), PORT))?;
    socket.set_read_timeout(Some(SILENCE))?;
    let hear = || {
        let mut buf = [0; 1500];
        let len = socket.recv(&mut buf)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&buf[..len]).into_owned())
    };
    socket.send(name.as_bytes())?;
    while hear()? != format!("* {name} is here") {}
    all_here.wait();
    socket.send(b"good morning!")?;
    let mut greetings = Vec::new();
    while greetings.len() < guests {
        greetings.extend(Some(hear()?).filter(|line| !line.starts_with('*')));
    }
    all_heard.wait();
    socket.send(b"/quit")?;
    Ok(greetings)
}
