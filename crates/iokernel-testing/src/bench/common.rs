//! The IOKernel under measurement, its errors and its timing.

use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_iokernel::config::Config;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::{IoKernel, StartError};
use tailwater_ports::{Port, PortError};

use crate::runtime::RawError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The IOKernel did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A port of the IOKernel cannot be made.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A raw runtime did not start.
    #[error(transparent)]
    Runtime(#[from] RawError),
    /// A child process did not start, or died.
    #[error("child process: {0}")]
    Child(String),
    /// No result in time.
    #[error("{what} took longer than {}; is the machine overloaded?", seconds(*.limit))]
    TooSlow {
        /// What was awaited.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The kernel has no descriptors left.
    #[error("cannot make {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: rustix::io::Errno,
    },
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs())
}

/// Maximum duration of one round, which takes seconds on a machine that is free.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// An IOKernel on a thread of its own; stopped on drop.
pub(super) struct Running {
    pub(super) socket: String,
    pub(super) managed: u16,
    pub(super) iokernel: u16,
    pub(super) stats: StatsHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), StartError>>>,
}

impl Running {
    /// Starts an IOKernel that manages the last core allowed, with its own abstract socket.
    pub(super) fn start(ports: Vec<Box<dyn Port>>) -> Result<Self, BenchError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@tailwater-bench-{}-{number}", std::process::id());
        let allowed = rustix::thread::sched_getaffinity(None)
            .map_err(|source| BenchError::System { what: "a list of the cores", source })?;
        let last = (0..rustix::thread::CpuSet::MAX_CPU as u16).rfind(|&core| allowed.is_set(core.into()));
        let config = Config {
            socket: socket.clone(),
            managed_cores: Some(last.into_iter().collect()),
            // Linux may count time in which a hypervisor runs others as a thread's own: on a busy
            // host evictions are no sign of a misbehaving program.
            neighbour_share: 0,
            ..Config::default()
        };
        let iokernel = IoKernel::new(config, ports)?;
        let stats = iokernel.stats();
        let managed = iokernel.cores().managed.cores()[0].id.0;
        let own = iokernel.cores().iokernel.0;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || iokernel.run(&stop)
        });
        Ok(Self { socket, managed, iokernel: own, stats, stop, thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Fails only if the thread panicked, which it has printed itself.
            let _ = thread.join();
        }
    }
}

/// Waits for a condition, checking it every millisecond.
pub(super) fn wait_for(what: &'static str, mut condition: impl FnMut() -> bool) -> Result<(), BenchError> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            return Err(BenchError::TooSlow { what, limit: PATIENCE });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns a quantile of a histogram of nanoseconds, in microseconds; 0 if it is empty.
pub(super) fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.value_at_quantile(quantile) as f64 / 1_000.0 }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range")
}
