//! How a runtime is configured: [`Builder`] first, then `TAILWATER_*` variables, then a TOML file.
//!
//! What the builder sets is the program's decision and wins; variables are the operator's; the file (named by
//! `TAILWATER_CONFIG`) is for what is the same on every start. All three know the same settings, and an unknown or
//! malformed one is an error that names where it stands.

use crate::runtime::StartError;
use serde::Deserialize;
use std::net::Ipv4Addr;
use std::time::Duration;
pub use tailwater_shm::control::Class;

/// Smallest stack: a preempt signal's frame with AVX-512 state takes 4 KiB of it.
pub(crate) const MIN_STACK: usize = 16 * 1024;
const DEFAULT_STACK: usize = 256 * 1024;
const DEFAULT_IDLE: Duration = Duration::from_micros(50);
/// Bytes of each packet ring unless configured otherwise.
pub(crate) const DEFAULT_RING: u32 = 256 * 1024;
const DEFAULT_STALL: Duration = Duration::from_millis(100);
const DEFAULT_BLOCKING_THREADS: u16 = 256;
const MAX_BLOCKING_THREADS: u16 = 4096;

/// Settings as one source gives them. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Partial {
    iokernel: Option<String>,
    name: Option<String>,
    kthreads: Option<u16>,
    guaranteed: Option<u16>,
    class: Option<Class>,
    ip: Option<Ipv4Addr>,
    stack_size: Option<usize>,
    idle_timeout_us: Option<u64>,
    ring_bytes: Option<u32>,
    blocking_threads: Option<u16>,
    stall_timeout_ms: Option<u64>,
    dump_signal: Option<DumpSignal>,
    /// The program's promise, which an operator cannot make for it.
    #[serde(skip)]
    shared_tls: bool,
    quantum_us: Option<u64>,
    tcp_connections: Option<u32>,
    packet_stealing: Option<bool>,
}

impl Partial {
    fn or(self, next: Self) -> Self {
        Self {
            iokernel: self.iokernel.or(next.iokernel),
            name: self.name.or(next.name),
            kthreads: self.kthreads.or(next.kthreads),
            guaranteed: self.guaranteed.or(next.guaranteed),
            class: self.class.or(next.class),
            ip: self.ip.or(next.ip),
            stack_size: self.stack_size.or(next.stack_size),
            idle_timeout_us: self.idle_timeout_us.or(next.idle_timeout_us),
            ring_bytes: self.ring_bytes.or(next.ring_bytes),
            blocking_threads: self.blocking_threads.or(next.blocking_threads),
            stall_timeout_ms: self.stall_timeout_ms.or(next.stall_timeout_ms),
            dump_signal: self.dump_signal.or(next.dump_signal),
            shared_tls: self.shared_tls || next.shared_tls,
            quantum_us: self.quantum_us.or(next.quantum_us),
            tcp_connections: self.tcp_connections.or(next.tcp_connections),
            packet_stealing: self.packet_stealing.or(next.packet_stealing),
        }
    }

    fn from_environment() -> Result<Self, StartError> {
        Ok(Self {
            iokernel: variable("TAILWATER_IOKERNEL")?,
            name: variable("TAILWATER_NAME")?,
            kthreads: variable("TAILWATER_KTHREADS")?,
            guaranteed: variable("TAILWATER_GUARANTEED")?,
            class: variable::<ClassName>("TAILWATER_CLASS")?.map(|c| c.0),
            ip: variable("TAILWATER_IP")?,
            stack_size: variable("TAILWATER_STACK_SIZE")?,
            idle_timeout_us: variable("TAILWATER_IDLE_TIMEOUT_US")?,
            ring_bytes: variable("TAILWATER_RING_BYTES")?,
            blocking_threads: variable("TAILWATER_BLOCKING_THREADS")?,
            stall_timeout_ms: variable("TAILWATER_STALL_TIMEOUT_MS")?,
            dump_signal: variable("TAILWATER_DUMP_SIGNAL")?,
            shared_tls: false,
            quantum_us: variable("TAILWATER_QUANTUM_US")?,
            tcp_connections: variable("TAILWATER_TCP_CONNECTIONS")?,
            packet_stealing: variable("TAILWATER_PACKET_STEALING")?,
        })
    }

    fn from_file() -> Result<Self, StartError> {
        let Some(path) = variable::<String>("TAILWATER_CONFIG")? else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(&path)
            .map_err(|e| StartError::Config(format!("cannot read {path}, named by TAILWATER_CONFIG: {e}")))?;
        toml::from_str(&text).map_err(|e| StartError::Config(format!("{path}: {e}")))
    }
}

