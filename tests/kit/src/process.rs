//! Processes that a test did not start itself.

use std::collections::BTreeSet;
use std::fs;

/// Returns the ids of the processes whose parent is `pid`.
pub fn children(pid: u32) -> BTreeSet<u32> {
    // Not from `children` of its threads, which only kernels with CONFIG_PROC_CHILDREN have.
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let processes = names.filter_map(|name| name.to_str()?.parse().ok());
    let parent = |process: u32| stat(process, 4)?.parse().ok();
    processes.filter(|&process| parent(process) == Some(pid)).collect()
}

/// Returns a field of `/proc/PID/stat` by its number in the manual, from the third one on, which is
/// the state (proc_pid_stat(5)); `None` if there is no such process.
pub fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, the second field, is in parentheses and may contain any.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split_ascii_whitespace().nth(field - 3).map(str::to_owned)
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
    stat(pid, 3).is_some_and(|state| !state.starts_with(['Z', 'X']))
}
