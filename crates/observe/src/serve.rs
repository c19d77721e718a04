//! `tailwater metrics`: metrics and a web page over HTTP, and metrics as a file.
//!
//! Owns the listener, its bounds and the paths. A client is one thread for a few seconds at most.
//! Beyond [`MOST_CLIENTS`] the oldest that has not asked yet makes room, so a reader that asks at
//! once is served among any number of clients that do not.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::note;
use tailwater_testbed::observe::MetricsArgs;

use crate::http::{self, Request, Response};
use crate::metrics::{Format, render};
use crate::page;
use crate::source::Source;

/// Where metrics are served if no address is named.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9757);
/// Most clients at a time.
const MOST_CLIENTS: usize = 32;
/// Most threads at a time, of clients that were shut down and have not ended, too.
const MOST_THREADS: usize = 2 * MOST_CLIENTS;
/// Stack of a client's thread, in bytes.
const STACK: usize = 512 << 10;

/// Serves, or writes a file, until the process is interrupted.
///
/// # Errors
/// If the address cannot be had, or the file not be written.
pub fn run(args: &MetricsArgs) -> anyhow::Result<()> {
    let source = Arc::new(Source::of(&args.iokernel));
    if args.once {
        return match &args.textfile {
            Some(file) => write_file(file, &source),
            None => {
                let document = source.answer().map_err(anyhow::Error::msg)?;
                let text = render(Some(&document), Format::Prometheus);
                Ok(std::io::stdout().write_all(text.as_bytes())?)
            }
        };
    }
    let interrupt = Interrupt::catch()?;
    let address = args.listen.or(args.textfile.is_none().then_some(DEFAULT));
    if let Some(address) = address {
        let listener = TcpListener::bind(address).with_context(|| {
            format!("cannot listen at {address}: choose another address by --listen, or stop what has it")
        })?;
        let address = listener.local_addr()?;
        if !address.ip().to_canonical().is_loopback() {
            note!(
                "warning: {address} is reached from other machines: names of programs and all counters are readable"
            );
        }
        note!("serving http://{address}/ and http://{address}/metrics");
        let server = Server { source: Arc::clone(&source) };
        std::thread::Builder::new().name("listener".to_owned()).spawn(move || server.accept(&listener))?;
    }
    let mut failed = false;
    loop {
        // A full disk is no reason to end: the next writing may succeed.
        match args.textfile.as_ref().map(|file| write_file(file, &source)) {
            Some(Err(error)) if !failed => {
                note!("error: {error:#}; tried again every {:?}", args.interval);
                failed = true;
            }
            Some(Err(_)) => {}
            Some(Ok(())) | None => failed = false,
        }
        // An interrupt is the end that is expected.
        if interrupt.sleep_until(Instant::now() + args.interval).is_err() {
            return args.textfile.as_deref().map_or(Ok(()), remove_file);
        }
    }
}

/// Removes the file: what it says would be read as the present for ever.
fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| {
            format!("cannot remove {}: remove it, or its old metrics are read on", path.display())
        }),
    }
}

