//! `/proc/PID/stat` (proc_pid_stat(5)) and the tree of processes.
//!
//! Owns the parser, and [`Process`], by which a process is told from a later one with its number. A
//! process that ends while it is read is left out.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Maximum number of processes of a tree that are looked at: a fork bomb must not occupy a watcher.
pub const MOST_PROCESSES: usize = 4_096;

/// Linux's flag of its own threads (`PF_KTHREAD`, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `SCHED_IDLE` (sched(7)).
const SCHED_IDLE: u64 = 5;
/// Nanoseconds of a clock tick in `/proc`: USER_HZ is 100 on x86-64.
const TICK_NS: u64 = 10_000_000;

/// What `/proc/PID/stat` or `/proc/PID/task/TID/stat` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The name, as Linux has cut it.
    pub name: String,
    /// Whether it runs or waits for a core.
    pub is_runnable: bool,
    /// The parent process.
    pub parent: i32,
    /// The session: the process that leads it.
    pub session: i32,
    /// Whether it is one of Linux's own threads.
    pub is_kernel: bool,
    /// Processor time of the process or thread, in nanoseconds, exact to a clock tick; that of a
    /// process is of all its threads.
    pub process_ns: u64,
    /// Processor time of ended children that were waited for, theirs included, in nanoseconds,
    /// exact to a clock tick.
    pub children_ns: u64,
    /// Number of threads of the process.
    pub threads: usize,
    /// When it was started, in clock ticks since the machine was.
    pub start: u64,
    /// The core on which the thread ran last.
    pub core: usize,
    /// Whether its policy is `SCHED_IDLE`.
    pub is_idle_class: bool,
}

impl Stat {
    /// Reads that of a process, which is also that of its first thread.
    #[must_use]
    pub fn of_process(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    /// Reads that of a thread.
    #[must_use]
    pub fn of_thread(pid: i32, tid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    /// Reads a file. Programs choose the name, which need not be UTF-8.
    fn read(path: &str) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(path).ok()?))
    }

    /// Parses the file's line. The name is in parentheses, and may contain some.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = after.split_ascii_whitespace();
        let state = fields.next()?;
        // The first of these is field 4 of the manual.
        let numbers: Vec<&str> = fields.collect();
        let number = |field: usize| numbers.get(field - 4)?.parse::<u64>().ok();
        let signed = |field: usize| numbers.get(field - 4)?.parse::<i64>().ok();
        let ticks = |field| signed(field).map(|ticks| ticks.max(0).cast_unsigned());
        let ns = |user, system| Some(ticks(user)?.checked_add(ticks(system)?)?.saturating_mul(TICK_NS));
        Some(Self {
            name,
            is_runnable: state == "R",
            parent: i32::try_from(signed(4)?).ok()?,
            session: i32::try_from(signed(6)?).ok()?,
            is_kernel: number(9)? & KERNEL_THREAD != 0,
            process_ns: ns(14, 15)?,
            children_ns: ns(16, 17)?,
            threads: number(20)? as usize,
            start: number(22)?,
            core: number(39)? as usize,
            is_idle_class: number(41)? == SCHED_IDLE,
        })
    }
}

/// One process: another one that has its number later is not taken for it.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    /// Readable once the process has ended (pidfd_open(2)).
    handle: OwnedFd,
}

impl Process {
    /// Returns the process that has this number at present; `None` if there is none.
    #[must_use]
    pub fn open(pid: i32) -> Option<Self> {
        let number = Pid::from_raw(pid.max(0))?;
        Some(Self { pid, handle: pidfd_open(number, PidfdFlags::empty()).ok()? })
    }

