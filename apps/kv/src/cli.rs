//! The command line of `kv`, for its own binary and for programs that carry it inside. Options have
//! memcached's letters.
//!
//! Owns: arguments, signals, the secret of the hash function, and the few lines of output. Printing
//! happens on ordinary threads: standard output's lock belongs to a thread of the kernel and must
//! not be held over a switch of user threads.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tailwater::cores::{self, Estimation};
use tailwater::dispatch::Policy;
use tailwater_workload::units::{SECOND_NS, parse_duration_ns};

use crate::accepted::Accepted;
use crate::clock::Clock;
use crate::pid_file::PidFile;
use crate::replicate::{self, Secret};
use crate::server::{Running, Turns, kernel, user_threads};
use crate::service::{Mode, Service, Settings, Sizes};
use crate::store::{Config, Store};

/// Examples, for `after_help`.
pub const EXAMPLES: &str = "Examples:
  tailwater-kv -m 1024 -p 11211
  tailwater run --name kv --kthreads 1 --ip 10.77.0.2 -- tailwater-kv -U 11211
  tailwater-kv --dispatch mq:5us --large 100
  tailwater-kv --linux -l 127.0.0.1

Without --linux it runs on Tailwater; TAILWATER_* variables say how (see `tailwater run --help`).";

/// What to store, and where to serve it.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Serve on kernel sockets and ordinary threads instead of Tailwater
    #[arg(long)]
    linux: bool,
    /// TCP port; 0 lets the system choose
    #[arg(short = 'p', long = "port", value_name = "PORT", default_value_t = 11211)]
    port: u16,
    /// UDP port; 0 for none
    #[arg(short = 'U', long = "udp-port", value_name = "PORT", default_value_t = 0)]
    udp_port: u16,
    /// Address to listen on, only one [default: 0.0.0.0, with --linux 127.0.0.1]
    #[arg(short = 'l', long = "listen", value_name = "ADDRESS")]
    listen: Option<String>,
    /// Memory in mebibytes: items and hash tables, and at most a sixteenth for what the process has
    /// when it starts; connections come on top
    #[arg(short = 'm', long = "memory-limit", value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    /// Largest item, in bytes or with k or m: 1k to 1024m, and less than 0.43 of -m [default: 1m,
    /// or what fits into -m]
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", value_parser = size)]
    max_item: Option<usize>,
    /// Maximum number of connections
    #[arg(short = 'c', long = "conn-limit", value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Cores to serve on at once: kthreads of the runtime, or threads on the UDP socket [default:
    /// TAILWATER_KTHREADS, with --linux 1]
    #[arg(short = 't', long = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Fail to store when memory is full, instead of removing what was not used for longest
    #[arg(short = 'M', long = "disable-evictions")]
    no_evictions: bool,
    /// Refuse flush_all
    #[arg(short = 'F', long = "disable-flush-all")]
    no_flush: bool,
    /// Close connections that send nothing, or read none of their answers, for this time, in whole
    /// seconds; 0 for never
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_seconds)]
    idle_timeout: u32,
    /// Run requests in the order of this policy, so that short ones do not wait behind large
    /// retrievals: c-fcfs, steal[:N], ps:QUANTUM, sq:QUANTUM[,head|tail], mq:QUANTUM[,head|tail],
    /// or jbsq:K[,QUANTUM] with a dispatcher of its own; not with -U
    #[arg(long, value_name = "POLICY", conflicts_with = "linux",
          value_parser = |text: &str| text.parse().and_then(Policy::for_unknown_work))]
    dispatch: Option<Policy>,
    /// Dispatchers with a kthread of their own, which hand requests to the others; 0: each kthread
    /// schedules itself, unless the policy is jbsq
    #[arg(long, value_name = "N", default_value_t = 0, requires = "dispatch",
          value_parser = clap::value_parser!(u16).range(0..=64))]
    dispatchers: u16,
    /// Number of keys from which a retrieval is large, a class of its own
    #[arg(long, value_name = "KEYS", default_value_t = 100, requires = "dispatch",
          value_parser = clap::value_parser!(u32).range(1..))]
    large: u32,
    /// Serve connections by an event loop on each kthread, which runs requests to completion, in
    /// place of a thread for each; not with backups
    #[arg(long, conflicts_with_all = ["linux", "dispatch", "replicate", "backup"])]
    events: bool,
    /// Request as many cores as the load needs by Arachne's estimate; the IOKernel must have policy
    /// = "arbiter"
    #[arg(long, conflicts_with = "linux")]
    estimate_cores: bool,
    #[command(flatten)]
    replication: ReplicationOptions,
    #[command(flatten)]
    accepted: Accepted,
}

