//! `tailwater run --batch`: any program on the cores that services leave idle.
//!
//! Owns the options and what each form does; `tailwater_batch` has the mechanism.
//!
//! | form | the job | ends with |
//! |---|---|---|
//! | `-- PROGRAM` | a child of this process, under conditions that its children inherit | its last process |
//! | `--pid N` of root | is moved to a control group of its own, and back at the end | the processes, or a signal |
//! | `--pid N --one-way` | has its threads lowered, for good; this process ends at once | |
//! | `--cgroup G` | the group's settings are changed, and put back at the end | the group, or a signal |

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use rustix::process::geteuid;
use tailwater_batch::group::Scope;
use tailwater_batch::job::Supervisor;
use tailwater_batch::notice::Notice;
use tailwater_batch::proc::{Process, own};
use tailwater_batch::usage::{Account, Usage};
use tailwater_batch::{Conditions, follow};
use tailwater_host::BatchGroup;
use tailwater_iokernel::config::CoreList;
use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::machine::core_list;
use tailwater_testbed::note;

use super::{find_program, wait};
use crate::query;

/// Options that only a program with the runtime has; refused with --batch and --client.
pub(super) const RUNTIME_OPTIONS: [&str; 21] = [
    "standalone",
    "kthreads",
    "guaranteed",
    "class",
    "ip",
    "listen",
    "replace",
    "on_iokernel_loss",
    "iokernel_wait",
    "exit_linger",
    "stack_size",
    "idle_timeout",
    "ring_bytes",
    "tcp_connections",
    "blocking_threads",
    "stall_timeout",
    "dump_signal",
    "quantum",
    "packet_stealing",
    "posix",
    "network",
];

/// A batch job that was not written for Tailwater.
#[derive(Debug, Clone, Args)]
pub struct BatchArgs {
    /// Run any program as a batch job: on the managed cores, whenever no other program wants them
    #[arg(long, help_heading = "Batch jobs", conflicts_with_all = RUNTIME_OPTIONS)]
    batch: bool,
    /// With --batch: more cores that the job may use beside the managed ones, for instance 0,2-3
    #[arg(long, help_heading = "Batch jobs", value_name = "LIST", value_parser = CoreList::from_str, requires = "batch")]
    also_cores: Option<CoreList>,
    /// With --batch: a process that runs already, with its threads and descendants, until it or
    /// this command ends; needs root
    #[arg(long, help_heading = "Batch jobs", value_name = "PID", requires = "batch", conflicts_with_all = ["program", "cgroup"])]
    pid: Option<i32>,
    /// With --pid, without root: lower the process for good, which Linux does not take back
    #[arg(long, help_heading = "Batch jobs", requires = "pid")]
    one_way: bool,
    /// With --batch: a control group, as /proc/PID/cgroup names it, such as that of a container,
    /// until it or this command ends; needs root
    #[arg(
        long,
        help_heading = "Batch jobs",
        value_name = "GROUP",
        requires = "batch",
        conflicts_with = "program"
    )]
    cgroup: Option<String>,
}

impl BatchArgs {
    pub fn is_wanted(&self) -> bool {
        self.batch
    }
}

