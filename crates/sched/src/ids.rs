//! Names of cores, runtimes and kthreads, and the unit of time.
//!
//! They are plain values without behaviour, so that two integers of different meaning cannot be
//! exchanged by mistake.

use core::fmt;
use core::ops::{Add, Sub};

/// A managed CPU by the number the operating system gives it, not by its position in a
/// [`crate::topology::Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// A registered runtime, by the slot it occupies. A slot is used again once its runtime is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimeId(pub u32);

/// A kthread: an OS thread of a runtime that can be lent a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KthreadId {
    /// The runtime it belongs to.
    pub runtime: RuntimeId,
    /// Its place among the kthreads of that runtime, from 0.
    pub index: u16,
}

impl KthreadId {
    /// Names the `index`-th kthread of `runtime`.
    #[must_use]
    pub const fn new(runtime: RuntimeId, index: u16) -> Self {
        Self { runtime, index }
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

impl fmt::Display for RuntimeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runtime {}", self.0)
    }
}

impl fmt::Display for KthreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kthread {}.{}", self.runtime.0, self.index)
    }
}

/// Nanoseconds: a point in time since an origin of the caller's choice, or the distance between two
/// such points.
///
/// Arithmetic saturates: a clock that steps back yields a distance of zero, never a panic or a huge
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, and the empty distance.
    pub const ZERO: Self = Self(0);

    /// Converts microseconds; saturates at the largest representable value.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Converts milliseconds; saturates at the largest representable value.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns how long ago `earlier` was; zero if it lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    fn sub(self, rhs: Self) -> Self {
        self.since(rhs)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap::string::ToString;

    #[test]
    fn a_clock_that_steps_back_yields_no_time_at_all() {
        assert_eq!(Nanos(5).since(Nanos(9)), Nanos::ZERO);
        assert_eq!(Nanos(5) - Nanos(9), Nanos::ZERO);
        assert_eq!(Nanos(u64::MAX) + Nanos(1), Nanos(u64::MAX));
        assert_eq!(Nanos::from_millis(u64::MAX), Nanos(u64::MAX));
    }

    #[test]
    fn names_tell_kind_and_number() {
        assert_eq!(KthreadId::new(RuntimeId(3), 1).to_string(), "kthread 3.1");
        assert_eq!(CoreId(7).to_string(), "core 7");
        assert_eq!(RuntimeId(2).to_string(), "runtime 2");
    }
}
