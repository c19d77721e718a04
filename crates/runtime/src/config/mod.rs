//! The configuration of a runtime: [`RuntimeBuilder`] first, then `TAILWATER_*` variables, then a
//! TOML file.
//!
//! The builder's settings are the program's decision and take precedence; variables are the
//! operator's; the file (named by `TAILWATER_CONFIG`) holds what is the same on every start. All
//! three have the same settings, and an unknown or malformed one is an error that names its source.
//! The file needs the feature `config-file`.

mod class;
#[cfg(feature = "debug")]
mod dump_signal;
mod loss;
pub(crate) mod settings;
pub(crate) mod sources;
mod variables;

pub use class::ProgramClass;
#[cfg(feature = "debug")]
pub use dump_signal::DumpSignal;
pub use loss::OnIoKernelLoss;
pub use settings::Config;

use crate::error::StartError;
use crate::ground::stderr::print;
use settings::Settings;
use std::net::Ipv4Addr;
use std::time::Duration;
use tailwater_shm::control::parse_listens;

/// Default size of each packet ring in bytes.
pub(crate) const DEFAULT_RING: u32 = 256 * 1024;

/// Configures and starts the runtime of this process.
///
/// ```no_run
/// tailwater::RuntimeBuilder::new()
///     .name("kv")
///     .kthreads(4)
///     .guaranteed(1)
///     .run(|| println!("on a user thread"))
///     .unwrap();
/// ```
///
/// A setting that the builder leaves unset comes from the environment or the file it names. A
/// variable whose name is close to one of these is refused.
///
/// | builder | variable | default |
/// |---|---|---|
/// | [`iokernel`](Self::iokernel) | `TAILWATER_IOKERNEL` | none: standalone |
/// | [`name`](Self::name) | `TAILWATER_NAME` | program name and process id |
/// | [`kthreads`](Self::kthreads) | `TAILWATER_KTHREADS` | number of CPUs |
/// | [`guaranteed`](Self::guaranteed) | `TAILWATER_GUARANTEED` | 0 |
/// | [`class`](Self::class) | `TAILWATER_CLASS` | `latency-critical` |
/// | [`ip`](Self::ip) | `TAILWATER_IP` | the IOKernel chooses |
/// | [`listen`](Self::listen) | `TAILWATER_LISTEN` | none |
/// | [`replace`](Self::replace) | `TAILWATER_REPLACE` | false |
/// | [`on_iokernel_loss`](Self::on_iokernel_loss) | `TAILWATER_ON_IOKERNEL_LOSS` | `wait` |
/// | [`iokernel_wait`](Self::iokernel_wait) | `TAILWATER_IOKERNEL_WAIT_MS` | 60 s |
/// | [`exit_linger`](Self::exit_linger) | `TAILWATER_EXIT_LINGER_MS` | 60 s |
/// | [`stack_size`](Self::stack_size) | `TAILWATER_STACK_SIZE` | 262144 bytes |
/// | [`idle_timeout`](Self::idle_timeout) | `TAILWATER_IDLE_TIMEOUT_US` | 50 us |
/// | [`ring_bytes`](Self::ring_bytes) | `TAILWATER_RING_BYTES` | 262144 bytes |
/// | [`blocking_threads`](Self::blocking_threads) | `TAILWATER_BLOCKING_THREADS` | 256 |
/// | [`stall_timeout`](Self::stall_timeout) | `TAILWATER_STALL_TIMEOUT_MS` | 100 ms |
/// | [`dump_signal`](Self::dump_signal) | `TAILWATER_DUMP_SIGNAL` | `quit` |
/// | [`quantum`](Self::quantum) | `TAILWATER_QUANTUM_US` | 0: none |
/// | [`tcp_connections`](Self::tcp_connections) | `TAILWATER_TCP_CONNECTIONS` | 1000000 |
/// | [`packet_stealing`](Self::packet_stealing) | `TAILWATER_PACKET_STEALING` | true |
/// | `adopt_libc_waits` | `TAILWATER_ADOPT_LIBC_WAITS` | false |
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `run`"]
pub struct RuntimeBuilder {
    settings: Settings,
    defaults: Settings,
    /// Why the program has no quantum.
    without_quantum: Option<String>,
}

