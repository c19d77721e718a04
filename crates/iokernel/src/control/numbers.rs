//! Thread numbers of a program, as the IOKernel sees them.
//!
//! A program sends the numbers of its threads as gettid(2) returns them, which are those of its own
//! PID namespace (pid_namespaces(7)). Owns finding the same threads below `/proc/PID/task` of the
//! IOKernel, which shows a namespace and all below it: the last number of `NSpid`
//! (proc_pid_status(5)) is the thread's own. All threads of a process are in one PID namespace, so
//! a process that has one number there has the IOKernel's numbers, and its threads are not read.
//!
//! # Crash and lie
//!
//! | the program | then |
//! |---|---|
//! | sends a number that no thread of its process has | it is refused |
//! | ends a thread while its numbers are read | the number is not found and the program is refused, or the thread is gone later, as any thread may be |
//! | gives a number to another thread meanwhile, so that two were read with it | it is refused |
//! | has other threads without number | those of [`MOST_THREADS`] are read, and then it is refused; the time is charged to its user |
//! | calls a thread as a line of the file | Linux writes a newline in a name as `\n`, two characters (`proc_task_name`) |
//! | ends, and another process gets its number | the folder is of the former one: nothing is read (see [`super::process`]) |

use std::collections::HashMap;

use super::directory::Refusal;
use super::process::Folder;

/// Maximum number of threads whose numbers are read: one takes some 17 us on a virtual core of an
/// AMD EPYC, all of them 70 ms of the control thread, which the program's user owes.
const MOST_THREADS: usize = 4_096;

/// Returns the IOKernel's numbers of the threads of a process that calls them `asked`.
pub(super) fn find(folder: &Folder, asked: &[i32]) -> Result<Vec<i32>, Refusal> {
    find_among(folder, asked, MOST_THREADS)
}

/// As [`find`], of a process with at most so many threads.
fn find_among(folder: &Folder, asked: &[i32], most: usize) -> Result<Vec<i32>, Refusal> {
    let pid = folder.pid();
    if !is_nested(&folder.read("status")) {
        let belongs =
            |tid: i32| tid > 0 && std::path::Path::new(&folder.path(&format!("task/{tid}"))).exists();
        return match asked.iter().find(|&&tid| !belongs(tid)) {
            Some(&tid) => Err(Refusal::ForeignThread { tid, pid }),
            None => Ok(asked.to_vec()),
        };
    }
    let threads: Vec<i32> = tailwater_batch::proc::numbers_in(&folder.path("task")).take(most + 1).collect();
    if threads.len() > most {
        return Err(Refusal::TooManyThreads { pid, most });
    }
    let own = |outer| Some((outer, own_number(&folder.read(&format!("task/{outer}/status")))?));
    choose(pid, asked, threads.into_iter().filter_map(own))
}

/// Returns the numbers of those threads that call themselves as asked, in that order. `numbers` has
/// for each thread the IOKernel's number and its own.
fn choose(pid: i32, asked: &[i32], numbers: impl Iterator<Item = (i32, i32)>) -> Result<Vec<i32>, Refusal> {
    let mut outer: HashMap<i32, Option<i32>> = asked.iter().map(|&tid| (tid, None)).collect();
    for (found, own) in numbers {
        let Some(place) = outer.get_mut(&own) else { continue };
        if place.replace(found).is_some() {
            return Err(Refusal::AmbiguousThread { tid: own, pid });
        }
    }
    asked.iter().map(|tid| outer[tid].ok_or(Refusal::ForeignThread { tid: *tid, pid })).collect()
}

/// Returns the numbers of a process or thread in the namespace of `/proc` and in those below, from
/// the text of its file `status`. The first such line is Linux's: names have no line breaks there.
fn numbers_of(status: &str) -> Option<impl Iterator<Item = i32>> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(numbers.split_ascii_whitespace().map_while(|number| number.parse().ok()))
}

/// Returns whether a process is in a PID namespace below that of `/proc`; not on a Linux that does
/// not say so (before 4.1).
fn is_nested(status: &str) -> bool {
    numbers_of(status).is_some_and(|numbers| numbers.count() > 1)
}

/// Returns the number by which a thread calls itself.
fn own_number(status: &str) -> Option<i32> {
    numbers_of(status)?.last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use tailwater_testkit::{children, eventually, until};

    const STATUS: &str = "Name:\tx\\nNSpid:\t1\t1\nTgid:\t70\nNSpid:\t70\t9\t5\nVmRSS:\t1 kB\n";

    #[test]
    fn the_last_number_is_the_threads_own_whatever_it_calls_itself() {
        assert_eq!(own_number(STATUS), Some(5));
        assert!(is_nested(STATUS) && !is_nested("NSpid:\t70\n") && !is_nested("Tgid:\t70\n"));
        assert_eq!((own_number(""), own_number("NSpid:\t\n")), (None, None));
    }

    #[test]
    fn threads_are_found_in_the_order_in_which_they_were_sent() {
        let threads = [(100, 1), (101, 7), (102, 8), (103, 9)];
        assert_eq!(choose(100, &[9, 7], threads.into_iter()), Ok(vec![103, 101]));
        // Of the IOKernel's namespace: such a number is another thread's inside, or none's.
        let foreign = Refusal::ForeignThread { tid: 101, pid: 100 };
        assert_eq!(choose(100, &[9, 101], threads.into_iter()), Err(foreign));
        assert_eq!(choose(100, &[], threads.into_iter()), Ok(vec![]));
    }

    #[test]
    fn a_number_that_two_threads_had_is_refused() {
        let reused = [(101, 7), (102, 8), (105, 7)];
        let ambiguous = Refusal::AmbiguousThread { tid: 7, pid: 100 };
        assert_eq!(choose(100, &[7], reused.into_iter()), Err(ambiguous));
        assert_eq!(choose(100, &[8], reused.into_iter()), Ok(vec![102]));
    }

    #[test]
    fn a_process_of_this_namespace_has_its_numbers_already() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let pid = std::process::id().cast_signed();
        let folder = Folder::open(pid, rustix::process::geteuid().as_raw()).unwrap();
        assert_eq!(find(&folder, &[own]), Ok(vec![own]));
        for tid in [-1, 0, 1] {
            assert_eq!(find(&folder, &[own, tid]), Err(Refusal::ForeignThread { tid, pid }));
        }
    }

    #[test]
    fn a_process_in_a_namespace_below_is_found_by_its_own_numbers_and_read_to_a_bound() {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            command
        };
        if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
            return eprintln!("skipped: unshare(1) makes no PID namespace here");
        }
        let mut program = unshare().arg("cat").stdin(Stdio::piped()).spawn().unwrap();
        let child = || children(program.id()).first().copied();
        let pid = eventually("it has a child", child).cast_signed();
        let folder = Folder::open(pid, rustix::process::geteuid().as_raw()).unwrap();
        assert_eq!(find(&folder, &[1]), Ok(vec![pid]));
        for tid in [pid, 0, -1] {
            assert_eq!(find(&folder, &[1, tid]), Err(Refusal::ForeignThread { tid, pid }));
        }
        assert_eq!(find_among(&folder, &[1], 0), Err(Refusal::TooManyThreads { pid, most: 0 }));
        program.kill().unwrap();
        program.wait().unwrap();
        let gone = Err(Refusal::ForeignThread { tid: 1, pid });
        until("nothing is found of a process that has ended", || find(&folder, &[1]) == gone);
    }
}
