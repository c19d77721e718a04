//! The machine around an IOKernel: settings that are changed and put back, claims on cores, and
//! cores that Linux takes away.
//!
//! | module | owns |
//! |---|---|
//! | [`own_file`] | a file by which one process leaves something to the next one |
//! | `undo` | former values of settings, in a record that outlives a crash |
//! | `clocks` | clock rates of the managed cores ([`ClockSetter`]) |
//! | `reserve` | ordinary threads kept off requested cores, by cpusets ([`Keeper`]) |
//! | `batch_group` | a control group that is a batch job ([`BatchGroup`]) |
//! | [`control_groups`] | control groups that limit a process, and their CPU quotas |
//! | `session` | the weight of a session ([`SessionWeight`]) |
//! | `repair` | putting back what a crash has left ([`repair()`]) |
//! | `core_locks` | locks of the cores that IOKernels use ([`CoreLocks`]) |
//! | `reserved_ports` | a range of ports that Linux gives to no connection of its own ([`ReservedPorts`]) |
//! | `port_users` | which programs have sockets at a port ([`port_users()`]) |
//! | `presence` | which cores Linux lets the process use at present ([`Presence`]) |
//!
//! Nothing here runs on a polling thread: it is the control thread's, and the commands'. Knows no
//! configuration and no program; the policies of `tailwater-sched` decide which rate is set and
//! which cores are kept.
#![forbid(unsafe_code)]

mod batch_group;
mod clocks;
pub mod control_groups;
mod core_locks;
pub mod own_file;
mod port_users;
mod presence;
mod repair;
mod reserve;
mod reserved_ports;
mod session;
mod undo;

pub use batch_group::BatchGroup;
pub use clocks::{ClockSetter, clock_rates};
pub use core_locks::{CoreLocked, CoreLocks};
pub use port_users::{is_port_used, port_users};
pub use presence::Presence;
pub use repair::{repair, repair_reserved_ports};
pub use reserve::{Keeper, cpusets, group_folder};
pub use reserved_ports::ReservedPorts;
pub use session::{SessionWeight, groups_sessions};

use rustix::thread::CpuSet;
use std::ops::RangeInclusive;
use tailwater_sched::CoreId;

/// Returns a set of cores for Linux.
#[must_use]
pub fn cpu_set<'a>(cores: impl IntoIterator<Item = &'a CoreId>) -> CpuSet {
    let mut set = CpuSet::new();
    cores.into_iter().for_each(|core| set.set(core.0.into()));
    set
}

/// Parses the kernel's list format: `0-3,8,10-11`. Other text yields no cores.
#[must_use]
pub fn parse_list(text: &str) -> Vec<CoreId> {
    ranges(text).flatten().map(CoreId).collect()
}

/// Returns the ranges of a list of the kernel.
fn ranges(text: &str) -> impl Iterator<Item = RangeInclusive<u16>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_parsed_and_garbage_is_empty() {
        let ids = |text| parse_list(text).iter().map(|core| core.0).collect::<Vec<_>>();
        assert_eq!(ids("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(ids("5"), [5]);
        assert!(ids("").is_empty());
        assert!(ids("x-y,,").is_empty());
    }
}
