//! The reporter: one ordinary thread that prints stalls, dumps, and libraries that were opened too
//! late.
//!
//! It may wait for the dynamic linker's lock, which unwinding and the list of libraries need and a
//! user thread may hold while it waits for its turn: the [watcher](super::watch), which gives
//! turns, never waits for this thread.

#[cfg(feature = "debug")]
use super::{dump::write_backtrace, signal, unwind::Unwinder};
use super::{opened::Opened, stall::Cause};
use crate::config::Config;
use crate::ground::stderr::print;
use crate::records::runtime::runtime;
use crate::thread::UserThread;
#[cfg(feature = "debug")]
use crate::verbs::snapshot::Snapshot;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Interval at which it checks for the dump signal and for opened libraries. Each check takes some
/// 15 us from a core on which the IOKernel may be polling, so they are rare.
const TICK: Duration = Duration::from_millis(500);

/// A stall, as the watcher saw it.
pub struct Observed {
    pub thread: UserThread,
    pub kthread: u16,
    pub cause: Cause,
    pub age: Duration,
    /// Number of stalls before this one that are not printed.
    pub left_out: usize,
    /// `None` if the thread did not answer the signal.
    #[cfg(feature = "debug")]
    pub snapshot: Option<Snapshot>,
}

/// Installs the dump signal's handler and starts the reporter, if anything is configured that it
/// prints.
///
/// # Errors
/// If no thread can be started.
pub fn start(config: &Config) -> io::Result<Option<SyncSender<Observed>>> {
    #[cfg(feature = "debug")]
    let on_signal = signal::install(config.dump_signal);
    #[cfg(not(feature = "debug"))]
    let on_signal = false;
    if config.stall_timeout.is_none() && !on_signal {
        return Ok(None);
    }
    let (sender, receiver) = sync_channel(1);
    let opened = Opened::until_now();
    std::thread::Builder::new().name("tailwater/reports".to_owned()).spawn(move || run(&receiver, opened))?;
    Ok(Some(sender))
}

fn run(stalls: &Receiver<Observed>, mut opened: Opened) {
    loop {
        #[cfg(feature = "debug")]
        if signal::take() {
            print(&super::dump().to_string());
        }
        opened.take_late().iter().for_each(|path| print(&late(path)));
        match stalls.recv_timeout(TICK) {
            Ok(observed) => report(&observed),
            Err(RecvTimeoutError::Timeout) => {}
            // There is no watcher.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
        }
    }
}

/// Returns the line about a library that was opened after the runtime had started.
fn late(path: &str) -> String {
    format!(
        "tailwater: error: {path} was opened after the runtime had started and has thread-locals of the initial-exec \
         model: user threads find zeros or another thread's values in them. Open it before the runtime starts, or run \
         the program with LD_PRELOAD={path}; calls within tailwater::blocking are right as it is\n"
    )
}

fn report(stall: &Observed) {
    print(&describe(stall));
    if stall.left_out > 0 {
        print(&format!("tailwater: {} more stalls before this one were left out\n", stall.left_out));
    }
}

fn describe(stall: &Observed) -> String {
    let Observed { thread, kthread, age, .. } = stall;
    let what = match stall.cause {
        Cause::NoPollPoint => "has reached no poll point",
        Cause::SystemCall => "has been in a blocking system call",
    };
    let only = if runtime().kthreads.len() == 1 { ", the only one" } else { "" };
    let said = |remedy| {
        let ms = age.as_millis();
        format!(
            "tailwater: user thread {thread} {what} for {ms} ms and holds up kthread {kthread}{only}: {remedy}\n"
        )
    };
    #[cfg(feature = "debug")]
    if let Some(snapshot) = &stall.snapshot {
        let mut unwinder = Unwinder::new();
        let mut text = said(remedy(stall.cause));
        write_backtrace(&mut text, &unwinder.backtrace(snapshot)).expect("a string takes all");
        return text;
    }
    said(remedy(stall.cause)) + NO_BACKTRACE
}

/// What stands in the place of the backtrace.
const NO_BACKTRACE: &str =
    if cfg!(feature = "debug") { "   no backtrace: it did not answer the signal\n" } else { "" };

fn remedy(cause: Cause) -> &'static str {
    match cause {
        Cause::NoPollPoint => {
            "call tailwater::poll() in long loops, and tailwater::thread::yield_now() where a loop waits for another \
             thread: std's yield_now lets no user thread run"
        }
        Cause::SystemCall => {
            "use tailwater::sync, tailwater::net and tailwater::time instead of what blocks in std, and \
             tailwater::blocking for other calls"
        }
    }
}
