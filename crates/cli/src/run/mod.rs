//! `tailwater run`: starts a program with its runtime settings in the environment.
//!
//! Owns the translation from options to `TAILWATER_*` variables, which the runtime in the program
//! reads. The process becomes the program, so signals and exit codes are the program's. [`find`]
//! looks for the program, [`wait`] waits for an IOKernel that has just been started,
//! [`registration`] keeps a program that has not registered off the managed cores. Programs that
//! were not written for Tailwater are prepared by [`posix`], run as batch jobs by [`batch`], or
//! kept off the managed cores as clients by [`client`].

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tailwater_iokernel::Config;
use tailwater_shm::control::Listen;
use tailwater_testbed::note;
use tailwater_testbed::socket::IokernelArg;
use tailwater_testbed::statistics;
use tailwater_workload::units::parse_duration_ns;

use crate::query;

pub mod batch;
pub mod client;
mod find;
mod posix;
pub mod registration;
mod wait;

/// Start a program on an IOKernel
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "tailwater run [OPTIONS] -- PROGRAM [ARGUMENT]...",
    after_help = "Examples:
  tailwater run -- spin --listen 0.0.0.0:5000
  tailwater run --name kv --kthreads 4 --guaranteed 1 --ip 10.77.0.2 -- ./kv
  tailwater run --name kv --listen tcp:6379 -- ./kv      behind --xdp eth0,share=ports
  tailwater run --name batch --class best-effort -- swaptions
  tailwater run --standalone --kthreads 2 -- ./kv        without an IOKernel
  tailwater run --posix --ip 10.77.0.5 -- redis-server --bind 0.0.0.0 --requirepass SECRET
                                                         a program as it is
  tailwater run --client -- memtier_benchmark -s 10.77.0.5
                                                         any program, off the managed cores
  tailwater run --batch -- xz -9 -T0 big.tar             any program, on what services leave
  tailwater run --batch --pid 4711                       one that runs already (root)
  tailwater run --batch --cgroup /system.slice/encoder.service

