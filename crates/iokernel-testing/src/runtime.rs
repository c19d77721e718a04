//! A raw runtime in this process: registration, and one thread per kthread.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_shm::board::WakeBoard;
use tailwater_shm::control::{
    self, ClientMessage, ControlError, Instance, ProgramClass, Register, ServerMessage, Welcome,
};
use tailwater_shm::layout::{Region, RegionError, RuntimeEnds, VERSION};
use tailwater_shm::memory::{Mapping, MemoryError};
use tailwater_shm::priority;
use tailwater_shm::ring::Consumer;
use tailwater_wire::MacAddr;

use crate::kthread::{Behaviour, RawKthread, sleep_through};
use crate::shared::Shared;

/// Numbers of descriptors with a welcome: the region and the doorbell, and the board where there is
/// one.
const WELCOME_FDS: core::ops::RangeInclusive<usize> = 2..=3;

/// Why a raw runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The conversation failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The IOKernel refused.
    #[error("refused: {0}")]
    Refused(String),
    /// The IOKernel sent another message.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    /// The files it received cannot be used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The region it received cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The request of a raw runtime, and how its kthreads idle.
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
    /// Returns a request for one latency-critical kthread named `name` with 256 KiB rings, any
    /// address, no guarantee; idle after 2 us, parked after 50 us more.
    pub fn new(name: &str) -> Self {
        Self {
            register: Register {
                version: VERSION,
                name: name.to_owned(),
                kthreads: 1,
                guaranteed: 0,
                class: ProgramClass::LatencyCritical,
                ring_bytes: 1 << 18,
                ip: None,
                returns: false,
                instance: Instance::Only,
                listen: Vec::new(),
            },
            spin_us: 2,
            idle_us: 50,
        }
    }

    /// Returns the same as a best-effort runtime.
    #[must_use]
    pub fn best_effort(mut self) -> Self {
        self.register.class = ProgramClass::BestEffort;
        self
    }

    /// Returns the same with another number of kthreads.
    #[must_use]
    pub fn kthreads(mut self, kthreads: u16) -> Self {
        self.register.kthreads = kthreads;
        self
    }
}

/// Runs the conversation up to `Welcome`, for tests of the steps before the threads.
///
/// # Errors
/// [`RawError`], with the IOKernel's reason if it refused.
pub fn register(socket: &str, register: &Register) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), RawError> {
    let connection = control::dial(socket)?;
    control::send(&connection, &ClientMessage::Register(register.clone()), &[])?;
    let (answer, files) = control::receive::<ServerMessage>(&connection)?;
    match answer {
        ServerMessage::Welcome(welcome) if WELCOME_FDS.contains(&files.len()) => {
            Ok((connection, welcome, files))
        }
        ServerMessage::Refused { why } => Err(RawError::Refused(why)),
        other => Err(RawError::Unexpected(format!("{other:?}"))),
    }
}

/// What a kthread's thread runs.
type Body = Box<dyn FnOnce(Arc<Shared>) + Send>;

/// Returns what makes the bodies of kthreads with these behaviours.
fn working(behaviour: impl Fn(u16) -> Box<dyn Behaviour>) -> impl FnMut(u16, RuntimeEnds) -> Body {
    move |index, ends| {
        let behaviour = behaviour(index);
        Box::new(move |shared| RawKthread::new(shared, index, ends).run(behaviour))
    }
}

