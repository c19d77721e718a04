//! An IOKernel on a thread of this process, for those that measure with a port of their own.
//!
//! Owns the thread, from the IOKernel's start to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use anyhow::Context;
use tailwater_iokernel::port::Port;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::{Config, IoKernel};

use crate::machine::cpu_set;

/// A running IOKernel; dropping it ends it, so it comes before its port's other end among the fields of its owner.
#[derive(Debug)]
pub struct Embedded {
    pub stats: StatsHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts one. It finds the cores `usable`, where the calling thread keeps off some of them: it must see those that it lends.
    ///
    /// # Errors
    /// When it does not start, or no thread can be had.
    pub fn start(config: Config, port: Box<dyn Port>, usable: Option<Vec<usize>>) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let (ready, started) = channel();
        let thread = std::thread::Builder::new()
            .name("iokernel".to_owned())
            .spawn(move || {
                if let Some(usable) = usable {
                    // What cannot be had is reported by the IOKernel's own look at its cores.
                    let _ = rustix::thread::sched_setaffinity(None, &cpu_set(&usable));
                }
                match IoKernel::new(config, vec![port]) {
                    Ok(iokernel) => {
                        // Nobody waits any more only if this program is ending.
                        let _ = ready.send(Ok(iokernel.stats()));
                        if let Err(error) = iokernel.run(&flag) {
                            eprintln!("the IOKernel ended: {error}");
                        }
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .context("cannot start a thread")?;
        let stats =
            started.recv().context("the IOKernel's thread ended")?.context("the IOKernel does not start")?;
        Ok(Self { stats, stop, thread: Some(thread) })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}
