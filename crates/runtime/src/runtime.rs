//! The one runtime of a process: what all kthreads share, and how it starts.
//!
//! Owns the list of kthreads, the injection list, the stack pool and the start sequence. There is at most one runtime per
//! process and it lives as long as the process, which is why everything it hands out is `&'static`.
//!
//! # Start
//! 1. Check the machine and the program (TLS, allocator guard); 2. attach to an IOKernel or make private words; 3. build the
//!    kthreads, install the signal handler, start their OS threads; 4. run the main function as a user thread while the calling
//!    OS thread waits, off the managed cores.

use crate::attach::Attachment;
use crate::blocking::BlockingPool;
use crate::config::{Builder, Config};
use crate::handover::{self, Pollers};
use crate::kthread::Kthread;
use crate::local::{self, Sleepers};
use crate::net::{self, NetConfig};
use crate::stack::StackPool;
use crate::sync::spin::SpinLock;
use crate::thread::{Options, panics};
use crate::uthread::Uthread;
use crate::{alloc, arch, debug, overflow, preempt, quantum, thread, tls, worker};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;
use tailwater_shm::layout::KthreadShared;
use tailwater_shm::lot::SlotId;
use tailwater_shm::{Clock, Cycles};

/// Why a runtime did not start.
///
/// # Examples
/// ```standalone_crate
/// // This program has the system's allocator.
/// let error = tailwater::Builder::new().run(|| ()).unwrap_err();
/// assert!(matches!(error, tailwater::StartError::NoAllocatorGuard));
/// assert!(error.to_string().contains("#[tailwater::main]"), "it says what to do");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is wrong.
    #[error("configuration: {0}")]
    Config(String),
    /// The program has another global allocator.
    #[error(
        "the program's global allocator is not Tailwater's: use #[tailwater::main], or add\n    \
         #[global_allocator] static ALLOC: tailwater::Alloc = tailwater::Alloc;"
    )]
    NoAllocatorGuard,
    /// The process has a runtime already.
    #[error("this process runs a Tailwater runtime already; there can be one")]
    AlreadyRunning,
    /// The C library is not suitable.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The IOKernel refused, or cannot be reached.
    #[error("cannot attach to the IOKernel: {0}")]
    Attach(String),
    /// The kernel refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// What all kthreads share. See the module documentation.
#[derive(Debug)]
pub struct Runtime {
    /// All kthreads, by index.
    pub kthreads: Box<[&'static Kthread]>,
    /// Stacks.
    pub stacks: StackPool,
    /// Ordinary threads for what blocks.
    pub blocking: BlockingPool,
    /// Kthreads that poll for work.
    pub pollers: Pollers,
    /// Sleeping kthreads, standalone.
    pub sleepers: Sleepers,
    /// The cycle clock.
    pub clock: Clock,
    /// Whether frames of kthreads that have a core are taken too.
    pub steals_packets: bool,
    idle_timeout: Cycles,
    injected: SpinLock<VecDeque<&'static Uthread>>,
    injected_len: AtomicUsize,
    attachment: Option<&'static Attachment>,
    attached: AtomicBool,
    /// Sibling hyperthread of each core, by core number.
    siblings: Box<[Option<u16>]>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static STARTING: AtomicBool = AtomicBool::new(false);

/// The runtime of this process.
///
/// # Panics
/// If none has been started.
#[inline]
pub fn runtime() -> &'static Runtime {
    RUNTIME.get().expect("no Tailwater runtime in this process: use #[tailwater::main] or tailwater::Builder")
}

/// The runtime of this process, if one has been started.
pub fn started() -> Option<&'static Runtime> {
    RUNTIME.get()
}

/// The cycle clock: the runtime's, or one calibrated on first use where there is no runtime.
pub fn clock() -> Clock {
    static FALLBACK: OnceLock<Clock> = OnceLock::new();
    RUNTIME.get().map_or_else(|| *FALLBACK.get_or_init(|| Clock::calibrate(5)), |r| r.clock)
}

/// The cycle count `duration` from now; saturates, which is for ever.
pub fn deadline_after(duration: Duration) -> Cycles {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    tailwater_shm::clock::now().saturating_add(clock().from_ns(ns))
}

impl Runtime {
    /// Whether an IOKernel lends this runtime its cores.
    #[inline(always)]
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// When a kthread that is idle at `now` stops polling.
    pub fn idle_deadline(&self, now: Cycles) -> Cycles {
        now.saturating_add(self.idle_timeout)
    }

