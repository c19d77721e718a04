//! Agents: this process as an agent, and local agents as child processes.
//!
//! Owns the start and the end of local agents. A local agent ends when its coordinator leaves, and
//! when its standard input is closed, as it also is when the coordinator is killed.

use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_loadgen::coordinate::agent;
use tailwater_loadgen::coordinate::wire::Job;
use tailwater_loadgen::{Control, Measurement};

use super::args::LoadArgs;
use super::job::JobTarget;
use super::transport::Transport;

/// What an agent prints before its address.
const LISTENING: &str = "agent listening on ";

/// How long a local agent may take to end after its coordinator has left.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Serves coordinators until `stop`.
///
/// # Errors
/// If the address cannot be listened on.
pub fn serve(args: &LoadArgs, listen: SocketAddr, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    writeln!(stdout(), "{LISTENING}{}", listener.local_addr()?)?;
    if args.once {
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            // Nothing is written to it: the read returns when the coordinator's end is closed.
            let _ = std::io::stdin().read(&mut [0]);
            stop.store(true, Relaxed);
        });
    }
    let transport = Transport::new(args.core.first().copied());
    let run_job = |job: &Job<JobTarget>, control: &Control<'_>| -> Result<Measurement, String> {
        job.target.run(&job.plan, job.seed, &transport, control).map_err(|error| format!("{error:#}"))
    };
    Ok(agent::serve(&listener, run_job, stop, args.once)?)
}

/// Agents that are child processes.
pub struct LocalAgents {
    agents: Vec<(Child, SocketAddr)>,
}

impl LocalAgents {
    /// Starts `count` agents, on `cores` in turn unless there are none.
    ///
    /// # Errors
    /// If an agent does not start.
    pub fn start(count: usize, cores: &[usize]) -> anyhow::Result<Self> {
        let mut local = Self { agents: Vec::new() };
        for index in 0..count {
            // Not by path: a newer build may have replaced the file.
            let mut command = Command::new("/proc/self/exe");
            command.args(["load", "--agent", "127.0.0.1:0", "--once"]);
            if !cores.is_empty() {
                command.args(["--core", &cores[index % cores.len()].to_string()]);
            }
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Ctrl-C goes to the terminal's process group: the coordinator first collects what
                // agents measured.
                .process_group(0)
                .spawn()
                .context("cannot start a local agent")?;
            let address = first_address(&mut child);
            if address.is_err() {
                end(&mut child);
            }
            local.agents.push((child, address?));
        }
        Ok(local)
    }

    /// Returns where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.agents.iter().map(|&(_, address)| address).collect()
    }
}

impl Drop for LocalAgents {
    fn drop(&mut self) {
        self.agents.iter_mut().for_each(|(child, _)| end(child));
    }
}

fn first_address(child: &mut Child) -> anyhow::Result<SocketAddr> {
    let mut line = String::new();
    let output = child.stdout.take().context("a local agent has no output")?;
    BufReader::new(output).read_line(&mut line).context("cannot read from a local agent")?;
    let address = line.trim().strip_prefix(LISTENING).and_then(|address| address.parse().ok());
    address.context("a local agent did not start; its own message is above")
}

/// Waits for an agent's own end, and kills it after [`END_PATIENCE`].
fn end(child: &mut Child) {
    drop(child.stdin.take());
    let deadline = Instant::now() + END_PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // On an agent that has ended, both calls do nothing.
    let _ = child.kill();
    let _ = child.wait();
}