/// The signal that has all user threads [dumped](crate::dump) to standard error.
///
/// # Examples
/// ```no_run
/// tailwater::Builder::new().dump_signal(tailwater::DumpSignal::Usr1).run(|| ()).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DumpSignal {
    /// No signal does.
    None,
    /// `SIGQUIT`: Ctrl-\ in a terminal. The program goes on afterwards.
    #[default]
    Quit,
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
}

impl DumpSignal {
    /// Its number.
    pub(crate) fn number(self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Quit => Some(libc::SIGQUIT),
            Self::Usr1 => Some(libc::SIGUSR1),
            Self::Usr2 => Some(libc::SIGUSR2),
        }
    }
}

impl std::str::FromStr for DumpSignal {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "quit" => Ok(Self::Quit),
            "usr1" => Ok(Self::Usr1),
            "usr2" => Ok(Self::Usr2),
            _ => Err("expected none, quit, usr1 or usr2"),
        }
    }
}

struct ClassName(Class);

impl std::str::FromStr for ClassName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "latency-critical" => Ok(Self(Class::LatencyCritical)),
            "best-effort" => Ok(Self(Class::BestEffort)),
            _ => Err("expected latency-critical or best-effort"),
        }
    }
}

fn variable<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str) -> Result<Option<T>, StartError> {
    match std::env::var(name) {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(e) => Err(StartError::Config(format!("{name}: {e}"))),
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => text.parse().map(Some).map_err(|e| StartError::Config(format!("{name}={text}: {e}"))),
    }
}

/// A complete, checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Control socket of the IOKernel; `None` runs standalone.
    pub iokernel: Option<String>,
    /// Name in statistics.
    pub name: String,
    /// Kthreads: the most cores used at once.
    pub kthreads: u16,
    /// Cores that are never taken away while in use.
    pub guaranteed: u16,
    /// Allocation class.
    pub class: Class,
    /// Address wanted.
    pub ip: Option<Ipv4Addr>,
    /// Usable bytes of each user thread's stack.
    pub stack_size: usize,
    /// How long an idle kthread polls before it sleeps; `None` polls for ever.
    pub idle_timeout: Option<Duration>,
    /// Bytes of each packet ring.
    pub ring_bytes: u32,
    /// Most ordinary threads that run blocking calls.
    pub blocking_threads: u16,
    /// How long a thread may hold up its kthread unreported; `None` reports nothing.
    pub stall_timeout: Option<Duration>,
    /// The signal that has all threads dumped.
    pub dump_signal: DumpSignal,
    /// Whether user threads use their kthread's thread-local storage.
    pub shared_tls: bool,
    /// How long a thread may keep others waiting; `None` for as long as it likes.
    pub quantum: Option<Duration>,
    /// Most TCP connections open at once.
    pub tcp_connections: u32,
    /// Whether a kthread without work handles frames that wait for another one with a core.
    pub packet_stealing: bool,
}

impl Config {
    fn complete(partial: Partial) -> Result<Self, StartError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(64) as u16;
        let stack_size = partial.stack_size.unwrap_or(DEFAULT_STACK);
        if stack_size < MIN_STACK {
            return Err(StartError::Config(format!(
                "stack_size {stack_size} is too small: {MIN_STACK} bytes at least"
            )));
        }
        let kthreads = partial.kthreads.unwrap_or(cpus);
        let most = if partial.iokernel.is_some() {
            tailwater_shm::layout::MAX_KTHREADS
        } else {
            crate::local::MAX_KTHREADS
        };
        if !(1..=most).contains(&kthreads) {
            return Err(StartError::Config(format!("kthreads {kthreads} is out of range: 1 to {most}")));
        }
        let blocking_threads = partial.blocking_threads.unwrap_or(DEFAULT_BLOCKING_THREADS);
        if !(1..=MAX_BLOCKING_THREADS).contains(&blocking_threads) {
            return Err(StartError::Config(format!(
                "blocking_threads {blocking_threads} is out of range: 1 to {MAX_BLOCKING_THREADS}"
            )));
        }
        let stall_timeout = partial.stall_timeout_ms.map_or(DEFAULT_STALL, Duration::from_millis);
        let idle_timeout = partial.idle_timeout_us.map_or(DEFAULT_IDLE, Duration::from_micros);
        Ok(Self {
            iokernel: partial.iokernel,
            name: partial.name.unwrap_or_else(program_name),
            kthreads,
            guaranteed: partial.guaranteed.unwrap_or(0),
            class: partial.class.unwrap_or_default(),
            ip: partial.ip,
            stack_size,
            idle_timeout: (!idle_timeout.is_zero()).then_some(idle_timeout),
            ring_bytes: partial.ring_bytes.unwrap_or(DEFAULT_RING),
            blocking_threads,
            stall_timeout: (!stall_timeout.is_zero()).then_some(stall_timeout),
            dump_signal: partial.dump_signal.unwrap_or_default(),
            shared_tls: partial.shared_tls,
            quantum: partial.quantum_us.map(Duration::from_micros).filter(|quantum| !quantum.is_zero()),
            tcp_connections: partial.tcp_connections.unwrap_or(crate::net::DEFAULT_CONNECTIONS),
            packet_stealing: partial.packet_stealing.unwrap_or(true),
        })
    }
}

