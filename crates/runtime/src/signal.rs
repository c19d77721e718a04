//! Signals of the process that a thread waits for: SIGTERM and SIGINT to end, SIGHUP to read a
//! configuration again.
//!
//! Owns [`Signals`], which waits on an ordinary thread of the [blocking](fn@crate::blocking) pool
//! for what the handlers of the crate `signal-hook` note. Never changes a signal that the program
//! does not name, and the runtime's own are refused.
//!
//! # Examples
//! A service that is stopped in good order: it accepts no more, its clients get their answers, and
//! the end of `main` waits until they have them.
//! ```no_run
//! use tailwater::net::TcpListener;
//! use tailwater::signal::{SIGINT, SIGTERM, Signals};
//!
//! #[tailwater::main]
//! fn main() -> std::io::Result<()> {
//!     let mut signals = Signals::new([SIGTERM, SIGINT])?;
//!     let listener = TcpListener::bind("0.0.0.0:80")?;
//!     let ending = listener.try_clone()?;
//!     tailwater::thread::spawn(move || {
//!         signals.wait();
//!         ending.close();
//!     });
//!     tailwater::thread::scope(|scope| {
//!         for stream in listener.incoming() {
//!             scope.spawn(move || stream.map(drop));
//!         }
//!     });
//!     Ok(())
//! }
//! ```

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::FORBIDDEN;
use tailwater_shm::grant::PREEMPT_SIGNAL;

use crate::ground::stderr::print;

pub use signal_hook::consts::{
    SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};

/// Signals that a thread waits for. Their default action, which ends the process for most of them,
/// does not return when it is dropped.
///
/// Signals of one number that arrive before they are read count once, as pending signals of Linux
/// do. Every `Signals` that names a number gets each signal of it.
#[derive(Debug)]
pub struct Signals {
    received: signal_hook::iterator::Signals,
}

impl Signals {
    /// Receives `signals`, given as their numbers. Do so before the service answers, so that no
    /// signal finds the default action.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for the runtime's own signal, and for those
    /// that cannot be waited for: SIGKILL, SIGSTOP, SIGSEGV, SIGILL, SIGFPE and numbers that are no
    /// signals. Linux's, if no descriptor is left.
    pub fn new(signals: impl IntoIterator<Item = c_int>) -> io::Result<Self> {
        let signals: Vec<_> = signals.into_iter().collect();
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if signals.contains(&PREEMPT_SIGNAL) {
            return refused("SIGURG is the runtime's: it makes kthreads give up their cores; choose another");
        }
        if !signals.iter().all(|signal| (1..=libc::SIGRTMAX()).contains(signal)) {
            return refused("there is no signal of that number");
        }
        if signals.iter().any(|signal| FORBIDDEN.contains(signal)) {
            return refused("SIGKILL, SIGSTOP, SIGSEGV, SIGILL and SIGFPE cannot be waited for");
        }
        signal_hook::iterator::Signals::new(signals).map(|received| Self { received })
    }

    /// Waits for the next signal; returns its number. The caller waits without a core; one thread
    /// of the [blocking](fn@crate::blocking) pool waits with it.
    ///
    /// If this does not return within 30 s of SIGTERM, SIGINT or SIGQUIT, because the program is
    /// lent no core, the process ends by the signal after a line on standard error.
    pub fn wait(&mut self) -> c_int {
        let received = &mut self.received;
        let runs = Arc::new(AtomicBool::new(false));
        let signal = crate::blocking(|| {
            let signal = received.forever().next().expect("the signals are never closed");
            if ENDING.contains(&signal) {
                end_unless(Arc::clone(&runs), signal);
            }
            signal
        });
        runs.store(true, Ordering::Relaxed);
        signal
    }

    /// Returns the next signal that has arrived, `None` if there is none.
    pub fn try_wait(&mut self) -> Option<c_int> {
        self.received.pending().next()
    }
}

/// Signals that end a process.
const ENDING: [c_int; 3] = [SIGTERM, SIGINT, SIGQUIT];
/// Pause between two looks whether the waiting thread runs. Looks are counted, not time: a process
/// that is stopped meanwhile has as long afterwards.
const PAUSE: Duration = Duration::from_millis(100);
/// Looks until the process ends: 30 s. Service managers kill later (systemd after 90 s), and a
/// best-effort program may be without a core for seconds beside busy services.
const LOOKS: u32 = 300;

/// Ends the process by `signal`, which it has received, unless the thread that waits for it `runs`
/// in time.
fn end_unless(runs: Arc<AtomicBool>, signal: c_int) {
    let watch = move || {
        for _ in 0..LOOKS {
            if runs.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        let seconds = (PAUSE * LOOKS).as_secs();
        print(&format!(
            "tailwater: signal {signal} was received {seconds} s ago, and the thread that waits for it was lent no core \
             to handle it: the process ends\n"
        ));
        // Ends the process.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    };
    // Without a thread for it the process stays until it is lent a core, or killed.
    let _ = std::thread::Builder::new().name("tailwater/signal".to_owned()).spawn(watch);
}

/// Asks the earlier instance of this program to end in good order, if this one has taken its
/// place ([`RuntimeBuilder::replace`](crate::RuntimeBuilder::replace)): it gets SIGTERM. Call it
/// when all sockets are open. No effect without an earlier instance.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     let _listener = tailwater::net::TcpListener::bind("0.0.0.0:80")?;
///     tailwater::signal::end_earlier();
///     Ok(())
/// }
/// ```
pub fn end_earlier() {
    crate::blocking(crate::attach::end_earlier);
}

/// Returns whether a later instance of this program has taken its place
/// ([`RuntimeBuilder::replace`](crate::RuntimeBuilder::replace)): no new connection comes, and
/// those that are open are to be finished before the program ends.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     assert!(!tailwater::signal::is_replaced());
/// }
/// ```
pub fn is_replaced() -> bool {
    crate::attach::is_replaced()
}

/// Waits for SIGINT, which Ctrl-C sends. From the first call on it does not end the process.
///
/// # Errors
/// If there is no descriptor left for it.
///
/// # Examples
/// ```no_run
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     println!("Ctrl-C ends this program");
///     tailwater::signal::ctrl_c()
/// }
/// ```
pub fn ctrl_c() -> io::Result<()> {
    Signals::new([SIGINT])?.wait();
    Ok(())
}
