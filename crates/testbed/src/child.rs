//! The child processes of a testbed: services and batch jobs, which are the running program itself.
//!
//! Owns their start, the pipes to them, and their end: a [`ChildProcess`] that is dropped is killed
//! and waited for, and the kernel kills it if this process dies first (see [`crate::app`]). Each
//! has its own process group, so that Ctrl-C reaches this program only and that its own children
//! end with it. Unless started otherwise they stay in this program's session, in which Linux ranks
//! them against each other (autogroup).

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fd::AsFd;
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::app;
use crate::bed::START_TIMEOUT;
use crate::folder::Folder;
use crate::interrupt::Interrupt;
use crate::machine::cpu_set;

/// Longest line a child may print.
const MAX_LINE: usize = 4096;

/// Maximum number of lines that a server prints before its address.
const LINES_BEFORE_ADDRESS: usize = 4;

/// What to start.
#[derive(Debug, Default)]
pub struct Spec {
    /// Name of the service among this program's hidden ones.
    pub app: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables named `TAILWATER_*`; the child inherits no others of such a name.
    pub settings: Vec<(&'static str, String)>,
    /// Cores that all its threads may use; if empty, those of the starting thread.
    pub cores: Vec<usize>,
    /// Whether it takes the highest priority, where the system allows that.
    pub raise: bool,
    /// Whether it leads a session of its own instead of being in this program's.
    pub own_session: bool,
    /// File to which its standard error is appended; if none, it writes to this program's.
    pub log: Option<PathBuf>,
}

/// A running child; dropping it ends it.
#[derive(Debug)]
pub struct ChildProcess {
    app: &'static str,
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    unread: Vec<u8>,
}

impl ChildProcess {
    /// Starts a child.
    ///
    /// # Errors
    /// If the kernel refuses a process.
    pub fn start(spec: &Spec) -> anyhow::Result<Self> {
        let mut command = app::command(&spec.cores);
        command.arg0("tailwater");
        if spec.raise {
            command.arg("--raise");
        }
        if spec.own_session {
            command.arg("--own-session");
        } else {
            command.process_group(0);
        }
        command.arg(spec.app).args(&spec.arguments);
        command.envs(spec.settings.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(path) = &spec.log {
            let log = File::options().create(true).append(true).open(path);
            command.stderr(log.with_context(|| format!("cannot open {}", path.display()))?);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", spec.app))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { anyhow::bail!("{} has no pipes", spec.app) };
        Ok(Self { app: spec.app, child, input, output, unread: Vec::new() })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes an empty line to the child's input, which asks it for a line.
    ///
    /// # Errors
    /// If the child has ended.
    pub fn ask(&mut self) -> anyhow::Result<()> {
        self.tell("")
    }

    /// Writes a line to the child's input.
    ///
    /// # Errors
    /// If the child has ended.
    pub fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        if self.input.write_all(format!("{line}\n").as_bytes()).is_err() {
            return Err(self.explain_end());
        }
        Ok(())
    }

    /// Returns the next line that the child prints.
    ///
    /// # Errors
    /// If the child ends, if it prints nothing for [`START_TIMEOUT`], or on a signal.
    pub fn read_line(&mut self, interrupt: &Interrupt) -> anyhow::Result<String> {
        self.read_line_within(START_TIMEOUT, interrupt)
    }

    /// Returns the next line that the child prints, for which this waits so long at most.
    ///
    /// # Errors
    /// If the child ends, if it prints no line in time, or on a signal.
    pub fn read_line_within(&mut self, patience: Duration, interrupt: &Interrupt) -> anyhow::Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            anyhow::ensure!(
                self.unread.len() < MAX_LINE,
                "{} printed a line of over {MAX_LINE} bytes",
                self.app
            );
            if self.read_more(deadline, interrupt)? == 0 {
                return Err(self.explain_end());
            }
        }
    }