/// Program name and process id: unique unless the operator chooses.
fn program_name() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let base = program.rsplit('/').next().filter(|n| !n.is_empty()).unwrap_or("runtime");
    let short: String = base.chars().filter(char::is_ascii_graphic).take(48).collect();
    format!("{short}.{}", std::process::id())
}

/// Configures and starts the runtime of this process.
///
/// ```no_run
/// tailwater::Builder::new()
///     .name("kv")
///     .kthreads(4)
///     .guaranteed(1)
///     .run(|| println!("on a user thread"))
///     .unwrap();
/// ```
///
/// A setting left alone comes from the environment or the file it names:
///
/// | builder | variable | default |
/// |---|---|---|
/// | [`iokernel`](Self::iokernel) | `TAILWATER_IOKERNEL` | none: standalone |
/// | [`name`](Self::name) | `TAILWATER_NAME` | program name and process id |
/// | [`kthreads`](Self::kthreads) | `TAILWATER_KTHREADS` | number of CPUs |
/// | [`guaranteed`](Self::guaranteed) | `TAILWATER_GUARANTEED` | 0 |
/// | [`class`](Self::class) | `TAILWATER_CLASS` | `latency-critical` |
/// | [`ip`](Self::ip) | `TAILWATER_IP` | the IOKernel chooses |
/// | [`stack_size`](Self::stack_size) | `TAILWATER_STACK_SIZE` | 262144 bytes |
/// | [`idle_timeout`](Self::idle_timeout) | `TAILWATER_IDLE_TIMEOUT_US` | 50 us |
/// | [`ring_bytes`](Self::ring_bytes) | `TAILWATER_RING_BYTES` | 262144 bytes |
/// | [`blocking_threads`](Self::blocking_threads) | `TAILWATER_BLOCKING_THREADS` | 256 |
/// | [`stall_timeout`](Self::stall_timeout) | `TAILWATER_STALL_TIMEOUT_MS` | 100 ms |
/// | [`dump_signal`](Self::dump_signal) | `TAILWATER_DUMP_SIGNAL` | `quit` |
/// | [`quantum`](Self::quantum) | `TAILWATER_QUANTUM_US` | 0: none |
/// | [`tcp_connections`](Self::tcp_connections) | `TAILWATER_TCP_CONNECTIONS` | 1000000 |
/// | [`packet_stealing`](Self::packet_stealing) | `TAILWATER_PACKET_STEALING` | true |
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `run`"]
pub struct Builder {
    settings: Partial,
}

impl Builder {
    /// A builder that has set nothing.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Attaches to the IOKernel that listens at `socket` (`@name` for an abstract address).
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().iokernel("@tailwater");
    /// ```
    pub fn iokernel(mut self, socket: impl Into<String>) -> Self {
        self.settings.iokernel = Some(socket.into());
        self
    }

    /// Name in the IOKernel's statistics; unique on the machine, 1 to 64 printable characters.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().name("kv");
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Kthreads, that is, the most cores this runtime uses at once: 1 to 256 attached, 1 to 64 standalone.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().kthreads(4);
    /// ```
    pub fn kthreads(mut self, kthreads: u16) -> Self {
        self.settings.kthreads = Some(kthreads);
        self
    }

    /// Cores the IOKernel never takes away while they are in use.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().guaranteed(1);
    /// ```
    pub fn guaranteed(mut self, cores: u16) -> Self {
        self.settings.guaranteed = Some(cores);
        self
    }

    /// Allocation class.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().class(tailwater::Class::BestEffort);
    /// ```
    pub fn class(mut self, class: Class) -> Self {
        self.settings.class = Some(class);
        self
    }

