//! The service processes of `bench tcp` and `bench events`: echo, discard and character generator
//! (RFC 862, 863, 864), a service that holds connections without a thread for each, echoes on event
//! loops and of tasks, services that answer whole messages, and senders.

use std::io::{Read, Write};
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tailwater::future;
use tailwater::net::{TcpListener, TcpStream};
use tailwater::sync::Mutex;
use tailwater::thread;
use tailwater_loadgen::tcp::Stamps;
use tailwater_shm::clock;

use super::bulk;
use super::terms::{
    ANY, ASYNC, DISCARD, ECHO, GENERATE, HOLD, MANY, MANY_PORTS, MESSAGES, REQUEST, STAMP, WHOLE,
};

/// Least pause between two sweeps over the held connections; at least this many times as long as a
/// sweep took.
const SWEEP: Duration = Duration::from_millis(5);
const PAUSE: u32 = 3;
/// Time before bulk is counted, in which slow start ends.
const WARM_UP: Duration = Duration::from_millis(100);

/// Serve and send TCP for `bench tcp`
#[derive(Debug, Args)]
pub struct ServiceArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serve until killed
    Serve,
    /// Send to a discard service, and print the rate
    Send {
        /// The service
        to: SocketAddrV4,
        /// Length in milliseconds
        lasts_ms: u64,
    },
    /// Send to a discard service over several connections, and print the rates
    SendMany {
        /// The service
        to: SocketAddrV4,
        /// Length in milliseconds
        lasts_ms: u64,
        /// Number of connections
        connections: usize,
    },
    /// Serve on kernel sockets with one epoll thread, until a connection ends
    Linux {
        /// Number of connections, which are all accepted first
        connections: u32,
    },
    /// Send within this program, and print the rate
    Loopback {
        /// Length in milliseconds
        lasts_ms: u64,
    },
}

/// Plays a role on user threads.
///
/// # Errors
/// The runtime's or a socket's.
pub fn run(args: &ServiceArgs) -> Result<()> {
    let runtime = tailwater::RuntimeBuilder::new();
    match args.role {
        Role::Linux { connections } => super::many::serve_on_linux(connections),
        Role::Serve => Ok(runtime.run(serve)??),
        Role::Send { to, lasts_ms } => runtime.run(move || send(to, Duration::from_millis(lasts_ms)))?,
        Role::SendMany { to, lasts_ms, connections } => {
            runtime.run(move || send_many(to, Duration::from_millis(lasts_ms), connections))?
        }
        Role::Loopback { lasts_ms } => runtime.run(move || {
            listen(DISCARD, |mut stream| bulk::discard(&mut stream))?;
            let to = SocketAddrV4::new(tailwater::net::local_ip(), DISCARD);
            send(to, Duration::from_millis(lasts_ms))
        })?,
    }
}

fn serve() -> std::io::Result<()> {
    listen(ECHO, echo)?;
    (MANY..MANY + MANY_PORTS).try_for_each(|port| listen(port, echo))?;
    listen(STAMP, stamp)?;
    listen(DISCARD, |mut stream| bulk::discard(&mut stream))?;
    listen(GENERATE, |mut stream| bulk::generate(&mut stream))?;
    for (port, bytes) in (WHOLE..).zip(MESSAGES) {
        listen(port, move |stream| answer_whole(stream, bytes))?;
    }
    hold()?;
    super::event_service::serve()?;
    super::loops::serve()?;
    serve_tasks()?;
    say("ready");
    // A line `rounds` asks for the counts of the counting event loop, any other one for the number
    // of connections; the end of input ends this process.
    loop {
        let mut line = String::new();
        if tailwater::blocking(|| std::io::stdin().read_line(&mut line))? == 0 {
            return Ok(());
        }
        if line.trim() == "rounds" {
            let (rounds, conditions) = super::event_service::counted();
            say(&format!("rounds {rounds}\nconditions {conditions}"));
        } else {
            say(&format!("open {}", tailwater::net::counters().tcp_connections));
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a reader this process is about to be killed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Starts a thread that accepts on `port` and starts a thread for each connection.
fn listen(
    port: u16,
    serve: impl Fn(TcpStream) -> std::io::Result<()> + Copy + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind((ANY, port))?;
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || {
                // The error is that the client is gone.
                let _ = serve(stream);
            });
        }
    });
    Ok(())
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 2048];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len])?,
        }
    }
}

/// Sends back each message of `bytes` bytes when all of it has arrived.
fn answer_whole(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = vec![0; bytes];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

/// Starts the echo whose connections are tasks.
fn serve_tasks() -> std::io::Result<()> {
    let listener = future::net::TcpListener::bind((ANY, ASYNC))?;
    drop(future::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // The error is that the client is gone.
            drop(future::spawn(async move { drop(echo_task(stream).await) }));
        }
    }));
    Ok(())
}

