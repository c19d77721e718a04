//! CUBIC: the window is a cubic function of the time since it was last reduced (RFC 9438).
//!
//! The computation uses floating-point additions, multiplications and divisions, which give the
//! same bits on every machine, and `libm`'s cube root.

use core::time::Duration;

use super::Delivery;
use crate::time::Instant;

/// Factor to which the window is reduced (section 4.6).
const BETA: f64 = 0.7;
/// Steepness of the curve, in segments per second cubed (section 5).
const C: f64 = 0.4;
/// Growth with which a window reduced to `BETA` grows on average as one that is halved (section
/// 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Largest target, in windows (section 4.2).
const MAX_TARGET: f64 = 1.5;
const NOT_BEGUN: Instant = Instant(u64::MAX);

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    /// Start of this epoch; [`NOT_BEGUN`] until the first growth after a reduction.
    epoch: Instant,
    /// The window, in bytes, at which the curve is flat because the path was full before; zero if
    /// unknown.
    w_max: f32,
    /// Seconds from the start of the epoch to that point.
    k: f32,
    /// NewReno's window under the same conditions, in bytes (section 4.3).
    w_est: f64,
    /// The window before the last reduction.
    cwnd_prior: u32,
    /// Fraction of a byte left over by growth.
    fraction: f32,
}

impl Default for Cubic {
    fn default() -> Self {
        Self { epoch: NOT_BEGUN, w_max: 0.0, k: 0.0, w_est: 0.0, cwnd_prior: 0, fraction: 0.0 }
    }
}

impl Cubic {
    pub(super) fn grow(&mut self, cwnd: u32, ack: &Delivery, now: Instant) -> u32 {
        let mss = f64::from(ack.mss);
        let window = f64::from(cwnd);
        if self.epoch == NOT_BEGUN {
            // Section 4.2: the curve leads from the present window to the former one, or on from
            // here if that is already passed.
            let w_max = f64::from(self.w_max).max(window);
            self.k = libm::cbrt((w_max - window) / mss / C) as f32;
            self.w_max = w_max as f32;
            self.w_est = window;
            self.epoch = now;
        }
        let t = (now - self.epoch).as_secs_f64();
        let alpha = if self.w_est >= f64::from(self.cwnd_prior) { 1.0 } else { ALPHA };
        self.w_est += alpha * f64::from(ack.bytes) / window * mss;
        if self.curve(t, mss) < self.w_est {
            // The Reno-friendly region.
            self.fraction = 0.0;
            return cwnd.max(self.w_est.min(f64::from(super::MAX_WINDOW)) as u32);
        }
        let target = self.curve(t + ack.srtt.as_secs_f64(), mss).clamp(window, MAX_TARGET * window);
        let grown = (target - window) / window * f64::from(ack.bytes.min(cwnd)) + f64::from(self.fraction);
        let whole = grown as u32;
        self.fraction = (grown - f64::from(whole)) as f32;
        cwnd + whole
    }

    /// Returns `W_cubic` of equation 1 in bytes, `t` seconds into the epoch.
    fn curve(&self, t: f64, mss: f64) -> f64 {
        let away = t - f64::from(self.k);
        C * away * away * away * mss + f64::from(self.w_max)
    }

    /// Reduces the window `cwnd`, of which `used` was in use (sections 4.6 and 4.7). A flow that
    /// did not reach its former window gives up more.
    pub(super) fn reduce(&mut self, cwnd: u32, used: u32) -> u32 {
        let window = f64::from(cwnd);
        self.w_max = if window < f64::from(self.w_max) { window * (1.0 + BETA) / 2.0 } else { window } as f32;
        self.cwnd_prior = cwnd;
        self.epoch = NOT_BEGUN;
        self.fraction = 0.0;
        (f64::from(used) * BETA) as u32
    }

    /// Starts flat where slow start ends (section 4.8).
    pub(super) fn after_timeout(&mut self) {
        self.epoch = NOT_BEGUN;
    }

    /// Excludes the time in which nothing was sent from the epoch (section 5.8).
    pub(super) fn after_idle(&mut self, idle: Duration) {
        self.epoch = self.epoch + idle;
    }
}
