//! [`CorePolicy`]: how many cores a program requests, by its load.
//!
//! Owns the thread on which the policy runs, an ordinary one off the managed cores: a policy keeps
//! no core from the program's threads, and a program that idles is not lent a core for it. There is
//! at most one policy. Each has a number, and one that is not the latest ends.

use super::{Load, LoadMeter, Priorities, publish};
use crate::blocking;
use crate::ground::spin::SpinLock;
use crate::records::runtime::runtime;
use core::time::Duration;
use std::io;
use tailwater_shm::layout::TAKES_REQUESTS;

/// Shortest interval of a policy: a decision takes some microseconds of a core that the IOKernel
/// and ordinary programs share.
const SHORTEST: Duration = Duration::from_millis(1);
/// Longest interval of a policy.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest sleep of a policy's thread, so that one that was replaced ends.
const NAP: Duration = Duration::from_millis(100);

/// Number of the policy in force; odd if there is one.
static IN_FORCE: SpinLock<u64> = SpinLock::new(0);

/// Decides how many cores the program requests, by its load (Arachne section 6).
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use tailwater::cores::{self, CorePolicy, Load, Priorities};
///
/// /// As many cores as are busy, and one to spare.
/// struct OneToSpare;
///
/// impl CorePolicy for OneToSpare {
///     fn interval(&self) -> Duration {
///         Duration::from_millis(20)
///     }
///
///     fn cores(&mut self, load: &Load) -> Priorities {
///         Priorities::from(load.utilisation.ceil() as usize + 1)
///     }
/// }
///
/// #[tailwater::main]
/// fn main() -> Result<(), cores::PolicyError> {
///     cores::set_policy(OneToSpare)
/// }
/// ```
pub trait CorePolicy: Send + 'static {
    /// Returns the time between two decisions, from 1 ms to 10 s. Read once.
    fn interval(&self) -> Duration;

    /// Returns the cores to request from now on, beside those of [`request`](super::request).
    /// `load` is that of the interval before. Called on an ordinary thread, which may block; if it
    /// panics, the policy ends as by [`clear_policy`].
    fn cores(&mut self, load: &Load) -> Priorities;
}

/// Why a policy cannot decide on the program's cores.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::cores::{self, Estimation, PolicyError};
///
/// #[tailwater::main]
/// fn main() {
///     // There is no IOKernel to request cores from.
///     let refused = cores::estimate(Estimation::default());
///     assert!(matches!(refused, Err(PolicyError::NoIoKernel)));
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The program runs standalone, or its IOKernel has ended.
    #[error("there is no IOKernel to request cores from: run the program with TAILWATER_IOKERNEL")]
    NoIoKernel,
    /// The IOKernel grants no requests.
    #[error("the IOKernel grants no requested cores: set policy = \"arbiter\" in its configuration")]
    NoArbiter,
    /// A setting is out of range.
    #[error("{setting} = {value} is out of range: {range}")]
    OutOfRange {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// No thread can be started for the policy.
    #[error("cannot start a thread for the core policy: {0}")]
    Thread(#[from] io::Error),
}

/// Has `policy` decide how many cores the program requests, in place of any policy before. If the
/// program registers with another IOKernel later, the policy goes on; it has no effect while that
/// one grants no requests.
///
/// # Errors
/// If requests have no effect at present, if the interval is out of range, or if no thread can be
/// started.
///
/// # Panics
/// If there is no runtime.
pub fn set_policy(policy: impl CorePolicy) -> Result<(), PolicyError> {
    check()?;
    let interval = policy.interval();
    if !(SHORTEST..=LONGEST).contains(&interval) {
        let value = format!("{interval:?}");
        return Err(PolicyError::OutOfRange { setting: "interval", value, range: "1 ms to 10 s" });
    }
    let number = {
        let mut in_force = IN_FORCE.lock();
        *in_force = (*in_force + 1) | 1;
        *in_force
    };
    let name = "tailwater/cores".to_owned();
    // Started by a thread off the managed cores: a thread inherits its starter's.
    let started = blocking(move || {
        std::thread::Builder::new().name(name).spawn(move || run(policy, interval, number)).map(drop)
    });
    if started.is_err() {
        end(number);
    }
    Ok(started?)
}

/// Ends the policy, and withdraws what it requests.
///
/// # Panics
/// If there is no runtime.
///
/// # Examples
/// ```standalone_crate
/// #[tailwater::main]
/// fn main() {
///     // None is in force: nothing changes.
///     tailwater::cores::clear_policy();
///     assert_eq!(tailwater::cores::requested().total(), 0);
/// }
/// ```
pub fn clear_policy() {
    let number = *IN_FORCE.lock();
    if number % 2 == 1 {
        end(number);
    }
}

/// Returns an error if requests for cores have no effect.
pub(super) fn check() -> Result<(), PolicyError> {
    let runtime = runtime();
    let loan = runtime.loan.filter(|_| runtime.is_attached()).ok_or(PolicyError::NoIoKernel)?;
    // Relaxed: written before the program was told that it may begin.
    let word = loan.region.granted().load(core::sync::atomic::Ordering::Relaxed);
    if word & TAKES_REQUESTS == 0 { Err(PolicyError::NoArbiter) } else { Ok(()) }
}

fn run(mut policy: impl CorePolicy, interval: Duration, number: u64) {
    // It runs for microseconds at a time, perhaps on the core that an IOKernel polls on.
    tailwater_shm::priority::raise_thread();
    let _end = End(number);
    let mut meter = LoadMeter::new();
    loop {
        let mut left = interval;
        while !left.is_zero() {
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            left -= nap;
            if *IN_FORCE.lock() != number {
                return;
            }
        }
        let cores = policy.cores(&meter.load());
        let in_force = IN_FORCE.lock();
        if *in_force != number {
            return;
        }
        publish(|wishes| wishes.by_policy = cores);
    }
}

/// Ends policy `number` when it is dropped.
struct End(u64);

impl Drop for End {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Ends policy `number`, unless another one is in force.
fn end(number: u64) {
    let mut in_force = IN_FORCE.lock();
    if *in_force == number {
        *in_force += 1;
        publish(|wishes| wishes.by_policy = Priorities::default());
    }
}
