//! The services of `bench tcp`, in processes of their own: echo, discard and character generator (RFC 862, 863, 864), a
//! service that holds connections without a thread for each, and senders.

use std::io::{Read, Write};
use std::net::SocketAddrV4;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tailwater::net::{TcpListener, TcpStream};
use tailwater::sync::Mutex;
use tailwater::thread;
use tailwater_loadgen::tcp::Stamps;
use tailwater_shm::clock;

use super::{ANY, REQUEST, bulk};

/// RFC 862.
pub(super) const ECHO: u16 = 7;
/// Echo with time stamps in it.
pub(super) const STAMP: u16 = 8;
/// RFC 863.
pub(super) const DISCARD: u16 = 9;
/// RFC 864, without its pattern.
pub(super) const GENERATE: u16 = 19;
/// Echo without a thread per connection: this port and the following ones, for 50,000 connections of one client each.
pub(super) const HOLD: u16 = 6000;
/// Echo with a thread per connection: this port and the following ones.
pub(super) const MANY: u16 = 6100;
/// How many of each.
const MANY_PORTS: u16 = 5;
/// Pause between two looks at the connections that are held: so long, or so many times as long as a look took.
const SWEEP: Duration = Duration::from_millis(5);
const PAUSE: u32 = 3;
/// Before bulk is counted: slow start is over.
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
    /// Send to a discard service, and say how fast
    Send {
        /// The service
        to: SocketAddrV4,
        /// For so many milliseconds
        lasts_ms: u64,
    },
    /// Serve on kernel sockets with one epoll thread, until a connection ends
    Linux {
        /// So many, which all come first
        connections: u32,
    },
    /// Send within this program, and say how fast
    Loopback {
        /// For so many milliseconds
        lasts_ms: u64,
    },
}

/// Plays a role as a user thread of a runtime.
///
/// # Errors
/// The runtime's or a socket's.
pub fn run(args: &ServiceArgs) -> Result<()> {
    let runtime = tailwater::Builder::new();
    match args.role {
        Role::Linux { connections } => super::many::serve_on_linux(connections),
        Role::Serve => Ok(runtime.run(serve)??),
        Role::Send { to, lasts_ms } => runtime.run(move || send(to, Duration::from_millis(lasts_ms)))?,
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
    hold()?;
    say("ready");
    // Each line of input asks how many connections there are; its end is ours.
    while tailwater::blocking(|| std::io::stdin().read_line(&mut String::new()))? > 0 {
        say(&format!("open {}", tailwater::net::counters().tcp_connections));
    }
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a reader this process is about to be killed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A thread that accepts on `port`, and one for each connection.
fn listen(port: u16, serve: fn(TcpStream) -> std::io::Result<()>) -> std::io::Result<()> {
    let listener = TcpListener::bind((ANY, port))?;
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || {
                // Ends when the client is gone.
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

/// Echo that writes over the request's beginning when it was read, when its answer is handed over, and when the last answer
/// had been.
fn stamp(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut sent) = ([0; REQUEST], 0);
    loop {
        stream.read_exact(&mut buffer)?;
        let received = clock::now();
        let mut stamps = Stamps { received, replied: 0, last_sent: sent };
        // As late as can be.
        stamps.replied = clock::now();
        stamps.encode(&mut buffer);
        stream.write_all(&buffer)?;
        sent = clock::now();
    }
}

/// Connections that nobody waits for.
type Held = Arc<Mutex<Vec<TcpStream>>>;

/// Threads for any number of connections: one for each port accepts, and one looks at all connections in turn. One, so that
/// looking takes a bounded share of the core however many ports there are, and leaves the rest to handshakes.
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

/// A thread that accepts on `port`.
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

/// Sends back what has come; false when the connection is over.
fn answer(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 2048];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        // What is sent back fits the send buffer: nobody asks twice before the answer.
        Ok(len) => stream.write_all(&buffer[..len]).is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Sends for `lasts` after a warm-up and prints `gbps NUMBER`, then how many segments were sent `again`, how often the
/// retransmission timer expired (`timeouts`), and how many tail loss probes left (`probes`).
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
