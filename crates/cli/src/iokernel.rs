//! `tailwater iokernel`: the daemon.
//!
//! Owns the configuration from file and options, its reload on SIGHUP, and a clean end on SIGINT or
//! SIGTERM. A terminal that closes sends SIGHUP, too: without a configuration file, the signal ends
//! the daemon as SIGTERM does. What the daemon does is in the crate `tailwater-iokernel`.

use std::io::{Write, stdout};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
use clap::Args;
use rustix::process::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tailwater_host::CoreLocks;
use tailwater_iokernel::config::CoreList;
use tailwater_iokernel::{Config, Cores, End, Finding, IoKernel, Reloader, Start, Verdict, process_at};
use tailwater_ports::options::PortOptions;

use crate::background;
use crate::log::{self, LogFormat};
use crate::nat;
use crate::notify::Notifier;
use crate::stored::{self, Stored};

/// Start the IOKernel: switches packets and lends cores until it is interrupted
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater iokernel                                      core 0 polls, all others are managed
  tailwater iokernel --core 0 --managed-cores 2-7,10
  tailwater iokernel --node 1 --socket @node1             the cores of one NUMA node
  tailwater iokernel --config /etc/tailwater.toml --socket /run/tailwater/socket
  tailwater iokernel --tap tw0 --host-ip 10.77.0.1        ping and nc -u reach the services
  tailwater iokernel --tap tw0 --host-ip 10.77.0.1 --publish tcp:6379=kv
                                                          others reach kv at this machine's port
  tailwater iokernel --xdp eth1,gateway=10.77.0.1         an interface without Linux's network stack
  tailwater iokernel --xdp eth0,share=addresses,gateway=10.0.1.1
                                                          in a cloud: Linux's MAC address for all
  tailwater iokernel --xdp eth0,share=ports,gateway=10.77.0.1
                                                          one IP address for all (run --listen)
  tailwater iokernel --xdp eth1 --fault loss=1%,delay=5ms,rate=100mbit,seed=7
  tailwater iokernel --pcap replay=in.pcap,record=out.pcap
                                                          a capture file in place of a network
  tailwater iokernel --print-config > tailwater.toml      every setting that has a value
  tailwater iokernel --config tailwater.toml --check      would it start here, and if not, why