PROGRAM is a path, or a name that is looked for in PATH and beside this program, also with tailwater- before it. \
Without --batch it must be linked with the tailwater crate or with libtailwater, or run with --posix: one that has \
not registered after a second is kept off the managed cores, with a warning. With --batch it may be any program. It \
and all that it starts run in SCHED_IDLE on the managed cores, in a session of their own; signals to this command are \
passed on, and its exit status is the program's, or 128 and the number of the signal that ended it. An IOKernel that \
is just starting is waited for, at most 2 s. Options become TAILWATER_IOKERNEL, TAILWATER_KTHREADS and so on in the \
program's environment; settings the program makes itself win."
)]
pub struct RunArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Run without an IOKernel, on threads of its own
    #[arg(long, conflicts_with_all = ["iokernel", "ip", "listen", "guaranteed", "class", "ring_bytes", "on_iokernel_loss",
        "iokernel_wait", "replace"])]
    standalone: bool,
    /// Run a program that was not written for Tailwater: its TCP and UDP sockets are on Tailwater's
    /// network, by a library that is loaded before the C library
    #[arg(long, help_heading = "Programs as they are")]
    posix: bool,
    /// With --posix: networks to which connections go through Tailwater before the program has
    /// registered, for instance 10.77.0.0/16 [default: those of the IOKernel]
    #[arg(long, value_name = "NETWORK,..", value_delimiter = ',', value_parser = parse_network, requires = "posix", help_heading = "Programs as they are")]
    network: Vec<String>,
    /// Name in statistics, unique on the machine, 1 to 64 printable ASCII characters [default:
    /// program name and process id]
    #[arg(long)]
    name: Option<String>,
    /// Maximum number of cores to use at once, 1 to 256, with --standalone to 64 [default: number
    /// of CPUs, at most 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Cores")]
    kthreads: Option<u16>,
    /// Cores that are never taken away while in use [default: 0]
    #[arg(long, value_name = "N", help_heading = "Cores")]
    guaranteed: Option<u16>,
    /// How the allocator treats it [default: latency-critical]
    #[arg(long, value_enum, help_heading = "Cores")]
    class: Option<ClassName>,
    /// Address to ask the IOKernel for [default: the IOKernel chooses]
    #[arg(long, help_heading = "Network")]
    ip: Option<Ipv4Addr>,
    /// Port at which other machines reach it, tcp:PORT or udp:PORT, where the IOKernel shares the
    /// addresses of Linux (share=ports); repeatable, or separated by commas
    #[arg(long, value_name = "PORT", value_delimiter = ',', help_heading = "Network")]
    listen: Vec<Listen>,
    /// Take the place of the instance of this name that runs, if it was started with this option,
    /// too; its connections stay until it has ended, and new ones come to this one
    #[arg(long, requires = "name")]
    replace: bool,
    /// What it does when the IOKernel has ended: wait for another one at the same socket, go on
    /// without network, or exit with status 75 [default: wait]
    #[arg(long, value_name = "REACTION", value_parser = ["wait", "continue", "exit"], help_heading = "When the IOKernel ends")]
    on_iokernel_loss: Option<String>,
    /// How long its calls wait while there is no IOKernel, before they fail, for instance 10s; 0s:
    /// for ever [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, help_heading = "When the IOKernel ends")]
    iokernel_wait: Option<u64>,
    /// How long its end waits at most for data on TCP connections to be acknowledged, for instance
    /// 5s; at most 1h [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_linger, help_heading = "Network")]
    exit_linger: Option<u64>,
    /// Usable bytes of each user thread's stack, 16384 to 128 GiB [default: 262144]
    #[arg(long, value_name = "BYTES", help_heading = "Threads")]
    stack_size: Option<usize>,
    /// How long an idle kthread polls at most before it sleeps, for instance 50us; 0us polls for
    /// ever [default: 50us]
    #[arg(long, value_name = "DURATION", value_parser = parse_us, help_heading = "Threads")]
    idle_timeout: Option<u64>,
    /// Bytes of each packet ring, a power of two from 32768 to 16777216 [default: 262144]
    #[arg(long, value_name = "BYTES", help_heading = "Network")]
    ring_bytes: Option<u32>,
    /// Maximum number of TCP connections at a time [default: 1000000]
    #[arg(long, value_name = "N", help_heading = "Network")]
    tcp_connections: Option<u32>,
    /// Maximum number of ordinary threads for blocking calls at a time, 1 to 4096 [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096), help_heading = "Threads")]
    blocking_threads: Option<u16>,
    /// How long a user thread may run without a call of Tailwater that may block, before it is
    /// reported; 0ms reports nothing [default: 100ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, help_heading = "Threads")]
    stall_timeout: Option<u64>,
    /// Signal on which all user threads are printed: none, quit, usr1 or usr2 [default: quit]
    #[arg(long, value_name = "SIGNAL", value_parser = ["none", "quit", "usr1", "usr2"], help_heading = "Threads")]
    dump_signal: Option<String>,
    /// How long a user thread may run while others wait, before it has to yield; 0us is for ever
    /// [default: 0us]
    #[arg(long, value_name = "DURATION", value_parser = parse_us, help_heading = "Threads")]
    quantum: Option<u64>,
    /// Whether a kthread without work takes packets that wait for another kthread [default: true]
    #[arg(long, value_name = "BOOL", help_heading = "Network")]
    packet_stealing: Option<bool>,
    /// Run any program that talks to services of this machine over Linux's sockets, on the cores
    /// that are neither managed nor the IOKernel's; if there are none, on the IOKernel's
    #[arg(long, conflicts_with_all = batch::RUNTIME_OPTIONS, conflicts_with_all = ["batch", "name"], help_heading = "Programs as they are")]
    client: bool,
    #[command(flatten)]
    batch: batch::BatchArgs,
    /// The program and its arguments
    #[arg(required_unless_present_any = ["pid", "cgroup"], trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClassName {
    /// Takes cores from best-effort programs at once
    LatencyCritical,
    /// Takes the cores that are left over
    BestEffort,
}

/// Checks what the preloaded library reads.
fn parse_network(text: &str) -> Result<String, String> {
    let parts = text.split_once('/').and_then(|(ip, bits)| Some((ip.parse().ok()?, bits.parse().ok()?)));
    match parts {
        Some((IpAddr::V4(_), 0..=32u8) | (IpAddr::V6(_), 0..=128)) => Ok(text.to_owned()),
        _ => Err("no network; write ADDRESS/BITS, for instance 10.77.0.0/16".to_owned()),
    }
}

fn parse_us(text: &str) -> Result<u64, String> {
    let ns = parse_duration_ns(text).map_err(|e| e.to_string())?;
    if ns % 1_000 == 0 { Ok(ns / 1_000) } else { Err(no_whole_number("microseconds", "1us")) }
}

fn parse_ms(text: &str) -> Result<u64, String> {
    let ns = parse_duration_ns(text).map_err(|e| e.to_string())?;
    if ns % 1_000_000 == 0 { Ok(ns / 1_000_000) } else { Err(no_whole_number("milliseconds", "1ms")) }
}

fn parse_linger(text: &str) -> Result<u64, String> {
    let ms = parse_ms(text)?;
    if ms <= 3_600_000 { Ok(ms) } else { Err("at most 1h".to_owned()) }
}

fn no_whole_number(unit: &str, example: &str) -> String {
    format!("no whole number of {unit}; write for instance {example}")
}