impl RuntimeBuilder {
    /// Returns a builder without settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Attaches to the IOKernel that listens at `socket` (`@name` for an abstract address).
    pub fn iokernel(mut self, socket: impl Into<String>) -> Self {
        self.settings.iokernel = Some(socket.into());
        self
    }

    /// Sets the name in the IOKernel's statistics; unique on the machine, 1 to 64 printable
    /// ASCII characters. Set it for programs of several containers, whose process ids may be equal.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Sets the number of kthreads, that is, the maximum number of cores this runtime uses at once:
    /// 1 to 256 attached, 1 to 64 standalone.
    pub fn kthreads(mut self, kthreads: u16) -> Self {
        self.settings.kthreads = Some(kthreads);
        self
    }

    /// Sets the number of cores the IOKernel never takes away while they are in use.
    pub fn guaranteed(mut self, cores: u16) -> Self {
        self.settings.guaranteed = Some(cores);
        self
    }

    /// Sets the allocation class.
    pub fn class(mut self, class: ProgramClass) -> Self {
        self.settings.class = Some(class);
        self
    }

    /// Sets the IPv4 address to request from the IOKernel.
    pub fn ip(mut self, ip: Ipv4Addr) -> Self {
        self.settings.ip = Some(ip);
        self
    }

    /// Sets the ports at which the program listens: `tcp:PORT` or `udp:PORT`, separated by commas.
    /// Behind an interface whose IP addresses the IOKernel shares with Linux (`share=ports`), other
    /// machines reach the program at these ports only. Behind any other interface they reach it at
    /// every port, whatever is set here.
    ///
    /// # Examples
    /// ```
    /// let server = tailwater::RuntimeBuilder::new().name("dns").listen("tcp:53,udp:53");
    /// ```
    ///
    /// # Panics
    /// If a word is no such port.
    pub fn listen(mut self, ports: &str) -> Self {
        let ports = parse_listens(ports).unwrap_or_else(|error| panic!("RuntimeBuilder::listen: {error}"));
        self.settings.listen = Some(ports);
        self
    }

    /// Sets whether this program takes the place of an instance of it that runs, which has its
    /// [name](Self::name), its address and this setting, and lets a later one take its own. Clients
    /// notice nothing: connections of the earlier instance stay there, and new ones come here, port
    /// by port, once a socket is open.
    ///
    /// When all sockets are open, call [`end_earlier`](crate::signal::end_earlier). The earlier
    /// instance then gets SIGTERM, which it has to [handle](crate::signal): it finishes its
    /// connections and ends.
    ///
    /// # Examples
    /// ```no_run
    /// tailwater::RuntimeBuilder::new().name("web").replace(true).run(|| {
    ///     let listener = tailwater::net::TcpListener::bind("0.0.0.0:80")?;
    ///     tailwater::signal::end_earlier();
    ///     listener.incoming().for_each(drop);
    ///     std::io::Result::Ok(())
    /// }).unwrap().unwrap();
    /// ```
    pub fn replace(mut self, replaces: bool) -> Self {
        self.settings.replace = Some(replaces);
        self
    }

    /// Sets what the program does when the IOKernel has ended, or has ended its registration.
    pub fn on_iokernel_loss(mut self, reaction: OnIoKernelLoss) -> Self {
        self.settings.on_iokernel_loss = Some(reaction);
        self
    }

