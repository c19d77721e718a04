//! System calls of one thread of another process, counted by stopping it at each (ptrace(2)).

use std::ffi::c_int;
use std::ptr::null_mut;
use std::thread::sleep;

use crate::process::thread_named;
use crate::wait::{LOOK, until};

/// A thread that is stopped at each of its system calls; it runs on by itself once this is dropped.
/// Only the thread that made this may use it.
#[derive(Debug)]
pub struct Traced {
    tid: c_int,
    stops: u64,
}

impl Traced {
    /// Traces the thread of process `pid` that has this name.
    ///
    /// # Errors
    /// If the kernel refuses: tests print the error and skip.
    ///
    /// # Panics
    /// If the process has no such thread.
    pub fn attach(pid: u32, name: &str) -> Result<Self, String> {
        let tid = thread_named(pid, name).unwrap_or_else(|| panic!("process {pid} has no thread {name}"));
        let traced = Self { tid, stops: 0 };
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        if !traced.request(libc::PTRACE_SEIZE, options) {
            let error = std::io::Error::last_os_error();
            // Nothing to detach.
            core::mem::forget(traced);
            return Err(format!("this process cannot trace another one: {error}"));
        }
        assert!(traced.request(libc::PTRACE_INTERRUPT, 0), "the thread is traced");
        let mut traced = traced;
        until("the thread stops", || traced.pass());
        traced.stops = 0;
        Ok(traced)
    }

    /// Lets the thread run until `done`, and returns how many system calls it has made meanwhile.
    ///
    /// # Panics
    /// If `done` takes too long.
    #[track_caller]
    pub fn count_until(&mut self, what: &str, mut done: impl FnMut() -> bool) -> u64 {
        until(what, || {
            while self.pass() {}
            done()
        });
        // Each has a stop at its entry and one at its exit.
        self.stops.div_ceil(2)
    }

    /// Lets the thread run on if it has stopped, to its next system call; false if it has not, or
    /// has ended.
    fn pass(&mut self) -> bool {
        let mut status = 0;
        // SAFETY: the call writes to the word it is given.
        if unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) } != self.tid {
            return false;
        }
        if !libc::WIFSTOPPED(status) {
            return false;
        }
        let signal = match libc::WSTOPSIG(status) {
            // PTRACE_O_TRACESYSGOOD.
            stop if stop == libc::SIGTRAP | 0x80 => {
                self.stops += 1;
                0
            }
            // A stop that was requested.
            _ if status >> 16 != 0 => 0,
            signal => signal,
        };
        // Fails if another thread has ended the process meanwhile.
        self.request(libc::PTRACE_SYSCALL, signal as usize)
    }

    fn request(&self, request: libc::c_uint, data: usize) -> bool {
        let none: *mut libc::c_void = null_mut();
        // SAFETY: the requests of this module read and write no memory of this process.
        unsafe { libc::ptrace(request, self.tid, none, data) != -1 }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.request(libc::PTRACE_INTERRUPT, 0) {
            // It has ended.
            return;
        }
        for _ in 0..1_000 {
            let mut status = 0;
            // SAFETY: the call writes to the word it is given.
            let stopped = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if stopped == self.tid {
                self.request(libc::PTRACE_DETACH, 0);
                return;
            }
            sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;
    use std::process::{Command, Stdio};

    #[test]
    fn system_calls_of_a_shell_are_counted() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo began; read line; for n in 1 2 3 4 5 6 7 8 9 10; do echo $n; done; read line",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Program::spawn(&mut command);
        assert_eq!(shell.line().as_deref(), Some("began"));
        let mut traced = match Traced::attach(shell.pid(), "sh") {
            Ok(traced) => traced,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let mut input = shell.take_input();
        std::io::Write::write_all(&mut input, b"\n").unwrap();
        let calls = traced.count_until("ten lines", || shell.output().contains("10\n"));
        // A write for each line; reads of its input, and whatever else the shell does.
        assert!((10..100).contains(&calls), "{calls}");
        drop(traced);
        std::io::Write::write_all(&mut input, b"\n").unwrap();
        assert!(shell.wait().success());
    }
}
