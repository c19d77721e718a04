//! The start of the runtime.
//!
//! 1. Check the machine and the program (TLS, allocator guard).
//! 2. Attach to an IOKernel, or make private words.
//! 3. Build the kthreads, set the hooks, install the signal handlers, start the OS threads.
//! 4. Run the main function as a user thread while the calling OS thread waits, off the managed
//!    cores.

use crate::attach::Connection;
use crate::config::{Config, RuntimeBuilder};
use crate::error::{ConfigError, StartError};
use crate::ground::halt::Halt;
use crate::ground::sleepers::Sleepers;
use crate::ground::{arch, rseq, tls};
use crate::net::{self, NetConfig};
use crate::records::iokernel::IoKernel;
use crate::records::kthread::Kthread;
use crate::records::runtime::{Injected, Runtime};
use crate::records::stacks::StackPool;
use crate::thread::{self, Options, panics};
use crate::verbs::{credentials, hooks, overflow, preempt, quantum, ready, worker};
use crate::{alloc, blocking, debug, exit, mutex_protocol};
use core::sync::atomic::{AtomicBool, Ordering};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;
use tailwater_shm::layout::{KthreadShared, RuntimeEnds};
use tailwater_shm::{Clock, Cycles};

static STARTING: AtomicBool = AtomicBool::new(false);

impl RuntimeBuilder {
    /// Starts the runtime, runs `main` as its first user thread and returns the result. The other
    /// user threads end with the process, as threads do when `main` returns. What sockets have
    /// accepted is sent before that: see [`exit_linger`](Self::exit_linger).
    ///
    /// # Errors
    /// [`StartError`] says what is missing and what to do.
    ///
    /// # Panics
    /// Resumes the panic of `main`.
    ///
    /// # Examples
    /// ```standalone_crate
    /// # tailwater::allocator!();
    /// let answer = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
    ///     let thread = tailwater::thread::spawn(|| 42);
    ///     thread.join().unwrap()
    /// });
    /// assert_eq!(answer.unwrap(), 42);
    /// ```
    pub fn run<T: Send + 'static>(self, main: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
        let runtime = self.launch()?;
        let options = Options { name: Some("main".into()), ..Options::default() };
        // SAFETY: everything is 'static. A boxed closure keeps the main thread's captures, which
        // may be large, off its stack.
        let (joiner, runnable) = unsafe { thread::prepare(Box::new(main), options, None) }?;
        ready::inject(runtime, runnable);
        Ok(joiner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Starts the runtime without a user thread.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn launch(self) -> Result<&'static Runtime, StartError> {
        if !alloc::is_installed() {
            return Err(StartError::NoAllocatorGuard);
        }
        mutex_protocol::link();
        let config = self.resolve()?;
        if STARTING.swap(true, Ordering::SeqCst) {
            return Err(StartError::AlreadyRunning);
        }
        start(&config)
    }
}

fn start(config: &Config) -> Result<&'static Runtime, StartError> {
    // SAFETY: 1. `STARTING` lets one caller through, before the first user thread. 2.
    // `RuntimeBuilder::shared_tls` is unsafe.
    unsafe { arch::choose_fs_writes(config.shared_tls) };
    #[cfg(feature = "libc-waits")]
    if config.adopt_libc_waits && !tailwater_libc_waits::is_active() {
        // While the process has one thread.
        crate::libc_waits::adopt()?;
    }
    let shape = tls::shape()?;
    let (connection, iokernel, ends) = match config.iokernel.as_deref() {
        Some(path) => {
            let (connection, iokernel, ends) = Connection::register(path, config)?;
            (Some(connection), Some(&*Box::leak(Box::new(iokernel))), ends)
        }
        None => (None, None, Vec::new()),
    };
    let mut ends = ends.into_iter();
    let clock =
        iokernel.map_or_else(|| Clock::calibrate(5), |iokernel| Clock::from_hz(iokernel.region.tsc_hz()));
    let only = config.kthreads == 1;
    let runtime = Runtime {
        kthreads: (0..config.kthreads)
            .map(|index| build_kthread(index, iokernel, ends.next(), only))
            .collect(),
        stacks: StackPool::new(config.stack_size, shape),
        pollers: Default::default(),
        sleepers: Sleepers::new(),
        clock,
        steals_packets: config.packet_stealing,
        idle_timeout: config.idle_timeout.map_or(Cycles::MAX, |t| clock.from_ns(t.as_nanos() as u64)),
        quantum: config.quantum.map_or(Cycles::MAX, |t| clock.from_ns(t.as_nanos() as u64)),
        injected: Injected::default(),
        background: Default::default(),
        exclusive: Default::default(),
        iokernel,
        attached: AtomicBool::new(iokernel.is_some()),
        awaits: AtomicBool::new(false),
        meters: Default::default(),
        halt: Halt::default(),
        siblings: iokernel.map_or_else(Box::default, |_| siblings()),
    };
    start_network(config, connection.as_ref())?;
    let runtime = runtime.install();
    panics::install_hook();
    preempt::install().map_err(failed("install the preempt handler"))?;
    overflow::install().map_err(failed("install the overflow handler"))?;
    quantum::prepare(runtime, config.quantum);
    start_kthreads(runtime, config.quantum, connection)?;
    credentials::install();
    // Now this thread has left the managed cores, and the threads that it starts stay off them.
    blocking::start(config.blocking_threads).map_err(failed("start a thread for blocking calls"))?;
    #[cfg(feature = "libc-waits")]
    if tailwater_libc_waits::is_active() {
        crate::libc_waits::keeper::start().map_err(failed("start a thread for late wakes"))?;
    }
    debug::start(config).map_err(failed("start the thread that watches for stalls"))?;
    exit::install(config.exit_linger);
    Ok(runtime)
}

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::System { action, source }
}

