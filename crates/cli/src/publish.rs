//! `tailwater publish`: a relay from Linux's network to services on Tailwater's.
//!
//! Owns the relay: a program of one kthread that listens on Linux and connects to the service for
//! each client. It needs no TAP device and no rights beyond those of a program. Bytes are copied
//! both ways and not looked at; each direction ends by itself, as TCP's do. Linux's sockets are
//! read and written on the threads of the [blocking](tailwater::blocking) pool, so a client costs
//! up to two ordinary threads: the way is for browsers and tools, not for load.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tailwater::net::TcpStream as ServiceStream;
use tailwater::signal::{SIGINT, SIGTERM, Signals};
use tailwater::sync::Semaphore;
use tailwater::{blocking, thread};
use tailwater_testbed::note;
use tailwater_testbed::socket::IokernelArg;

/// Bytes of a copy.
const BUFFER: usize = 64 << 10;

/// Largest number of connections: each needs two threads.
const MOST_CONNECTIONS: i64 = 16_384;

/// Pause after a connection that could not be accepted: descriptors may be free by then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Make services on Tailwater's network reachable from Linux's, without a TAP device and without
/// root
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater publish 127.0.0.1:8080=10.77.0.2:80     a browser reaches it at http://127.0.0.1:8080
  tailwater publish 8080=10.77.0.2:80 11211=10.77.0.3:11211
  tailwater publish '[::]:8080=10.77.0.2:80'        for other machines, too

TCP only. All clients that reach the Linux address reach the service. A port without an address is open to this \
machine only. For load use a TAP device (`tailwater iokernel --tap`), which costs no thread and copies once less.")]
pub struct PublishArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Maximum number of connections at a time, 1 to 16384; further clients are disconnected
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=MOST_CONNECTIONS))]
    connections: u16,
    /// Where to listen on Linux, an address or a port of 127.0.0.1, and the service's address
    #[arg(required = true, value_name = "LISTEN=SERVICE")]
    services: Vec<Rule>,
}

/// An address on Linux, and the service that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    listen: SocketAddr,
    service: SocketAddr,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("tcp:") || text.starts_with("udp:") {
            return Err(format!(
                "write 8080=10.77.0.2:80; `{text}` is for `tailwater iokernel --publish`, beside --tap"
            ));
        }
        let (listen, service) =
            text.split_once('=').ok_or("there is no `=`: write 127.0.0.1:8080=10.77.0.2:80")?;
        let listen = match listen.parse::<u16>() {
            Ok(port) => SocketAddr::from(([127, 0, 0, 1], port)),
            Err(_) => address(listen, "127.0.0.1:8080 or 8080")?,
        };
        let service = address(service, "10.77.0.2:80")?;
        if service.port() == 0 {
            return Err("the service's port is 0: name the port at which it listens".to_owned());
        }
        Ok(Self { listen, service })
    }
}

fn address(text: &str, example: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no address with a port: write {example}"))
}

/// Relays until SIGINT or SIGTERM.
///
/// # Errors
/// If an address on Linux cannot be had, or the IOKernel does not register the relay.
pub fn run(args: &PublishArgs) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for &rule in &args.services {
        let listener = std::net::TcpListener::bind(rule.listen)
            .with_context(|| format!("cannot listen at {} on Linux", rule.listen))?;
        listeners.push((rule, listener));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    let threads = usize::from(args.connections) * 2 + listeners.len() + 1;
    let mut builder = tailwater::RuntimeBuilder::new()
        .iokernel(args.iokernel.to_string())
        .kthreads(1)
        .blocking_threads(u16::try_from(threads).context("too many services")?);
    if std::env::var_os("TAILWATER_NAME").is_none() {
        builder = builder.name(format!("publish-{}", std::process::id()));
    }
    let places = Arc::new(Semaphore::new(usize::from(args.connections)));
    let relay = builder.run(move || {
        for (rule, listener) in listeners {
            let listen = listener.local_addr().unwrap_or(rule.listen);
            writeln!(io::stdout(), "{} is published at {listen}", rule.service)?;
            let places = Arc::clone(&places);
            thread::spawn(move || accept(&listener, rule.service, &places));
        }
        signals.wait();
        Ok(())
    });
    relay.context("the relay cannot start")?
}

