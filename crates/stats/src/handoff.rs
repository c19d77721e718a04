//! How long cores take to change hands.
//!
//! Owns the kinds of hand-offs, which the protocol of the statistics and the record of events name,
//! and the histograms of each.

use serde::Serialize;

use crate::histogram::SharedHistogram;

/// How a core was handed to a kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HandoffKind {
    /// From a busy kthread that reached a poll point.
    Polling,
    /// From an idle kthread.
    Idle,
    /// The core was free; the IOKernel woke the kthread.
    Wake,
    /// From a busy kthread that needed the preempt signal.
    Signal,
    /// From a kthread that ceded neither when asked nor when signalled, mostly because Linux had
    /// descheduled it: the IOKernel woke the successor beside it.
    Bypass,
    /// From a program that ended, or a kthread that had not started on the core.
    Evict,
}

impl HandoffKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Polling, Self::Idle, Self::Wake, Self::Signal, Self::Bypass, Self::Evict];

    /// Returns the name in the JSON document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Idle => "idle",
            Self::Wake => "wake",
            Self::Signal => "signal",
            Self::Bypass => "bypass",
            Self::Evict => "evict",
        }
    }
}

/// Latencies of one kind of hand-off, from the IOKernel's decision.
#[derive(Debug, Default, Serialize)]
pub struct HandoffHistograms {
    /// Until the owner gave the core up, by its own statement; of busy owners only.
    #[serde(rename = "gave_up_ns")]
    pub gave_up: SharedHistogram,
    /// Until the core was seen ceded.
    #[serde(rename = "ceded_ns")]
    pub ceded: SharedHistogram,
    /// Until the new owner was seen running.
    #[serde(rename = "running_ns")]
    pub running: SharedHistogram,
}

/// How long it took until the core of a dead runtime was free or lent again, one value for each
/// core that it held.
#[derive(Debug, Default, Serialize)]
pub struct ReclaimHistograms {
    /// Since the IOKernel noticed the death.
    #[serde(rename = "since_notice_ns")]
    pub since_notice: SharedHistogram,
    /// Since the last look that found the runtime alive: an upper bound from the death itself.
    #[serde(rename = "since_alive_ns")]
    pub since_alive: SharedHistogram,
}
