//! Cores: which ones this program has, how many it requests, and who decides that.
//!
//! An IOKernel lends cores by load, and most programs need not know which. [`held`] returns the
//! cores of a program, [`changes`] those gained and lost.
//!
//! Under an IOKernel with `policy = "arbiter"` a program may also [`request`] cores, at one of
//! eight [priorities](Priorities). What the IOKernel [grants](granted) of the request is the
//! program's own: it gets the cores at once, with or without work, and loses none of them while a
//! user thread runs or its kthread looks for work. A kthread that has found none for 50 us gives
//! its core to others until the program has work again. Beyond its own cores a program is lent
//! others by load. Under other policies, and without an IOKernel, requests have no effect.
//!
//! How many cores a program needs it can leave to a [`CorePolicy`], which gets the program's
//! [load](Load) every so often. `estimate` sets the supplied one. On which of its cores threads
//! begin, by their class, it can leave to a [`PlacementPolicy`].
//!
//! # Examples
//! ```standalone_crate
//! use tailwater::cores::{self, Priorities};
//!
//! #[tailwater::main]
//! fn main() {
//!     // Two cores before all others, two more if they are not needed elsewhere.
//!     cores::request(Priorities::default().with(0, 2).with(7, 2));
//!     println!("{} of 4 granted; running on {:?}", cores::granted(), cores::held());
//!     cores::request(Priorities::default());
//! }
//! ```

mod changes;
#[cfg(feature = "estimation")]
mod estimation;
mod load;
mod placing;
mod policy;

pub use changes::{Change, Changes, changes};
#[cfg(feature = "estimation")]
pub use estimation::{Estimation, estimate};
pub use load::{Load, LoadMeter};
pub use placing::{Held, PerSocket, Pinned, PlacementPolicy, WholeCores, set_placement};
pub(crate) use policy::check as check_requests;
pub use policy::{CorePolicy, CorePolicyError, clear_policy, set_policy};

use crate::ground::spin::SpinLock;
use crate::records::kthread::NO_CORE;
use crate::records::runtime::runtime;
use core::sync::atomic::Ordering::Relaxed;

/// Number of priorities; 0 is served first.
pub const PRIORITIES: usize = 8;

/// A number of cores at each of [`PRIORITIES`] priorities.
///
/// # Examples
/// ```
/// use tailwater::cores::Priorities;
///
/// // Two cores before all others, two more if they are not needed elsewhere.
/// let wanted = Priorities::default().with(0, 2).with(7, 2);
/// assert_eq!(wanted.total(), 4);
/// assert_eq!(Priorities::from(2), Priorities::default().with(0, 2));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Priorities([u8; PRIORITIES]);

impl Priorities {
    /// Sets the number of cores at a priority. More than 255 count as 255.
    ///
    /// # Panics
    /// If there is no such priority.
    #[must_use]
    pub fn with(mut self, priority: usize, cores: usize) -> Self {
        assert!(priority < PRIORITIES, "priority {priority}: priorities are 0 to {}", PRIORITIES - 1);
        self.0[priority] = u8::try_from(cores).unwrap_or(u8::MAX);
        self
    }

    /// Returns the number of cores at all priorities.
    pub fn total(self) -> usize {
        self.0.into_iter().map(usize::from).sum()
    }
}

impl Priorities {
    const NONE: Self = Self([0; PRIORITIES]);

    /// Returns the sums; more than 255 count as 255.
    fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|priority| self.0[priority].saturating_add(other.0[priority])))
    }
}

impl From<usize> for Priorities {
    /// Returns this number of cores at priority 0.
    fn from(cores: usize) -> Self {
        Self::default().with(0, cores)
    }
}

/// What is requested, by who decided it; and which policy is in force.
#[derive(Debug)]
struct CoreRequests {
    by_program: Priorities,
    by_policy: Priorities,
    /// Exclusive threads, for each of which a core is requested at priority 0.
    exclusive: usize,
    /// Number of the policy in force; odd if there is one.
    policy: u64,
}

static CORE_REQUESTS: SpinLock<CoreRequests> = SpinLock::new(CoreRequests::NONE);

impl CoreRequests {
    const NONE: Self =
        Self { by_program: Priorities::NONE, by_policy: Priorities::NONE, exclusive: 0, policy: 0 };

    fn sum(&self) -> Priorities {
        self.by_program.and(self.by_policy).and(Priorities::from(self.exclusive))
    }

    /// Puts a new policy in force, in place of any other; returns its number. What the other one
    /// requested stands until the new one decides.
    fn begin_policy(&mut self) -> u64 {
        self.policy = (self.policy + 1) | 1;
        self.policy
    }

    /// Enters what policy `number` requests; returns false, and changes nothing, if that policy is
    /// not in force.
    fn decide(&mut self, number: u64, cores: Priorities) -> bool {
        let in_force = self.policy == number;
        if in_force {
            self.by_policy = cores;
        }
        in_force
    }

