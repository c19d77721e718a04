//! What Linux says of a program for a verdict: quotas of its control groups, time that the host
//! took, and the system calls that its kthreads wait in.
//!
//! Owns the parsing of `cpu.stat` and `/proc/PID/task/TID/syscall` (proc(5), cgroups(7)). What
//! cannot be read is left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::clock_ticks_per_second;
use tailwater_host::control_groups;
use tailwater_testbed::account::lost_ticks;

/// `futex` and `sched_yield` (x86-64).
const FUTEX: u64 = 202;
const SCHED_YIELD: u64 = 24;
/// `futex_waitv`, in which a kthread without a core sleeps.
const FUTEX_WAITV: u64 = 449;
/// `FUTEX_PRIVATE_FLAG` (linux/futex.h): all locks of `std` and most of the C library have it. The
/// word on which a kthread sleeps without a core is shared.
const PRIVATE: u64 = 128;

/// Nanoseconds for which each control group of a process, and each around it, was stopped since it
/// was made, because it had used up its quota.
#[must_use]
pub fn throttled_ns(pid: i64) -> BTreeMap<PathBuf, u64> {
    let stopped = control_groups::of_process(&pid.to_string()).into_iter().filter_map(|(_, folder)| {
        let ns = stopped_ns(&fs::read_to_string(folder.join("cpu.stat")).ok()?)?;
        Some((folder, ns))
    });
    stopped.collect()
}

/// Returns the time in a `cpu.stat`: in nanoseconds in version 1, in microseconds in version 2.
fn stopped_ns(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_time", ns) => ns.parse().ok(),
        ("throttled_usec", us) => us.parse::<u64>().ok()?.checked_mul(1_000),
        _ => None,
    })
}

/// Returns the quota of a group in words.
#[must_use]
pub fn quota_of(folder: &Path) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
    match (read("cpu.max"), read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")) {
        (max, ..) if !max.is_empty() => format!("cpu.max is {max}"),
        (_, quota, period) if !quota.is_empty() => format!("{quota} us of each {period} us"),
        _ => "its limit is not readable".to_owned(),
    }
}

/// Returns the nanoseconds that the host has taken from each core since the machine started.
#[must_use]
pub fn stolen_ns(cores: &[u16]) -> Vec<(u16, u64)> {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let tick_ns = 1_000_000_000 / clock_ticks_per_second().max(1);
    cores.iter().map(|&core| (core, lost_ticks(&stat, core).1.saturating_mul(tick_ns))).collect()
}

/// What a kthread waits in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// It runs, or could, or sleeps as a kthread without a core does.
    Nowhere,
    /// For a lock.
    Lock,
    /// In this system call.
    Call(String),
}

/// Returns what a thread waits in now; `None` if this user may not know.
#[must_use]
pub fn waits(pid: i64, tid: i32) -> Option<Waits> {
    Some(waits_of(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?))
}

/// Parses the file: a number and its arguments, `running`, or -1 and two addresses.
fn waits_of(line: &str) -> Waits {
    let mut words = line.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return Waits::Nowhere };
    let operation = words.nth(1).and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    match number {
        FUTEX if operation.is_some_and(|operation| operation & PRIVATE != 0) => Waits::Lock,
        FUTEX | FUTEX_WAITV | SCHED_YIELD => Waits::Nowhere,
        other => Waits::Call(call(other)),
    }
}

/// Returns the name of a system call in which programs often wait (x86-64), or its number.
fn call(number: u64) -> String {
    let name = match number {
        0 => "read",
        1 => "write",
        7 => "poll",
        23 => "select",
        34 => "pause",
        35 => "nanosleep",
        42 => "connect",
        43 => "accept",
        44 => "sendto",
        45 => "recvfrom",
        61 => "wait4",
        72 => "fcntl",
        73 => "flock",
        74 => "fsync",
        75 => "fdatasync",
        230 => "clock_nanosleep",
        232 => "epoll_wait",
        271 => "ppoll",
        288 => "accept4",
        other => return format!("system call {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_which_a_group_was_stopped_is_read_of_both_versions() {
        assert_eq!(stopped_ns("nr_periods 5\nnr_throttled 3\nthrottled_time 700\n"), Some(700));
        assert_eq!(stopped_ns("usage_usec 5\nthrottled_usec 7\n"), Some(7_000));
        assert_eq!(stopped_ns("throttled_usec 99999999999999999999\n"), None);
        assert!(throttled_ns(std::process::id().into()).values().all(|ns| *ns < u64::MAX));
        assert!(throttled_ns(-1).is_empty());
        assert_eq!(stolen_ns(&[u16::MAX]), [(u16::MAX, 0)], "no such core");
    }

    #[test]
    fn a_kthread_without_a_core_waits_nowhere_and_one_that_waits_for_a_lock_does() {
        for (line, expected) in [
            ("running\n", Waits::Nowhere),
            ("-1 0x7ffd 0x55\n", Waits::Nowhere),
            ("449 0x7f 0x2 0x0 0x7f 0x1 0x0 0x7f 0x7f\n", Waits::Nowhere),
            ("202 0x7f 0x0 0x1 0x7f 0x0 0x0 0x7f 0x7f\n", Waits::Nowhere),
            ("202 0x7f 0x89 0x2 0x0 0x0 0xffffffff 0x7f 0x7f\n", Waits::Lock),
            ("202 0x7f 0x80 0x2\n", Waits::Lock),
            ("24 0x0\n", Waits::Nowhere),
            ("0 0x3 0x7f\n", Waits::Call("read".to_owned())),
            ("9999\n", Waits::Call("system call 9999".to_owned())),
            ("", Waits::Nowhere),
        ] {
            assert_eq!(waits_of(line), expected, "{line:?}");
        }
    }
}
