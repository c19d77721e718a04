//! A client that keeps many TCP connections and a UDP service busy and checks all that comes back.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tailwater::net::{TcpStream, UdpSocket};
use tailwater::thread;

use crate::{own_ip, ready, say};

/// Bytes of one exchange over TCP: several segments.
const CHUNK: usize = 6000;

/// What a thread does until the end.
type Work = Box<dyn FnOnce(&Progress) -> io::Result<()> + Send>;

/// What the threads share.
struct Progress {
    /// Exchanges completed by each connection, and by the UDP socket at the end.
    rounds: Vec<AtomicU64>,
    ending: AtomicBool,
}

/// Keeps `connections` connections to the TCP echo service at `PEER` and a socket to the UDP echo
/// service at `UDP_PEER` busy until its input ends. Prints `least N sum M` every 20 ms: the
/// exchanges of the connection that has completed the fewest, and of all. Prints `failed WHY` for
/// each connection that fails or brings other bytes than were sent, `read` for each line of its
/// input, and `intact` at the end.
pub fn call(connections: usize) {
    let peer = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is an address"));
    let (tcp, udp) = (peer("PEER"), peer("UDP_PEER"));
    let rounds = (0..=connections).map(|_| AtomicU64::new(0)).collect();
    let progress = Arc::new(Progress { rounds, ending: AtomicBool::new(false) });
    let start = |number: usize, work: Work| {
        let progress = Arc::clone(&progress);
        thread::spawn(move || {
            let result = work(&progress);
            if let Err(error) = &result {
                say(&format!("failed {number}: {error}"));
            }
            result.is_ok()
        })
    };
    let mut threads: Vec<_> = (0..connections)
        .map(|number| {
            let tcp = tcp.clone();
            start(number, Box::new(move |progress| exchange(number, &tcp, progress)))
        })
        .collect();
    threads.push(start(connections, Box::new(move |progress| ask(connections, &udp, progress))));
    let reporter = thread::spawn({
        let progress = Arc::clone(&progress);
        move || report(&progress)
    });
    ready();
    let next_line = || io::stdin().lock().read_line(&mut String::new()).expect("standard input");
    while tailwater::blocking(next_line) > 0 {
        say("read");
    }
    progress.ending.store(true, Relaxed);
    let intact = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
    let intact = intact.filter(|intact| *intact).count();
    reporter.join().expect("it does not panic");
    if intact == connections + 1 {
        say("intact");
    }
}

fn report(progress: &Progress) {
    while !progress.ending.load(Relaxed) {
        let rounds = || progress.rounds.iter().map(|rounds| rounds.load(Relaxed));
        let (least, sum) = (rounds().min().expect("at least one"), rounds().sum::<u64>());
        say(&format!("least {least} sum {sum}"));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the bytes of an exchange: each exchange of each connection has others.
fn bytes(number: usize, round: u64) -> Vec<u8> {
    let mut x = (number as u64) << 32 | round | 1 << 63;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..CHUNK).map(|_| next()).collect()
}

fn damaged() -> io::Error {
    io::Error::other("other bytes came back than were sent")
}

fn exchange(number: usize, peer: &str, progress: &Progress) -> io::Result<()> {
    let mut stream = TcpStream::connect(peer)?;
    let mut answer = vec![0; CHUNK];
    while !progress.ending.load(Relaxed) {
        let round = progress.rounds[number].load(Relaxed);
        let request = bytes(number, round);
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        if answer != request {
            return Err(damaged());
        }
        progress.rounds[number].store(round + 1, Relaxed);
    }
    Ok(())
}

/// Asks the UDP service again and again; a request without an answer is repeated.
fn ask(number: usize, peer: &str, progress: &Progress) -> io::Result<()> {
    let socket = UdpSocket::bind((own_ip(), 0))?;
    socket.connect(peer)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut answer = vec![0; CHUNK];
    while !progress.ending.load(Relaxed) {
        let round = progress.rounds[number].load(Relaxed);
        let request = &bytes(number, round)[..1000];
        socket.send(request)?;
        match socket.recv(&mut answer) {
            // The answer to a request that was repeated.
            Ok(len) if answer[..len] == bytes(number, round.wrapping_sub(1))[..1000] => {}
            Ok(len) if answer[..len] == *request => progress.rounds[number].store(round + 1, Relaxed),
            Ok(_) => return Err(damaged()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