Options win over the configuration file, which SIGHUP has read again. Programs join with `tailwater run`; `tailwater \
stats` shows them.")]
pub struct IokernelArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket; @NAME is an abstract address [default: @tailwater]
    #[arg(long)]
    socket: Option<String>,
    /// Core that the IOKernel polls on [default: the first this process may use that is not
    /// managed]
    #[arg(long, value_name = "CORE")]
    core: Option<u16>,
    /// Managed cores, which are lent to programs, for instance 1 or 2-7,10 [default: all others
    /// this process may use]
    #[arg(long, value_name = "LIST", value_parser = CoreList::from_str)]
    managed_cores: Option<CoreList>,
    /// Use the cores of this NUMA node only, to poll on and as managed cores [default: those of all
    /// nodes]
    #[arg(long, value_name = "NODE")]
    node: Option<u16>,
    /// Start although another IOKernel started by this command may use some of these cores: each
    /// then takes their time from the other's programs
    #[arg(long)]
    share_cores: bool,
    /// Take the place of the IOKernel of the same user that runs at the same socket: it hands over
    /// the socket and a TAP device and ends, and its programs attach to this one and notice a
    /// pause. If this one cannot start, the other goes on
    #[arg(long)]
    takeover: bool,
    /// End when the other IOKernel's place is taken; the new one goes on as a process of its own.
    /// For a service manager, which waits for the end of what it runs at a reload
    #[arg(long, requires = "takeover")]
    background: bool,
    /// Connect programs with this machine's Linux through a TAP device of this name (needs
    /// CAP_NET_ADMIN). After the name: queues=N, napi=on|off, offload=on|off
    #[arg(long, value_name = "NAME[,..]", requires = "host_ip")]
    tap: Option<String>,
    /// Linux's own address on the TAP device, an address of the programs' network such as 10.77.0.1
    #[arg(long, value_name = "IP", requires = "tap")]
    host_ip: Option<Ipv4Addr>,
    /// Pass ports of this machine to programs behind the TAP device, and let programs reach other
    /// machines under an address of this one (by nftables): tcp:6379=NAME, tcp:80=NAME:8080,
    /// udp:53=IP
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    publish: Vec<String>,
    /// Connect programs with the network behind an interface, through AF_XDP (needs CAP_NET_RAW,
    /// CAP_NET_ADMIN, CAP_BPF). After the name: gateway=IP, mode=auto|native|skb, queues=N,
    /// zero-copy=auto|on|off, share=mac (leave Linux the frames to the interface's own MAC
    /// address), share=addresses (leave it all but those for the programs' IP addresses, which are
    /// behind that MAC address: for clouds), share=ports (leave it all but those for the programs'
    /// ports, behind its own MAC and IP addresses; range=FIRST-LAST and part=N are the ports for
    /// connections of programs), fill-checksums (for a veth pair whose other end Linux uses)
    #[arg(long, value_name = "INTERFACE[,..]", conflicts_with = "tap")]
    xdp: Option<String>,
    /// Replay a capture file to programs and record what they send: replay=FILE, record=FILE, fast,
    /// gateway=IP
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["tap", "xdp"])]
    pcap: Option<String>,
    /// Impair the network behind the port: loss=1%, duplicate=1%, corrupt=1%, reorder=1% with
    /// reorder-delay=TIME (1ms if not given), delay=5ms, jitter=1ms, rate=100mbit with queue=FRAMES
    /// (1000 if not given), each also with in. (to programs) or out. before it; seed=N
    #[arg(long, value_name = "WORDS")]
    fault: Option<String>,
    /// Least severe events to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: tracing::Level,
    /// Format of the log
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Print the configuration as TOML and end
    #[arg(long)]
    print_config: bool,
    /// Say of each thing that the start needs whether it is there, and end; exit status 0 only if
    /// the IOKernel would start
    #[arg(long, conflicts_with_all = ["print_config", "background"])]
    check: bool,
    /// With --check: check what options and file say by themselves, for another machine than this
    /// one
    #[arg(long, requires = "check")]
    offline: bool,
}

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// If the IOKernel cannot start, with what is missing.
pub fn run(args: &IokernelArgs) -> anyhow::Result<()> {
    // Before this process opens a descriptor of its own, which may get the number of one that the
    // variables name and the manager has not passed.
    let stored = Stored::take();
    if args.check {
        return check(args);
    }
    let config = configuration(args)?;
    if args.print_config {
        write!(stdout(), "{}", toml::to_string(&config)?)?;
        config.check()?;
        return config
            .ports
            .build()
            .map(|_| ())
            .context("the IOKernel would not start with this configuration");
    }
    if args.background {
        return background::start(&config.socket);
    }
    let _log = log::start(args.log, args.log_format)?;
    log::panics::report();
    let stop = stop_on_signals(args)?;
    let notifier = Arc::new(Notifier::from_environment()?);
    let reloads = args.config.is_some().then(|| Signals::new([SIGHUP])).transpose();
    let reloads = reloads.context("cannot catch signals")?;
    tailwater_iokernel::raise_descriptor_limit();
    if !args.share_cores {
        // Until the process ends.
        lock_cores(args, &config, &stop)?.keep().context("cannot start a thread")?;
    }
    let mut ports = config.ports.build()?;
    let plan = nat::Plan::new(&config)?;
    plan.as_ref().map_or(Ok(()), nat::Plan::check)?;
    // In a takeover the other IOKernel passes the devices.
    let kept = if args.takeover { Vec::new() } else { stored.pass(&mut ports, &notifier) };
    // Before a takeover: then nothing is left to fail.
    let reloads =
        reloads.map(|signals| reload_on(signals, args.clone(), Arc::clone(&notifier))).transpose()?;
    let mut iokernel = match args.takeover {
        // If the kept devices are the reason, the next start makes them anew.
        false => IoKernel::new(config, ports).inspect_err(|_| match &kept[..] {
            [] => {}
            kept => notifier.forget(kept),
        })?,
        true => IoKernel::take_over(config, ports, &stop, |pid| notifier.main_process(pid))?,
    };
    if args.takeover && stop.load(Ordering::Relaxed) {
        tracing::warn!(
            "interrupted when the IOKernel before had ended already: this one ends, too, and programs wait for another"
        );
        return Ok(());
    }
    log::panics::read_events_of(iokernel.record().context("cannot copy a descriptor")?);
    if let Some(interval) = notifier.watchdog_interval {
        let notifier = Arc::clone(&notifier);
        iokernel.set_heartbeat(interval, move || notifier.alive());
    }
    if let Some(reloads) = reloads {
        // Fails only if the thread has panicked, which it has reported itself.
        let _ = reloads.send(iokernel.reloader());
    }
    let publisher = publish(plan, &iokernel, args.takeover)?;
    tracing::info!(socket = iokernel.config().socket, other_programs_get = iokernel.neighbours(), "ready");
    warn_of_grants(iokernel.config());
    stored::store(&iokernel, &notifier);
    notifier.ready();
    let (manager, end_publishing) = (Arc::clone(&notifier), publisher.as_ref().map(nat::Publisher::orders));
    iokernel.set_farewell(move |end| {
        if let Some(end_publishing) = end_publishing {
            end_publishing(end);
        }
        match end {
            End::Stopped => manager.stopping(),
            End::Succeeded => manager.succeeded(),
        }
    });
    let ran = iokernel.run(&stop).inspect_err(|_| notifier.stopping());
    if let Some(publisher) = publisher {
        publisher.end();
    }
    ran?;
    tracing::info!("stopped");
    Ok(())
}

