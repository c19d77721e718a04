//! Runs the program of an experiment once and reads the numbers that it writes.
//!
//! Owns the child process and its temporary folder. The commands are those that a reader would
//! type: `bench`, `reproduce` and `tailwater demo`, so a session measures what they measure.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tailwater_testbed::folder::Folder;
use tailwater_testbed::interrupt::Interrupt;

use super::list::{Experiment, Plan};

/// Last lines of a failed program's messages that are kept as the reason.
const REASON_LINES: usize = 3;
/// Longest time for a round, in multiples of its estimate: a program that hangs must not hold up
/// the experiments behind it.
const PATIENCE: f64 = 10.0;
/// Least time for a round, however short.
const LEAST: Duration = Duration::from_secs(300);

/// Runs one round of an experiment and returns its report.
pub fn run(
    experiment: &Experiment,
    plan: &Plan,
    commit: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<Value> {
    let folder = Folder::new()?;
    let report = folder.path().join("report.json");
    let (mut command, file) = match plan.arguments[0] {
        "reproduce" => {
            let mut command = lab();
            command.args(&plan.arguments).arg("--out").arg(folder.path());
            (command, folder.path().join(format!("{}.json", experiment.name)))
        }
        "demo" => {
            let mut command = Command::new(tailwater()?);
            command.args(&plan.arguments).arg("--json").arg(&report);
            command.arg("--svg").arg(folder.path().join("demo.svg"));
            (command, report)
        }
        _ => {
            let mut command = lab();
            command.args(&plan.arguments).arg("--json").arg(&report);
            (command, report)
        }
    };
    let messages = folder.path().join("messages");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&messages)?);
    let child = command.spawn().with_context(|| format!("cannot run {}", plan.command()))?;
    let longest = Duration::from_secs_f64(plan.seconds * PATIENCE).max(LEAST);
    let status = wait(child, longest, interrupt)?;
    let messages = std::fs::read(&messages)?;
    anyhow::ensure!(status.success(), "{}", reason(&String::from_utf8_lossy(&messages), &status.to_string()));
    let report = read(&file)?;
    let built_from = report["commit"].as_str().unwrap_or("unknown");
    anyhow::ensure!(
        built_from == commit,
        "{} was built from commit {built_from}, this program from {commit}: build both with `cargo build --release -p \
         tailwater-cli -p tailwater-lab`",
        plan.command()
    );
    Ok(report)
}

/// Waits for a program without taking its cores, and kills one that takes too long. On a signal the
/// program ends first.
fn wait(mut child: Child, longest: Duration, interrupt: &Interrupt) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    let ended = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch the program of an experiment")?;
    match interrupt.wait_readable(Some(ended.as_fd()), Instant::now() + longest) {
        Ok(true) => Ok(child.wait()?),
        Ok(false) => {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it has not ended after {longest:.0?}, ten times its estimate")
        }
        Err(interrupted) => {
            // It may have seen a signal of the terminal itself, and have ended.
            let _ = kill_process(pid, Signal::TERM);
            child.wait()?;
            Err(interrupted.into())
        }
    }
}

/// Returns this program; not by path, since a newer build may have replaced the file.
fn lab() -> Command {
    Command::new("/proc/self/exe")
}

/// Returns the path of `tailwater`, which is beside this program.
fn tailwater() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("the path of this program is not known")?;
    let path = path.with_file_name("tailwater");
    anyhow::ensure!(
        path.is_file(),
        "there is no {}: build it with `cargo build --release -p tailwater-cli`",
        path.display()
    );
    Ok(path)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the program ended without its report {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Returns why a program failed: the last lines it printed, or how it ended.
fn reason(messages: &str, status: &str) -> String {
    let lines: Vec<&str> = messages.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => status.to_owned(),
        count => lines[count.saturating_sub(REASON_LINES)..].join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failure_is_what_was_printed_last() {
        assert_eq!(reason("one\n\ntwo\nthree\nfour\n", "exit status: 1"), "two; three; four");
        assert_eq!(reason("\n", "signal: 9 (SIGKILL)"), "signal: 9 (SIGKILL)");
    }
}