/// Accepts clients for ever.
fn accept(listener: &std::net::TcpListener, service: SocketAddr, places: &Arc<Semaphore>) {
    let fails = Arc::new(AtomicBool::new(false));
    loop {
        let client = match blocking(|| listener.accept()) {
            Ok((client, _)) => client,
            Err(error) => {
                note!("tailwater publish: a client of {service} could not be accepted: {error}");
                tailwater::time::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let Some(place) = places.try_acquire_owned() else { continue };
        let fails = Arc::clone(&fails);
        thread::spawn(move || {
            let _place = place;
            if let Err(error) = relay(&client, service) {
                // A service that is not there is reported once, not for each client.
                if !fails.swap(true, Relaxed) {
                    note!("tailwater publish: cannot connect to {service}: {error}");
                }
            } else {
                fails.store(false, Relaxed);
            }
        });
    }
}

/// Copies both ways until both have ended.
///
/// # Errors
/// If the service cannot be connected to.
fn relay(client: &std::net::TcpStream, service: SocketAddr) -> io::Result<()> {
    let service = &ServiceStream::connect(service)?;
    // Both ends combine small writes as they want; waiting here would only add to that.
    let _ = (client.set_nodelay(true), service.set_nodelay(true));
    thread::scope(|scope| {
        scope.spawn(move || {
            if copy(
                |buffer| blocking(|| (&mut &*client).read(buffer)),
                |bytes| (&mut &*service).write_all(bytes),
            ) {
                let _ = service.shutdown(Shutdown::Write);
            } else {
                end(client, service);
            }
        });
        if copy(|buffer| (&mut &*service).read(buffer), |bytes| blocking(|| (&mut &*client).write_all(bytes)))
        {
            let _ = client.shutdown(Shutdown::Write);
        } else {
            end(client, service);
        }
    });
    Ok(())
}

/// Ends both connections, so that the copy of the other direction ends too. Fails only where they
/// have ended already.
fn end(client: &std::net::TcpStream, service: &ServiceStream) {
    let _ = (client.shutdown(Shutdown::Both), service.shutdown(Shutdown::Both));
}

/// Copies until the end of the stream; false if either side failed.
fn copy(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> bool {
    let mut buffer = vec![0; BUFFER];
    loop {
        match read(&mut buffer) {
            Ok(0) => return true,
            Ok(len) if write(&buffer[..len]).is_ok() => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_an_address_on_linux_and_a_service() {
        let rule = |text: &str| text.parse::<Rule>();
        let [listen, service] = ["127.0.0.1:8080", "10.77.0.2:80"].map(|text| text.parse().unwrap());
        assert_eq!(rule("127.0.0.1:8080=10.77.0.2:80"), Ok(Rule { listen, service }));
        assert_eq!(rule("8080=10.77.0.2:80"), Ok(Rule { listen, service }));
        assert!(rule("[::]:8080=[fd00:7477::2]:80").is_ok());
        for (wrong, part) in [
            ("8080", "no `=`"),
            ("8080=10.77.0.2", "`10.77.0.2` is no address with a port"),
            ("70000=10.77.0.2:80", "`70000`"),
            ("8080=10.77.0.2:0", "port is 0"),
            ("=10.77.0.2:80", "no address"),
            ("tcp:80=web", "iokernel --publish"),
        ] {
            let error = rule(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_copy_ends_with_its_source_and_fails_with_its_sink() {
        let mut source: &[u8] = &[7; 3 * BUFFER + 1];
        let mut sink = Vec::new();
        assert!(copy(|buffer| source.read(buffer), |bytes| sink.write_all(bytes)));
        assert_eq!(sink, [7; 3 * BUFFER + 1]);
        assert!(!copy(|_| Ok(1), |_| Err(io::ErrorKind::BrokenPipe.into())));
        assert!(!copy(|_| Err(io::ErrorKind::ConnectionReset.into()), |_| Ok(())));
    }
}