/// Become a batch job
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// Cores that it may use
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program, under the conditions of a batch job.
///
/// # Errors
/// If Linux refuses one of them, or the program.
pub fn run_child(args: &ChildArgs) -> anyhow::Result<()> {
    Conditions { cores: args.cores.clone(), own_session: true }.apply()?;
    let (program, arguments) = args.program.split_first().context("no program is given")?;
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Runs the job until its end. A program's exit status becomes this process's.
///
/// # Errors
/// If no IOKernel lends cores, or the job cannot be one.
pub fn run(args: &BatchArgs, iokernel: &str, name: Option<&str>, program: &[OsString]) -> anyhow::Result<()> {
    if let Some(name) = program.first() {
        // Before the wait: a wrong name is not looked for at the IOKernel.
        find_program(name)?;
    }
    let also = also_cores(args)?;
    wait::for_iokernel(iokernel);
    let mut cores = lent_cores(iokernel)?;
    cores.extend(also);
    cores.sort_unstable();
    cores.dedup();
    let notice = |name: String| Notice {
        name,
        pid: std::process::id().cast_signed(),
        iokernel: iokernel.to_owned(),
        cores: cores.clone(),
        group: args.cgroup.clone(),
        usage: Usage::default(),
    };
    let called = |otherwise: String| notice(name.map_or(otherwise, str::to_owned));
    if let Some(pid) = args.pid {
        anyhow::ensure!(
            own().is_some(),
            "/proc is of another PID namespace, where {pid} is the number of another process: mount the one of this \
             namespace (unshare --mount-proc), or run this where /proc was mounted"
        );
    }
    match (args.pid, &args.cgroup) {
        (Some(pid), _) if args.one_way => lower(pid, &cores),
        (Some(pid), _) => {
            let first = Process::open(pid).with_context(|| format!("there is no process {pid}"))?;
            hold_process(first, &cores, &Notice { pid, ..called(name_of(pid)?) })
        }
        (None, Some(group)) => hold_group(group, &cores, &called(group.clone())),
        (None, None) => start(program, &cores, called(base_name(program))),
    }
}

/// Returns the cores that were named beside the managed ones. They are compared with those that the
/// machine has: a job may use more of them than this process, which may have been bound to some.
fn also_cores(args: &BatchArgs) -> anyhow::Result<Vec<usize>> {
    let named = args.also_cores.as_ref().map_or(&[][..], |list| &list.0);
    let online = CoreList(tailwater_iokernel::online_cores().iter().map(|core| core.0).collect());
    let absent = named.iter().find(|core| !online.0.contains(core));
    if let Some(core) = absent.filter(|_| !online.0.is_empty()) {
        let why = anyhow::anyhow!("--also-cores: this machine has no core {core}; its cores: {online}");
        return Err(EndsWith2::wrap(why));
    }
    Ok(named.iter().map(|&core| core.into()).collect())
}

/// Returns the cores that the IOKernel at this socket lends.
///
/// # Errors
/// If none answers.
pub fn lent_cores(iokernel: &str) -> anyhow::Result<Vec<usize>> {
    let statistics =
        query::statistics(iokernel).context("a batch job runs on the cores that an IOKernel lends")?;
    tailwater_testbed::statistics::lent_cores(&statistics)
        .context("the IOKernel does not say which cores it lends: it is of another version")
}

/// Returns what a program is called.
fn base_name(program: &[OsString]) -> String {
    let first = program.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    first.to_string_lossy().into_owned()
}

fn name_of(pid: i32) -> anyhow::Result<String> {
    let stat = tailwater_batch::proc::Stat::of_process(pid);
    Ok(stat.with_context(|| format!("there is no process {pid}"))?.name)
}

/// Starts the program and supervises it; ends this process with its status.
fn start(program: &[OsString], cores: &[usize], notice: Notice) -> anyhow::Result<()> {
    let (name, arguments) = program.split_first().context("no program is given")?;
    let file = find_program(name)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("tailwater")
        .args(["batch-child", "--cores", &core_list(cores), "--"])
        .arg(file)
        .args(arguments);
    let supervisor = Supervisor::new().context("cannot supervise a batch job")?;
    let status = supervisor.run(&mut command, notice).context("cannot start a process")?;
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Makes a running process a batch job until it or this process ends.
fn hold_process(first: Process, cores: &[usize], notice: &Notice) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        anyhow::bail!(
            "without root there is no way back from SCHED_IDLE: process {} would be a batch job until it ends. Run \
             this as root, or add --one-way",
            first.pid()
        );
    }
    let supervisor = Supervisor::new().context("cannot supervise a batch job")?;
    let scope = Scope::around(first, cores)?;
    let account =
        scope.folders().last().map(|folder| Account::of_group(folder)).context("no control groups")?;
    supervisor.watch(account, notice, || {
        scope.follow();
        !scope.members().is_empty()
    });
    scope.end().context("the processes stay a batch job until `tailwater doctor --repair` can put them back")
}

/// Makes a running process a batch job for good.
fn lower(pid: i32, cores: &[usize]) -> anyhow::Result<()> {
    name_of(pid)?;
    let (lowered, refused) = follow::lower(pid, cores);
    note!(
        "tailwater run: {lowered} threads of process {pid} and its descendants are in SCHED_IDLE until they end"
    );
    anyhow::ensure!(refused == 0, "Linux refused {refused} threads: they belong to another user");
    Ok(())
}

/// Makes a control group a batch job until it or this process ends.
fn hold_group(group: &str, cores: &[usize], notice: &Notice) -> anyhow::Result<()> {
    let supervisor = Supervisor::new().context("cannot supervise a batch job")?;
    let held = BatchGroup::hold(group, cores).map_err(anyhow::Error::msg)?;
    let account = Account::of_group(held.folder());
    supervisor.watch(account, notice, || held.exists());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_as_its_program() {
        assert_eq!(base_name(&["/usr/bin/xz".into(), "-9".into()]), "xz");
        assert_eq!(base_name(&["make".into()]), "make");
        assert_eq!(base_name(&[]), "");
    }
}
