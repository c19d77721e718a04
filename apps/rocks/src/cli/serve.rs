//! Serving as configured on the command line: opening and loading the store, signals, the few lines
//! of output.
//!
//! Printing happens on ordinary threads: standard output's lock belongs to a thread of the kernel
//! and must not be held over a switch of user threads. So does opening: see [`Store::open`].

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Options;
use crate::request::Limits;
use crate::service::{self, Service};
use crate::store::{self, Store, end_process};
use crate::{Counts, linux};

/// What the thread that waits for signals gets about a running service.
type Started = (Service, Arc<Store>);

/// See [`super::run`].
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Before anything starts, so that no signal is missed.
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    if options.linux { serve_linux(options, signals) } else { serve(options, signals) }
}

fn open(options: &Options) -> anyhow::Result<Arc<Store>> {
    let config = store::Config { wal: options.wal, ..store::Config::new(&options.path) };
    let store = Store::open(&config).with_context(|| format!("store {}", options.path.display()))?;
    if let Some(keys) = options.load {
        let began = Instant::now();
        store.load(keys, options.value as usize)?;
        let seconds = began.elapsed().as_secs_f64();
        writeln!(std::io::stdout(), "loaded {keys} keys of {} bytes in {seconds:.1} s", options.value)?;
    }
    Ok(Arc::new(store))
}

fn limits(options: &Options) -> Limits {
    let idle = options.idle_timeout;
    Limits { scan: options.max_scan, value: options.max_value as usize, idle }
}

/// Serves on user threads.
fn serve(options: &Options, signals: Signals) -> anyhow::Result<()> {
    let (ready, started) = channel();
    std::thread::Builder::new()
        .name("rocks-signals".to_owned())
        .spawn({
            let path = options.path.clone();
            move || end_on_signal(&started, &path, signals)
        })
        .context("cannot start a thread")?;
    let options = options.clone();
    let why = "requests run in the order of --dispatch, whose policy has a quantum of its own, or none";
    tailwater::RuntimeBuilder::new().without_quantum(why).run(move || -> anyhow::Result<()> {
        // On a thread off the runtime's cores, where RocksDB's own threads then stay.
        let store = tailwater::blocking(|| open(&options))?;
        let config = service::Config {
            listen: options.listen.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 5001))),
            policy: options.dispatch,
            dispatchers: options.dispatchers.into(),
            limits: limits(&options),
        };
        let service = Service::start(&config, Arc::clone(&store))?;
        // Fails only if the other thread cannot print, and then it ends the process.
        let _ = ready.send((service, store));
        loop {
            tailwater::thread::park();
        }
    })?
}

/// Prints the address of the service; on a signal, or if that cannot be printed, saves the store
/// and ends the process.
///
/// Requests are executed meanwhile: what they put before the store was saved is in it, and later
/// PUTs fail.
fn end_on_signal(started: &Receiver<Started>, path: &Path, mut signals: Signals) {
    // If the service failed to start, the other thread prints the reason.
    let Ok((service, store)) = started.recv() else { return };
    let announced = announce(service.local_addr());
    if announced.is_ok() {
        let _ = signals.forever().next();
    }
    let saved = store.finish();
    print_counts(service.counts());
    for class in service.classes() {
        let _ = writeln!(std::io::stdout(), "class {class}");
    }
    if let Err(error) = &saved {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "{}: {error}", saving(path));
    }
    end_process(i32::from(announced.is_err() || saved.is_err()))
}

/// Serves on kernel sockets.
fn serve_linux(options: &Options, mut signals: Signals) -> anyhow::Result<()> {
    let store = open(options)?;
    let config = linux::Config {
        listen: options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 5001))),
        threads: options.threads.into(),
        core: options.core,
        limits: limits(options),
    };
    let server = linux::Server::start(&config, Arc::clone(&store))?;
    announce(server.local_addr())?;
    let _ = signals.forever().next();
    let counts = server.stop();
    let saved = store.finish().with_context(|| saving(&options.path));
    print_counts(counts);
    saved
}

fn saving(path: &Path) -> String {
    format!("store {}", path.display())
}

fn announce(address: SocketAddr) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "listening on {address}")
}

/// Prints counters. A closed standard output is not a failure of the service.
fn print_counts(counts: Counts) {
    let Counts { served, refused, failed, malformed, unsent, dropped } = counts;
    let line = format!(
        "{served} served, {refused} refused, {failed} failed, {malformed} malformed, {unsent} unsent, {dropped} dropped"
    );
    let _ = writeln!(std::io::stdout(), "{line}");
}
