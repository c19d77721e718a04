//! The two processes of the baseline: a victim that parks in its signal handler, and a service that
//! waits for its turn.

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, read, write};
use rustix::thread::CpuSet;
use tailwater_shm::clock;

use crate::sys;

/// The order of a child of the baseline; descriptors are inherited.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct BaselineOrder {
    pub(super) core: u16,
    pub(super) victim: bool,
    /// The victim's parking place.
    pub(super) victim_fd: i32,
    /// The service's parking place.
    pub(super) service_fd: i32,
    /// Rung by the victim when it parks.
    pub(super) parked_fd: i32,
    /// Takes the service's time stamps.
    pub(super) stamps_fd: i32,
}

/// Returns the set of one core.
pub(super) fn only(core: u16) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core.into());
    set
}

/// Runs as `order` says, until the parent ends.
pub(crate) fn live(order: &BaselineOrder) -> Result<(), Errno> {
    rustix::thread::sched_setaffinity(None, &only(order.core))?;
    let stamps = sys::borrow_inherited(order.stamps_fd);
    end_with_parent();
    if order.victim {
        sys::park_at_preempt_signal(order.parked_fd, order.victim_fd);
        write(stamps, &clock::now().to_ne_bytes())?;
        loop {
            core::hint::spin_loop();
        }
    }
    let (own, victim): (BorrowedFd<'_>, BorrowedFd<'_>) =
        (sys::borrow_inherited(order.service_fd), sys::borrow_inherited(order.victim_fd));
    write(stamps, &clock::now().to_ne_bytes())?;
    loop {
        match read(own, &mut [0u8; 8]) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        let began = clock::now();
        write(stamps, &began.to_ne_bytes())?;
        // Hands the core back.
        write(victim, &1u64.to_ne_bytes())?;
    }
}

/// Ends this process when its standard input closes.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new());
        std::process::exit(0);
    });
}