    /// Sets how long calls wait for another IOKernel if
    /// [`on_iokernel_loss`](Self::on_iokernel_loss) is `Wait`, before they fail; zero: for ever.
    /// The program looks for one for ever. Rounded down to milliseconds.
    pub fn iokernel_wait(mut self, time: Duration) -> Self {
        self.settings.iokernel_wait_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets how long the end of the process waits at most until peers have acknowledged what TCP
    /// connections have accepted, as long as there is progress: zero to an hour, rounded down to
    /// milliseconds. After that, and after ten seconds without an acknowledgment, peers get a
    /// reset. With zero they get it at once.
    ///
    /// This applies to a return from `main` and to [`std::process::exit`], attached to an IOKernel;
    /// a process that is killed or aborted waits for nothing.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let job = tailwater::RuntimeBuilder::new().exit_linger(Duration::from_secs(5));
    /// ```
    pub fn exit_linger(mut self, time: Duration) -> Self {
        self.settings.exit_linger_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the usable bytes of each user thread's stack: 16 KiB to 128 GiB. Memory is committed as
    /// it is touched. Up to 10 KiB are for the preempt signal, however often that comes: two frames
    /// with AVX-512 state and what their handlers call (with AMX in use, 16 KiB more).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.settings.stack_size = Some(bytes);
        self
    }

    /// Sets for how long an idle kthread polls at most before it sleeps; zero polls for ever. Where
    /// its last idle times were longer, so that polling found no work, it sleeps sooner (attached
    /// to an IOKernel), and after 5 us where it has real-time rank, other programs compete for the
    /// cores, and each frame takes it 5 us of work or more. Rounded down to microseconds.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout_us = Some(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the size of each packet ring in bytes: a power of two from 32 KiB to 16 MiB.
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.settings.ring_bytes = Some(bytes);
        self
    }

    /// Makes all user threads of a kthread use that kthread's thread-local storage, as Shenango's
    /// and Arachne's do, instead of having their own. A switch then does not write FS base, a new
    /// thread has no block to reset, and an idle one takes 4 KiB less. Threads that reach no poll
    /// point are not interrupted: the IOKernel moves them off their core.
    ///
    /// In return, `thread_local!` means "of this core at this moment". `std::thread::current`, a
    /// thread-local RNG and `std::thread::panicking` refer to the kthread, and destructors of
    /// thread-locals run when that ends, which is never.
    ///
    /// # Safety
    /// No user thread uses the reference or address of a thread-local after a point where it may
    /// have been switched: every call into this crate that can wait,
    /// [`spawn`](crate::thread::spawn), [`yield_now`](crate::thread::yield_now) and
    /// [`poll`](crate::poll). In particular it holds no borrow of a thread-local `RefCell` there,
    /// and it reaches no such point while it unwinds. This applies to all libraries in the program,
    /// and to the code the compiler generates for functions that use a thread-local before and
    /// after such a point.
    ///
    /// # Examples
    /// ```standalone_crate
    /// tailwater::allocator!();
    ///
    /// fn main() -> Result<(), tailwater::StartError> {
    ///     // SAFETY: nothing in this program uses thread-locals on user threads.
    ///     let builder = unsafe { tailwater::RuntimeBuilder::new().shared_tls() };
    ///     assert_eq!(builder.run(|| tailwater::thread::spawn(|| 6 * 7).join().unwrap())?, 42);
    ///     Ok(())
    /// }
    /// ```
    pub unsafe fn shared_tls(mut self) -> Self {
        self.settings.shared_tls = true;
        self
    }

    /// Sets the maximum number of open TCP connections, not counting those in TIME-WAIT; further
    /// ones are refused, or their handshakes are not answered.
    #[cfg(feature = "tcp")]
    pub fn tcp_connections(mut self, connections: u32) -> Self {
        self.settings.tcp_connections = Some(connections);
        self
    }

    /// Sets the maximum number of ordinary threads that run [`blocking`](fn@crate::blocking) calls
    /// at a time: 1 to 4096. They are started as needed.
    pub fn blocking_threads(mut self, threads: u16) -> Self {
        self.settings.blocking_threads = Some(threads);
        self
    }

    /// Sets how long a user thread may reach no poll point, or block in a system call, before it is
    /// reported on standard error with its backtrace; zero reports nothing. Rounded down to
    /// milliseconds. Watching costs an ordinary thread about ten microseconds four times per
    /// period.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stall_timeout_ms = Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the signal that makes the process [dump](crate::dump) all user threads to standard
    /// error. A handler that the program installed itself is kept.
    #[cfg(feature = "debug")]
    pub fn dump_signal(mut self, signal: DumpSignal) -> Self {
        self.settings.dump_signal = Some(signal);
        self
    }