/// As [`echo`], asynchronously.
async fn echo_task(mut stream: future::net::TcpStream) -> std::io::Result<()> {
    stream.get_ref().set_nodelay(true)?;
    let mut buffer = [0; 2048];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len]).await?,
        }
    }
}

/// Echoes requests; overwrites their beginning with the times of the read, of this reply's write,
/// and of the previous reply's write.
fn stamp(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut sent) = ([0; REQUEST], 0);
    loop {
        stream.read_exact(&mut buffer)?;
        let received = clock::now();
        let mut stamps = Stamps { received, replied: 0, last_sent: sent };
        // As late as possible.
        stamps.replied = clock::now();
        stamps.encode(&mut buffer);
        stream.write_all(&buffer)?;
        sent = clock::now();
    }
}

/// Connections on which no thread waits.
type Held = Arc<Mutex<Vec<TcpStream>>>;

/// Serves any number of connections: one thread accepts for each port, and one thread polls all
/// connections in turn. A single polling thread takes a bounded share of the core, which leaves the
/// rest to handshakes.
fn hold() -> std::io::Result<()> {
    let ports: std::io::Result<Vec<Held>> = (HOLD..HOLD + MANY_PORTS).map(accept_all).collect();
    let ports = ports?;
    thread::spawn(move || {
        let mut took = Duration::ZERO;
        loop {
            thread::sleep(SWEEP.max(took * PAUSE));
            let began = Instant::now();
            for held in &ports {
                held.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(answer);
            }
            took = began.elapsed();
        }
    });
    Ok(())
}

/// Starts a thread that accepts on `port`.
fn accept_all(port: u16) -> std::io::Result<Held> {
    let listener = TcpListener::bind((ANY, port))?;
    let held = Held::default();
    let new = Arc::clone(&held);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                new.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            }
        }
    });
    Ok(held)
}

/// Echoes the bytes that have arrived; false at the end of the connection.
fn answer(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 2048];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        // The echo fits the send buffer: clients send no second request before the answer.
        Ok(len) => stream.write_all(&buffer[..len]).is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Sends for `lasts` after a warm-up over so many connections; prints the rate of all (`gbps`) and
/// of the `slowest` in Gbit/s, then the numbers of segments sent `again` and of expired
/// retransmission timers (`timeouts`), those of the warm-up included.
fn send_many(to: SocketAddrV4, lasts: Duration, connections: usize) -> Result<()> {
    let counts: Arc<[AtomicU64]> = (0..connections).map(|_| AtomicU64::new(0)).collect();
    let ends = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..connections)
        .map(|number| {
            let (counts, ends) = (Arc::clone(&counts), Arc::clone(&ends));
            thread::spawn(move || -> Result<_> {
                let mut stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
                let chunk = vec![0x5a; bulk::CHUNK];
                while !ends.load(Relaxed) {
                    stream.write_all(&chunk)?;
                    counts[number].fetch_add(bulk::CHUNK as u64, Relaxed);
                    // Without this a thread whose buffer has room keeps the kthread.
                    thread::yield_now();
                }
                let stats = stream.stats();
                Ok((stats.retransmissions, stats.timeouts))
            })
        })
        .collect();
    let count = || counts.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>();
    thread::sleep(WARM_UP);
    let (began, before) = (Instant::now(), count());
    thread::sleep(lasts);
    let (took, after) = (began.elapsed(), count());
    ends.store(true, Relaxed);
    let (mut again, mut timeouts) = (0, 0);
    for sender in senders {
        let (retransmissions, expired) = sender.join().expect("a sender returns its error")?;
        again += retransmissions;
        timeouts += expired;
    }
    let rates = before.iter().zip(&after).map(|(a, b)| (b - a) as f64 * 8.0 / took.as_nanos() as f64);
    say(&format!("gbps {}", rates.clone().sum::<f64>()));
    say(&format!("slowest {}", rates.fold(f64::INFINITY, f64::min)));
    say(&format!("again {again}"));
    say(&format!("timeouts {timeouts}"));
    Ok(())
}

/// Sends for `lasts` after a warm-up; prints `gbps NUMBER`, then the numbers of segments sent
/// `again`, of expired retransmission timers (`timeouts`), and of tail loss probes (`probes`).
fn send(to: SocketAddrV4, lasts: Duration) -> Result<()> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    let gbps = bulk::send(&mut stream, WARM_UP, lasts)?;
    say(&format!("gbps {gbps}"));
    let stats = stream.stats();
    say(&format!("again {}", stats.retransmissions));
    say(&format!("timeouts {}", stats.timeouts));
    say(&format!("probes {}", stats.tail_probes));
    Ok(())
}
