//! The IOKernel put together: start, the polling loop, sleep and end.
//!
//! Owns [`IoKernel`], what a program that has one can do with it. [`start`] makes it, [`polling`]
//! has the loop. [`quiet`], [`sleep`], [`share`], [`neighbours`], [`contest`], [`batch_jobs`] and
//! [`local_peer`] decide when the polling thread sleeps or leaves its core to others.

mod batch_jobs;
mod contest;
mod control_thread;
mod local_peer;
mod neighbours;
mod polling;
mod ports;
mod quiet;
mod share;
mod sleep;
mod start;
mod start_error;

use rustix::fd::OwnedFd;
use rustix::thread::gettid;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_ports::Port;
use tailwater_shm::Clock;

use crate::config::Config;
use crate::control::Control;
use crate::control::reload::Reloader;
use crate::control::watch::{Heartbeat, Stage};
use crate::machine::{self, Cores, Pinned};
use crate::real_time::real_time;
use crate::stats::StatsHandle;
use crate::sys::holder::Holder;
use control_thread::{ControlThread, Work};
use polling::Polling;
pub(crate) use ports::{check_address, network_of};
pub use start_error::StartError;

/// Why an IOKernel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its stop flag is set.
    Stopped,
    /// Another one has taken over.
    Succeeded,
}

/// An IOKernel that is ready to run: its socket is open, its ports are started.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use tailwater_iokernel::{Config, IoKernel};
///
/// let iokernel = IoKernel::new(Config::default(), Vec::new())?;
/// let stats = iokernel.stats();
/// let stop = AtomicBool::new(false); // set it from a signal handler or another thread
/// iokernel.run(&stop)?;
/// println!("{}", stats.to_json());
/// # Ok::<(), tailwater_iokernel::StartError>(())
/// ```
pub struct IoKernel {
    config: Config,
    cores: Cores,
    polling: Polling,
    control: Control,
    control_thread: ControlThread,
    left_devices: Vec<(String, usize)>,
    heartbeat: Option<Heartbeat>,
    farewell: Option<Box<dyn FnOnce(End) + Send>>,
}