    /// Returns its number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether it has ended. What was read of its number before is not that of a later
    /// process if it has not.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// Returns the number of this process; `None` where `/proc` is of another PID namespace, as in one
/// of `unshare --pid` without `--mount-proc`: there the numbers in `/proc` are those of other
/// processes.
#[must_use]
pub fn own() -> Option<i32> {
    let own = std::process::id();
    let shown = fs::read_link("/proc/self").ok()?;
    (shown.to_str()? == own.to_string()).then_some(own.cast_signed())
}

/// Returns the numbers that are names in a folder of `/proc`, such as the threads of a process.
#[must_use]
pub fn numbers(folder: &str) -> Vec<i32> {
    numbers_in(folder).collect()
}

/// As [`numbers`], one after the other: for a reader who ends after some.
pub fn numbers_in(folder: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the threads of a process.
#[must_use]
pub fn threads(pid: i32) -> Vec<i32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Returns a process and its descendants, at most [`MOST_PROCESSES`].
#[must_use]
pub fn descendants(pid: i32) -> Vec<i32> {
    // Linux lists children if it was built with CONFIG_PROC_CHILDREN.
    if Path::new("/proc/thread-self/children").exists() {
        tree(pid, listed_children)
    } else {
        let children = children_by_parent();
        tree(pid, |parent| children.get(&parent).cloned().unwrap_or_default())
    }
}

/// Returns a process and its descendants, by the children of each.
fn tree(pid: i32, children: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&parent) = found.get(at).filter(|_| found.len() < MOST_PROCESSES) {
        at += 1;
        found.extend(children(parent));
    }
    found.truncate(MOST_PROCESSES);
    found
}

/// Returns the children that Linux lists for each thread of a process.
fn listed_children(parent: i32) -> Vec<i32> {
    let of_thread = |thread: i32| {
        let path = format!("/proc/{parent}/task/{thread}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        children.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<i32>>()
    };
    threads(parent).into_iter().flat_map(of_thread).collect()
}

/// Returns the children of each process of the machine, by the parents that they name.
fn children_by_parent() -> HashMap<i32, Vec<i32>> {
    let mut children = HashMap::<_, Vec<i32>>::new();
    for pid in numbers("/proc") {
        if let Some(stat) = Stat::of_process(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

/// Returns the processor time of a thread in nanoseconds (`/proc/PID/task/TID/schedstat`).
#[must_use]
pub fn thread_ns(pid: i32, tid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_name_may_contain_anything() {
        // 23 to 37 are zeros.
        let zeros = "0 ".repeat(15);
        let before = "7 (a) R (b)) R 3 7 8 0 -1 4194304 98 0 0 0 5 4 20 10 39 19 6 0 5";
        let line = &format!("{before} {zeros}17 1 0 5 0 0 0\n");
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.name, "a) R (b)");
        assert!(stat.is_runnable && stat.is_idle_class && !stat.is_kernel);
        assert_eq!((stat.parent, stat.session, stat.threads, stat.core), (3, 8, 6, 1));
        assert_eq!((stat.process_ns, stat.children_ns), (90_000_000, 300_000_000));
        assert_eq!(stat.start, 5);
        let of_kthreadd = line.replacen("4194304", "2129984", 1);
        assert!(Stat::parse(&of_kthreadd).is_some_and(|stat| stat.is_kernel));
        let nasty = format!("7 (a) S 1 1 1 1 -1 2129984 (b)) R{}", line.rsplit_once(") R").unwrap().1);
        assert!(Stat::parse(&nasty).is_some_and(|stat| !stat.is_kernel));
        assert_eq!(Stat::parse("7 (a"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        let named = std::thread::spawn(|| {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            rustix::thread::set_name(c"x\xff\xfe").unwrap();
            Stat::of_thread(std::process::id().cast_signed(), own)
        });
        assert_eq!(named.join().unwrap().expect("it runs").name, "x\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_child_is_a_descendant_with_this_process_as_parent() {
        let own = std::process::id().cast_signed();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let (found, stat) = (descendants(own), Stat::of_process(pid).unwrap());
        let by_parent = children_by_parent();
        let process = Process::open(pid).unwrap();
        let ended_before = process.has_ended();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((ended_before, process.has_ended(), process.pid()), (false, true, pid));
        assert!([0, -1].into_iter().all(|none| Process::open(none).is_none()));
        assert!(found.contains(&own) && found.contains(&pid), "{found:?}");
        assert!(by_parent[&own].contains(&pid), "{by_parent:?}");
        assert_eq!(stat.parent, own);
        assert!(!stat.is_kernel && stat.threads == 1);
    }

    #[test]
    fn a_tree_is_the_same_by_listed_children_and_by_parents() {
        let script = "(sleep 60 & sleep 60 & wait) & sleep 60 & wait";
        let mut shell = Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap();
        let first = shell.id().cast_signed();
        let by_parent = || {
            let children = children_by_parent();
            let mut found = tree(first, |parent| children.get(&parent).cloned().unwrap_or_default());
            found.sort_unstable();
            found
        };
        tailwater_testkit::until("all have been started", || by_parent().len() == 5);
        let mut listed = tree(first, listed_children);
        listed.sort_unstable();
        let found = by_parent();
        let group = rustix::process::Pid::from_child(&shell);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        match Path::new("/proc/thread-self/children").exists() {
            true => assert_eq!(found, listed),
            false => eprintln!("not compared: Linux lists no children"),
        }
    }
}