/// Whom to replicate to, and for whom to be a backup.
#[derive(Debug, Clone, Args)]
struct ReplicationOptions {
    /// Have each write at these backups, up to 7, before it is answered; the ports are those of
    /// their --backup
    #[arg(
        long,
        value_name = "IP:PORT,...",
        value_delimiter = ',',
        requires = "secret",
        conflicts_with = "udp_port"
    )]
    replicate: Vec<SocketAddr>,
    /// What happens to writes while a backup is lost
    #[arg(long, value_name = "WHAT", value_enum, requires = "replicate", default_value_t = replicate::OnLoss::Refuse)]
    on_backup_loss: replicate::OnLoss,
    /// Time after which a backup that does not answer is lost, in whole seconds up to 1h
    #[arg(long, value_name = "DURATION", requires = "replicate", default_value = "5s", value_parser = parse_backup_timeout)]
    backup_timeout: u32,
    /// Be a backup and take copies on this port, 0 for any, until SIGUSR1 makes it a primary
    #[arg(long, value_name = "PORT", requires = "secret", conflicts_with = "udp_port")]
    backup: Option<u16>,
    /// File with the secret of a primary and its backups: 32 hexadecimal digits, readable by its
    /// owner only
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
}

/// Reads a time in whole seconds; a number without a unit is one, as memcached's are.
fn parse_seconds(text: &str) -> Result<u32, String> {
    let ns = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => parse_duration_ns(&format!("{text}s")),
        false => parse_duration_ns(text),
    };
    let ns = ns.map_err(|error| error.to_string())?;
    let seconds = ns.is_multiple_of(SECOND_NS).then_some(ns / SECOND_NS);
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
    seconds.ok_or_else(|| {
        format!("`{text}` is no whole number of seconds up to {}; write for instance 30s", u32::MAX)
    })
}

fn parse_backup_timeout(text: &str) -> Result<u32, String> {
    match parse_seconds(text)? {
        seconds @ 1..=3600 => Ok(seconds),
        _ => Err("1s to 1h".to_owned()),
    }
}

impl ReplicationOptions {
    /// Returns the settings if there is anything to replicate.
    fn settings(&self) -> anyhow::Result<Option<replicate::Settings>> {
        let Some(file) = &self.secret else { return Ok(None) };
        anyhow::ensure!(
            self.backup.is_some() || !self.replicate.is_empty(),
            "--secret is for backups and their primary: give --replicate or --backup with it"
        );
        Ok(Some(replicate::Settings {
            backups: self.replicate.clone(),
            on_loss: self.on_backup_loss,
            timeout: Duration::from_secs(self.backup_timeout.into()),
            port: self.backup,
            secret: read_secret(file)?,
        }))
    }
}

/// Bytes of a file with a secret that are read.
const MAX_SECRET_FILE: u64 = 1024;

fn read_secret(file: &Path) -> anyhow::Result<Secret> {
    let name = file.display();
    let cannot = || format!("cannot read {name}");
    let opened = std::fs::File::open(file).with_context(cannot)?;
    let mode = opened.metadata().with_context(cannot)?.permissions().mode();
    anyhow::ensure!(mode & 0o077 == 0, "others may read {name}: run `chmod 600 {name}`");
    let text = std::io::read_to_string(opened.take(MAX_SECRET_FILE)).with_context(cannot)?;
    Secret::decode(&text).with_context(|| {
        format!("{name} is not 32 hexadecimal digits: make one with `openssl rand -hex 16 > {name}`")
    })
}

/// Part of the limit of memory that is left to the process itself at most.
const MAX_BESIDE: usize = 16;

/// Maximum bytes of an item by default, as in memcached, if the memory is enough for it.
const MAX_ITEM: usize = 1 << 20;

/// Returns a number of bytes as memcached's `-I` takes it.
fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write 4096, 512k or 2m"))?;
    let size = number.checked_mul(unit).filter(|size| Config::ITEM_BOUNDS.contains(size));
    size.ok_or_else(|| format!("{text} is out of bounds; the limit is between 1k and 1024m"))
}

