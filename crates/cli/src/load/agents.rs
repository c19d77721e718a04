//! Agents: this process as one, and processes of this program as some.
//!
//! Owns the start and the end of local agents. An agent that was started here ends when its coordinator leaves, and when
//! its standard input ends, which it does even if the coordinator is killed.

use std::io::{BufRead, BufReader, Read};
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
use super::session::JobTarget;
use super::transport::Transport;

/// What an agent prints in front of its address.
const LISTENING: &str = "agent listening on ";

/// How long a local agent may take to end once its coordinator has left.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Serves coordinators until told to end.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(args: &LoadArgs, listen: SocketAddr, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    println!("{LISTENING}{}", listener.local_addr()?);
    if args.once {
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            // Nothing is ever written to it: it ends with whoever holds the other end.
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

/// Agents that are processes of this program.
pub struct LocalAgents {
    agents: Vec<(Child, SocketAddr)>,
}

impl LocalAgents {
    /// Starts `count` agents, on `cores` in turn if there are any.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start(count: usize, cores: &[usize]) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program's own file")?;
        let mut local = Self { agents: Vec::new() };
        for index in 0..count {
            let mut command = Command::new(&exe);
            command.args(["load", "--agent", "127.0.0.1:0", "--once"]);
            if !cores.is_empty() {
                command.args(["--core", &cores[index % cores.len()].to_string()]);
            }
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Ctrl-C in a terminal goes to its process group: what an agent measured is asked for first.
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

    /// Where they listen.
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

/// Lets an agent end by itself, and ends it if it does not.
fn end(child: &mut Child) {
    drop(child.stdin.take());
    let deadline = Instant::now() + END_PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Of one that has ended, both say so and do nothing.
    let _ = child.kill();
    let _ = child.wait();
}
