//! Cores: which ones this program has, and how many it requests.
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
//! # Examples
//! ```standalone_crate
//! use tailwater::cores::{self, Priorities};
//!
//! #[tailwater::main]
//! fn main() {
//!     // Two cores before all others, two more if they are not needed elsewhere.
//!     cores::request(Priorities::default().at(0, 2).at(7, 2));
//!     println!("{} of 4 granted; running on {:?}", cores::granted(), cores::held());
//!     cores::request(Priorities::default());
//! }
//! ```

use crate::records::kthread::NO_CORE;
use crate::records::runtime::runtime;
use crate::thread;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

/// Number of priorities; 0 is served first.
pub const PRIORITIES: usize = 8;

/// A number of cores at each of [`PRIORITIES`] priorities.
///
/// # Examples
/// ```
/// use tailwater::cores::Priorities;
///
/// // Two cores before all others, two more if they are not needed elsewhere.
/// let wanted = Priorities::default().at(0, 2).at(7, 2);
/// assert_eq!(wanted.total(), 4);
/// assert_eq!(Priorities::from(2), Priorities::default().at(0, 2));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Priorities([u8; PRIORITIES]);

impl Priorities {
    /// Sets the number of cores at a priority. More than 255 count as 255.
    ///
    /// # Panics
    /// If there is no such priority.
    #[must_use]
    pub fn at(mut self, priority: usize, cores: usize) -> Self {
        assert!(priority < PRIORITIES, "priority {priority}: priorities are 0 to {}", PRIORITIES - 1);
        self.0[priority] = u8::try_from(cores).unwrap_or(u8::MAX);
        self
    }

    /// Returns the number of cores at all priorities.
    pub fn total(self) -> usize {
        self.0.into_iter().map(usize::from).sum()
    }
}

impl From<usize> for Priorities {
    /// Returns this number of cores at priority 0.
    fn from(cores: usize) -> Self {
        Self::default().at(0, cores)
    }
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

/// Requests cores in place of what was requested before: a number, at priority 0, or a number at
/// each priority. If the IOKernel is awake, costs an atomic exchange under a lock. Takes effect
/// within microseconds. A request outlives the IOKernel: the next one reads it, too.
///
/// A request beyond the program's number of kthreads is cut, lowest priorities first. So is that of
/// a program whose user was granted fewer [guaranteed cores](crate::Builder::guaranteed).
///
/// # Panics
/// If there is no runtime.
pub fn request(cores: impl Into<Priorities>) {
    let runtime = runtime();
    if runtime.publish_requests(u64::from_le_bytes(cores.into().0)) {
        runtime.ring_doorbell();
    }
}

/// Returns what the program requests.
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
    let loan = runtime.loan.filter(|_| runtime.is_attached());
    loan.map_or(0, |loan| usize::try_from(loan.region.granted().load(Relaxed)).unwrap_or(0))
}

/// Cores that came and went between two looks.
///
/// # Examples
/// ```
/// use tailwater::cores::Change;
///
/// let change = Change { gained: vec![3], lost: Vec::new() };
/// assert_ne!(change, Change::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Cores held now and not before.
    pub gained: Vec<usize>,
    /// Cores held before and not now.
    pub lost: Vec<usize>,
}

/// Returns an endless iterator over changes of [`held`]; see [`Changes`]. The first change has
/// gained the cores held then.
pub fn changes(period: Duration) -> Changes {
    Changes { period, known: Vec::new() }
}

/// Waits for changes of the cores held. Made by [`changes`].
///
/// `next` blocks the calling thread, which looks once per period. A core that is lent and taken
/// back between two looks is not reported: a thread woken for the loss of a core would be work for
/// which the core is lent again.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
/// use tailwater::cores;
///
/// #[tailwater::main]
/// fn main() {
///     for change in cores::changes(Duration::from_millis(1)) {
///         println!("gained {:?}, lost {:?}", change.gained, change.lost);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Changes {
    period: Duration,
    known: Vec<usize>,
}

impl Iterator for Changes {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            let now = held();
            let change = Change { gained: without(&now, &self.known), lost: without(&self.known, &now) };
            if change != Change::default() {
                self.known = now;
                return Some(change);
            }
            thread::sleep(self.period);
        }
    }
}

fn without(cores: &[usize], others: &[usize]) -> Vec<usize> {
    cores.iter().copied().filter(|core| !others.contains(core)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_add_up_and_saturate() {
        let wanted = Priorities::default().at(0, 2).at(7, 1000);
        assert_eq!(wanted.total(), 257);
        assert_eq!(Priorities::from(3), Priorities::default().at(0, 3));
        assert!(std::panic::catch_unwind(|| Priorities::default().at(8, 1)).is_err());
    }

    #[test]
    fn what_was_gained_and_lost_is_the_difference() {
        assert_eq!(without(&[1, 2, 5], &[2, 3]), [1, 5]);
        assert!(without(&[2], &[2]).is_empty());
    }
}