    /// IPv4 address to ask the IOKernel for.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().ip([10, 77, 0, 9].into());
    /// ```
    pub fn ip(mut self, ip: Ipv4Addr) -> Self {
        self.settings.ip = Some(ip);
        self
    }

    /// Usable bytes of each user thread's stack; 16 KiB at least. Memory is committed as it is touched.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().stack_size(64 * 1024);
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.settings.stack_size = Some(bytes);
        self
    }

    /// How long an idle kthread polls before it sleeps; zero polls for ever. Rounded down to microseconds.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().idle_timeout(std::time::Duration::from_micros(200));
    /// ```
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout_us = Some(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// Bytes of each packet ring: a power of two from 32 KiB to 16 MiB.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().ring_bytes(1 << 20);
    /// ```
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.settings.ring_bytes = Some(bytes);
        self
    }

    /// Lets all user threads of a kthread use that kthread's thread-local storage, as Shenango's and Arachne's do, instead of
    /// having their own. A switch then does not write FS base, a new thread has no block to reset, and an idle one takes 4 KiB less.
    /// Threads that reach no poll point are not interrupted: the IOKernel moves them off their core after its `cede-deadline`.
    ///
    /// What is given up: `thread_local!` means "of this core at this moment". `std::thread::current`, a thread-local RNG and
    /// `std::thread::panicking` answer for the kthread, and destructors of thread-locals run when that ends, which is never.
    ///
    /// # Safety
    /// No user thread uses the reference or address of a thread-local after a point where it may have been switched: every call into this
    /// crate that can wait, [`spawn`](crate::thread::spawn), [`yield_now`](crate::thread::yield_now) and [`poll`](crate::poll()). In particular it holds no borrow of a
    /// thread-local `RefCell` there, and it reaches no such point while it unwinds. That goes for all libraries in the program, and for
    /// what the compiler makes of functions that use a thread-local before and after such a point.
    ///
    /// # Examples
    /// ```standalone_crate
    /// #[global_allocator]
    /// static ALLOC: tailwater::Alloc = tailwater::Alloc;
    ///
    /// fn main() -> Result<(), tailwater::StartError> {
    ///     // SAFETY: nothing in this program uses thread-locals on user threads.
    ///     let builder = unsafe { tailwater::Builder::new().shared_tls() };
    ///     assert_eq!(builder.run(|| tailwater::thread::spawn(|| 6 * 7).join().unwrap())?, 42);
    ///     Ok(())
    /// }
    /// ```
    pub unsafe fn shared_tls(mut self) -> Self {
        self.settings.shared_tls = true;
        self
    }

    /// Most TCP connections open at once, those in TIME-WAIT not counted; further ones are refused, or wait for an answer.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().tcp_connections(10_000);
    /// ```
    pub fn tcp_connections(mut self, connections: u32) -> Self {
        self.settings.tcp_connections = Some(connections);
        self
    }

    /// Most ordinary threads that run [`blocking`](fn@crate::blocking) calls at a time: 1 to 4096. They are started as needed.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().blocking_threads(32);
    /// ```
    pub fn blocking_threads(mut self, threads: u16) -> Self {
        self.settings.blocking_threads = Some(threads);
        self
    }

    /// How long a user thread may reach no poll point, or sit in a system call, before it is reported on standard error with its
    /// backtrace; zero reports nothing. Rounded down to milliseconds. Watching costs an ordinary thread some ten microseconds four
    /// times in this period.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().stall_timeout(std::time::Duration::from_millis(20));
    /// ```
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stall_timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The signal that has all user threads [dumped](crate::dump) to standard error. A program that handles it itself keeps it.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().dump_signal(tailwater::DumpSignal::Usr2);
    /// ```
    pub fn dump_signal(mut self, signal: DumpSignal) -> Self {
        self.settings.dump_signal = Some(signal);
        self
    }

    /// Time slice: a user thread that keeps others waiting for this long is made to let them run, at its next poll point or by signal.
    /// Zero, the default, lets every thread run until it blocks. Rounded down to microseconds; a thread runs for one to two quanta.
    ///
    /// An ordinary thread wakes up once per quantum, which costs some 5 us: 10 ms cost nothing to speak of, 50 us a tenth of
    /// a core. A lock of `std` that a preempted thread holds makes others wait in the kernel: see the guide on threads.
    ///
    /// # Examples
    /// ```standalone_crate
    /// # #[global_allocator]
    /// # static ALLOC: tailwater::Alloc = tailwater::Alloc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// static DONE: AtomicBool = AtomicBool::new(false);
    ///
    /// let runtime = tailwater::Builder::new().kthreads(1).quantum(Duration::from_millis(1));
    /// let run = runtime.run(|| {
    ///     tailwater::thread::spawn(|| DONE.store(true, Ordering::Relaxed));
    ///     // Without a quantum, the only kthread would never get to the other thread.
    ///     while !DONE.load(Ordering::Relaxed) {}
    /// });
    /// run.unwrap();
    /// ```
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.settings.quantum_us = Some(u64::try_from(quantum.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// Whether a kthread without work handles packets that wait for another kthread (Shenango section 5.2); true unless set. Without,
    /// each kthread handles its own flow groups' packets, as under receive-side scaling, and those of kthreads that have no
    /// core at the time, which would wait for ever; user threads are stolen either way. For measuring what stealing is worth.
    ///
    /// # Examples
    /// ```
    /// let builder = tailwater::Builder::new().packet_stealing(false);
    /// ```
    pub fn packet_stealing(mut self, steal: bool) -> Self {
        self.settings.packet_stealing = Some(steal);
        self
    }

    /// The configuration that [`run`](Self::run) would use.
    pub(crate) fn resolve(self) -> Result<Config, StartError> {
        Config::complete(self.settings.or(Partial::from_environment()?).or(Partial::from_file()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builder_wins_over_the_environment_and_the_file() {
        let builder = Partial { name: Some("b".into()), ..Partial::default() };
        let environment = Partial { name: Some("e".into()), kthreads: Some(3), ..Partial::default() };
        let file = Partial { kthreads: Some(5), guaranteed: Some(2), ..Partial::default() };
        let config = Config::complete(builder.or(environment).or(file)).unwrap();
        assert_eq!((config.name.as_str(), config.kthreads, config.guaranteed), ("b", 3, 2));
    }

    #[test]
    fn a_misspelt_setting_in_the_file_is_named() {
        let error = toml::from_str::<Partial>("kthread = 3").unwrap_err().to_string();
        assert!(error.contains("kthread"), "{error}");
    }

    #[test]
    fn impossible_numbers_are_refused_with_their_range() {
        let error = Config::complete(Partial { kthreads: Some(0), ..Partial::default() }).unwrap_err();
        assert!(error.to_string().contains("1 to 64"), "{error}");
        let error = Config::complete(Partial { stack_size: Some(100), ..Partial::default() }).unwrap_err();
        assert!(error.to_string().contains("16384"), "{error}");
        let error =
            Config::complete(Partial { blocking_threads: Some(0), ..Partial::default() }).unwrap_err();
        assert!(error.to_string().contains("1 to 4096"), "{error}");
    }

    #[test]
    fn a_zero_stall_timeout_reports_nothing() {
        let config = Config::complete(Partial { stall_timeout_ms: Some(0), ..Partial::default() }).unwrap();
        assert_eq!(config.stall_timeout, None);
    }

    #[test]
    fn the_file_and_the_environment_name_dump_signals_alike() {
        for (text, signal) in
            [("none", DumpSignal::None), ("quit", DumpSignal::Quit), ("usr2", DumpSignal::Usr2)]
        {
            let file: Partial = toml::from_str(&format!("dump_signal = \"{text}\"")).unwrap();
            assert_eq!((file.dump_signal, text.parse()), (Some(signal), Ok(signal)));
        }
        assert!("hup".parse::<DumpSignal>().is_err());
    }

    #[test]
    fn packets_are_stolen_unless_that_is_turned_off() {
        let stealing = |packet_stealing| {
            Config::complete(Partial { packet_stealing, ..Partial::default() }).unwrap().packet_stealing
        };
        assert_eq!([None, Some(true), Some(false)].map(stealing), [true, true, false]);
        let file: Partial = toml::from_str("packet_stealing = false").unwrap();
        assert_eq!(file.packet_stealing, Some(false));
    }

    #[test]
    fn threads_have_no_time_slice_unless_one_is_set() {
        let quantum =
            |quantum_us| Config::complete(Partial { quantum_us, ..Partial::default() }).unwrap().quantum;
        assert_eq!((quantum(None), quantum(Some(0))), (None, None));
        assert_eq!(quantum(Some(50)), Some(Duration::from_micros(50)));
    }

    #[test]
    fn a_zero_idle_timeout_polls_for_ever() {
        let config = Config::complete(Partial { idle_timeout_us: Some(0), ..Partial::default() }).unwrap();
        assert_eq!(config.idle_timeout, None);
    }
}