/// Returns the flag that a signal to end sets.
fn stop_on_signals(args: &IokernelArgs) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let hangup_ends = args.config.is_none() && !is_hangup_ignored();
    let ends = [SIGINT, SIGTERM].into_iter().chain(hangup_ends.then_some(SIGHUP));
    for signal in ends {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    Ok(stop)
}

/// Publishes what this configuration does, or takes back what the IOKernel before has published.
fn publish(
    plan: Option<nat::Plan>,
    iokernel: &IoKernel,
    takeover: bool,
) -> anyhow::Result<Option<nat::Publisher>> {
    if plan.is_none() && takeover {
        nat::withdraw(iokernel.config());
    }
    plan.map(|plan| plan.start(iokernel.stats())).transpose()
}

/// Prints what was found of each thing that the start needs.
fn check(args: &IokernelArgs) -> anyhow::Result<()> {
    let findings = match configuration(args) {
        Ok(config) if args.offline => {
            tailwater_iokernel::check_text(&config).into_iter().chain(nat::examine_text(&config)).collect()
        }
        Ok(config) => {
            tailwater_iokernel::raise_descriptor_limit();
            let start = Start { takeover: args.takeover, share_cores: args.share_cores };
            tailwater_iokernel::check(&config, start).into_iter().chain(nat::examine(&config)).collect()
        }
        Err(error) => {
            let found = format!("{error:#}");
            vec![Finding { subject: "configuration", verdict: Verdict::Refused, found }]
        }
    };
    let mut refused = Vec::new();
    for Finding { subject, verdict, found } in &findings {
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Caution => "caution",
            Verdict::Refused => {
                refused.push(*subject);
                "refused"
            }
        };
        writeln!(stdout(), "{word:<8} {subject}: {}", found.trim_end().replace('\n', "\n         "))?;
    }
    anyhow::ensure!(refused.is_empty(), "the IOKernel would not start: see {}", refused.join(", "));
    match args.offline {
        true => writeln!(stdout(), "cores, devices, accounts, rights and what runs were not looked at")?,
        false => writeln!(stdout(), "the IOKernel would start")?,
    }
    Ok(())
}

