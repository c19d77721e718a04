//! Changes of the program's cores, as an iterator for a thread that reacts to them.

use super::held;
use crate::time;
use core::time::Duration;

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
/// ```no_run,standalone_crate
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
            time::sleep(self.period);
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
    fn what_was_gained_and_lost_is_the_difference() {
        assert_eq!(without(&[1, 2, 5], &[2, 3]), [1, 5]);
        assert!(without(&[2], &[2]).is_empty());
    }
}