/// Writes the metrics to a file that is replaced as a whole.
fn write_file(path: &Path, source: &Source) -> anyhow::Result<()> {
    let document = source.answer().ok();
    let text = render(document.as_deref(), Format::Prometheus);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    // What is there is the file of a process that was killed, or a link that somebody put there.
    let _ = fs::remove_file(&beside);
    let file = File::create_new(&beside);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    let written = written.and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

struct Server {
    source: Arc<Source>,
}

/// A client that is served.
struct Client {
    number: u64,
    stream: TcpStream,
    /// Its request has been read.
    has_asked: bool,
}

/// The clients, the oldest first.
#[derive(Default)]
struct Clients(Mutex<Vec<Client>>);

impl Clients {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client. If there are too many, ends the oldest that has not asked; if all have, the
    /// oldest, which has had most time to take its response.
    fn admit(&self, number: u64, stream: TcpStream) {
        let mut clients = self.lock();
        if clients.len() >= MOST_CLIENTS {
            let leaving = clients.iter().position(|client| !client.has_asked).unwrap_or(0);
            let _ = clients.remove(leaving).stream.shutdown(Shutdown::Both);
        }
        clients.push(Client { number, stream, has_asked: false });
    }

    fn note_request(&self, number: u64) {
        for client in self.lock().iter_mut().filter(|client| client.number == number) {
            client.has_asked = true;
        }
    }

    fn forget(&self, number: u64) {
        self.lock().retain(|client| client.number != number);
    }
}

impl Server {
    fn accept(self, listener: &TcpListener) {
        let (server, clients) = (Arc::new(self), Arc::new(Clients::default()));
        for number in 0u64.. {
            let Ok((stream, _)) = listener.accept() else {
                // No descriptors are left, for instance: clients that end give some back.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            // Of threads that were shut down and still ask the IOKernel.
            if Arc::strong_count(&server) > MOST_THREADS {
                continue;
            }
            let Ok(copy) = stream.try_clone() else { continue };
            clients.admit(number, copy);
            let (thread, list) = (Arc::clone(&server), Arc::clone(&clients));
            let spawned = std::thread::Builder::new().stack_size(STACK).spawn(move || {
                thread.serve(stream, || list.note_request(number));
                list.forget(number);
            });
            if spawned.is_err() {
                clients.forget(number);
            }
        }
    }

    /// Serves one client; calls `asked` when its request has been read.
    fn serve(&self, mut stream: TcpStream, asked: impl FnOnce()) {
        // Of the connection: one that listens at all addresses is reached by this one, too.
        let is_local = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let (response, head_only) = match http::read(&mut stream) {
            Ok(request) => {
                asked();
                (self.respond(&request, is_local), request.head_only)
            }
            Err(Some(refusal)) => (refusal, false),
            Err(None) => return,
        };
        // Fails if the client is gone and needs no answer.
        let _ = http::write(&mut stream, &response, head_only);
    }

    fn respond(&self, request: &Request, is_local: bool) -> Response {
        if is_local && !http::is_own_name(&request.host) {
            let why = "this address is of this machine: use http://127.0.0.1 or http://localhost";
            return Response::line("421 Misdirected Request", why);
        }
        match request.path.as_str() {
            "/metrics" => {
                let open = request.accept.contains("application/openmetrics-text");
                let format = if open { Format::OpenMetrics } else { Format::Prometheus };
                Response::ok(format.content_type(), render(self.source.answer().ok().as_deref(), format))
            }
            "/ready" => match self.source.answer() {
                Ok(_) => Response::line("200 OK", "ready"),
                Err(why) => Response::line("503 Service Unavailable", &why),
            },
            "/stats.json" => match self.source.answer() {
                Ok(document) => Response::ok("application/json", document.to_string()),
                Err(why) => Response::line("503 Service Unavailable", &why),
            },
            path => page::file(path).unwrap_or_else(|| {
                Response::line("404 Not Found", "there are /, /metrics, /ready, /stats.json and /schema.json")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Read;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tailwater_testkit::until;

    fn serve(ask: impl Fn() -> anyhow::Result<serde_json::Value> + Send + Sync + 'static) -> SocketAddr {
        serve_at("127.0.0.1:0", ask)
    }

    fn serve_at(
        address: &str,
        ask: impl Fn() -> anyhow::Result<serde_json::Value> + Send + Sync + 'static,
    ) -> SocketAddr {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server { source: Arc::new(Source::new(ask)) };
        std::thread::spawn(move || server.accept(&listener));
        (Ipv4Addr::LOCALHOST, port).into()
    }

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn every_path_answers_and_an_absent_iokernel_is_not_ready() {
        let there = serve(|| Ok(json!({ "iokernel": { "version": "9" }, "runtimes": [] })));
        for (path, part) in [
            ("/metrics", "tailwater_iokernel_info{version=\"9\""),
            ("/ready", "ready"),
            ("/stats.json", "\"version\":\"9\""),
            ("/schema.json", "tailwater_switch_dropped_full_total"),
            ("/", "<!doctype html>"),
            ("/no", "404 Not Found"),
        ] {
            let answer = get(there, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            assert!(answer.contains(part), "{path}: {answer}");
        }
        let accept = "Accept: application/openmetrics-text; version=1.0.0";
        let open = get(there, &format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n"));
        assert!(
            open.contains("Content-Type: application/openmetrics-text") && open.ends_with("# EOF\n"),
            "{open}"
        );
        let head = get(there, "HEAD / HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        let rebound = get(there, "GET /stats.json HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
        let absent = serve(|| anyhow::bail!("nothing listens there"));
        let ready = get(absent, "GET /ready HTTP/1.1\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("nothing listens there"), "{ready}");
        assert!(get(absent, "GET /metrics HTTP/1.1\r\n\r\n").contains("tailwater_up 0"));
    }

    #[test]
    fn a_name_of_another_site_is_refused_wherever_the_server_listens() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::ffff:127.0.0.1]:0", "[::]:0"] {
            if address.starts_with('[') && TcpListener::bind(address).is_err() {
                println!("skipped: this machine has no IPv6, so nothing listens at {address}");
                continue;
            }
            let server = serve_at(address, || Ok(json!({})));
            let rebound = get(server, "GET /stats.json HTTP/1.1\r\nHost: evil.example\r\n\r\n");
            assert!(rebound.starts_with("HTTP/1.1 421"), "{address}: {rebound}");
            let own = get(server, "GET /stats.json HTTP/1.1\r\nHost: 127.0.0.1:9757\r\n\r\n");
            assert!(own.starts_with("HTTP/1.1 200"), "{address}: {own}");
        }
    }

    #[test]
    fn a_reader_that_has_asked_is_served_however_many_connect_after_it() {
        let (asked, answer) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, go) = (Arc::clone(&asked), Arc::clone(&answer));
        // Relaxed: nothing else is written with these.
        let address = serve(move || {
            seen.store(true, Ordering::Relaxed);
            until("the others have connected", || go.load(Ordering::Relaxed));
            Ok(json!({}))
        });
        let reader = std::thread::spawn(move || get(address, "GET /ready HTTP/1.1\r\n\r\n"));
        until("the reader has asked", || asked.load(Ordering::Relaxed));
        let mut silent: Vec<TcpStream> =
            (0..3 * MOST_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        // It has been ended, so the server has accepted the later ones that fit.
        let _ = silent[0].read(&mut [0]);
        answer.store(true, Ordering::Relaxed);
        let answer = reader.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[test]
    fn clients_that_send_too_much_or_nothing_keep_no_other_from_being_served() {
        let address = serve(|| Ok(json!({})));
        let large = get(address, &format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(20 << 10)));
        // The connection may be reset by what it sent too much.
        assert!(large.is_empty() || large.starts_with("HTTP/1.1 431"), "{large}");
        let silent: Vec<TcpStream> =
            (0..3 * MOST_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        until("a reader among silent clients is served", || {
            get(address, "GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200")
        });
        drop(silent);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_says_that_the_iokernel_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tailwater.prom");
        write_file(&file, &Source::new(|| anyhow::bail!("not there"))).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("tailwater_up 0"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        remove_file(&file).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        remove_file(&file).unwrap();
        let absent = folder.path().join("no/such/folder");
        let error = write_file(&absent, &Source::new(|| Ok(json!({})))).unwrap_err();
        assert!(format!("{error:#}").contains("no/such/folder"), "{error:#}");
    }
}