    /// Wakes whoever parks on `slot`.
    pub fn wake_slot(&self, slot: SlotId) {
        if let Some(attachment) = self.attachment {
            attachment.lot.slot(slot).wake();
        }
    }

    /// The kthread on the sibling hyperthread of `kthread`'s core, if it is this runtime's.
    pub fn sibling_of(&self, kthread: &Kthread) -> Option<&'static Kthread> {
        let sibling = (*self.siblings.get(kthread.core.load(Ordering::Relaxed) as usize)?)?;
        self.kthreads.iter().copied().find(|k| k.core.load(Ordering::Relaxed) == sibling)
    }

    /// Threads readied by ordinary OS threads and not yet in a run queue.
    #[inline(always)]
    pub fn injected(&self) -> usize {
        self.injected_len.load(Ordering::Relaxed)
    }

    /// Makes `uthread` runnable from an ordinary thread.
    pub fn inject(&self, uthread: &'static Uthread) {
        if !self.pollers.is_empty() && handover::offer(self, None, uthread) {
            return;
        }
        {
            let mut list = self.injected.lock();
            list.push_back(uthread);
            self.publish_injected(list.len());
        }
        if self.is_attached() {
            if let Some(attachment) = self.attachment {
                attachment.ring_doorbell();
            }
        } else {
            local::work_injected(self);
        }
    }

    /// Hands up to `limit` injected threads to `accept`, until it says no.
    pub fn take_injected(&self, limit: usize, accept: impl Fn(&'static Uthread) -> bool) {
        let Some(mut list) = self.injected.try_lock() else { return };
        for _ in 0..limit {
            let Some(uthread) = list.pop_front() else { break };
            if !accept(uthread) {
                list.push_front(uthread);
                break;
            }
        }
        self.publish_injected(list.len());
    }

    /// The injection list at this moment, for a dump.
    pub fn injected_snapshot(&self) -> Vec<*const Uthread> {
        self.injected.lock().iter().map(|&thread| core::ptr::from_ref(thread)).collect()
    }

    /// The IOKernel sees the injection list as one more entry of kthread 0's doorbell word.
    fn publish_injected(&self, len: usize) {
        self.injected_len.store(len, Ordering::Relaxed);
        self.kthreads[0].shared.status.injected.store(len as u32, Ordering::Relaxed);
    }

    /// The IOKernel is gone: kthreads live on whatever cores Linux gives them.
    pub fn orphan(&self) {
        self.attached.store(false, Ordering::SeqCst);
        for kthread in &self.kthreads {
            // Nobody is left to repair a slot that was tampered with.
            kthread.slot.rouse();
        }
        // Last, because it takes the locks of all connections, and who holds one may have been parked.
        net::set_link_down();
    }
}

