//! When the runtime starts, which threads enter it, and which addresses it serves.
//!
//! Owns the state of the process: nothing is started before the first socket that is served; a
//! forked child of a process with a runtime has none, and all its descriptors are the kernel's.

use crate::{forked, kernel, own, real};
use core::cell::Cell;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use core::time::Duration;
use std::net::SocketAddr;
use std::sync::OnceLock;
use tailwater::internals::SpinLock;
use tailwater::{RuntimeBuilder, resident};

/// Variable with the network of the IOKernel, which `tailwater run --posix` sets.
const NETWORK: &str = "TAILWATER_POSIX_NETWORK";

/// What the process is.
const IDLE: u8 = 0;
const STARTING: u8 = 1;
const RUNNING: u8 = 2;
/// The runtime could not be started, or this is the child of a process that has one.
const LINUX_ONLY: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// A protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// A place where this process listens in Tailwater.
struct Place {
    transport: Transport,
    at: SocketAddr,
    /// An IPv6 socket that takes IPv4, too (`IPV6_V6ONLY` is off).
    takes_both: bool,
}

/// What the process sends to loopback addresses finds these.
static LISTENING: SpinLock<Vec<Place>> = SpinLock::new(Vec::new());

/// Runs when the library is loaded, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    resident::prepare();
    // SAFETY: the function lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

thread_local! {
    /// Whether the thread may stay on kthreads: its end is seen.
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether descriptors may be served by the runtime, which runs.
#[inline]
pub fn is_running() -> bool {
    STATE.load(Ordering::Acquire) == RUNNING
}

/// Returns whether this process serves, or may begin to.
pub fn may_serve() -> bool {
    STATE.load(Ordering::Acquire) != LINUX_ONLY
}

/// Starts the runtime unless it runs. Returns whether it does.
pub fn ensure() -> bool {
    loop {
        match STATE.load(Ordering::Acquire) {
            RUNNING => return true,
            LINUX_ONLY => return false,
            STARTING => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                let claim = STATE.compare_exchange(IDLE, STARTING, Ordering::AcqRel, Ordering::Relaxed);
                if claim.is_ok() {
                    let state = if launch() { RUNNING } else { LINUX_ONLY };
                    STATE.store(state, Ordering::Release);
                }
            }
        }
    }
}

/// Makes waits of the C library waits of user threads, at the first call. That has to be before the
/// process has a second thread: when it starts one, or the runtime. Nothing is said of a failure
/// before a socket is served: see [`launch`].
///
/// # Errors
/// Why threads go home for these waits.
pub fn adopt_waits() -> Result<(), String> {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    TRIED.get_or_init(|| resident::adopt_waits().map_err(|error| error.to_string())).clone()?;
    let forked = || "the process was forked by one that had started threads".to_owned();
    resident::has_adopted_waits().then_some(()).ok_or_else(forked)
}

fn launch() -> bool {
    if let Err(why) = adopt_waits() {
        say(&format!("threads that wait for each other go back to their OS threads, which is slower: {why}"));
    }
    let before = own::open_descriptors();
    if let Err(error) = resident::start(RuntimeBuilder::new()) {
        say(&format!("{error}; this program goes on with Linux's network alone"));
        return false;
    }
    // On this ordinary thread: on a kthread, another thread of the runtime would have to start it,
    // and what the standard library allocates for a new thread would come from the program's
    // `malloc` there (see `resident::prepare`). Tried again later.
    let _ = kernel::start_thread();
    own::open_descriptors().into_iter().filter(|fd| !before.contains(fd)).for_each(own::add);
    // After the runtime's own entry, so that it runs before that: the end of the process is a
    // matter of the OS thread. SAFETY: the function lives as long as the process.
    unsafe { libc::atexit(end_at_home) };
    true
}

extern "C" fn end_at_home() {
    resident::go_home();
}

/// Runs in a forked child. One of a process that has started nothing may start by itself.
pub extern "C" fn forget() {
    if STATE.load(Ordering::Relaxed) != IDLE {
        STATE.store(LINUX_ONLY, Ordering::Release);
        forked::abandon();
        resident::forget();
    }
}

/// Writes a line to standard error.
pub fn say(what: &str) {
    let line = format!("tailwater: {what}\n");
    // SAFETY: the bytes of a string. A line that cannot be written is lost.
    unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Writes a line once, at the first call with `said`.
pub fn say_once(said: &AtomicBool, what: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        say(what);
    }
}

/// Marks the calling thread as one whose end is seen.
pub fn stay() {
    STAYS.set(true);
}

/// Forgets what the calling thread has, before it ends.
pub fn leave() {
    if STAYS.replace(false) {
        resident::retire();
    }
}

/// A served call, during which the caller is on a kthread.
pub struct Call {
    returns: bool,
}