    /// Ends policy `number`, or whichever is in force, and withdraws what it requested.
    fn end_policy(&mut self, number: Option<u64>) {
        if self.policy % 2 == 1 && number.is_none_or(|number| number == self.policy) {
            self.policy += 1;
            self.by_policy = Priorities::NONE;
        }
    }
}

/// Changes what is requested, and publishes the sum. The lock is free before the doorbell rings,
/// which is a system call: others spin for it with preemption off.
fn publish<T>(change: impl FnOnce(&mut CoreRequests) -> T) -> T {
    let runtime = runtime();
    let mut requests = CORE_REQUESTS.lock();
    let changed = change(&mut requests);
    let is_new = runtime.publish_requests(u64::from_le_bytes(requests.sum().0));
    drop(requests);
    if is_new {
        runtime.ring_doorbell();
    }
    changed
}

/// Returns the numbers of the cores that the program's kthreads run on now, ascending. Empty
/// without an IOKernel: then Linux places the kthreads.
///
/// # Panics
/// If there is no runtime.
pub fn held() -> Vec<usize> {
    let mut cores: Vec<usize> = runtime()
        .kthreads
        .iter()
        // Relaxed: it may have changed by the time it is returned anyway.
        .map(|kthread| kthread.core.load(Relaxed))
        .filter(|&core| core != NO_CORE)
        .map(usize::from)
        .collect();
    cores.sort_unstable();
    cores
}

/// Requests cores in place of what was requested so before: a number, at priority 0, or a number at
/// each priority. What a [policy](CorePolicy) requests comes on top. If the IOKernel is awake,
/// costs an atomic exchange under a lock. Takes effect within microseconds. A request outlives the
/// IOKernel: the next one reads it, too.
///
/// A request beyond the program's number of kthreads is cut, lowest priorities first. So is that of
/// a program whose user was granted fewer [guaranteed cores](crate::RuntimeBuilder::guaranteed).
///
/// # Panics
/// If there is no runtime.
pub fn request(cores: impl Into<Priorities>) {
    let cores = cores.into();
    publish(|requests| requests.by_program = cores);
}

/// Requests cores for this many more exclusive threads.
pub(crate) fn request_exclusive(more: isize) {
    publish(|requests| requests.exclusive = requests.exclusive.saturating_add_signed(more));
}

/// Returns what the program requests: by [`request`], by its policy, and for its
/// [exclusive](crate::thread::ThreadClass::Exclusive) threads.
///
/// # Panics
/// If there is no runtime.
pub fn requested() -> Priorities {
    Priorities(runtime().kthreads[0].shared.status.requests.load(Relaxed).to_le_bytes())
}

/// Returns how many of the requested cores are the program's own, as the IOKernel has decided.
///
/// # Panics
/// If there is no runtime.
pub fn granted() -> usize {
    let runtime = runtime();
    let iokernel = runtime.iokernel.filter(|_| runtime.is_attached());
    // The number is in the lower half: see `TAKES_REQUESTS`.
    iokernel.map_or(0, |iokernel| iokernel.region.granted().load(Relaxed) as u32 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_add_up_and_saturate() {
        let wanted = Priorities::default().with(0, 2).with(7, 1000);
        assert_eq!(wanted.total(), 257);
        assert_eq!(
            wanted.and(Priorities::default().with(0, 3).with(7, 1)),
            Priorities::default().with(0, 5).with(7, 255)
        );
        assert_eq!(Priorities::from(3), Priorities::default().with(0, 3));
        assert!(std::panic::catch_unwind(|| Priorities::default().with(8, 1)).is_err());
    }
    #[test]
    fn only_the_latest_policy_decides_and_what_it_requested_ends_with_it() {
        let mut requests = CoreRequests { by_program: Priorities::from(1), ..CoreRequests::NONE };
        let total = |requests: &CoreRequests| requests.sum().total();
        requests.end_policy(None);
        assert!(!requests.decide(requests.policy + 1, Priorities::from(9)), "none is in force");
        let first = requests.begin_policy();
        assert!(requests.decide(first, Priorities::from(2)));
        let second = requests.begin_policy();
        assert_eq!(total(&requests), 3, "until the second one decides");
        assert!(!requests.decide(first, Priorities::from(9)));
        requests.end_policy(Some(first));
        assert!(requests.decide(second, Priorities::from(4)));
        assert_eq!(total(&requests), 5);
        requests.end_policy(Some(second));
        assert_eq!(total(&requests), 1);
        assert!(!requests.decide(second, Priorities::from(4)));
        let third = requests.begin_policy();
        assert!(requests.decide(third, Priorities::from(1)));
        requests.end_policy(None);
        assert_eq!(total(&requests), 1);
    }
}
