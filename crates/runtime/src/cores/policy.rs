//! [`CorePolicy`]: how many cores a program requests, by its load.
//!
//! Owns the thread on which the policy runs, an ordinary one off the managed cores: a policy keeps
//! no core from the program's threads, and a program that idles is not lent a core for it. There is
//! at most one policy. Each has a number, and one that is not the latest ends.

use super::{CORE_REQUESTS, Load, LoadMeter, Priorities, publish};
use crate::blocking;
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

/// Decides how many cores the program requests, by its load (Arachne section 6).
///
/// # Examples
/// ```no_run,standalone_crate
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
/// fn main() -> Result<(), cores::CorePolicyError> {
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
/// use tailwater::cores::{self, Estimation, CorePolicyError};
///
/// #[tailwater::main]
/// fn main() {
///     // There is no IOKernel to request cores from.
///     let refused = cores::estimate(Estimation::default());
///     assert!(matches!(refused, Err(CorePolicyError::NoIoKernel)));
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorePolicyError {
    /// The program runs standalone.
    #[error("there is no IOKernel to request cores from: start the program by `tailwater run`")]
    NoIoKernel,
    /// The program's IOKernel has ended, and the program does not wait for another one.
    #[error(
        "the IOKernel has ended and none is waited for: restart the program, and see \
         TAILWATER_ON_IOKERNEL_LOSS and TAILWATER_IOKERNEL_WAIT_MS"
    )]
    IoKernelEnded,
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
/// one grants no requests. So it is with a policy that is set while the program waits for its next
/// IOKernel.
///
/// # Errors
/// If requests can have no effect, if the interval is out of range, or if no thread can be
/// started.
///
/// # Panics
/// If there is no runtime.
pub fn set_policy(policy: impl CorePolicy) -> Result<(), CorePolicyError> {
    check()?;
    let interval = policy.interval();
    if !(SHORTEST..=LONGEST).contains(&interval) {
        let value = format!("{interval:?}");
        return Err(CorePolicyError::OutOfRange { setting: "interval", value, range: "1 ms to 10 s" });
    }
    let number = CORE_REQUESTS.lock().begin_policy();
    let name = "tailwater/cores".to_owned();
    // Started by a thread off the managed cores: a thread inherits its starter's.
    let started = blocking(move || {
        std::thread::Builder::new().name(name).spawn(move || run(policy, interval, number)).map(drop)
    });
    if started.is_err() {
        publish(|requests| requests.end_policy(Some(number)));
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
    publish(|requests| requests.end_policy(None));
}

/// Returns an error if requests for cores can have no effect.
pub(crate) fn check() -> Result<(), CorePolicyError> {
    let runtime = runtime();
    // Relaxed: written before the program was told that it may begin.
    let word = runtime
        .iokernel
        .map(|iokernel| iokernel.region.granted().load(core::sync::atomic::Ordering::Relaxed));
    judge(word, runtime.is_attached(), runtime.awaits_iokernel())
}

/// The same, of a program with this word of granted cores. Whether the next IOKernel grants
/// requests is not known while the program waits for it.
fn judge(granted: Option<u64>, is_attached: bool, awaits: bool) -> Result<(), CorePolicyError> {
    match granted {
        None => Err(CorePolicyError::NoIoKernel),
        Some(_) if awaits => Ok(()),
        Some(_) if !is_attached => Err(CorePolicyError::IoKernelEnded),
        Some(word) if word & TAKES_REQUESTS == 0 => Err(CorePolicyError::NoArbiter),
        Some(_) => Ok(()),
    }
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
            if CORE_REQUESTS.lock().policy != number {
                return;
            }
        }
        let cores = policy.cores(&meter.load());
        if !publish(|requests| requests.decide(number, cores)) {
            return;
        }
    }
}

/// Ends policy `number` when it is dropped, unless another one is in force.
struct End(u64);

impl Drop for End {
    fn drop(&mut self) {
        publish(|requests| requests.end_policy(Some(self.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_may_be_set_where_requests_have_an_effect_now_or_later() {
        let (arbiter, other) = (Some(TAKES_REQUESTS | 2), Some(0));
        assert!(judge(arbiter, true, false).is_ok());
        assert!(matches!(judge(other, true, false), Err(CorePolicyError::NoArbiter)));
        // The IOKernel has ended: the next one may have another policy.
        assert!(judge(arbiter, false, true).is_ok() && judge(other, false, true).is_ok());
        assert!(matches!(judge(arbiter, false, false), Err(CorePolicyError::IoKernelEnded)));
        assert!(matches!(judge(None, false, false), Err(CorePolicyError::NoIoKernel)));
    }
}
