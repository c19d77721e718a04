//! A program started by `tailwater run` that has not registered with the IOKernel: it is kept off
//! the managed cores, with a warning. One that registers later is lent cores all the same.
//!
//! Owns the process that watches: `tailwater run` becomes the program, so the watch is another
//! process, which no program sees among its children. A first process starts it and ends at once,
//! whereby it becomes a child of init. It holds a pidfd of the program as standard input, waits at
//! most [`PATIENCE`] for the program's end, and then reads the IOKernel's list of programs. The
//! numbers there are those of the IOKernel's PID namespace: in a container of its own a program is
//! told by the memory that an IOKernel has given it, and is left alone where Linux does not show
//! that. Nothing is to be undone: the cores are those of the program's own threads.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde_json::Value;
use tailwater_batch::{follow, proc};
use tailwater_shm::layout::REGION_NAME;
use tailwater_testbed::machine::core_list;
use tailwater_testbed::note;

use super::batch;
use crate::{ending, query};

/// Time from a program's start to the look whether it has registered.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of parents between a registered process and the program that was started.
const MAX_DEPTH: usize = 64;

/// Keep a process that has not registered with the IOKernel after a second off the managed cores
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// The process; standard input is a pidfd of it
    #[arg(long, value_name = "PID")]
    pid: i32,
    /// Control socket of the IOKernel
    #[arg(long, value_name = "SOCKET")]
    iokernel: String,
    /// Start the watch as a process of its own and end
    #[arg(long)]
    detach: bool,
    /// What was started
    program: String,
}

/// Starts the watch over this process, which is about to become `program`.
///
/// # Errors
/// If the kernel refuses a process.
pub fn watch_this_process(iokernel: &str, program: &str) -> anyhow::Result<()> {
    let pid = getpid();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch this process")?;
    let args = WatchArgs {
        pid: pid.as_raw_nonzero().get(),
        iokernel: iokernel.to_owned(),
        detach: true,
        program: program.to_owned(),
    };
    let mut detacher = command(&args).stdin(pidfd).spawn().context("cannot start the watch")?;
    // Fails where SIGCHLD is ignored, which outlives exec: no child waits to be collected then.
    let _ = detacher.wait();
    Ok(())
}

/// Watches, or starts the process that does.
///
/// # Errors
/// If the kernel refuses a process.
pub fn run(args: &WatchArgs) -> anyhow::Result<()> {
    if args.detach {
        command(&WatchArgs { detach: false, ..args.clone() }).spawn().context("cannot start the watch")?;
        return Ok(());
    }
    if ends_within(PATIENCE) {
        return Ok(());
    }
    let Some((problem, advice)) = problem(args, query::statistics(&args.iokernel)) else { return Ok(()) };
    let lent = batch::lent_cores(&args.iokernel).unwrap_or_default();
    let place = match (lent.is_empty(), follow::keep_off(args.pid, &lent)) {
        (false, left) if left.iter().all(|core| !lent.contains(core)) => {
            format!("kept off the managed cores {}, on {}", core_list(&lent), core_list(&left))
        }
        (_, left) => format!("on cores {}", core_list(&left)),
    };
    // To the program's own standard error.
    note!(
        "tailwater run: {} (process {}) has not registered: {problem}. Until it registers it is an ordinary program, \
         {place}, and the options of `run` have no effect.{advice}",
        args.program,
        args.pid
    );
    Ok(())
}

/// Returns this program as a watch with these arguments, without output that a reader of the
/// program's could wait for.
fn command(args: &WatchArgs) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["watch-registration", "--pid", &args.pid.to_string(), "--iokernel", &args.iokernel]);
    if args.detach {
        command.arg("--detach");
    }
    command.args(["--", &args.program]).stdout(Stdio::null());
    command
}

/// Returns whether the process behind the pidfd on standard input ends within `time`.
fn ends_within(time: Duration) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    // An error is an end of the watch as well.
    poll(&mut fds, Some(&timeout)) != Ok(0)
}

/// What to say of a program that has not registered where it could have.
const ADVICE: &str = " Programs register when their runtime starts (crate tailwater, or libtailwater); `--posix` serves \
                      the sockets of a program as it is, `--batch` runs any program on the cores that services leave \
                      idle.";