    /// Waits until the child has ended by itself; it has [`START_TIMEOUT`] for that.
    ///
    /// # Errors
    /// If it goes on, if it failed, or on a signal.
    pub fn finish(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.read_more(deadline, interrupt)? > 0 {
            self.unread.clear();
        }
        let status = self.child.wait().with_context(|| format!("cannot wait for {}", self.app))?;
        anyhow::ensure!(status.success(), "{} failed ({status})", self.app);
        Ok(())
    }

    /// Kills the child and the processes that it has started (SIGKILL), and waits for its end.
    pub fn kill(&mut self) {
        // The whole group: some servers are several processes. The id is the child's until it is
        // waited for; a server that ended by itself has left no processes.
        if let (Ok(None), Some(group)) = (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed()))
        {
            let _ = kill_process_group(group, Signal::KILL);
            // A child that was to lead a session may not have got so far.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// Reads what the child prints next; returns the number of bytes, 0 at the end of its output.
    fn read_more(&mut self, deadline: Instant, interrupt: &Interrupt) -> anyhow::Result<usize> {
        let ready = interrupt.wait_readable(Some(self.output.as_fd()), deadline)?;
        anyhow::ensure!(ready, "{} printed nothing for too long", self.app);
        let mut bytes = [0; 512];
        let read = self.output.read(&mut bytes);
        let count = read.with_context(|| format!("cannot read from {}", self.app))?;
        self.unread.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Fails if the child has ended.
    ///
    /// # Errors
    /// How it ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(self.explain_end()),
        }
    }

    fn explain_end(&mut self) -> anyhow::Error {
        match self.child.wait() {
            Ok(status) => anyhow::anyhow!("{} ended early ({status}); its own message is above", self.app),
            Err(error) => anyhow::anyhow!("{} ended early, and waiting for it failed: {error}", self.app),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server.
#[derive(Debug)]
pub struct Service {
    /// Where it listens.
    pub address: SocketAddr,
    process: ChildProcess,
    /// Its files, removed after its end.
    folder: Option<Folder>,
    /// Servers that it needs.
    backups: Vec<Service>,
}

impl Service {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// If it ends, prints no address, or on a signal.
    pub fn start(spec: &Spec, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let mut process = ChildProcess::start(spec)?;
        let mut lines = Vec::new();
        while lines.len() < LINES_BEFORE_ADDRESS {
            let line = process.read_line(interrupt)?;
            if let Some(address) = line.strip_prefix("listening on ").and_then(|text| text.parse().ok()) {
                return Ok(Self { address, process, folder: None, backups: Vec::new() });
            }
            lines.push(line);
        }
        anyhow::bail!("{} did not print where it listens, but: {}", spec.app, lines.join("; "))
    }

    /// Starts a server that will listen at `address` without printing so.
    ///
    /// # Errors
    /// If the kernel refuses a process.
    pub fn start_at(spec: &Spec, address: SocketAddr) -> anyhow::Result<Self> {
        let process = ChildProcess::start(spec)?;
        Ok(Self { address, process, folder: None, backups: Vec::new() })
    }

    /// Returns the server's process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the same server, with the folder of its files, which is removed after its end.
    #[must_use]
    pub fn with_folder(self, folder: Option<Folder>) -> Self {
        Self { folder, ..self }
    }

    /// Returns the same server, with others that it needs, which end after it.
    #[must_use]
    pub fn with_backups(self, backups: Vec<Self>) -> Self {
        Self { backups, ..self }
    }

    /// Moves the server's threads that may run elsewhere to `cores`: some servers choose their
    /// cores themselves.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn keep_to(&self, cores: &[usize]) -> anyhow::Result<()> {
        keep_to(self.process.id(), cores)
    }

    /// Fails if the server or one that it needs has ended.
    ///
    /// # Errors
    /// How it ended, with the text of a file `log` in its folder.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.backups.iter_mut().try_for_each(Self::check)?;
        let log = self.folder.as_ref().map(|folder| folder.path().join("log"));
        self.process.check().map_err(|error| match log.map(std::fs::read_to_string) {
            Some(Ok(log)) => error.context(format!("the server failed; its log:\n{log}")),
            _ => error,
        })
    }

    /// Ends the server. One that has ended already is an error: its missing answers are no
    /// measurement of the system.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn end(mut self) -> anyhow::Result<()> {
        self.check()
    }
}

fn keep_to(process: u32, cores: &[usize]) -> anyhow::Result<()> {
    let allowed = cpu_set(cores);
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).context("the server has ended")?;
    for thread in threads.flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        // A thread that has ended needs no core.
        let Some((id, now)) = id.and_then(|id| Some((id, sched_getaffinity(Some(id)).ok()?))) else {
            continue;
        };
        if (0..CpuSet::MAX_CPU).any(|core| now.is_set(core) && !allowed.is_set(core)) {
            let _ = sched_setaffinity(Some(id), &allowed);
        }
    }
    Ok(())
}

