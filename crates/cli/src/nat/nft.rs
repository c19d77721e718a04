//! nft(8): applying a table, and finding those of IOKernels that were killed.
//!
//! Owns the calls. A table says in its comment which process has made it, by number and start
//! time, so that one of a process that is gone is told from one in use.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail, ensure};

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

/// Removes the tables whose process is gone; returns in words how many.
///
/// # Errors
/// If nft refuses; not without nft.
pub fn repair() -> anyhow::Result<String> {
    let what = "published ports";
    let tables = match tables() {
        Ok(tables) => tables,
        // Without the program, or the right to use it, there is no table that this user has left.
        Err(error) if error.is::<Unusable>() => return Ok(format!("{what}: nothing to remove ({error})")),
        Err(error) => return Err(error),
    };
    let mut removed = Vec::new();
    for table in tables {
        let text = run(&["list", "table", "inet", &table], "")?;
        let lives = text.lines().find_map(owner).is_some_and(|(number, begun)| started(&number).1 == begun);
        if !lives {
            delete(&table)?;
            removed.push(table);
        }
    }
    Ok(match removed.is_empty() {
        true => format!("{what}: nothing to remove"),
        false => format!("{what}: removed {}", removed.join(", ")),
    })
}

/// Returns what a table's comment says of this process.
pub fn this_process() -> String {
    let (number, started) = started("self");
    format!("process {number}, started {started}")
}

/// Reads number and start time in the comment of a table.
fn owner(line: &str) -> Option<(String, String)> {
    let comment = line.trim().strip_prefix("comment \"process ")?.strip_suffix('"')?;
    let (number, started) = comment.split_once(", started ")?;
    Some((number.to_owned(), started.to_owned()))
}

/// Returns number and start time of a process; both are empty if there is none (proc_pid_stat(5)).
fn started(process: &str) -> (String, String) {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let number = stat.split(' ').next().unwrap_or_default();
    // The name, in parentheses, may have any bytes; the state that follows is field 3.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    (number.to_owned(), rest.split(' ').nth(22 - 3).unwrap_or_default().to_owned())
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
        let line = format!("\tcomment \"{}\"", this_process());
        let (number, begun) = owner(&line).unwrap();
        assert_eq!(started(&number), (number.clone(), begun));
        assert_eq!(number, std::process::id().to_string());
        assert_eq!(started("no-such-process"), (String::new(), String::new()));
        assert_eq!(owner("\tchain local {"), None);
    }
}
