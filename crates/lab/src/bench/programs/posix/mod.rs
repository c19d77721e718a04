//! Unmodified programs on Tailwater's network (`tailwater run --posix`) and on Linux, in turn.
//!
//! Owns the order, the processes and the figures. *Served*: a service and its client, both on the
//! same side; [`services`] has them. *Computing*: programs that use no socket must cost no more
//! than on Linux, by user time. *Waits*: hand-offs between threads by the C library. *Idle*: a
//! service without clients. Ratios are of one round, and their medians count.
//!
//! The IOKernel is the `tailwater` beside this program, with all CPUs; on Linux a service and its
//! client use all CPUs as well.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tailwater_batch::proc::{descendants, thread_ns, threads};
use tailwater_sim::report::write_file;
use tailwater_testbed::START_TIMEOUT;
use tailwater_testbed::folder::Folder;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::note;
use tailwater_testbed::program::{find, find_own};
use tailwater_testbed::progress;

pub mod services;

use super::jobs::Files;
use super::report::posix::{Posix, Ratio, Served, ServedFigures};
use services::{FIRST, Service};

const ADDRESS: &str = "10.77.0.50";
/// Programs whose threads hand over to each other.
const HANDOFFS: [(&str, Source); 2] = [
    (
        "mutex and condition variable, C",
        Source::c("handoff", include_str!("handoff.c"), &["-O2", "-pthread"]),
    ),
    ("mutex and condition variable, Rust", Source::rust("handoff-rust", include_str!("handoff.rs"))),
];
/// A hand-off's time over that on Linux that is aimed at.
const HANDOFF_AIM: f64 = 0.25;
const REGIONS: Source = Source::c("regions", include_str!("regions.c"), &["-O2", "-fopenmp"]);
/// Hand-offs of a round.
const TURNS: &str = "300000";
/// Parallel regions of a round.
const REGION_COUNT: &str = "20000";
/// Clock ticks of `/proc/PID/stat` in a second (proc(5); `USER_HZ` on x86-64).
const TICKS: f64 = 100.0;

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Tailwater,
    Linux,
}

impl Side {
    /// Returns the address at which its clients reach a service.
    fn host(self) -> &'static str {
        if self == Self::Tailwater { ADDRESS } else { "127.0.0.1" }
    }
}

/// A program that is compiled for a measurement.
struct Source {
    name: &'static str,
    text: &'static str,
    /// File name suffix.
    suffix: &'static str,
    compiler: &'static str,
    options: &'static [&'static str],
}

/// What all measurements need.
struct Bed<'a> {
    tailwater: PathBuf,
    socket: String,
    folder: Folder,
    interrupt: &'a Interrupt,
    iokernel: Process,
}