/// Serves until SIGINT or SIGTERM, then ends the process.
///
/// # Errors
/// If the service cannot start, with the reason.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Before anything starts, so that no signal is missed.
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    if options.replication.backup.is_some() {
        signals.add_signal(SIGUSR1).context("cannot catch signals")?;
    }
    options.accepted.check(rustix::process::geteuid().is_root())?;
    for line in options.accepted.without_effect() {
        writeln!(std::io::stderr(), "{line}")?;
    }
    anyhow::ensure!(
        options.dispatch.is_none() || options.udp_port == 0,
        "datagrams are not served by a dispatcher: leave -U or --dispatch out"
    );
    let (clock, replication) = (Clock::start(), options.replication.settings()?);
    let store = store(options, replication.as_ref())?;
    if options.linux {
        let service = service(store, settings(options, 1), replication)?;
        serve_linux(&service, clock, options.accepted.pid_file.as_deref(), signals)
    } else {
        serve(options, store, replication, clock, signals)
    }
}

fn service(
    store: Store,
    settings: Settings,
    replication: Option<replicate::Settings>,
) -> std::io::Result<Arc<Service>> {
    let service = Service::new(store, settings);
    if let Some(replication) = replication {
        service.replicate(replication)?;
    }
    Ok(service)
}

fn store(options: &Options, replication: Option<&replicate::Settings>) -> anyhow::Result<Store> {
    // The standard library's secrets are random, and differ from call to call.
    let random = || RandomState::new().build_hasher().finish();
    let memory = usize::try_from(options.memory << 20).context("more memory than there are addresses")?;
    let evict = !options.no_evictions;
    // A primary and its backups divide the same memory in the same way, whatever else they have.
    let (secret, beside) = match replication {
        Some(replication) => (replication.secret.hash_keys(), memory / MAX_BESIDE),
        None => ([random(), random()], resident().unwrap_or_default().min(memory / MAX_BESIDE)),
    };
    // Items take up to 2.4 times their size.
    let max_item = options.max_item.unwrap_or_else(|| MAX_ITEM.min((memory - beside) / 12 * 5));
    Ok(Store::beside(Config { memory, max_item, evict, secret }, beside)?)
}

/// Returns the bytes of memory that this process has (proc_pid_status(5)).
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the settings of a server that serves on `cores` unless the options set another number.
fn settings(options: &Options, cores: u32) -> Settings {
    let default = if options.linux { "127.0.0.1" } else { "0.0.0.0" };
    let mode = match options.dispatch {
        Some(policy) => Mode::Dispatch(Sizes {
            policy,
            dispatchers: options.dispatchers.into(),
            large: options.large as usize,
        }),
        None if options.events => Mode::Events,
        None => Mode::Threads,
    };
    Settings {
        tcp_port: options.port,
        udp_port: options.udp_port,
        listen: options.listen.clone().unwrap_or_else(|| default.to_owned()),
        max_connections: options.connections,
        threads: options.threads.map_or(cores, u32::from),
        idle_timeout: options.accepted.idle_timeout().unwrap_or(options.idle_timeout),
        flush: !options.no_flush,
        mode,
    }
}

/// Serves on user threads.
fn serve(
    options: &Options,
    store: Store,
    replication: Option<replicate::Settings>,
    clock: Clock,
    signals: Signals,
) -> anyhow::Result<()> {
    let ((ready, started), pid_file) = (channel(), options.accepted.pid_file.clone());
    std::thread::Builder::new()
        .name("kv-signals".to_owned())
        .spawn(move || end_on_signal(&started, clock, pid_file.as_deref(), signals))
        .context("cannot start a thread")?;
    let mut builder = tailwater::RuntimeBuilder::new();
    if let Some(threads) = options.threads {
        builder = builder.kthreads(threads);
    }
    if options.dispatch.is_some() {
        builder = builder.without_quantum(
            "requests run in the order of --dispatch, whose policy has a quantum of its own, or none",
        );
    }
    let options = options.clone();
    builder.run(move || -> anyhow::Result<()> {
        if options.estimate_cores {
            cores::estimate(Estimation::default()).context("--estimate-cores has no effect")?;
        }
        // Only the runtime knows what it was configured to have.
        let kthreads = tailwater::thread::available_parallelism()?.get();
        let settings = settings(&options, u32::try_from(kthreads).unwrap_or(u32::MAX));
        let service = service(store, settings, replication)?;
        // Fails only when the other thread cannot print, and then it ends the process.
        let _ = ready.send((user_threads::start(&service, clock)?, service));
        loop {
            tailwater::thread::park();
        }
    })??;
    Ok(())
}

