//! Signals of the process that a thread waits for: SIGTERM and SIGINT to end, SIGHUP to read a
//! configuration again.
//!
//! Owns [`Signals`], which waits on an ordinary thread of the [blocking](fn@crate::blocking) pool
//! for what the handlers of the crate `signal-hook` note, and the thread that ends a process which
//! is lent no core to read its SIGTERM. Never changes a signal that the program does not name, and
//! the runtime's own are refused.
//!
//! # Examples
//! A service that is stopped in good order: it accepts no more, its clients get their answers, and
//! the end of `main` waits until they have them.
//! ```no_run,standalone_crate
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
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::consts::FORBIDDEN;
use signal_hook::iterator::{Handle, Signals as Arrivals};
use tailwater_shm::grant::PREEMPT_SIGNAL;

use crate::ground::stderr::print;
use crate::records::kthread::NO_CORE;
use crate::records::runtime;
use crate::verbs::look::any_work_visible;

pub use signal_hook::consts::{
    SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};

/// Signals that a thread waits for. Their default action, which ends the process for most of them,
/// does not return when it is dropped.
///
/// Signals of one number that arrive before they are read count once, as pending signals of Linux
/// do. Every `Signals` that names a number gets each signal of it.
///
/// A program that is lent no core cannot read a signal. So SIGTERM, if it is named here, ends the
/// process after a line on standard error once it has not been read for 30 s during which threads
/// waited for a core and no kthread had one. Time during which a kthread computes does not count.
#[derive(Debug)]
pub struct Signals {
    received: Arrivals,
    watch: Option<Watch>,
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
        let watch = signals.contains(&SIGTERM).then(Watch::register).transpose()?;
        let received = Arrivals::new(signals)?;
        Ok(Self { received, watch: watch.map(|(watch, arrivals)| watch.begin(arrivals)) })
    }

    /// Waits for the next signal; returns its number. The caller waits without a core; one thread
    /// of the [blocking](fn@crate::blocking) pool waits with it.
    pub fn wait(&mut self) -> c_int {
        let received = &mut self.received;
        let signal = crate::blocking(|| received.forever().next().expect("the signals are never closed"));
        self.note_read(signal);
        signal
    }

    /// Returns the next signal that has arrived, `None` if there is none.
    pub fn try_wait(&mut self) -> Option<c_int> {
        let signal = self.received.pending().next()?;
        self.note_read(signal);
        Some(signal)
    }

    fn note_read(&self, signal: c_int) {
        if signal == SIGTERM
            && let Some(watch) = &self.watch
        {
            watch.unread.store(false, Relaxed);
        }
    }
}

/// Pause between two looks whether the program has a core.
const PAUSE: Duration = Duration::from_millis(100);
/// Looks in a row without a core after which the process ends: 30 s. Service managers kill later
/// (systemd after 90 s), and a best-effort program may be without a core for seconds beside busy
/// services. Looks are counted, not time: a process that is stopped has as long afterwards.
static LOOKS: AtomicU32 = AtomicU32::new(300);

/// Sets the number of looks, 100 ms apart, at which a program with an unread SIGTERM must be seen
/// without a core before it ends. For tests.
#[doc(hidden)]
pub fn set_looks_before_end(looks: u32) {
    LOOKS.store(looks, Relaxed);
}

/// A thread that ends the process by a SIGTERM which is not read because no core is lent. It waits
/// for the signal itself: a thread that reads another one first might never get to this one.
#[derive(Debug)]
struct Watch {
    /// True from the arrival of a SIGTERM until one is read. Set by its handler, which was
    /// registered before those that wait for the signal: it is not set once that is read.
    unread: Arc<AtomicBool>,
    setter: SigId,
    arrivals: Handle,
}

impl Watch {
    fn register() -> io::Result<(Self, Arrivals)> {
        let unread = Arc::new(AtomicBool::new(false));
        let setter = signal_hook::flag::register(SIGTERM, Arc::clone(&unread))?;
        let arrivals = Arrivals::new([SIGTERM]).inspect_err(|_| {
            signal_hook::low_level::unregister(setter);
        })?;
        Ok((Self { unread, setter, arrivals: arrivals.handle() }, arrivals))
    }

    /// Starts the thread. By now the handlers that wait for the signal are registered.
    fn begin(self, mut arrivals: Arrivals) -> Self {
        if self.unread.load(Relaxed) {
            // It may have arrived before those were: it is not lost. Twice counts once.
            let _ = signal_hook::low_level::raise(SIGTERM);
        }
        let unread = Arc::clone(&self.unread);
        let run = move || {
            for _ in arrivals.forever() {
                end_unless_read(&unread);
            }
        };
        // Not from a kthread, whose core and priority it would inherit. Without this thread the
        // process stays until it is lent a core, or killed.
        let _ =
            crate::blocking(|| std::thread::Builder::new().name("tailwater/signal".to_owned()).spawn(run));
        self
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.setter);
        self.unread.store(false, Relaxed);
        self.arrivals.close();
    }
}

/// Ends the process by SIGTERM, which has arrived, once it lacks a core for too long; returns when
/// the signal has been read.
fn end_unless_read(unread: &AtomicBool) {
    let (mut lacking, bound) = (0, LOOKS.load(Relaxed));
    while lacking < bound {
        if !unread.load(Relaxed) {
            return;
        }
        std::thread::sleep(PAUSE);
        lacking = if lacks_core() { lacking + 1 } else { 0 };
    }
    if unread.load(Relaxed) {
        print(&format!(
            "tailwater: SIGTERM has not been read, and the program was lent no core for it in {:?}: the process ends\n",
            PAUSE * bound
        ));
        // Ends the process.
        let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
    }
}

/// Returns whether an IOKernel lends the cores, no kthread has one, and there is work for one.
fn lacks_core() -> bool {
    let Some(runtime) = runtime::started().filter(|runtime| runtime.is_attached()) else { return false };
    let now = tailwater_shm::clock::now();
    // Relaxed: each answer may be stale, and many in a row are needed.
    runtime.kthreads.iter().all(|kthread| kthread.core.load(Relaxed) == NO_CORE)
        && runtime.kthreads.iter().any(|kthread| any_work_visible(kthread, runtime, now))
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
/// ```no_run,standalone_crate
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