/// The leader of a process group, which ends with this.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        command.process_group(0).spawn().map(Self)
    }

    /// Waits for its end, no longer than [`START_TIMEOUT`], and leaves its number reserved.
    fn await_end(&self, leader: Pid) {
        let deadline = Instant::now() + START_TIMEOUT;
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(leader), ended), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    /// A service with several processes ends them itself on SIGTERM. One that outlived it would
    /// hold the port on Linux, and the address at the IOKernel, against the next service.
    fn drop(&mut self) {
        let Some(leader) = Pid::from_raw(self.0.id().cast_signed()) else { return };
        let _ = kill_process_group(leader, Signal::TERM);
        self.await_end(leader);
        let _ = kill_process_group(leader, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Measures services with their clients, computing programs, waits and an idle service.
///
/// # Errors
/// If a program does not start or prints no figures, or on a signal.
pub fn run(
    interrupt: &Interrupt,
    files: &Files,
    services: &[Service],
    (rounds, requests): (u16, u32),
) -> anyhow::Result<Posix> {
    let bed = Bed::start(interrupt)?;
    let mut report = Posix::default();
    for &service in services {
        if let Some(program) = service.missing() {
            note!("{}: {program} is not installed: left out", service.name());
            continue;
        }
        let mut all = Vec::new();
        for _ in progress::over(service.name(), 0..rounds) {
            all.push((
                bed.serve(service, Side::Tailwater, requests)?,
                bed.serve(service, Side::Linux, requests)?,
            ));
        }
        report.served.push(Served::new(service.name(), service.aim(), &all));
    }
    for (name, command, aim) in bed.computing(files)? {
        let measure = |side| bed.user_seconds(&command, side);
        report.computing.push(Ratio::new(&name, Some(aim), &bed.in_turn(rounds, measure)?));
    }
    for (name, source) in HANDOFFS {
        let Some(program) = source.compiled(bed.folder.path())? else { continue };
        let measure = |side| bed.handoff_ns(&program, side);
        report.waits.push(Ratio::new(name, Some(HANDOFF_AIM), &bed.in_turn(rounds, measure)?));
    }
    if Service::Redis.missing().is_none() {
        report.idle_percent = Some(bed.idle_percent(Side::Tailwater)?);
        report.idle_percent_on_linux = Some(bed.idle_percent(Side::Linux)?.0);
    }
    Ok(report)
}

impl<'a> Bed<'a> {
    fn start(interrupt: &'a Interrupt) -> anyhow::Result<Self> {
        let build = "build it: cargo build --release -p tailwater-cli -p tailwater-posix";
        let tailwater = find_own("tailwater").with_context(|| format!("there is no tailwater; {build}"))?;
        let socket = format!("@tailwater-programs.{}", std::process::id());
        let mut command = Command::new(&tailwater);
        command.args(["iokernel", "--socket", &socket, "--share-cores", "--log", "warn"]);
        let iokernel = Process::start(&mut command).context("cannot start the IOKernel")?;
        let bed = Self { tailwater, socket, folder: Folder::new()?, interrupt, iokernel };
        bed.await_success("the IOKernel", || bed.stats())?;
        Ok(bed)
    }

    fn stats(&self) -> Command {
        let mut command = Command::new(&self.tailwater);
        command.args(["stats", "--iokernel", &self.socket, "--json"]);
        command
    }

    /// Returns a program on one side; `ip` is the address that it serves.
    fn command(&self, words: &[String], side: Side, ip: Option<&str>) -> Command {
        let mut command = match side {
            Side::Linux => Command::new(&words[0]),
            Side::Tailwater => {
                let mut command = Command::new(&self.tailwater);
                command.args(["run", "--posix", "--iokernel", &self.socket, "--kthreads", "1"]);
                command.args(ip.map(|ip| ["--ip", ip]).into_iter().flatten()).arg("--").arg(&words[0]);
                command
            }
        };
        command.args(&words[1..]);
        command
    }

    /// Runs a command until it succeeds.
    fn await_success(&self, what: &str, command: impl Fn() -> Command) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let output = command().output().with_context(|| format!("cannot start a client of {what}"))?;
            if output.status.success() {
                return Ok(());
            }
            let why = String::from_utf8_lossy(&output.stderr);
            anyhow::ensure!(Instant::now() < deadline, "{what} does not answer: {}", why.trim());
            self.interrupt.sleep_until(Instant::now() + Duration::from_millis(100))?;
        }
    }

    fn start_service(&self, service: Service, side: Side) -> anyhow::Result<Process> {
        let words = service.server(self.folder.path())?;
        let mut command = self.command(&words, side, Some(ADDRESS));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(&mut command).with_context(|| format!("cannot start {}", service.name()))
    }

    /// Runs a service and its client once.
    fn serve(&self, service: Service, side: Side, requests: u32) -> anyhow::Result<ServedFigures> {
        let server = self.start_service(service, side)?;
        let (folder, host) = (self.folder.path(), side.host());
        let first = service.first_question(folder, host);
        self.await_success(service.name(), || self.command(&first, side, None))?;
        let (own, others) = (cpu_seconds(server.0.id())?, children_seconds()?.0);
        let text = printed(&mut self.command(&service.client(folder, host, requests), side, None))?;
        let answered = service.read(&text, requests)?;
        let spent = cpu_seconds(server.0.id())? - own + children_seconds()?.0 - others;
        self.interrupt.check()?;
        Ok(ServedFigures {
            requests_s: answered.requests_s,
            p99_us: answered.p99_us,
            cpu_us: spent * 1e6 / answered.requests,
        })
    }

    /// Measures both sides in turn.
    fn in_turn(
        &self,
        rounds: u16,
        measure: impl Fn(Side) -> anyhow::Result<f64>,
    ) -> anyhow::Result<Vec<(f64, f64)>> {
        let both = |_| {
            self.interrupt.check()?;
            Ok((measure(Side::Tailwater)?, measure(Side::Linux)?))
        };
        (0..rounds).map(both).collect()
    }

    /// Returns the computing programs that are installed, each with its aim: user time over that on
    /// Linux.
    fn computing(&self, files: &Files) -> anyhow::Result<Vec<(String, Vec<String>, f64)>> {
        let text = files.text();
        let mut all = Vec::new();
        for words in [&["xz", "-T4", "-1", "-kc"][..], &["pigz", "-p4", "-kc"], &["zstd", "-T4", "-6", "-qc"]]
        {
            if find(words[0]).is_some() {
                let command = words.iter().map(|&word| word.to_owned()).chain([text.clone()]);
                all.push((words[..2].join(" "), command.collect(), 1.0));
            } else {
                note!("{} is not installed: left out", words[0]);
            }
        }
        if let Some(program) = REGIONS.compiled(self.folder.path())? {
            all.push(("OpenMP, parallel regions".to_owned(), vec![program, REGION_COUNT.to_owned()], 1.05));
        }
        Ok(all)
    }

    fn user_seconds(&self, command: &[String], side: Side) -> anyhow::Result<f64> {
        let before = children_seconds()?.1;
        let mut command = self.command(command, side, None);
        let status = command.stdout(Stdio::null()).status().context("cannot start a program")?;
        anyhow::ensure!(status.success(), "{command:?} failed: {status}");
        Ok(children_seconds()?.1 - before)
    }

    fn handoff_ns(&self, program: &str, side: Side) -> anyhow::Result<f64> {
        let words = [program.to_owned(), TURNS.to_owned()];
        let text = printed(&mut self.command(&words, side, None))?;
        text.trim().parse().with_context(|| format!("handoff printed no figure: {text}"))
    }

    /// Returns the processor time of a service without clients, and of the IOKernel, in percent of
    /// a core.
    fn idle_percent(&self, side: Side) -> anyhow::Result<(f64, f64)> {
        const TIME: Duration = Duration::from_secs(5);
        let server = self.start_service(Service::Redis, side)?;
        let (folder, host) = (self.folder.path(), side.host());
        let first = Service::Redis.first_question(folder, host);
        self.await_success("redis", || self.command(&first, side, None))?;
        printed(&mut self.command(&Service::Redis.client(folder, host, FIRST), side, None))?;
        // The IOKernel has handled the client's end by then.
        self.interrupt.sleep_until(Instant::now() + Duration::from_secs(2))?;
        let used =
            || Ok::<_, anyhow::Error>((cpu_seconds(server.0.id())?, cpu_seconds(self.iokernel.0.id())?));
        let (before, began) = (used()?, Instant::now());
        self.interrupt.sleep_until(began + TIME)?;
        let (after, time) = (used()?, began.elapsed().as_secs_f64());
        Ok((100.0 * (after.0 - before.0) / time, 100.0 * (after.1 - before.1) / time))
    }
}