    /// Sets the time slice: a user thread that has run for this long while others wait for its
    /// kthread must let them run. Zero, the default, lets every thread run until it blocks. Rounded
    /// down to microseconds.
    ///
    /// A thread gives way at its next [poll point](crate::poll). One that reaches none is
    /// interrupted by a signal after one to two quanta, or after one to two ticks of the kernel,
    /// which take 1 to 10 ms each, if that is longer. If a preempted thread holds a lock of `std`,
    /// others wait for it in the kernel: see the guide on threads.
    ///
    /// # Examples
    /// ```standalone_crate
    /// # tailwater::allocator!();
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// static DONE: AtomicBool = AtomicBool::new(false);
    ///
    /// let quantum = Duration::from_millis(1);
    /// let runtime = tailwater::RuntimeBuilder::new().kthreads(1).quantum(quantum);
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

    /// Leaves a [`quantum`](Self::quantum) off, wherever it is set, because the program cannot gain
    /// from one; if one is set, `reason` is printed to standard error. For programs whose threads
    /// each run one request to its end, as many as there are kthreads: a request that gives way
    /// lets no other one run. [`dispatch`](crate::dispatch) has quanta of its own, which this does
    /// not change.
    ///
    /// # Examples
    /// ```
    /// let why = "one request runs at a time";
    /// let builder = tailwater::RuntimeBuilder::new().without_quantum(why);
    /// assert!(format!("{builder:?}").contains(why));
    /// ```
    pub fn without_quantum(mut self, reason: impl Into<String>) -> Self {
        self.without_quantum = Some(reason.into());
        self
    }

    /// Sets whether a kthread without work handles packets that wait for another kthread (Shenango
    /// section 5.2); true by default. If false, each kthread handles the packets of its own flow
    /// groups, as with receive-side scaling, and those of kthreads that have no core at the time,
    /// which would wait for ever; user threads are stolen either way. For measuring the benefit of
    /// stealing.
    pub fn packet_stealing(mut self, steal: bool) -> Self {
        self.settings.packet_stealing = Some(steal);
        self
    }

    /// Makes user threads that wait in the C library give their core away: for the locks, condition
    /// variables, channels and `park` of `std`, for `parking_lot` and `crossbeam`, and for C and
    /// C++ libraries. Otherwise they sleep in the kernel with their core. Needs the feature
    /// `libc-waits`.
    ///
    /// The futex system calls in the loaded C library are replaced by jumps to Tailwater when the
    /// runtime starts, which must be before the process has other threads. What still holds the
    /// core, and what it costs, is in the guide, "Which crates work".
    ///
    /// # Examples
    /// ```standalone_crate
    /// # tailwater::allocator!();
    /// use std::sync::mpsc;
    ///
    /// let builder = tailwater::RuntimeBuilder::new().kthreads(1).adopt_libc_waits();
    /// let sum = builder.run(|| {
    ///     let (sender, receiver) = mpsc::channel();
    ///     tailwater::thread::spawn(move || (1..=4).for_each(|n| sender.send(n).unwrap()));
    ///     // The only kthread runs the sender while this thread waits.
    ///     receiver.iter().sum::<i32>()
    /// });
    /// assert_eq!(sum.unwrap(), 10);
    /// ```
    #[cfg(feature = "libc-waits")]
    pub fn adopt_libc_waits(mut self) -> Self {
        self.settings.adopt_libc_waits = Some(true);
        self
    }

    /// Returns a builder without settings, with other defaults.
    pub(crate) fn defaults(kthreads: u16, quantum: Duration) -> Self {
        let quantum_us = u64::try_from(quantum.as_micros()).ok();
        let defaults = Settings { kthreads: Some(kthreads), quantum_us, ..Settings::default() };
        Self { defaults, ..Self::default() }
    }

    /// Returns the configuration that [`run`](Self::run) would use.
    pub(crate) fn resolve(self) -> Result<Config, StartError> {
        let operator = sources::environment()?.or(sources::file()?);
        let mut config = Config::complete(self.settings.or(operator).or(self.defaults))?;
        if let Some(reason) = self.without_quantum
            && let Some(quantum) = config.quantum.take()
        {
            print(&format!("tailwater: the quantum of {} us stays off: {reason}\n", quantum.as_micros()));
        }
        Ok(config)
    }
}