/// Makes the network stack, and registers the stack's functions that the scheduler calls.
fn start_network(config: &Config, connection: Option<&Connection>) -> Result<(), StartError> {
    let own_ip = config.ip.unwrap_or(Ipv4Addr::LOCALHOST);
    let network = connection.map_or_else(|| NetConfig::standalone(own_ip), Connection::net_config);
    #[cfg(feature = "tcp")]
    let network = NetConfig {
        tcp_connections: config.tcp_connections,
        machine_window: net::window_of_ring(config.ring_bytes, network.local_mtu),
        ..network
    };
    net::init(network).map_err(|error| match connection {
        Some(connection) => connection.refuse_network(&error).into(),
        None => StartError::Config(ConfigError::Network { source: Box::new(error) }),
    })?;
    net::use_ports(connection.and_then(Connection::outgoing));
    hooks::install(hooks::Network { take_frames: net::take_frames, prune_timers: net::put_off_timers });
    Ok(())
}

/// Makes a kthread with its words and rings in the region, or with words of its own.
fn build_kthread(
    index: u16,
    iokernel: Option<&'static IoKernel>,
    ends: Option<RuntimeEnds>,
    only: bool,
) -> &'static Kthread {
    let words: &'static KthreadShared = match iokernel {
        Some(iokernel) => iokernel.region.kthread(index),
        None => Box::leak(Box::default()),
    };
    Kthread::leak(index, words, ends, only)
}

/// Starts the OS threads, announces them to the IOKernel, and leaves the managed cores to them.
fn start_kthreads(
    runtime: &'static Runtime,
    quantum: Option<Duration>,
    connection: Option<Connection>,
) -> Result<(), StartError> {
    let (tids, from_kthreads) = std::sync::mpsc::channel();
    for &kthread in &runtime.kthreads {
        let tids = tids.clone();
        std::thread::Builder::new()
            .name(format!("tailwater/{}", kthread.index))
            .spawn(move || {
                overflow::prepare_os_thread();
                preempt::open_mask();
                rseq::leave();
                let guard = kthread.adopt_os_thread();
                if let Some(iokernel) = runtime.iokernel {
                    iokernel.rank_kthread();
                }
                if let Some(quantum) = quantum {
                    quantum::start_timer(kthread, quantum);
                }
                let tid = kthread.os_tid.load(Ordering::Relaxed);
                // Fails if the starter has given up: a later kthread could not be started.
                let _ = tids.send((kthread.index, tid));
                drop(tids);
                worker::run_kthread(&guard)
            })
            .map_err(failed("start a kthread"))?;
    }
    drop(tids);
    let mut tids: Vec<_> = from_kthreads.iter().collect();
    tids.sort_unstable_by_key(|(index, _)| *index);
    if let Some(connection) = connection {
        connection.announce(tids.into_iter().map(|(_, tid)| tid).collect())?;
        connection.watch(runtime)?;
    }
    Ok(())
}

/// Returns the sibling hyperthread of each core, from sysfs; none where it cannot be read.
fn siblings() -> Box<[Option<u16>]> {
    let directory = |cpu| PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}"));
    let sibling_of = |cpu| {
        let list = std::fs::read_to_string(directory(cpu).join("topology/thread_siblings_list")).ok()?;
        list.trim().split([',', '-']).filter_map(|n| n.parse::<u16>().ok()).find(|&n| usize::from(n) != cpu)
    };
    // All CPUs: this process may run on any of them.
    (0..).take_while(|&cpu| directory(cpu).is_dir()).map(sibling_of).collect()
}
