//! nft(8): applying a table, and finding those of IOKernels that were killed.
//!
//! Owns the calls. A table says in its comment which process has made it, by number, start time
//! and PID namespace, so that one of a process that is gone is told from one in use. Two processes
//! of different PID namespaces may share a network, and neither sees the other: a table of another
//! PID namespace is never removed here, nor is one whose comment cannot be read.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail, ensure};
use tailwater_batch::proc::Stat;

/// Where nft is looked for: in PATH, which for ordinary users lacks the folders of administration.
const PROGRAMS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Beginning of the names of all tables.
const PREFIX: &str = "tailwater/";

/// Checks a script without effect.
pub fn check(script: &str) -> anyhow::Result<()> {
    run(&["--check", "--file", "-"], script).map(drop)
}

/// Runs a script as one transaction.
pub fn apply(script: &str) -> anyhow::Result<()> {
    run(&["--file", "-"], script).map(drop)
}

/// Removes this process's table, if it is there: meanwhile another process may have made its own
/// for a device of the same name. Linux before 5.10 keeps no comment: then the table is removed,
/// since no process is known to have made it.
pub fn delete_own(table: &str) -> anyhow::Result<()> {
    if !holds(table)? || maker(table)?.is_some_and(|maker| maker != Maker::this_process()) {
        return Ok(());
    }
    delete(table)
}

/// Removes a table, if it is there.
pub fn delete(table: &str) -> anyhow::Result<()> {
    apply(&format!("table inet {table}\ndelete table inet {table}\n"))
}

/// Returns whether this table is there.
pub fn holds(table: &str) -> anyhow::Result<bool> {
    Ok(tables()?.iter().any(|name| name == table))
}

/// Returns the names of all of Tailwater's tables.
fn tables() -> anyhow::Result<Vec<String>> {
    let listed = run(&["list", "tables", "inet"], "")?;
    let names = listed.lines().filter_map(|line| line.trim().strip_prefix("table inet "));
    Ok(names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect())
}

/// Removes the tables whose process is gone; returns in words which, and which it leaves.
///
/// # Errors
/// If nft refuses to remove one.
pub fn repair() -> anyhow::Result<String> {
    let what = "published ports";
    let tables = match tables() {
        Ok(tables) => tables,
        // Without the program, the right to use it, or nf_tables in Linux, nothing is published.
        Err(error) => return Ok(format!("{what}: nothing to remove ({error:#})")),
    };
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for table in tables {
        match maker(&table)? {
            Some(maker) if maker.namespace == namespace() => {
                if !maker.lives() {
                    delete(&table)?;
                    removed.push(table);
                }
            }
            _ => left.push(table),
        }
    }
    let mut said = match removed.is_empty() {
        true => format!("{what}: nothing to remove"),
        false => format!("{what}: removed {}", removed.join(", ")),
    };
    for table in left {
        // Writing to a string does not fail.
        let _ = write!(
            said,
            "; left {table}, whose IOKernel may run in another PID namespace: if it does not, `nft delete table inet \
             {table}`"
        );
    }
    Ok(said)
}

/// The process that has made a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maker {
    pid: i32,
    /// When it was started, in clock ticks since the machine was; 0 if that cannot be read.
    started: u64,
    namespace: String,
}

impl Maker {
    pub fn this_process() -> Self {
        // As `/proc` has it, which may be that of an outer PID namespace.
        let link = fs::read_link("/proc/self").ok();
        let pid = link.and_then(|link| link.to_str()?.parse().ok()).unwrap_or_default();
        Self { pid, started: started(pid), namespace: namespace() }
    }

    /// Reads a line of a table's listing, if it is the table's comment.
    fn read(line: &str) -> Option<Self> {
        let comment = line.trim().strip_prefix("comment \"process ")?.strip_suffix('"')?;
        let (pid, rest) = comment.split_once(", started ")?;
        let (started, namespace) = rest.split_once(", namespace ")?;
        let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
        Some(Self { pid, started, namespace: namespace.to_owned() })
    }

    /// Returns whether it is there, if it is of this PID namespace.
    fn lives(&self) -> bool {
        started(self.pid) == self.started
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, started {}, namespace {}", self.pid, self.started, self.namespace)
    }
}

/// Returns the process that has made a table; `None` if its comment does not say.
fn maker(table: &str) -> anyhow::Result<Option<Maker>> {
    Ok(run(&["list", "table", "inet", table], "")?.lines().find_map(Maker::read))
}

/// Returns the number of this process's PID namespace, which no other one has as long as it lasts.
fn namespace() -> String {
    fs::metadata("/proc/self/ns/pid").map_or_else(|_| "unknown".to_owned(), |file| file.ino().to_string())
}

/// Returns the start time of a process; 0 if there is none.
fn started(pid: i32) -> u64 {
    Stat::of_process(pid).map_or(0, |stat| stat.start)
}

/// nft cannot be used by this process.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// There is none.
    #[error("the program nft is missing, which publishes ports: install the package nftables")]
    Missing,
    /// CAP_NET_ADMIN is missing; a capability of this program's file is not inherited.
    #[error("nft, which publishes ports, may not change this network: run this as root (CAP_NET_ADMIN)")]
    Refused,
}

/// Runs nft with a script as its input; returns what it prints.
fn run(arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } = start(arguments, input)?;
    let said = String::from_utf8_lossy(&stderr);
    if said.contains("Operation not permitted") {
        bail!(Unusable::Refused);
    }
    ensure!(status.success(), "nft {} fails: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

fn start(arguments: &[&str], input: &str) -> anyhow::Result<Output> {
    for program in PROGRAMS {
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other.with_context(|| format!("cannot start {program}"))?,
        };
        if let Some(mut pipe) = child.stdin.take() {
            // nft reads all of it before it prints. If it ends before, it says why.
            let _ = pipe.write_all(input.as_bytes());
        }
        return child.wait_with_output().with_context(|| format!("cannot wait for {program}"));
    }
    bail!(Unusable::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_of_the_process_that_its_comment_says() {
        let line = format!("\tcomment \"{}\"", Maker::this_process());
        let maker = Maker::read(&line).unwrap();
        assert_eq!(maker, Maker::this_process());
        assert_eq!(maker.pid.cast_unsigned(), std::process::id());
        assert!(maker.lives());
        assert!(!Maker { started: 1, ..maker }.lives());
        assert_eq!(started(-1), 0);
        assert_eq!(Maker::read("\tchain local {"), None);
        assert_eq!(Maker::read("\tcomment \"process 7, started 9\""), None);
    }
}
