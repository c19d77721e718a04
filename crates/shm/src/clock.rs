//! The cycle clock: time stamps that cost a few nanoseconds and mean the same in every process of
//! the machine.
//!
//! Owns the reading of the time-stamp counter (TSC) and its calibration against `CLOCK_MONOTONIC`.
//! The IOKernel calibrates once and publishes the frequency in each region's header, so that a
//! deadline written by a runtime and read by the IOKernel is in one unit. Needs an invariant TSC
//! (every x86-64 since 2008; [`Clock::invariant`] checks).

use rustix::time::{ClockId, clock_gettime};

/// A point in time or a length of time in TSC cycles.
pub type Cycles = u64;

/// Reads the time-stamp counter: about 10 ns on a VM. Not ordered against surrounding loads and
/// stores.
#[inline(always)]
pub fn now() -> Cycles {
    // SAFETY: RDTSC exists on every x86-64 processor and has no precondition in user mode.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Converts between cycles and nanoseconds.
///
/// Conversions are multiply-and-shift with 32 fractional bits: relative error below 1e-8 for spans
/// up to an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    hz: u64,
    ns_per_cycle_q32: u64,
    cycles_per_ns_q32: u64,
}

impl Clock {
    /// Returns a clock of known frequency.
    ///
    /// # Panics
    /// If `hz` is outside 100 MHz to 100 GHz: no x86-64 TSC runs there, so the number came from a
    /// bug.
    pub fn from_hz(hz: u64) -> Self {
        assert!((100_000_000..=100_000_000_000).contains(&hz), "TSC frequency {hz} Hz is not plausible");
        let one = 1u128 << 32;
        Self {
            hz,
            ns_per_cycle_q32: (1_000_000_000u128 * one / u128::from(hz)) as u64,
            cycles_per_ns_q32: (u128::from(hz) * one / 1_000_000_000) as u64,
        }
    }

    /// Measures the TSC against `CLOCK_MONOTONIC` for about `span_ms` milliseconds (5 gives 1e-5,
    /// 50 gives 1e-6).
    pub fn calibrate(span_ms: u64) -> Self {
        let (c0, n0) = Self::pair();
        let end = n0 + span_ms.max(1) * 1_000_000;
        while monotonic_ns() < end {
            core::hint::spin_loop();
        }
        let (c1, n1) = Self::pair();
        let hz = u128::from(c1.wrapping_sub(c0)) * 1_000_000_000 / u128::from((n1 - n0).max(1));
        Self::from_hz(hz as u64)
    }

    /// One (cycles, nanoseconds) reading: the tightest of sixteen, so that a descheduled reading is
    /// not used.
    fn pair() -> (Cycles, u64) {
        let mut best = (u64::MAX, 0, 0);
        for _ in 0..16 {
            let a = now();
            let ns = monotonic_ns();
            let b = now();
            let width = b.wrapping_sub(a);
            if width < best.0 {
                best = (width, a + width / 2, ns);
            }
        }
        (best.1, best.2)
    }

    /// Frequency in Hz.
    pub fn hz(&self) -> u64 {
        self.hz
    }

    /// Nanoseconds in `cycles`.
    #[inline(always)]
    pub fn to_ns(&self, cycles: Cycles) -> u64 {
        ((u128::from(cycles) * u128::from(self.ns_per_cycle_q32)) >> 32) as u64
    }

    /// Cycles in `ns` nanoseconds; saturates at `u64::MAX`.
    #[inline(always)]
    pub fn from_ns(&self, ns: u64) -> Cycles {
        let c = (u128::from(ns) * u128::from(self.cycles_per_ns_q32)) >> 32;
        if c > u128::from(u64::MAX) { u64::MAX } else { c as u64 }
    }

    /// Returns whether the processor promises a TSC that ticks at one rate in all power states
    /// (CPUID 8000_0007h, EDX bit 8).
    pub fn invariant() -> bool {
        let highest = core::arch::x86_64::__cpuid(0x8000_0000).eax;
        highest >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & (1 << 8) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_within_a_part_in_ten_million() {
        for hz in [1_000_000_000, 2_100_000_123, 2_699_999_999, 4_999_000_000] {
            let clock = Clock::from_hz(hz);
            for ns in [1_000u64, 1_000_000, 3_600_000_000_000] {
                let back = clock.to_ns(clock.from_ns(ns));
                assert!(back.abs_diff(ns) <= ns / 10_000_000 + 2, "{hz} Hz: {ns} ns came back as {back}");
            }
        }
    }

    #[test]
    fn calibration_agrees_with_a_second_calibration() {
        let (a, b) = (Clock::calibrate(10), Clock::calibrate(10));
        assert!(a.hz().abs_diff(b.hz()) < a.hz() / 100, "{} Hz then {} Hz", a.hz(), b.hz());
    }

    #[test]
    fn a_far_deadline_saturates() {
        assert_eq!(Clock::from_hz(3_000_000_000).from_ns(u64::MAX), u64::MAX);
    }
}
