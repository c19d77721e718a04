//! `tailwater-lab bench threads`: the cost of user threads and of other systems of threads, in one
//! interleaved run.
//!
//! The operations are those of Shenango's table 2 (one core) and Arachne's (across cores), the
//! throughput of Arachne's figure 2, a fan-out, and the memory of idle threads; those of figures 2a
//! and 9 are measured for these figures only. Each system is a process (`child`), which sleeps
//! between the orders (`protocol`) that `rounds` gives to all in turn.

use std::io::{Write, stdout};
use std::time::Duration;

use anyhow::Result;

mod child;
mod go;
mod operation;
mod protocol;
mod report;
mod rounds;
mod system;

pub use child::samples::resident_kib;
pub use child::{ChildArgs, run as run_child};
pub use operation::{ARACHNE, CHILD_NS, CROWDS, LIVE, Operation, Published, READY_QUEUE, SHENANGO};
pub use rounds::Row;

use crate::go::GoProgram;
use report::{Report, idle_table, table};
use rounds::Effort;
use system::System;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;

/// Rounds of a full run.
const DEFAULT_ROUNDS: u16 = 31;

/// Compare user threads with OS threads, Tokio, `may` and Go: mutex, switch, wake-up, creation,
/// memory
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "One core: mutex, yield (one switch), condvar (one hop), channel (a message sent and
received), channel_hop, channel_many (many receivers), select (of two), rwlock_read, rwlock_write, rcu_read,
rcu_replace, spawn_join, fan_out (1000 started, then joined, per thread), null_yield, exit_turnaround. Two cores: create_remote, notify_remote and unpark_remote (until the first instruction on
the other core). throughput_K: threads that each start the next, on K cores. Below them the machine's floor.
The columns Shenango and Arachne are those papers' tables 2, on their machines.

Examples:
  tailwater-lab bench threads                                 everything there is, half a minute
  tailwater-lab bench threads --quick --systems tailwater,go  a first look
  tailwater-lab bench threads --rounds 101 --json threads.json
  tailwater-lab bench threads --systems tailwater --million   a million idle threads")]
pub struct ThreadsArgs {
    /// Systems to compare; all by default
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    systems: Vec<System>,
    /// Rounds of each operation and system
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROUNDS, value_parser = clap::value_parser!(u16).range(3..=1000))]
    rounds: u16,
    /// Three short rounds: a first impression, not a result
    #[arg(long, conflicts_with_all = ["rounds", "million"])]
    quick: bool,
    /// A million idle threads rather than 100,000; takes about 10 GiB
    #[arg(long)]
    million: bool,
}

impl ThreadsArgs {
    fn effort(&self) -> Effort {
        match self.quick {
            true => Effort { rounds: 3, order: Duration::from_micros(500), idle: 1000, idle_rounds: 1 },
            false => Effort {
                rounds: self.rounds.into(),
                order: Duration::from_millis(5),
                idle: if self.million { 1_000_000 } else { 100_000 },
                idle_rounds: 3,
            },
        }
    }

    /// In the table's order, each once.
    fn chosen(&self) -> Vec<System> {
        let chosen = |s: &System| self.systems.is_empty() || self.systems.contains(s);
        System::CHOICE.into_iter().filter(chosen).collect()
    }
}

/// Measures and prints.
pub fn run(args: &ThreadsArgs, machine: &Machine) -> Result<Report> {
    // The signal is caught so that the Go program's folder is removed.
    let interrupt = Interrupt::catch()?;
    // Ctrl-C ends the measured processes too, possibly before this process sees the signal.
    measure(args, machine, &interrupt)
        .or_else(|error| interrupt.check().map_or_else(|e| Err(e.into()), |()| Err(error)))
}

/// Measures operations of all available systems, without printing. Also returns a note on the Go
/// toolchain, unless no operation is one of goroutines. `quick` is as on the command line.
pub fn measure_rows(
    operations: &[Operation],
    quick: bool,
    machine: &Machine,
    interrupt: &Interrupt,
) -> Result<(Vec<Row>, Option<String>)> {
    let args = ThreadsArgs { systems: Vec::new(), rounds: DEFAULT_ROUNDS, quick, million: false };
    let measure = || {
        let mut systems = args.chosen();
        systems.retain(|system| operations.iter().any(|&op| system.has(op)));
        let has_goroutines = systems.contains(&System::Go);
        let go = if has_goroutines { go::build()? } else { None };
        systems.retain(|&system| system != System::Go || go.is_some());
        let program = go.as_ref().map(GoProgram::path);
        let rows =
            rounds::measure(operations, &systems, args.effort(), machine, program.as_deref(), interrupt)?;
        let note = match go {
            Some(go) => format!("{}.", go.version),
            None => "No Go toolchain in PATH: goroutines are not measured.".to_owned(),
        };
        Ok((rows, has_goroutines.then_some(note)))
    };
    measure().or_else(|error| interrupt.check().map_or_else(|e| Err(e.into()), |()| Err(error)))
}

fn measure(args: &ThreadsArgs, machine: &Machine, interrupt: &Interrupt) -> Result<Report> {
    let mut out = stdout();
    let mut systems = args.chosen();
    let go = if systems.contains(&System::Go) { go::build()? } else { None };
    match &go {
        Some(go) => writeln!(out, "{}", go.version)?,
        None if systems.contains(&System::Go) => {
            systems.retain(|&s| s != System::Go);
            writeln!(out, "no `go` in PATH: without goroutines")?;
        }
        None => {}
    }
    if machine.usable_cores.len() < 2 {
        writeln!(out, "one core only: without what crosses cores")?;
    }
    let program = go.as_ref().map(GoProgram::path);
    let effort = args.effort();
    let mut rows =
        rounds::measure(&Operation::ROUNDS, &systems, effort, machine, program.as_deref(), interrupt)?;
    writeln!(out, "{}", table(&rows, machine.tsc_hz))?;
    rows.extend(rounds::measure_idle(&systems, effort, machine, program.as_deref(), interrupt)?);
    writeln!(out, "{}", idle_table(&rows))?;
    for system in systems.iter().filter(|system| system.max_idle() < effort.idle) {
        writeln!(out, "{}: {} idle threads, for the kernel's limits", system.name(), system.max_idle())?;
    }
    Ok(Report { rows, idle_threads: effort.idle, go: go.map(|go| go.version) })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ThreadsArgs,
    }

    fn parse(words: &[&str]) -> Result<ThreadsArgs, clap::Error> {
        Line::try_parse_from(std::iter::once(&"threads").chain(words)).map(|line| line.args)
    }

    #[test]
    fn systems_are_measured_once_in_the_tables_order() {
        assert_eq!(parse(&[]).unwrap().chosen(), System::CHOICE);
        let chosen = parse(&["--systems", "std,tailwater,std"]).unwrap().chosen();
        assert_eq!(chosen, [System::Tailwater, System::Std]);
        assert!(parse(&["--systems", "machine"]).is_err());
    }

    #[test]
    fn a_million_threads_are_asked_for() {
        assert_eq!(parse(&[]).unwrap().effort().idle, 100_000);
        assert_eq!(parse(&["--million"]).unwrap().effort().idle, 1_000_000);
        assert!(parse(&["--million", "--quick"]).is_err());
        assert!(parse(&["--rounds", "2"]).is_err());
    }
}