impl Call {
    /// Moves the caller, whom the program has called, to a kthread; `None` where that is
    /// impossible.
    #[inline]
    pub fn begin() -> Option<Self> {
        resident::begin_call();
        Self::within()
    }

    /// As [`begin`](Self::begin), in the middle of a call.
    #[inline]
    pub fn within() -> Option<Self> {
        if resident::is_away() {
            return Some(Self { returns: false });
        }
        Self::begin_from_home()
    }

    /// A call that moves by [`resident::with_mask`]; what the thread got for it is given back.
    pub fn at_home() -> Self {
        // SAFETY: no preconditions.
        let is_main = || unsafe { libc::gettid() == libc::getpid() };
        if !STAYS.get() && is_main() {
            STAYS.set(true);
        }
        Self { returns: !STAYS.get() }
    }

    #[cold]
    fn begin_from_home() -> Option<Self> {
        let call = Self::at_home();
        if resident::enter() {
            return Some(call);
        }
        // There is nothing to give back.
        core::mem::forget(call);
        None
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if self.returns {
            let errno = real::errno();
            resident::retire();
            real::fail(errno);
        }
    }
}

/// Returns whether what is sent to `to` is served: an address of Tailwater's network, or a loopback
/// address where this process listens.
pub fn serves(transport: Transport, to: SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return is_running() && listens_at(transport, ip, to.port());
    }
    if is_running() { tailwater::net::is_local(ip) } else { may_serve() && is_expected(ip) }
}

fn listens_at(transport: Transport, ip: IpAddr, port: u16) -> bool {
    let serves = |place: &Place| place.is_at(transport, port) && (ip.is_unspecified() || place.covers(ip));
    LISTENING.lock().iter().any(serves)
}

impl Place {
    fn is_at(&self, transport: Transport, port: u16) -> bool {
        self.transport == transport && self.at.port() == port
    }

    /// Returns whether what comes for `ip` arrives here, for all addresses if it is unspecified.
    fn covers(&self, ip: IpAddr) -> bool {
        let at = self.at.ip();
        let takes = at.is_unspecified() && (at.is_ipv4() == ip.is_ipv4() || at.is_ipv6() && self.takes_both);
        takes || at.to_canonical() == ip
    }
}

/// Returns whether this process listens in Tailwater at all that a listener at `at` would have.
pub fn listens_on(transport: Transport, at: SocketAddr) -> bool {
    let ip = at.ip().to_canonical();
    LISTENING.lock().iter().any(|place| place.is_at(transport, at.port()) && place.covers(ip))
}

/// Records that this process listens at `at` in Tailwater. With `takes_both`, an IPv6 socket takes
/// IPv4, too.
pub fn note_listening(transport: Transport, at: SocketAddr, takes_both: bool) {
    LISTENING.lock().push(Place { transport, at, takes_both });
}

/// Records that it does not any more. A port may have several listeners, at addresses of their own;
/// a UDP socket's address may have changed since, when it was connected.
pub fn forget_listening(transport: Transport, at: SocketAddr) {
    let mut listening = LISTENING.lock();
    let exact = listening.iter().position(|place| place.transport == transport && place.at == at);
    let index = exact.or_else(|| listening.iter().position(|place| place.is_at(transport, at.port())));
    if let Some(index) = index {
        listening.swap_remove(index);
    }
}

/// Returns whether `ip` is in a network that the starter has named.
fn is_expected(ip: IpAddr) -> bool {
    static EXPECTED: OnceLock<Vec<(IpAddr, u32)>> = OnceLock::new();
    EXPECTED.get_or_init(read_networks).iter().any(|&network| contains(network, ip))
}

/// Reads the networks that the starter has named; none, which is said, if one cannot be read.
fn read_networks() -> Vec<(IpAddr, u32)> {
    let Some(text) = resident::variable(NETWORK) else { return Vec::new() };
    let text = text.to_string_lossy();
    text.split(',').map(parse_network).collect::<Option<_>>().unwrap_or_else(|| {
        say(&format!(
            "{NETWORK}={text}: not ADDRESS/BITS, as 10.77.0.0/16, or several joined by commas; connections before the \
             registration are Linux's"
        ));
        Vec::new()
    })
}

fn parse_network(text: &str) -> Option<(IpAddr, u32)> {
    let (ip, bits) = text.split_once('/')?;
    let (ip, bits): (IpAddr, u32) = (ip.parse().ok()?, bits.parse().ok()?);
    (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, bits))
}

fn contains((network, bits): (IpAddr, u32), ip: IpAddr) -> bool {
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => (u32::from(network) ^ u32::from(ip)).leading_zeros() >= bits,
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            (u128::from(network) ^ u128::from(ip)).leading_zeros() >= bits
        }
        _ => false,
    }
}
