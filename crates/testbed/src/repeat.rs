//! A batch job that was not written for Tailwater: a program that is run again and again.
//!
//! Owns the process that starts it, each time under the conditions of `tailwater run --batch`, and
//! its progress. Such a program counts no trials: its processor time in microseconds is taken for
//! them. What it reads and writes would show its work, but comes in portions of half a second.

use std::ffi::OsString;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::{Command, Stdio};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tailwater_batch::proc::{Stat, descendants, thread_ns, threads};

use crate::app;

/// The program and its conditions.
#[derive(Debug, Args)]
pub struct Options {
    /// Cores that it may use
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Have it lead a session
    #[arg(long)]
    own_session: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program again and again until standard input ends; prints its processor time at each
/// line there. The program ends with this process.
///
/// # Errors
/// If it cannot be started, or Linux does not count.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let own = std::process::id().cast_signed();
    thread_ns(own, own).context("Linux keeps no account of processor time (/proc/PID/task/*/schedstat)")?;
    let command = command(options);
    Builder::new().spawn(move || repeat(command)).context("cannot start a thread")?;
    for line in stdin().lock().lines() {
        line?;
        let us = used_ns(own) / 1_000;
        writeln!(stdout(), "{}", json!({ "t_s": began.elapsed().as_secs_f64(), "trials": us }))?;
    }
    Ok(())
}

/// Returns the processor time of the descendants of a process, also of those that have ended.
fn used_ns(own: i32) -> u64 {
    let processes = descendants(own);
    let ended: u64 = processes.iter().filter_map(|&pid| Some(Stat::of_process(pid)?.children_ns)).sum();
    let running =
        processes.iter().skip(1).flat_map(|&pid| threads(pid).into_iter().map(move |tid| (pid, tid)));
    ended + running.filter_map(|(pid, tid)| thread_ns(pid, tid)).sum::<u64>()
}

/// Returns the program, as a child that dies with this process.
fn command(options: &Options) -> Command {
    let mut command = app::command(&options.cores);
    command.arg("--batch");
    if options.own_session {
        command.arg("--own-session");
    }
    command.arg("exec").args(&options.program).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Starts the program whenever it has ended. One that fails ends this process.
fn repeat(mut command: Command) {
    loop {
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                note!("the batch job failed ({status})");
                std::process::exit(1);
            }
            Err(error) => {
                note!("cannot start the batch job: {error}");
                std::process::exit(1);
            }
        }
        // A program that does nothing must not start processes without end.
        sleep(Duration::from_millis(1));
    }
}