impl Builder {
    /// Starts the runtime, runs `main` as its first user thread and returns what that returns. The other user threads end
    /// with the process, as threads do when `main` returns.
    ///
    /// # Errors
    /// [`StartError`] says what is missing and what to do.
    ///
    /// # Panics
    /// Resumes the panic of `main`.
    ///
    /// # Examples
    /// ```standalone_crate
    /// # #[global_allocator]
    /// # static ALLOC: tailwater::Alloc = tailwater::Alloc;
    /// let answer = tailwater::Builder::new().kthreads(2).run(|| {
    ///     let thread = tailwater::thread::spawn(|| 42);
    ///     thread.join().unwrap()
    /// });
    /// assert_eq!(answer.unwrap(), 42);
    /// ```
    pub fn run<T: Send + 'static>(self, main: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
        if !alloc::is_installed() {
            return Err(StartError::NoAllocatorGuard);
        }
        let config = self.resolve()?;
        if STARTING.swap(true, Ordering::SeqCst) {
            return Err(StartError::AlreadyRunning);
        }
        let runtime = start(&config)?;
        let options = Options { name: Some("main".into()), stack_size: None };
        // SAFETY: everything is 'static. The main thread's captures may be large; a boxed closure keeps them off its stack.
        let (joiner, record) = unsafe { thread::prepare(Box::new(main), options, None) }
            .map_err(|e| StartError::Config(e.to_string()))?;
        runtime.inject(record);
        Ok(joiner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

fn start(config: &Config) -> Result<&'static Runtime, StartError> {
    arch::probe(config.shared_tls);
    let shape = tls::shape()?;
    let attachment = match config.iokernel.as_deref() {
        Some(path) => Some(&*Box::leak(Box::new(Attachment::register(path, config)?))),
        None => None,
    };
    let clock = attachment.map_or_else(|| Clock::calibrate(5), |a| Clock::from_hz(a.region.tsc_hz()));
    let runtime = Runtime {
        kthreads: (0..config.kthreads)
            .map(|index| build_kthread(index, attachment, config.kthreads == 1))
            .collect(),
        stacks: StackPool::new(config.stack_size, shape),
        blocking: BlockingPool::new(config.blocking_threads),
        pollers: Pollers::default(),
        sleepers: Sleepers::default(),
        clock,
        steals_packets: config.packet_stealing,
        idle_timeout: config.idle_timeout.map_or(Cycles::MAX, |t| clock.from_ns(t.as_nanos() as u64)),
        injected: SpinLock::new(VecDeque::new()),
        injected_len: AtomicUsize::new(0),
        attached: AtomicBool::new(attachment.is_some()),
        attachment,
        siblings: siblings(),
    };
    runtime.sleepers.prepare();
    let own_ip = config.ip.unwrap_or(std::net::Ipv4Addr::LOCALHOST);
    let mut network = attachment.map_or_else(|| NetConfig::standalone(own_ip), Attachment::net_config);
    network.tcp_connections = config.tcp_connections;
    network.ring_bytes = config.ring_bytes;
    net::init(network);
    assert!(RUNTIME.set(runtime).is_ok(), "STARTING lets one caller through");
    panics::install_hook();
    preempt::install()
        .map_err(|source| StartError::System { action: "install the preempt handler", source })?;
    overflow::install()
        .map_err(|source| StartError::System { action: "install the overflow handler", source })?;
    start_kthreads()?;
    // Afterwards: this thread has left the managed cores, and whom it starts stays off them.
    self::runtime()
        .blocking
        .start()
        .map_err(|source| StartError::System { action: "start a thread for blocking calls", source })?;
    quantum::start(config.quantum)
        .map_err(|source| StartError::System { action: "start the thread that ends time slices", source })?;
    debug::start(config).map_err(|source| StartError::System {
        action: "start the thread that watches for stalls",
        source,
    })?;
    Ok(self::runtime())
}

fn build_kthread(index: u16, attachment: Option<&'static Attachment>, only: bool) -> &'static Kthread {
    let kthread = match attachment {
        Some(a) => {
            let slot = a.lot.slot(a.slots[index as usize]);
            Kthread::new(index, a.region.kthread(index), slot, Some(a.ends(index)), only)
        }
        None => {
            let words: &'static KthreadShared = Box::leak(Box::default());
            Kthread::new(index, words, Box::leak(Box::default()), None, only)
        }
    };
    let kthread = Box::leak(Box::new(kthread));
    kthread.anchor();
    kthread
}

/// Starts the OS threads, tells the IOKernel who they are, and leaves the managed cores to them.
fn start_kthreads() -> Result<(), StartError> {
    let runtime = runtime();
    let (tids, from_kthreads) = std::sync::mpsc::channel();
    for &kthread in &runtime.kthreads {
        let tids = tids.clone();
        std::thread::Builder::new()
            .name(format!("tailwater/{}", kthread.index))
            .spawn(move || {
                overflow::prepare_os_thread();
                kthread.adopt_os_thread();
                if runtime.attachment.is_some() {
                    tailwater_shm::priority::raise_kthread();
                }
                tids.send((kthread.index, rustix::thread::gettid())).expect("the starter waits for all");
                drop(tids);
                worker::run_kthread(kthread)
            })
            .map_err(|source| StartError::System { action: "start a kthread", source })?;
    }
    drop(tids);
    let mut tids: Vec<_> = from_kthreads.iter().collect();
    tids.sort_unstable_by_key(|(index, _)| *index);
    if let Some(attachment) = runtime.attachment {
        let tids = tids.iter().map(|(_, tid)| tid.as_raw_nonzero().get()).collect();
        attachment.announce(tids)?;
        attachment.watch(runtime)?;
    }
    Ok(())
}

/// Sibling hyperthread of each core, from sysfs; none where it cannot be read.
fn siblings() -> Box<[Option<u16>]> {
    let sibling_of = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(path).ok()?;
        list.trim().split([',', '-']).filter_map(|n| n.parse::<u16>().ok()).find(|&n| usize::from(n) != cpu)
    };
    (0..std::thread::available_parallelism().map_or(1, usize::from)).map(sibling_of).collect()
}
