//! A raw runtime: kthreads that speak the protocol of `tailwater-shm` and run hand-written behaviours, no user threads.
//!
//! Owns what the system tests and the benchmarks of this crate drive an IOKernel with, in threads of the same process or in
//! child processes ([`child`]). Useful to whoever writes another runtime: [`RawKthread`] is the protocol from the kthread's
//! side in its simplest form. Does nothing a real runtime must not do, except where a behaviour is meant to misbehave.

pub mod child;
mod kthread;
pub mod roles;
pub mod wire;

pub use kthread::{Behaviour, RawKthread, Step};

use rustix::fd::OwnedFd;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_shm::ParkingLot;
use tailwater_shm::control::{
    self, Class, ClientMessage, ControlError, MAX_FDS, Register, ServerMessage, Welcome,
};
use tailwater_shm::layout::{Region, RegionError, VERSION};
use tailwater_shm::memory::{Mapping, MemoryError};

use crate::frame::Mac;

/// Why a raw runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The conversation failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The IOKernel said no.
    #[error("refused: {0}")]
    Refused(String),
    /// The IOKernel said something else.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    /// Its files cannot be used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Its region cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// What a raw runtime asks for and how its kthreads idle.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RawSpec {
    /// The registration.
    pub register: Register,
    /// Microseconds without work before a kthread declares itself idle.
    pub spin_us: u64,
    /// Microseconds a kthread idles before it parks.
    pub idle_us: u64,
}

impl RawSpec {
    /// One latency-critical kthread named `name` with 256 KiB rings, any address, no guarantee; idle after 2 us, parked
    /// after 50 us more.
    pub fn new(name: &str) -> Self {
        Self {
            register: Register {
                version: VERSION,
                name: name.to_owned(),
                kthreads: 1,
                guaranteed: 0,
                class: Class::LatencyCritical,
                ring_bytes: 1 << 18,
                ip: None,
                mac: None,
            },
            spin_us: 2,
            idle_us: 50,
        }
    }

    /// The same as a best-effort runtime.
    #[must_use]
    pub fn best_effort(mut self) -> Self {
        self.register.class = Class::BestEffort;
        self
    }

    /// The same with another number of kthreads.
    #[must_use]
    pub fn kthreads(mut self, kthreads: u16) -> Self {
        self.register.kthreads = kthreads;
        self
    }
}

/// The conversation up to `Welcome`, for tests of what comes before the threads.
///
/// # Errors
/// [`RawError`], with the IOKernel's own words when it refused.
pub fn register(socket: &str, register: &Register) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), RawError> {
    let connection = control::dial(socket)?;
    control::send(&connection, &ClientMessage::Register(register.clone()), &[])?;
    let (answer, files) = control::receive::<ServerMessage>(&connection)?;
    match answer {
        ServerMessage::Welcome(welcome) if files.len() == MAX_FDS => Ok((connection, welcome, files)),
        ServerMessage::Refused { why } => Err(RawError::Refused(why)),
        other => Err(RawError::Unexpected(format!("{other:?}"))),
    }
}

/// What all kthreads of a raw runtime share.
#[derive(Debug)]
pub struct Shared {
    /// The region; hostile tests scribble over it.
    pub region: Region,
    /// The parking lot.
    pub lot: ParkingLot,
    /// What the IOKernel gave.
    pub welcome: Welcome,
    doorbell: OwnedFd,
    stop: AtomicBool,
    spin_us: u64,
    idle_us: u64,
}

