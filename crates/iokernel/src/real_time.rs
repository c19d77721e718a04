//! Whether the polling thread and the kthreads of services may have real-time rank while other
//! programs compete for the cores.
//!
//! Owns the reasons against it, in words for the log and for `tailwater doctor`. Who has the rank,
//! and when, is in `kernel::neighbours` and `allocator::ranks`.

use std::{fs, thread};

use tailwater_shm::priority;

use crate::config::{Config, Priority};

/// Difference to Linux's limit in percent, for looks that are late or postponed.
const MARGIN_PERCENT: i64 = 4;

/// Why there is no real-time rank: requests wait for the turns of other programs then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRealTime {
    /// The configuration asks for no priority.
    #[error("no real-time rank, as priority = \"none\" says")]
    NotWanted,
    /// Linux would stop the threads.
    #[error(
        "no real-time rank: with neighbour-share = {0} real-time threads would reach Linux's limit \
         (kernel.sched_rt_runtime_us)"
    )]
    Limit(u8),
    /// Linux does not give it.
    #[error(
        "no real-time rank: Linux refuses it; allow it with CAP_SYS_NICE or `ulimit -r 2`, in a control group \
         with real-time time"
    )]
    Refused,
    /// Other programs on the polling thread's core send and receive the frames it switches.
    #[error(
        "the polling thread has no real-time rank while all that services are sent comes from peers that a port has on \
         this machine: it yields to these"
    )]
    LocalPeer,
}

/// Returns whether the threads may have real-time rank on a machine that is not dedicated; a port
/// with peers on this machine (`local_peer`) rules it out for the polling thread only, and only
/// while services are sent nothing by others.
///
/// # Errors
/// Why not.
pub fn real_time(config: &Config, local_peer: bool) -> Result<(), NoRealTime> {
    let share = config.neighbour_share;
    if config.priority == Priority::None {
        return Err(NoRealTime::NotWanted);
    }
    if !limit_allows(100_u8.saturating_sub(share)) {
        return Err(NoRealTime::Limit(share));
    }
    // A thread of its own tries it, and its end undoes it.
    let tried = thread::Builder::new().spawn(priority::rank_polling_thread);
    if !tried.is_ok_and(|thread| thread.join().unwrap_or(false)) {
        return Err(NoRealTime::Refused);
    }
    if local_peer { Err(NoRealTime::LocalPeer) } else { Ok(()) }
}

/// Returns whether Linux lets a thread be in a real-time class for `percent` of the time and more
/// (sched(7), "Limiting the CPU usage of real-time and deadline processes").
fn limit_allows(percent: u8) -> bool {
    let read = |name: &str| -> Option<i64> {
        fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
    };
    match (read("sched_rt_runtime_us"), read("sched_rt_period_us")) {
        (Some(-1), _) => true,
        (Some(runtime), Some(period)) => runtime * 100 >= period * (i64::from(percent) + MARGIN_PERCENT),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_and_a_port_may_prevent_it() {
        let none = Config { priority: Priority::None, ..Config::default() };
        assert_eq!(real_time(&none, true), Err(NoRealTime::NotWanted));
        let with_port = real_time(&Config::default(), true);
        assert_ne!(with_port, Ok(()));
        if real_time(&Config::default(), false).is_ok() {
            assert_eq!(with_port, Err(NoRealTime::LocalPeer));
        } else {
            eprintln!("skipped: Linux gives no real-time rank here");
        }
    }

    #[test]
    fn a_share_too_small_for_linuxs_limit_is_named() {
        if limit_allows(99) {
            return eprintln!("skipped: Linux does not limit real-time threads here");
        }
        let small = Config { neighbour_share: 1, ..Config::default() };
        let why = real_time(&small, false).unwrap_err();
        assert!(why.to_string().contains("neighbour-share = 1 "), "{why}");
    }
}