/// Runs a program; returns what it prints.
fn printed(command: &mut Command) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&stderr);
    anyhow::ensure!(status.success(), "{command:?} failed: {status}\n{errors}");
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

impl Source {
    const fn c(name: &'static str, text: &'static str, options: &'static [&'static str]) -> Self {
        Self { name, text, suffix: "c", compiler: "cc", options }
    }

    const fn rust(name: &'static str, text: &'static str) -> Self {
        Self { name, text, suffix: "rs", compiler: "rustc", options: &["--edition=2024", "-O"] }
    }

    /// Compiles the program unless it is there already; returns its path. Says so, and returns
    /// `None`, without its compiler.
    fn compiled(&self, folder: &Path) -> anyhow::Result<Option<String>> {
        let (name, compiler) = (self.name, self.compiler);
        if find(compiler).is_none() {
            note!("{compiler} is not installed: {name} is left out");
            return Ok(None);
        }
        let (program, file) = (folder.join(name), folder.join(format!("{name}.{}", self.suffix)));
        if !program.exists() {
            write_file(&file, self.text)?;
            let mut command = Command::new(compiler);
            printed(command.arg("-o").args([&program, &file]).args(self.options))?;
        }
        Ok(Some(program.display().to_string()))
    }
}

/// Returns the processor time of a process and of its children that run.
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let mut ns = 0;
    for pid in descendants(pid.cast_signed()) {
        let threads = threads(pid);
        anyhow::ensure!(!threads.is_empty(), "/proc/{pid}/task: the program has ended");
        // A thread that has ended meanwhile has no files; its time is lost.
        ns += threads.into_iter().filter_map(|tid| thread_ns(pid, tid)).sum::<u64>();
    }
    Ok(ns as f64 / 1e9)
}

/// Returns the processor time, and the part of it that is user time, of this process's children
/// that have ended.
fn children_seconds() -> anyhow::Result<(f64, f64)> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    // The program's name, in parentheses, may have spaces; cutime and cstime are fields 16 and 17.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS);
    let times = seconds(16).zip(seconds(17)).context("/proc/self/stat has no times of children")?;
    Ok((times.0 + times.1, times.0))
}