/// Returns why the process is not managed, and what to add to that; `None` if it or a descendant
/// has registered.
fn problem(args: &WatchArgs, statistics: anyhow::Result<Value>) -> Option<(String, &'static str)> {
    let statistics = match statistics {
        Ok(statistics) => statistics,
        Err(error) => return Some((format!("{:#}", ending::said_once(error)), "")),
    };
    let runtimes = statistics["runtimes"].as_array().map_or(&[][..], Vec::as_slice);
    let registered = runtimes.iter().filter_map(|runtime| i32::try_from(runtime["pid"].as_i64()?).ok());
    let is_listed = registered.into_iter().any(|pid| is_or_descends_from(pid, args.pid));
    let is_registered = is_listed || proc::descendants(args.pid).into_iter().any(may_have_region);
    let after = PATIENCE.as_secs();
    (!is_registered)
        .then(|| (format!("the IOKernel at {} has not heard of it in {after} s", args.iokernel), ADVICE))
}

/// Returns whether a process may have the memory of a registered program.
fn may_have_region(pid: i32) -> bool {
    shows_region(fs::read(format!("/proc/{pid}/maps")))
}

/// As [`may_have_region`], from the text of the file. Linux does not show that of a program with
/// more rights than this one: such a program is not taken for an unregistered one.
fn shows_region(maps: std::io::Result<Vec<u8>>) -> bool {
    match maps {
        Ok(maps) => String::from_utf8_lossy(&maps).contains(&format!("/memfd:{REGION_NAME} ")),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

fn is_or_descends_from(pid: i32, ancestor: i32) -> bool {
    let parents = std::iter::successors(Some(pid), |&pid| parent(pid));
    parents.take(MAX_DEPTH).any(|pid| pid == ancestor)
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tailwater_shm::layout::{Region, RegionSpec};
    use tailwater_testkit::Program;

    use super::*;

    #[test]
    fn a_process_is_managed_if_it_or_a_descendant_has_registered() {
        let own = getpid().as_raw_nonzero().get();
        let args = |pid| WatchArgs { pid, iokernel: "@here".into(), detach: false, program: "xz".into() };
        let with = |pid: i32| Ok(json!({ "runtimes": [{ "pid": 1 }, { "pid": pid }] }));
        let parent = parent(own).unwrap();
        assert_eq!(problem(&args(own), with(own)), None);
        assert_eq!(problem(&args(parent), with(own)), None);
        let (unregistered, advice) = problem(&args(own), with(parent)).unwrap();
        assert!(unregistered.contains("@here") && unregistered.contains("1 s"), "{unregistered}");
        assert!(advice.contains("--posix"), "{advice}");
        // As of another PID namespace: the list has a number that is not known here.
        let child = Program::start(Command::new("sleep").arg("60"));
        let of_child = args(child.pid().cast_signed());
        assert!(problem(&of_child, with(own)).is_some());
        let (region, ..) =
            Region::create(REGION_NAME, RegionSpec::new(1, 1 << 16).unwrap(), 1_000_000_000).unwrap();
        assert_eq!(problem(&args(own), with(-1)), None);
        drop(region);
        let (absent, advice) = problem(&args(own), query::statistics("@tailwater-no-such-socket")).unwrap();
        assert!(absent.contains("--socket @tailwater-no-such") && advice.is_empty(), "{absent}");
        assert_eq!(absent.matches("os error").count(), 1, "the cause is said once: {absent}");
    }

    #[test]
    fn a_program_that_linux_does_not_show_is_not_taken_for_an_unregistered_one() {
        use std::io::{Error, ErrorKind};
        assert!(shows_region(Err(Error::from(ErrorKind::PermissionDenied))));
        assert!(!shows_region(Err(Error::from(ErrorKind::NotFound))), "it has ended");
        assert!(shows_region(Ok(
            format!("7f0000-7f1000 rw-s 0 /memfd:{REGION_NAME} (deleted)\n").into_bytes()
        )));
        assert!(!shows_region(Ok(b"7f0000-7f1000 r-xp 0 /bin/sleep\n".to_vec())));
    }
}