impl Shared {
    /// Rings the IOKernel's doorbell if it sleeps. Call after the work was made visible.
    pub fn ring_if_asleep(&self) {
        // SeqCst: pairs with the IOKernel's fence between setting `asleep` and looking at our queues.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.region.asleep().load(Ordering::Relaxed) != 0 {
            // Fails only when it is ringing at full volume already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the runtime is ending.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A registered raw runtime, with its kthreads as threads of this process. Leaves when dropped.
#[derive(Debug)]
pub struct RawRuntime {
    /// Shared with its kthreads.
    pub shared: Arc<Shared>,
    connection: Option<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl RawRuntime {
    /// Registers at `socket` and starts one kthread per behaviour that `behaviour` makes.
    ///
    /// # Errors
    /// [`RawError`]; no thread is left behind.
    pub fn start(
        socket: &str,
        spec: &RawSpec,
        behaviour: impl Fn(u16) -> Box<dyn Behaviour>,
    ) -> Result<Self, RawError> {
        let (connection, welcome, files) = register(socket, &spec.register)?;
        let [region, lot, doorbell]: [OwnedFd; MAX_FDS] = files.try_into().expect("counted by `register`");
        let shared = Arc::new(Shared {
            region: Region::attach(Mapping::new(region, "region")?)?,
            lot: ParkingLot::new(Mapping::new(lot, "parking lot")?)?,
            welcome,
            doorbell,
            stop: AtomicBool::new(false),
            spin_us: spec.spin_us,
            idle_us: spec.idle_us,
        });
        let count = spec.register.kthreads;
        let (tids_out, tids_in) = channel();
        // Kthreads begin only when the IOKernel has accepted them.
        let go = Arc::new(Barrier::new(usize::from(count) + 1));
        let threads = (0..count)
            .map(|index| {
                let (shared, behaviour) = (Arc::clone(&shared), behaviour(index));
                let (tids, go) = (tids_out.clone(), Arc::clone(&go));
                std::thread::spawn(move || {
                    let tid = rustix::thread::gettid().as_raw_nonzero().get();
                    // Fails only when the starting thread has panicked.
                    let _ = tids.send((index, tid));
                    go.wait();
                    RawKthread::new(shared, index).run(behaviour);
                })
            })
            .collect();
        let mut runtime = Self { shared, connection: None, threads };
        let mut tids: Vec<(u16, i32)> = tids_in.iter().take(count.into()).collect();
        tids.sort_unstable();
        let result = introduce(&connection, tids.into_iter().map(|(_, tid)| tid).collect());
        if result.is_err() {
            runtime.shared.stop.store(true, Ordering::Relaxed);
        }
        go.wait();
        result?;
        runtime.connection = Some(connection);
        Ok(runtime)
    }

    /// Its address.
    pub fn ip(&self) -> Ipv4Addr {
        self.shared.welcome.ip
    }

    /// Its MAC address.
    pub fn mac(&self) -> Mac {
        Mac(self.shared.welcome.mac)
    }

    /// The control connection, to see why the IOKernel ended the registration.
    pub fn farewell(&self, timeout: Duration) -> Option<String> {
        let connection = self.connection.as_ref()?;
        let mut fd = [rustix::event::PollFd::new(connection, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        rustix::event::poll(&mut fd, Some(&timeout)).ok().filter(|ready| *ready > 0)?;
        match control::receive::<ServerMessage>(connection) {
            Ok((ServerMessage::Refused { why }, _)) => Some(why),
            other => Some(format!("{other:?}")),
        }
    }

    /// Gives one more piece of work to kthread `index` from outside of any kthread, as a foreign thread would.
    pub fn submit(&self, index: u16) {
        // Release: whoever sees the count sees what was submitted.
        self.shared.region.kthread(index).status.overflow.fetch_add(1, Ordering::Release);
        self.shared.ring_if_asleep();
    }
}

fn introduce(connection: &OwnedFd, tids: Vec<i32>) -> Result<(), RawError> {
    control::send(connection, &ClientMessage::Kthreads { tids }, &[])?;
    match control::receive::<ServerMessage>(connection)?.0 {
        ServerMessage::Ready => Ok(()),
        ServerMessage::Refused { why } => Err(RawError::Refused(why)),
        other => Err(RawError::Unexpected(format!("{other:?}"))),
    }
}

impl Drop for RawRuntime {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The registration ends first, so that no core is waited for.
        self.connection = None;
        for slot in &self.shared.welcome.slots {
            self.shared.lot.slot(*slot).wake();
        }
        for thread in self.threads.drain(..) {
            // A panic there was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Asks an IOKernel for its counters.
///
/// # Errors
/// [`RawError`] when nobody listens or the answer is something else.
pub fn stats(socket: &str) -> Result<serde_json::Value, RawError> {
    let connection = control::dial(socket)?;
    control::send(&connection, &ClientMessage::Stats, &[])?;
    match control::receive::<ServerMessage>(&connection)?.0 {
        ServerMessage::Stats(document) => Ok(document),
        other => Err(RawError::Unexpected(format!("{other:?}"))),
    }
}
