//! `tailwater cores`: requests cores for a program that runs.
//!
//! Owns the notation of a request, cores at priorities. The IOKernel decides whether the user may
//! make it, and adds it to what the program requests itself.

use std::io::{Write, stdout};

use clap::Args;
use tailwater_shm::control::CoreRequest;
use tailwater_testbed::socket::IokernelArg;

use crate::query;

/// Number of priorities.
const PRIORITIES: usize = 8;

/// Request cores for a program that runs, under policy = "arbiter"
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "At each priority the larger of this and of what the program requests itself counts, until the program or the IOKernel \
ends. Root, the IOKernel's user and the program's own may request.

Examples:
  tailwater cores web 2                two cores at priority 0, before all other requests
  tailwater cores web 1,4@7            one, and four more if no other program requests them
  tailwater cores web 0                no more than the program requests itself"
)]
pub struct CoresArgs {
    /// Name of the program, as `tailwater ps` shows it
    #[arg(value_name = "NAME")]
    name: String,
    /// How many, each number with its priority: N or N@PRIORITY, separated by commas
    #[arg(value_name = "CORES", value_parser = parse_cores)]
    cores: Cores,
    #[command(flatten)]
    iokernel: IokernelArg,
}

/// A number of cores at each priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cores([u8; PRIORITIES]);

/// Parses `2`, or `1,4@7`.
fn parse_cores(text: &str) -> Result<Cores, String> {
    let mut cores = [None; PRIORITIES];
    for part in text.split(',') {
        let (number, priority) = part.split_once('@').unwrap_or((part, "0"));
        let number: u8 = number.parse().map_err(|_| format!("`{number}`: a number of cores is 0 to 255"))?;
        let place = priority.parse().ok().and_then(|priority: usize| cores.get_mut(priority));
        let place = place.ok_or_else(|| format!("`{priority}`: priorities are 0, served first, to 7"))?;
        if place.replace(number).is_some() {
            return Err(format!("priority {priority} is there twice"));
        }
    }
    Ok(Cores(cores.map(Option::unwrap_or_default)))
}

/// Requests the cores and prints what is requested now.
///
/// # Errors
/// If nothing listens at the socket, why the IOKernel refuses, or if standard output is closed.
pub fn run(args: &CoresArgs) -> anyhow::Result<()> {
    let request = CoreRequest { runtime: args.name.clone(), cores: args.cores.0 };
    let limit = query::request_cores(&args.iokernel, request)?;
    writeln!(stdout(), "{}: {}", args.name, describe(args.cores, limit))?;
    Ok(())
}

/// Returns in words what was requested for a program that may own at most `limit` cores.
fn describe(cores: Cores, limit: u16) -> String {
    let total: u16 = cores.0.into_iter().map(u16::from).sum();
    if total == 0 {
        return "no cores are requested beyond its own requests".to_owned();
    }
    let requested = cores.0.iter().enumerate().filter(|(_, number)| **number > 0);
    let words = requested.map(|(priority, number)| format!("{number} at priority {priority}"));
    let cut = if total > limit { format!("; it may own {limit} at most") } else { String::new() };
    format!("requested {}{cut}", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_priorities_and_what_is_no_request_is_explained() {
        assert_eq!(parse_cores("2"), Ok(Cores([2, 0, 0, 0, 0, 0, 0, 0])));
        assert_eq!(parse_cores("1,4@7"), Ok(Cores([1, 0, 0, 0, 0, 0, 0, 4])));
        for (text, part) in
            [("", "0 to 255"), ("256", "0 to 255"), ("1@8", "0, served first, to 7"), ("1,2", "twice")]
        {
            let why = parse_cores(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_requested_and_cut_is_said_in_words() {
        let cores = parse_cores("1,4@7").unwrap();
        let (all, cut) = (describe(cores, 5), describe(cores, 2));
        for said in [&all, &cut] {
            assert!(said.contains("1 at priority 0") && said.contains("4 at priority 7"), "{said}");
        }
        assert!(!all.contains("own") && cut.contains("own 2"), "{all}; {cut}");
        assert!(describe(parse_cores("0").unwrap(), 2).starts_with("no cores"));
    }
}
