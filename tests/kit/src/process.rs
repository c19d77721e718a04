//! Processes that a test did not start itself.

use std::collections::BTreeSet;
use std::fs;

/// Returns the ids of the processes whose parent is `pid`.
pub fn children(pid: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Returns the id of the thread of process `pid` that has this name.
pub fn thread_named(pid: u32, name: &str) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let has_name = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    tasks.filter(has_name).find_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Returns whether a process has this id and has not ended: a zombie has ended.
pub fn is_running(pid: u32) -> bool {
    // proc_pid_stat(5): the state follows the name, which is in parentheses and may contain any.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X']))
}