/// A registered raw runtime, with its kthreads as threads of this process. Leaves on drop.
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
        Self::launch(spec, register(socket, &spec.register)?, working(behaviour))
    }

    /// As [`start`](Self::start); also returns its region mapped once more, which is possible
    /// before the kthreads are accepted only, and the board if there is one.
    ///
    /// # Errors
    /// As `start`.
    pub(crate) fn start_with_words(
        socket: &str,
        spec: &RawSpec,
        behaviour: impl Fn(u16) -> Box<dyn Behaviour>,
    ) -> Result<(Self, (Mapping, Option<Mapping>)), RawError> {
        let registered = register(socket, &spec.register)?;
        let region = Mapping::new(&registered.2[0], "region")?;
        let board = registered.2.get(2).map(|file| Mapping::read_only(file, "board")).transpose()?;
        Ok((Self::launch(spec, registered, working(behaviour))?, (region, board)))
    }

    /// Registers at `socket` with kthreads that sleep through every grant, and returns the reading
    /// ends of their ingress rings, for another thread to empty.
    ///
    /// # Errors
    /// [`RawError`]; no thread is left behind.
    pub fn start_asleep(socket: &str, spec: &RawSpec) -> Result<(Self, Vec<Consumer>), RawError> {
        let mut rings = Vec::new();
        let runtime = Self::launch(spec, register(socket, &spec.register)?, |index, ends| {
            rings.push(ends.ingress);
            Box::new(move |shared| sleep_through(&shared, index))
        })?;
        Ok((runtime, rings))
    }

    fn launch(
        spec: &RawSpec,
        (connection, welcome, files): (OwnedFd, Welcome, Vec<OwnedFd>),
        mut body: impl FnMut(u16, RuntimeEnds) -> Body,
    ) -> Result<Self, RawError> {
        let mut files = files.into_iter();
        let mut next = || files.next().expect("counted by `register`");
        let (region, doorbell) = (next(), next());
        let board = files.next().map(WakeBoard::map).transpose()?.flatten();
        let wake_places = board.zip(welcome.place);
        let (region, ends) = Region::attach(Mapping::new(region, "region")?)?;
        let shared = Arc::new(Shared {
            region,
            welcome,
            class: spec.register.class,
            doorbell,
            wake_places,
            stop: AtomicBool::new(false),
            spin_us: spec.spin_us,
            idle_us: spec.idle_us,
        });
        let count = spec.register.kthreads;
        let (tids_out, tids_in) = channel();
        // Kthreads start only after the IOKernel has accepted them.
        let go = Arc::new(Barrier::new(usize::from(count) + 1));
        let threads = (0..count)
            .zip(ends)
            .map(|(index, ends)| {
                let (shared, body) = (Arc::clone(&shared), body(index, ends));
                let (tids, go) = (tids_out.clone(), Arc::clone(&go));
                std::thread::spawn(move || {
                    // Before the IOKernel knows the thread: from then on it sets its rank.
                    if shared.welcome.raise {
                        priority::raise_thread();
                    }
                    let tid = rustix::thread::gettid().as_raw_nonzero().get();
                    // Fails only if the starting thread has panicked.
                    let _ = tids.send((index, tid));
                    go.wait();
                    body(shared);
                })
            })
            .collect();
        let mut tids: Vec<(u16, i32)> = tids_in.iter().take(count.into()).collect();
        tids.sort_unstable();
        let tids = tids.into_iter().map(|(_, tid)| tid).collect();
        let mut runtime = Self { shared, connection: None, threads };
        let result = introduce(&connection, tids);
        if result.is_err() {
            runtime.shared.stop.store(true, Ordering::Relaxed);
        }
        go.wait();
        result?;
        runtime.connection = Some(connection);
        Ok(runtime)
    }

    /// Returns its address.
    pub fn ip(&self) -> Ipv4Addr {
        self.shared.welcome.ip
    }

    /// Returns its MAC address.
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.shared.welcome.mac)
    }

    /// Returns why the IOKernel ended the registration; `None` if it has not within `timeout`.
    pub fn farewell(&self, timeout: Duration) -> Option<String> {
        farewell(self.connection.as_ref()?.as_fd(), timeout)
    }

    /// Submits one more piece of work to kthread `index` from outside of any kthread, as a foreign
    /// thread would.
    pub fn submit(&self, index: u16) {
        // Release: a reader of the count sees what was submitted.
        self.shared.region.kthread(index).status.overflow.fetch_add(1, Ordering::Release);
        self.shared.ring_if_asleep();
    }
}

/// Returns why the IOKernel ended the registration of this connection; `None` if it has not within
/// `timeout`.
pub(crate) fn farewell(connection: BorrowedFd<'_>, timeout: Duration) -> Option<String> {
    let mut fd = [rustix::event::PollFd::from_borrowed_fd(connection, rustix::event::PollFlags::IN)];
    let timeout =
        rustix::event::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    rustix::event::poll(&mut fd, Some(&timeout)).ok().filter(|ready| *ready > 0)?;
    match control::receive::<ServerMessage>(connection) {
        Ok((ServerMessage::Refused { why }, _)) => Some(why),
        other => Some(format!("{other:?}")),
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
        // The registration ends first, so that no kthread waits for a core.
        self.connection = None;
        for index in 0..self.shared.region.spec().kthreads() {
            self.shared.region.kthread(index).parker.wake_always();
        }
        for thread in self.threads.drain(..) {
            // Fails only if the thread panicked, which it has printed itself.
            let _ = thread.join();
        }
    }
}

/// Returns the counters of an IOKernel.
///
/// # Errors
/// [`RawError`] if no IOKernel listens or the answer is something else.
pub fn stats(socket: &str) -> Result<serde_json::Value, RawError> {
    let connection = control::dial(socket)?;
    control::send(&connection, &ClientMessage::Stats, &[])?;
    match control::receive::<ServerMessage>(&connection)?.0 {
        ServerMessage::Stats(document) => Ok(document),
        other => Err(RawError::Unexpected(format!("{other:?}"))),
    }
}