/// A batch job.
#[derive(Debug)]
pub struct Batch {
    process: ChildProcess,
}

/// The trials that a batch job had done at a time of its own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    at_s: f64,
    trials: u64,
}

impl Progress {
    /// Trials per second between `earlier` and this.
    pub fn rate_since(self, earlier: Progress) -> f64 {
        let seconds = self.at_s - earlier.at_s;
        if seconds > 0.0 { (self.trials - earlier.trials.min(self.trials)) as f64 / seconds } else { 0.0 }
    }
}

impl Batch {
    /// Starts a batch job and waits until it has done a trial.
    ///
    /// # Errors
    /// If it ends, gets no core, or on a signal.
    pub fn start(spec: &Spec, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let mut batch = Self { process: ChildProcess::start(spec)? };
        let deadline = Instant::now() + START_TIMEOUT;
        while batch.progress(interrupt)?.trials == 0 {
            anyhow::ensure!(Instant::now() < deadline, "{} does not get a core", spec.app);
            interrupt.sleep_until(Instant::now() + std::time::Duration::from_millis(5))?;
        }
        Ok(batch)
    }

    /// Returns the batch job in the process of a server without files and backups, which ends with
    /// it.
    #[must_use]
    pub fn inside(service: Service) -> Self {
        Self { process: service.process }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks the job for its trials so far.
    ///
    /// # Errors
    /// If it has ended, does not answer, or on a signal.
    pub fn progress(&mut self, interrupt: &Interrupt) -> anyhow::Result<Progress> {
        self.process.ask()?;
        let line = self.process.read_line(interrupt)?;
        let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        match (value["t_s"].as_f64(), value["trials"].as_u64()) {
            (Some(at_s), Some(trials)) => Ok(Progress { at_s, trials }),
            _ => anyhow::bail!("the batch job did not print its trials, but: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::machine::usable_cores;

    #[test]
    fn a_server_that_chose_another_core_is_moved_to_the_given_ones() {
        let cores = usable_cores();
        let (first, last) = (cores[0], cores[cores.len() - 1]);
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let id = Pid::from_child(&sleeper);
        sched_setaffinity(Some(id), &cpu_set(&[first])).unwrap();
        keep_to(sleeper.id(), &[last]).unwrap();
        let now = sched_getaffinity(Some(id)).unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(now.is_set(last) && now.count() == 1);
    }

    #[test]
    fn a_rate_is_trials_over_the_jobs_own_time() {
        let progress = |at_s, trials| Progress { at_s, trials };
        assert_eq!(progress(3.0, 500).rate_since(progress(1.0, 100)), 200.0);
        assert_eq!(progress(1.0, 500).rate_since(progress(1.0, 100)), 0.0);
        assert_eq!(progress(2.0, 50).rate_since(progress(1.0, 100)), 0.0);
    }
}
