//! An IOKernel on a thread of this process, for measurements whose generator is its port.
//!
//! Owns the thread, from the IOKernel's start to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use anyhow::Context;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::gettid;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::{Config, IoKernel};
use tailwater_ports::Port;
use tailwater_shm::priority::{self, Rank};

use crate::machine::cpu_set;

/// Returns settings of an IOKernel at this socket that polls on one core, of which it
/// leaves other programs nothing, and lends others.
#[must_use]
pub fn lending(socket: &str, polling: usize, managed: &[usize]) -> Config {
    Config {
        socket: socket.to_owned(),
        iokernel_core: Some(polling as u16),
        managed_cores: Some(managed.iter().map(|&core| core as u16).collect()),
        neighbour_share: 0,
        ..Config::default()
    }
}

/// A running IOKernel, which ends when this is dropped. In a struct it comes before the other end
/// of its port.
#[derive(Debug)]
pub struct Embedded {
    /// The IOKernel's counters.
    pub stats: StatsHandle,
    thread_id: Pid,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts an IOKernel with one port: see [`with_ports`](Self::with_ports).
    ///
    /// # Errors
    /// If the IOKernel or the thread does not start.
    pub fn start(config: Config, port: Box<dyn Port>, usable: Option<Vec<usize>>) -> anyhow::Result<Self> {
        Self::with_ports(config, vec![port], usable)
    }

    /// Starts an IOKernel. With `usable` its thread may use these cores, where the calling thread
    /// may not use all: an IOKernel lends only cores that its own thread may use.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with_ports(
        config: Config,
        ports: Vec<Box<dyn Port>>,
        usable: Option<Vec<usize>>,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let (ready, started) = channel();
        let thread = std::thread::Builder::new()
            .name("iokernel".to_owned())
            .spawn(move || {
                if let Some(usable) = usable {
                    // The IOKernel checks its cores itself and reports those it may not use.
                    let _ = rustix::thread::sched_setaffinity(None, &cpu_set(&usable));
                }
                match IoKernel::new(config, ports) {
                    Ok(iokernel) => {
                        // The receiver is gone only if this program is ending.
                        let _ = ready.send(Ok((iokernel.stats(), gettid())));
                        if let Err(error) = iokernel.run(&flag) {
                            note!("the IOKernel ended: {error}");
                        }
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .context("cannot start a thread")?;
        let (stats, thread_id) =
            started.recv().context("the IOKernel's thread ended")?.context("the IOKernel does not start")?;
        Ok(Self { stats, thread_id, stop, thread: Some(thread) })
    }

    /// Has Linux share the polling thread's core: it takes the shortest turns there are (a slice of
    /// 100 us, sched_setattr(2)), and its nice value decides how many. For an IOKernel with
    /// `priority = "none"` and `neighbour-share = 0`, which leaves both as they are.
    ///
    /// # Errors
    /// If Linux refuses it: a value below 0 needs `CAP_SYS_NICE`.
    pub fn take_turns(&self, nice: i32) -> anyhow::Result<()> {
        setpriority_process(Some(self.thread_id), nice).context("the polling thread's nice value")?;
        let set = priority::set_rank(self.thread_id.as_raw_nonzero().get(), Rank::Ordinary);
        anyhow::ensure!(set, "Linux refuses the polling thread a slice");
        Ok(())
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