/// Ends the process on a signal.
fn end_on_signal(
    started: &Receiver<(Running, Arc<Service>)>,
    clock: Clock,
    pid_file: Option<&Path>,
    signals: Signals,
) {
    // The service failed to start; the other thread reports why.
    let Ok((listening, service)) = started.recv() else { return };
    let waited =
        until_signal(&service, clock, &listening, pid_file, signals).and_then(|()| print_classes(&listening));
    if let Err(error) = &waited {
        // Nothing is left to do if this fails too.
        let _ = std::io::stderr().write_all(format!("error: {error:#}\n").as_bytes());
    }
    std::process::exit(i32::from(waited.is_err()));
}

/// Serves on kernel sockets.
fn serve_linux(
    service: &Arc<Service>,
    clock: Clock,
    pid_file: Option<&Path>,
    signals: Signals,
) -> anyhow::Result<()> {
    let listening = kernel::start(service, clock)
        .with_context(|| format!("cannot listen on {}", service.settings.listen))?;
    until_signal(service, clock, &listening, pid_file, signals)
}

/// Prints where the service listens and returns at a signal to end it. The file with the process id
/// is there meanwhile.
fn until_signal(
    service: &Service,
    clock: Clock,
    listening: &Running,
    pid_file: Option<&Path>,
    mut signals: Signals,
) -> anyhow::Result<()> {
    let _pid_file = pid_file.map(PidFile::write).transpose()?;
    announce(listening)?;
    for signal in signals.forever() {
        if signal != SIGUSR1 {
            break;
        }
        if let Some(replication) = service.replication.get() {
            let line = match replication.promote(clock) {
                Ok(()) => "promoted: this is a primary now".to_owned(),
                Err(error) => format!("not promoted: {error}"),
            };
            writeln!(std::io::stderr(), "tailwater-kv: {line}")?;
        }
    }
    Ok(())
}

/// Prints what became of the requests of each class, if there are classes.
fn print_classes(listening: &Running) -> anyhow::Result<()> {
    for class in listening.turns.as_deref().map(Turns::stats).unwrap_or_default() {
        writeln!(std::io::stdout(), "class {class}")?;
    }
    Ok(())
}

fn announce(Running { tcp, udp, backup, .. }: &Running) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {tcp}")?;
    if let Some(udp) = udp {
        writeln!(out, "listening on {udp} for datagrams")?;
    }
    if let Some(backup) = backup {
        writeln!(out, "listening on {backup} for a primary")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// What the options give.
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn store_with(memory: &str, item: &str) -> anyhow::Result<Store> {
        store(&Command::parse_from(["kv", "-m", memory, "-I", item]).options, None)
    }

    #[test]
    fn an_item_of_the_largest_size_can_be_sent_piece_by_piece() {
        let now = crate::store::Now { seconds: 100, start_unix: 0 };
        // Just under 0.43 of the memory.
        let store = store_with("64", "28179k").unwrap();
        let filling = store.lock(b"key", now).reserve((28_179 << 10) - 100).unwrap();
        store.abandon(filling);
        let refused = store_with("64", "32m").unwrap_err().to_string();
        assert!(refused.contains("67108864 bytes"), "{refused}");
        assert!(store_with("2", "1m").is_err() && store_with("2", "512k").is_ok());
    }

    #[test]
    fn the_largest_item_fits_into_a_small_memory_by_default() {
        for (memory, at_least) in [("1", 400_000), ("2", 800_000), ("3", MAX_ITEM), ("64", MAX_ITEM)] {
            let store = store(&Command::parse_from(["kv", "-m", memory]).options, None).unwrap();
            let largest = store.config().max_item;
            assert!((at_least..=MAX_ITEM).contains(&largest), "-m {memory}: {largest}");
        }
    }

    #[test]
    fn a_service_without_connections_is_refused() {
        let valid = |most| Command::try_parse_from(["kv", "-c", most]).is_ok();
        assert!(valid("1") && !valid("0") && !valid("-1"));
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        assert_eq!(["0", "30", "30s", "5min"].map(|text| parse_seconds(text).unwrap()), [0, 30, 30, 300]);
        for wrong in ["", "s", "-1", "1500ms", "5x", "4294967296"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
        assert!(parse_backup_timeout("0").is_err() && parse_backup_timeout("1h") == Ok(3600));
    }

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512k"), Ok(512 << 10));
        assert_eq!(size("1024m"), Ok(1 << 30));
        for wrong in ["", "m", "1", "2000m", "1g", "-5k", "99999999999999999999m"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
