//! Measurements of the IOKernel by itself: hand-offs and the switch.
//!
//! Owns the library side of `tailwater bench handoff` and `tailwater bench switch`: [`handoff()`] and [`switch()`] run an
//! IOKernel in this process with raw runtimes around it and return plain numbers. They print nothing. What is compared is
//! interleaved in rounds, for these machines drift; every figure is a quantile of a histogram.
//!
//! The child processes are copies of the calling program: its `main` must begin with
//! [`child::run_if_asked`](crate::testing::child::run_if_asked).

mod baseline;
mod firewall;
mod handoff;
mod prober;
mod switch;

pub use handoff::{HandoffOptions, HandoffReport, handoff};
pub use switch::{ECHO_NAME, SwitchOptions, SwitchReport, raw_round_trips, switch};

pub(crate) use baseline::{BaselineOrder, live as live_baseline};

use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::port::Port;
use crate::stats::StatsHandle;
use crate::testing::RawError;
use crate::{IoKernel, StartError};

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The IOKernel did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A raw runtime did not start.
    #[error(transparent)]
    Runtime(#[from] RawError),
    /// A child process did not start, or died.
    #[error("child process: {0}")]
    Child(String),
    /// Nothing came back in time.
    #[error("{what} took longer than {}; is the machine overloaded?", seconds(*.limit))]
    TooSlow {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        limit: Duration,
    },
    /// The kernel has no descriptors left.
    #[error("cannot make {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: rustix::io::Errno,
    },
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs())
}

/// How long one round may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// An IOKernel on a thread of its own; stopped on drop.
struct Running {
    socket: String,
    managed: u16,
    iokernel: u16,
    stats: StatsHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), StartError>>>,
}

impl Running {
    /// Starts one that manages one core, with an abstract socket nobody else has.
    fn start(ports: Vec<Box<dyn Port>>) -> Result<Self, BenchError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@tailwater-bench-{}-{number}", std::process::id());
        let config = Config { socket: socket.clone(), ..Config::default() };
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
            // A panic there was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Waits for a condition, looking every millisecond.
fn wait_for(what: &'static str, mut condition: impl FnMut() -> bool) -> Result<(), BenchError> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            return Err(BenchError::TooSlow { what, limit: PATIENCE });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A quantile of a histogram of nanoseconds, in microseconds; 0 when it is empty.
fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.value_at_quantile(quantile) as f64 / 1_000.0 }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range")
}