/// Becomes the program, or supervises a batch job.
///
/// # Errors
/// If the program is not found or cannot be started, or a batch job cannot be one.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    if args.batch.is_wanted() {
        return batch::run(&args.batch, &args.iokernel, args.name.as_deref(), &args.program);
    }
    if args.client {
        return client::run(&args.iokernel, &args.program);
    }
    let (name, arguments) = args.program.split_first().context("no program is given")?;
    let program = find_program(name)?;
    let mut command = Command::new(&program);
    command.args(arguments);
    if args.standalone {
        command.env_remove("TAILWATER_IOKERNEL");
    } else {
        command.env("TAILWATER_IOKERNEL", &*args.iokernel);
        if !wait::for_iokernel(&args.iokernel) {
            let socket = &*args.iokernel;
            note!(
                "tailwater run: still no IOKernel listens at {socket}; the program is started, and looks for one itself"
            );
        }
        // A program as it is registers when it first uses a socket.
        if !args.posix
            && let Err(error) = registration::watch_this_process(&args.iokernel, &name.to_string_lossy())
        {
            note!("tailwater run: {error:#}: there will be no warning if the program does not register");
        }
    }
    command.envs(settings(args));
    if args.posix {
        posix::check(&program)?;
        let own = std::env::current_exe().ok();
        command.env("LD_PRELOAD", posix::preload(own.as_deref().and_then(Path::parent))?);
        command.env("TAILWATER_POSIX_NETWORK", networks(args).join(","));
    }
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}

/// Returns the networks to which connections go through Tailwater: those that were named, or else
/// those of the IOKernel; without an IOKernel that says them, those that one has by default.
fn networks(args: &RunArgs) -> Vec<String> {
    if !args.network.is_empty() {
        return args.network.clone();
    }
    let default = Config::default().networks();
    if args.standalone {
        return default;
    }
    let said = match query::statistics(&args.iokernel) {
        Ok(answer) => statistics::networks(&answer).unwrap_or_default(),
        Err(error) => {
            note!(
                "tailwater run: the IOKernel does not say its networks: {error:#}; {} are taken, --network names others",
                default.join(",")
            );
            return default;
        }
    };
    let known: Vec<String> = said.into_iter().filter(|network| parse_network(network).is_ok()).collect();
    if known.is_empty() { default } else { known }
}

/// Returns the file of a program.
pub fn find_program(name: &OsStr) -> Result<PathBuf, find::NotFound> {
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    find::program(name, &path, own.as_deref().and_then(Path::parent))
}

/// Returns ports as the variable has them; `None` for none.
fn listens(ports: &[Listen]) -> Option<String> {
    let words: Vec<String> = ports.iter().map(Listen::to_string).collect();
    (!words.is_empty()).then(|| words.join(","))
}

fn settings(args: &RunArgs) -> Vec<(&'static str, String)> {
    let class = args.class.map(|class| match class {
        ClassName::LatencyCritical => "latency-critical".to_owned(),
        ClassName::BestEffort => "best-effort".to_owned(),
    });
    let all = [
        ("TAILWATER_NAME", args.name.clone()),
        ("TAILWATER_KTHREADS", args.kthreads.map(|n| n.to_string())),
        ("TAILWATER_GUARANTEED", args.guaranteed.map(|n| n.to_string())),
        ("TAILWATER_CLASS", class),
        ("TAILWATER_IP", args.ip.map(|ip| ip.to_string())),
        ("TAILWATER_LISTEN", listens(&args.listen)),
        ("TAILWATER_REPLACE", args.replace.then(|| true.to_string())),
        ("TAILWATER_ON_IOKERNEL_LOSS", args.on_iokernel_loss.clone()),
        ("TAILWATER_IOKERNEL_WAIT_MS", args.iokernel_wait.map(|n| n.to_string())),
        ("TAILWATER_EXIT_LINGER_MS", args.exit_linger.map(|n| n.to_string())),
        ("TAILWATER_STACK_SIZE", args.stack_size.map(|n| n.to_string())),
        ("TAILWATER_IDLE_TIMEOUT_US", args.idle_timeout.map(|n| n.to_string())),
        ("TAILWATER_RING_BYTES", args.ring_bytes.map(|n| n.to_string())),
        ("TAILWATER_TCP_CONNECTIONS", args.tcp_connections.map(|n| n.to_string())),
        ("TAILWATER_BLOCKING_THREADS", args.blocking_threads.map(|n| n.to_string())),
        ("TAILWATER_STALL_TIMEOUT_MS", args.stall_timeout.map(|n| n.to_string())),
        ("TAILWATER_DUMP_SIGNAL", args.dump_signal.clone()),
        ("TAILWATER_QUANTUM_US", args.quantum.map(|n| n.to_string())),
        ("TAILWATER_PACKET_STEALING", args.packet_stealing.map(|steal| steal.to_string())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
