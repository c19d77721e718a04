//! A batch job from its start to the end of its last process.
//!
//! Owns the supervision: the calling process adopts what the job leaves behind
//! (`PR_SET_CHILD_SUBREAPER`, prctl(2)), keeps it under its conditions (`keep`), passes signals
//! on, answers questions ([`Desk`]), and has the program's exit status. The job leads a session of
//! its own, so a terminal's signals reach the supervisor only.
//!
//! | signal to the supervisor | does |
//! |---|---|
//! | INT, TERM, HUP, QUIT, USR1, USR2 | is sent to the job's process group, or to all its processes once its first one has ended or left it |
//! | TSTP | stops the group (STOP: a terminal's own would be ignored there), then the supervisor |
//! | CONT | continues the group |
//!
//! Where `/proc` is of another PID namespace ([`own`]) the job's processes are not known: signals
//! reach the process group only, nothing is kept, and no usage is told.
//!
//! A process that is no child ([`Supervisor::watch`]) gets no signals: INT, TERM, HUP and QUIT end
//! the supervision.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::keep::{Keeper, PART};
use crate::notice::{Desk, Notice};
use crate::proc::{descendants, own};
use crate::usage::{Account, Usage};

/// Time between two samples of what the job got.
const PERIOD: Duration = Duration::from_secs(1);

/// The signals that are handled.
const SIGNALS: [i32; 9] = [SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2];

/// The calling process as the supervisor of a job.
pub struct Supervisor {
    signals: SignalDelivery<UnixStream, SignalOnly>,
    handle: Handle,
    desk: Option<Desk>,
}

impl Supervisor {
    /// Makes the calling process one. Without a desk the job is not listed.
    ///
    /// # Errors
    /// Linux's.
    pub fn new() -> io::Result<Self> {
        // An empty set asks for it, so the own number, which Linux only compares with 0.
        set_child_subreaper(Some(getpid()))?;
        let (read, write) = UnixStream::pair()?;
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, SIGNALS)?;
        let handle = signals.handle();
        Ok(Self { signals, handle, desk: Desk::open().ok() })
    }

    /// Starts the program and waits until it and all that it has started have ended. Returns the
    /// status of the program. `notice` describes the job, whose number and usage are filled in, and
    /// which is kept on the cores in it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(mut self, command: &mut Command, mut notice: Notice) -> io::Result<ExitStatus> {
        let child = command.spawn()?;
        let first = Pid::from_child(&child);
        notice.pid = first.as_raw_nonzero().get();
        let mut account = Account::of_descendants(own());
        let mut keeper = own().map(|own| Keeper::of_descendants(own, &notice.cores));
        let mut status = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, ended))) if pid == first => {
                    status = Some(ExitStatus::from_raw(ended.as_raw()));
                    continue;
                }
                Ok(Some(_)) | Err(Errno::INTR) => continue,
                Ok(None) => {}
                // No child is left.
                Err(_) => break,
            }
            self.wait_for_event(keeper.as_ref().map_or(PERIOD, Keeper::remaining));
            for signal in self.signals.pending().collect::<Vec<_>>() {
                // Waited for, its number may be that of another process group.
                pass(signal, status.is_none().then_some(first));
            }
            if let Some(keeper) = &mut keeper {
                keeper.look();
            }
            self.answer(Some(&mut account), &notice);
        }
        self.handle.close();
        // `None` only where another part of the process has waited for the child.
        Ok(status.unwrap_or_default())
    }

    /// Waits until a signal asks this process to end, or `goes_on` returns false. That is called
    /// once a second, or less often if it takes more than a hundredth of a core: questions, which
    /// every user may ask, do not make it more often. `notice` describes the job, whose usage is
    /// that of a group.
    pub fn watch(mut self, account: Account, notice: &Notice, mut goes_on: impl FnMut() -> bool) {
        // Where /proc has other processes by these numbers, their usage would be told.
        let mut account = own().map(|_| account);
        let mut due = Instant::now();
        loop {
            let begun = Instant::now();
            if due <= begun {
                if !goes_on() {
                    break;
                }
                due = begun + PERIOD.max(PART * begun.elapsed());
            }
            self.wait_for_event(due.saturating_duration_since(Instant::now()));
            for signal in self.signals.pending().collect::<Vec<_>>() {
                match signal {
                    SIGINT | SIGTERM | SIGHUP | SIGQUIT => return self.handle.close(),
                    SIGTSTP => {
                        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
                    }
                    _ => {}
                }
            }
            self.answer(account.as_mut(), notice);
        }
        self.handle.close();
    }

    /// Samples what the job got, and answers those that ask.
    fn answer(&self, account: Option<&mut Account>, notice: &Notice) {
        let usage = account.map_or_else(Usage::default, |account| account.usage().clone());
        if let Some(desk) = &self.desk {
            desk.answer(|| Notice { usage: usage.clone(), ..notice.clone() });
        }
    }

    /// Waits for a signal, a question, the next sample, or as long as this.
    fn wait_for_event(&self, most: Duration) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.get_read().as_fd(), PollFlags::IN)];
        fds.extend(self.desk.iter().map(|desk| PollFd::new(desk.listener(), PollFlags::IN)));
        let most = most.min(PERIOD);
        let timeout = Timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: most.subsec_nanos().into() };
        // Interrupted by a signal: it is pending then.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

/// Passes a signal to the job with this first process, unless that was waited for.
fn pass(signal: i32, first: Option<Pid>) {
    match signal {
        SIGCHLD => {}
        SIGTSTP => {
            send(Signal::STOP, first);
            // Stops until SIGCONT.
            let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        }
        other => {
            if let Some(signal) = Signal::from_named_raw(other) {
                send(signal, first);
            }
        }
    }
}

/// Sends a signal to the process group of the first process; to all processes of the job if there
/// is no such group.
fn send(signal: Signal, first: Option<Pid>) {
    if first.is_some_and(|first| kill_process_group(first, signal).is_ok()) {
        return;
    }
    for pid in own().map(descendants).into_iter().flatten().skip(1).filter_map(Pid::from_raw) {
        // One that has just ended needs none.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::tests::NAME;
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;

    #[test]
    fn questions_do_not_make_the_looks_at_a_job_more_frequent() {
        let _name = NAME.lock().unwrap();
        let supervisor = Supervisor::new().unwrap();
        assert!(supervisor.desk.is_some());
        let folder = tempfile::tempdir().unwrap();
        let notice = Notice {
            name: "xz".into(),
            pid: 7,
            iokernel: "@here".into(),
            cores: vec![1],
            group: None,
            usage: Usage::default(),
        };
        let (has_ended, answers) = (AtomicBool::new(false), AtomicU32::new(0));
        let (begun, mut looks) = (Instant::now(), 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let name = format!("tailwater-batch-{}", std::process::id());
                let address = SocketAddr::from_abstract_name(name).unwrap();
                let ask = || UnixStream::connect_addr(&address)?.read_to_end(&mut Vec::new());
                while !has_ended.load(Ordering::Relaxed) {
                    answers.fetch_add(ask().is_ok().into(), Ordering::Relaxed);
                }
            });
            supervisor.watch(Account::of_group(folder.path()), &notice, || {
                looks += 1;
                looks < 2 || answers.load(Ordering::Relaxed) < 10
            });
            has_ended.store(true, Ordering::Relaxed);
        });
        let passed = begun.elapsed();
        assert!(passed >= PERIOD * (looks - 1), "{looks} looks and {answers:?} answers within {passed:?}");
    }
}