/// Warns of grants that have no effect.
fn warn_of_grants(config: &Config) {
    if !config.grant.is_empty() && !geteuid().is_root() {
        tracing::warn!("grants have no effect: only an IOKernel of root serves other users");
    }
}

/// Locks the cores of this IOKernel; in a takeover those that the other one does not have.
fn lock_cores(args: &IokernelArgs, config: &Config, stop: &AtomicBool) -> anyhow::Result<CoreLocks> {
    let cores = Cores::detect(config)?;
    if !args.takeover {
        return Ok(CoreLocks::take(cores.numbers())?);
    }
    // Without an IOKernel there, the takeover fails.
    let locks = CoreLocks::take_beside(process_at(&config.socket, stop), cores.numbers());
    anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted; the IOKernel that runs goes on");
    Ok(locks?)
}

/// Returns whether SIGHUP is ignored, as by nohup(1).
fn is_hangup_ignored() -> bool {
    // proc_pid_status(5): bit N - 1 is signal N.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 != 0)
}

/// Reads the configuration again whenever a signal comes, on a thread of its own, for the reloader
/// that it is sent first.
fn reload_on(
    mut signals: Signals,
    args: IokernelArgs,
    notifier: Arc<Notifier>,
) -> anyhow::Result<Sender<Reloader>> {
    let (sender, reloaders) = channel::<Reloader>();
    let serve = move || {
        // None comes if the IOKernel does not start.
        let Ok(reloader) = reloaders.recv() else { return };
        // The thread inherits the nice value of the process, which may be that of kthreads. A
        // refused change costs others a little time at a reload.
        let _ = rustix::process::setpriority_process(None, 0);
        for _ in signals.forever() {
            notifier.reloading();
            let changes = configuration(&args).and_then(|config| {
                warn_of_grants(&config);
                let changes = reloader.reload(config.clone())?;
                if let Err(error) = tailwater_iokernel::admit_granted(&config) {
                    let socket = &config.socket;
                    tracing::warn!(socket, %error, "cannot let users of grants connect: the mode of the socket stays");
                }
                Ok(changes)
            });
            match changes {
                Ok(changes) => tracing::info!(
                    applied = changes.applied.join(", "),
                    need_restart = changes.need_restart.join(", "),
                    "configuration reloaded"
                ),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "configuration not reloaded, the old one stays");
                }
            }
            notifier.ready();
        }
    };
    let thread = std::thread::Builder::new().name("tailwater-signals".to_owned()).spawn(serve);
    thread.context("cannot start a thread")?;
    Ok(sender)
}

/// Reads a configuration file.
///
/// # Errors
/// If it cannot be read, or what is wrong in it.
pub fn read_configuration(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read configuration {}", path.display()))?;
    let config = Config::from_toml(&text)
        .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.without_heading()))?;
    Ok(Config { file: Some(path.to_owned()), ..config })
}

fn configuration(args: &IokernelArgs) -> anyhow::Result<Config> {
    let mut config = match &args.config {
        Some(path) => read_configuration(path)?,
        None => Config::default(),
    };
    if let Some(socket) = &args.socket {
        config.socket.clone_from(socket);
    }
    config.iokernel_core = args.core.or(config.iokernel_core);
    config.managed_cores = args.managed_cores.clone().map(|list| list.0).or(config.managed_cores);
    config.node = args.node.or(config.node);
    if args.tap.is_some() || args.xdp.is_some() || args.pcap.is_some() {
        // A port on the command line replaces the file's.
        config.ports = PortOptions {
            tap: args.tap.clone(),
            host_ip: args.host_ip,
            publish: Vec::new(),
            xdp: args.xdp.clone(),
            pcap: args.pcap.clone(),
            fault: config.ports.fault.take(),
        };
    }
    if !args.publish.is_empty() {
        config.ports.publish.clone_from(&args.publish);
    }
    config.ports.fault = args.fault.clone().or(config.ports.fault);
    Ok(config)
}
