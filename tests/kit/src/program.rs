//! Child processes: locating programs of the workspace, starting them, reading their output, and
//! waiting for their end.
//!
//! A [`Program`] is killed and waited for on drop, also by a test that panics, which prints what it
//! wrote to a piped standard error. A thread reads each of its piped outputs, so that the program
//! never blocks on a full pipe; every wait for a line or for its end has a bound.
//!
//! Programs start with the default dispositions of the signals that shells and nohup ignore in
//! background jobs, whatever the test itself was started with (SIGQUIT, for example, makes a
//! Tailwater program print its threads), and with no `TAILWATER_` setting but those of their test.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{FREE, LOOK, SLICE, Wait};

/// Returns the path of the program `name` of the workspace's package `package`.
///
/// # Panics
/// If it is not built: `cargo test --workspace` builds all of them, `cargo test -p` those of its
/// own package.
pub fn binary(package: &str, name: &str) -> PathBuf {
    // target/PROFILE/deps/TEST -> target/PROFILE/name
    let test = std::env::current_exe().expect("the test has a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("the test is in target/PROFILE/deps");
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing; build it: cargo build -p {package}", path.display());
    path
}

/// Removes the settings of Tailwater programs that the test has inherited, so that a developer's
/// shell does not change a test; those that the test has set itself stay.
fn without_settings(command: &mut Command) -> &mut Command {
    let set: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TAILWATER_") && !set.contains(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Restores the default dispositions of the signals that shells and nohup ignore in background
/// jobs, for the program that `command` starts.
fn with_default_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure makes system calls only, which are
    // async-signal-safe; no handler is installed.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    }
}

/// What a pipe holds at most (pipe(7)).
const PIPE: usize = 1 << 16;

/// An output of a program, and what was read from it.
#[derive(Debug)]
struct Stream {
    pipe: OwnedFd,
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamState {
    bytes: Vec<u8>,
    ended: bool,
    /// Number of bytes that [`Stream::line`] has returned.
    taken: usize,
}

impl Stream {
    /// Reads a pipe to its end on its own thread.
    fn read(pipe: OwnedFd) -> Arc<Self> {
        let stream = Arc::new(Self { pipe, state: Mutex::default(), changed: Condvar::new() });
        let reader = Arc::clone(&stream);
        std::thread::spawn(move || {
            while !reader.lock().ended {
                // Without the lock: what is there by then is taken under it.
                let _ = poll(&mut [PollFd::new(&reader.pipe, PollFlags::IN)], None);
                reader.take(&mut reader.lock());
                reader.changed.notify_all();
            }
        });
        stream
    }

    /// Takes what is in the pipe, without waiting for more.
    fn take(&self, state: &mut StreamState) {
        let now = Timespec::default();
        if state.ended || poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&now)) != Ok(1) {
            return;
        }
        let mut chunk = vec![0; PIPE];
        match rustix::io::read(&self.pipe, &mut chunk) {
            Ok(len @ 1..) => state.bytes.extend_from_slice(&chunk[..len]),
            Err(Errno::INTR) => {}
            // A failed read ends the stream.
            Ok(0) | Err(_) => state.ended = true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what was written until now: all of it, if the program has ended.
    fn text(&self) -> String {
        let mut state = self.lock();
        self.take(&mut state);
        text(&state.bytes)
    }

    /// Returns the next line without its end, `None` at the end of the stream, an error if it does
    /// not come in time.
    fn line(&self) -> Result<Option<String>, TooLate> {
        let mut wait = Wait::new();
        let mut state = self.lock();
        loop {
            let rest = &state.bytes[state.taken..];
            let (len, skip) = match rest.iter().position(|&byte| byte == b'\n') {
                Some(at) => (at, at + 1),
                None if state.ended && rest.is_empty() => return Ok(None),
                None if state.ended => (rest.len(), rest.len()),
                None => {
                    state = self.wait(state, &mut wait)?;
                    continue;
                }
            };
            let line = text(&rest[..len]);
            state.taken += skip;
            return Ok(Some(line));
        }
    }

    /// Passes over all lines that were written until now.
    fn forget_lines(&self) {
        let mut state = self.lock();
        self.take(&mut state);
        if let Some(end) = state.bytes.iter().rposition(|&byte| byte == b'\n') {
            state.taken = state.taken.max(end + 1);
        }
    }

    /// Returns all bytes, once the stream has ended.
    fn finish(&self) -> Result<Vec<u8>, TooLate> {
        let mut wait = Wait::new();
        let mut state = self.lock();
        while !state.ended {
            state = self.wait(state, &mut wait)?;
        }
        Ok(state.bytes.clone())
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, StreamState>,
        wait: &mut Wait,
    ) -> Result<MutexGuard<'a, StreamState>, TooLate> {
        if wait.is_over() {
            return Err(TooLate);
        }
        Ok(self.changed.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// What was waited for has not happened in time.
#[derive(Debug)]
struct TooLate;

/// A child process; see the module's documentation.
#[derive(Debug)]
pub struct Program {
    words: String,
    process: Child,
    output: Option<Arc<Stream>>,
    errors: Option<Arc<Stream>>,
}

impl Program {
    /// Starts `command` without input and reads its output.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts `command` with the input and outputs it was given, and reads those that are pipes.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        Self::try_spawn(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// As [`spawn`](Self::spawn), for a program that this user may not be able to start.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn try_spawn(command: &mut Command) -> io::Result<Self> {
        let mut program = Self::launch(command)?;
        program.output = program.process.stdout.take().map(|pipe| Stream::read(pipe.into()));
        program.errors = program.process.stderr.take().map(|pipe| Stream::read(pipe.into()));
        Ok(program)
    }

    /// Starts `command` with the input and outputs it was given; reading pipes is left to the test.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn_unread(command: &mut Command) -> Self {
        Self::launch(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    fn launch(command: &mut Command) -> io::Result<Self> {
        let process = without_settings(with_default_signals(command)).spawn()?;
        Ok(Self { words: format!("{command:?}"), process, output: None, errors: None })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the process itself, for other operations.
    pub fn process(&mut self) -> &mut Child {
        &mut self.process
    }

    /// Returns its piped input; dropping that ends the input.
    ///
    /// # Panics
    /// If the input is no pipe, or was taken before.
    pub fn take_input(&mut self) -> ChildStdin {
        self.process.stdin.take().expect("a piped input")
    }

    /// Returns the next line of its output; `None` at the end.
    ///
    /// # Panics
    /// If none comes in time, or if its output is not read.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        let line = self.output.as_ref().expect("the output is read").line();
        line.unwrap_or_else(|TooLate| self.fail("printed no line"))
    }

    /// Returns a line of its output that it began after this call: of a program that prints how it
    /// stands, older lines are about the past. `None` at the end.
    ///
    /// # Panics
    /// As [`line`](Self::line).
    #[track_caller]
    pub fn fresh_line(&mut self) -> Option<String> {
        self.output.as_ref().expect("the output is read").forget_lines();
        // The program may have begun the next line before.
        self.line()?;
        self.line()
    }

    /// Returns the next line of its output that contains `part`; lines before it are skipped.
    ///
    /// # Panics
    /// At the end of its output, without a line in time, or if its output is not read.
    #[track_caller]
    pub fn line_with(&mut self, part: &str) -> String {
        loop {
            match self.line() {
                Some(line) if line.contains(part) => return line,
                Some(_) => {}
                None => self.fail(&format!("printed no line with {part:?} before its output ended")),
            }
        }
    }

    /// Returns what follows `prefix` in the next line of its output that begins with it; lines
    /// before it are skipped.
    ///
    /// # Panics
    /// As [`line_with`](Self::line_with).
    #[track_caller]
    pub fn line_after(&mut self, prefix: &str) -> String {
        loop {
            if let Some(rest) = self.line_with(prefix).strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }

    /// Calls `heard` with each further line of its output, on a thread of its own.
    ///
    /// # Panics
    /// If its output is not read.
    pub fn each_line(&self, mut heard: impl FnMut(&str) + Send + 'static) {
        let output = Arc::clone(self.output.as_ref().expect("the output is read"));
        std::thread::spawn(move || {
            loop {
                match output.line() {
                    Ok(Some(line)) => heard(&line),
                    Ok(None) => return,
                    // It has nothing to say for now.
                    Err(TooLate) => {}
                }
            }
        });
    }

    /// Returns the next line of its standard error; `None` at the end.
    ///
    /// # Panics
    /// If none comes in time, or if its standard error is not read.
    #[track_caller]
    pub fn error_line(&mut self) -> Option<String> {
        let line = self.errors.as_ref().expect("the standard error is read").line();
        line.unwrap_or_else(|TooLate| self.fail("wrote no line to its standard error"))
    }

    /// Returns the next line of its standard error that contains `part`; lines before it are
    /// skipped.
    ///
    /// # Panics
    /// At the end of its standard error, without a line in time, or if it is not read.
    #[track_caller]
    pub fn error_line_with(&mut self, part: &str) -> String {
        loop {
            match self.error_line() {
                Some(line) if line.contains(part) => return line,
                Some(_) => {}
                None => self.fail(&format!("wrote no line with {part:?} to its standard error")),
            }
        }
    }

    /// Returns its output so far; nothing if its output is not read.
    pub fn output(&self) -> String {
        self.output.as_ref().map_or_else(String::new, |output| output.text())
    }

    /// Returns its standard error so far; nothing if that is not read.
    pub fn errors(&self) -> String {
        self.errors.as_ref().map_or_else(String::new, |errors| errors.text())
    }

    /// Sends `signal`.
    ///
    /// # Panics
    /// If the process was waited for already.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal)
            .unwrap_or_else(|error| panic!("{}: {error}", self.words));
    }

    /// Returns whether it has not ended.
    ///
    /// # Panics
    /// If the system has lost it.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("the child is ours").is_none()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // Fails if the process was waited for already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits for its end; `None` if it still runs after `bound` of a machine that is free, and
    /// later on a busy one.
    ///
    /// # Panics
    /// If the system has lost it.
    pub fn wait_for(&mut self, bound: Duration) -> Option<ExitStatus> {
        let mut wait = Wait::of(bound);
        loop {
            let status = self.process.try_wait().expect("the child is ours");
            if status.is_some() || wait.is_over() {
                return status;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_for(FREE).unwrap_or_else(|| self.fail("does not end"))
    }

    /// Waits for its end; returns its status and everything it wrote to outputs that are read.
    ///
    /// # Panics
    /// If it does not end in time; also if it has ended and left its output open to a child process
    /// of its own.
    #[track_caller]
    pub fn finish(self) -> Output {
        self.finish_within(FREE)
    }

    /// As [`finish`](Self::finish), for a program that runs for longer.
    ///
    /// # Panics
    /// After `bound`; also if it has ended and left its output open to a child process of its own.
    #[track_caller]
    pub fn finish_within(mut self, bound: Duration) -> Output {
        let status = self.wait_for(bound).unwrap_or_else(|| self.fail("does not end"));
        let all =
            |stream: &Option<Arc<Stream>>| stream.as_ref().map_or(Ok(Vec::new()), |stream| stream.finish());
        let (Ok(stdout), Ok(stderr)) = (all(&self.output), all(&self.errors)) else {
            self.fail("has ended, and its output is still open");
        };
        Output { status, stdout, stderr }
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "{} {what} in time; its output so far:\n{}\nand its standard error:\n{}",
            self.words,
            self.output(),
            self.errors()
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() && self.errors.is_some() {
            eprintln!("{} has written to its standard error:\n{}", self.words, self.errors());
        }
    }
}

/// Runs `command` to its end with `input`, and returns its output.
///
/// # Panics
/// If it cannot be started, or does not end in time.
#[track_caller]
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut program =
        Program::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut pipe = program.take_input();
    let input = input.to_vec();
    // Fails if the program ends before it has read all.
    std::thread::spawn(move || drop(pipe.write_all(&input)));
    program.finish()
}

/// Returns the output of a program as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_read_one_by_one_and_the_rest_at_the_end() {
        let mut program =
            Program::start(&mut shell("echo one; echo two; echo at 7; printf end; echo wrong >&2; exit 3"));
        assert_eq!(program.line().as_deref(), Some("one"));
        assert_eq!(program.line_after("at "), "7");
        assert_eq!(program.line().as_deref(), Some("end"));
        assert_eq!(program.line(), None);
        let output = program.finish();
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"one\ntwo\nat 7\nend"[..]));
        assert_eq!(output.stderr, b"wrong\n");
    }

    #[test]
    fn what_a_program_wrote_is_there_once_it_has_ended() {
        for _ in 0..100 {
            let mut program = Program::start(&mut shell("echo why >&2; kill $$"));
            assert_eq!(program.wait().signal(), Some(Signal::TERM.as_raw()));
            assert_eq!(program.errors(), "why\n");
        }
    }

    #[test]
    fn input_larger_than_a_pipe_passes_and_one_that_is_not_read_does_no_harm() {
        let input = vec![b'x'; 1 << 20];
        assert_eq!(run(&mut shell("cat"), &input).stdout, input);
        assert!(run(&mut shell("exit 0"), &input).status.success());
    }

    #[test]
    fn a_program_starts_with_default_signals_and_ends_with_its_owner() {
        // SAFETY: ignoring a signal installs no handler, and no test here needs this one.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_IGN) };
        let program = Program::start(&mut shell("echo started; exec sleep 1000"));
        let pid = program.pid();
        // proc_pid_status(5): bit 2 is signal 3, SIGQUIT.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 0b100, 0, "{status}");
        drop(program);
        assert!(!crate::is_running(pid));
    }

    #[test]
    #[should_panic(expected = "before its output ended")]
    fn a_program_that_ends_without_the_line_fails_the_test() {
        Program::start(&mut shell("echo other")).line_with("listening");
    }
}