impl IoKernel {
    /// Checks the configuration, starts the ports and opens the control socket. Runtimes may
    /// connect as soon as this returns and are served once [`run`](Self::run) is called. Takes
    /// about 20 ms, to calibrate the clock.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub fn new(config: Config, ports: Vec<Box<dyn Port>>) -> Result<Self, StartError> {
        Self::make(config, ports, None)
    }

    /// As [`new`](Self::new), in the place of the IOKernel that runs at the same control socket:
    /// this one gets its listening socket and the devices of its ports. That one has ended all
    /// registrations when this returns; its programs attach to this one.
    ///
    /// `main` is called with the number of this process just before that one is asked to end, so
    /// that a service manager watches this process when that one has ended, and with the number of
    /// that one if it goes on all the same.
    ///
    /// # Errors
    /// As `new`, and if none runs there or it refuses, or `stop` is set before it has promised to
    /// end. It then goes on as if nothing had happened. Also if `stop` is set after the promise,
    /// and it has not ended by then.
    pub fn take_over(
        config: Config,
        ports: Vec<Box<dyn Port>>,
        stop: &AtomicBool,
        main: impl Fn(u32),
    ) -> Result<Self, StartError> {
        Self::make(config, ports, Some((stop, &main)))
    }

    /// Returns the descriptors of the devices that a service manager may keep
    /// ([`Port::devices_last`]), by port. The next process goes on with them ([`Port::inherit`]).
    pub fn lasting_devices(&self) -> impl Iterator<Item = (&str, &[OwnedFd])> {
        let lasting = self.control.devices().iter().filter(|of| of.last);
        lasting.map(|of| (of.port.as_str(), &of.files[..]))
    }

    /// Returns the ports of the previous IOKernel whose devices this one has not taken over, with
    /// the numbers of their descriptors; none if there was no takeover.
    pub fn left_devices(&self) -> &[(String, usize)] {
        &self.left_devices
    }

    /// Returns the file in which events are recorded ([`tailwater_shm::trace::Recording`]).
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn record(&self) -> std::io::Result<OwnedFd> {
        self.control.record().try_clone()
    }

    /// Has the control thread call `beat` every `interval`, as long as the polling thread makes
    /// progress: a sign of life for a service manager.
    pub fn set_heartbeat(&mut self, interval: Duration, beat: impl FnMut() + Send + 'static) {
        self.heartbeat = Some(Heartbeat { interval, beat: Box::new(beat) });
    }

    /// Has [`run`](Self::run) call `farewell` when it is about to end all registrations, on the
    /// polling thread: programs wait for what it waits for.
    pub fn set_farewell(&mut self, farewell: impl FnOnce(End) + Send + 'static) {
        self.farewell = Some(Box::new(farewell));
    }

    /// Returns the counters and histograms; readable during and after [`run`](Self::run), from any
    /// thread.
    pub fn stats(&self) -> StatsHandle {
        StatsHandle::new(Arc::clone(&self.polling.world.stats))
    }

    /// Returns what puts a new configuration into effect.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(self.polling.notices.clone())
    }

    /// Returns the settings at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns in words what the machine's other programs get of the cores, and why real-time rank
    /// is not given beside them, if it is not.
    pub fn neighbours(&self) -> String {
        let share = self.config.neighbour_share;
        let words = machine::neighbours(self.cores.iokernel.0, &self.cores.managed_numbers(), share);
        if share == 0 {
            return words;
        }
        match real_time(&self.config, self.polling.switch.has_local_peer()) {
            Err(why) => format!("{words}; {why}"),
            Ok(()) => words,
        }
    }

    /// Returns the cores in use.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Runs on the calling thread, bound to the IOKernel's core, until `stop` is set (noticed
    /// within 100 ms, at once while there is traffic), or until another IOKernel has [taken
    /// over](Self::take_over). Then all registrations have ended, all threads may use their former
    /// cores, and the caller's affinity and priority are restored.
    ///
    /// # Errors
    /// If the thread cannot be bound to the core.
    pub fn run(self, stop: &AtomicBool) -> Result<(), StartError> {
        // Before the thread has its priority, which that process is not to have.
        let holder = Holder::start().inspect_err(
            |error| tracing::warn!(%error, "if this process is killed, programs and devices may notice late"),
        );
        let pinned = Pinned::this_thread(&self.cores, self.config.priority)?;
        let clock = self.polling.clock;
        self.polling.world.stats.set_facts(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "socket": self.config.socket,
            "iokernel_core": self.cores.iokernel.0,
            "managed_cores": self.cores.managed_numbers(),
            "networks": self.config.networks(),
            "tsc_hz": clock.hz(),
            "invariant_tsc": Clock::invariant(),
            "policy": self.config.policy.as_str(),
            "priority": pinned.report,
        }));
        // Before the polling state, so that it is joined after that has ended.
        let mut control_thread = self.control_thread;
        let (control, heartbeat) = (self.control, self.heartbeat);
        let naps = control.expects_programs() && control_thread.shares_core;
        control_thread.begin(Work { control, heartbeat, polling: gettid() });
        let mut polling = self.polling;
        polling.begin(&self.config, &self.cores, naps);
        // Relaxed: the flag publishes nothing else.
        while !stop.load(Ordering::Relaxed) && !polling.leaves() {
            polling.iterate(stop);
        }
        // Before a successor uses the device.
        polling.switch.send_held(&mut polling.world);
        polling.enter(Stage::Outside);
        if let Some(farewell) = self.farewell {
            farewell(if polling.leaves() { End::Succeeded } else { End::Stopped });
        }
        polling.end_all();
        // Then `pinned` restores its nice value.
        polling.leave_real_time();
        // Last: until here the memory is in use.
        drop(holder);
        Ok(())
    }
}
