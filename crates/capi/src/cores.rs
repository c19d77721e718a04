//! Cores: which the program has, how many it requests, and what changes.

use core::ffi::c_int;
use std::time::Duration;
use tailwater::cores::{self, Changes, PRIORITIES, Priorities};

/// Stores the numbers of the cores that the program holds, at most `capacity`, in ascending order,
/// and returns how many it holds. Standalone that is none. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cores_held(numbers: *mut u32, capacity: usize) -> usize {
    let held = if crate::run::is_running() { cores::held() } else { Vec::new() };
    // SAFETY: by C's contract.
    unsafe { store(&held, numbers, capacity) }
}

/// Stores as many numbers as there is room for; returns how many there are.
///
/// # Safety
/// `numbers` has room for `capacity` numbers, or is null if that is 0.
unsafe fn store(cores: &[usize], numbers: *mut u32, capacity: usize) -> usize {
    for (place, &core) in cores.iter().take(capacity).enumerate() {
        // SAFETY: by the caller's contract.
        unsafe { numbers.add(place).write(core as u32) };
    }
    cores.len()
}

/// Requests cores: `counts[p]` at priority `p`, of which there are 8 and 0 is served first.
/// Replaces what was requested before; does not wait. Without an IOKernel there is nothing to
/// request. Never switches threads.
///
/// Returns 0, `-EINVAL` for more than 8 priorities, `-ENXIO` if there is no runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cores_request(counts: *const u32, priorities: usize) -> c_int {
    if priorities > PRIORITIES || counts.is_null() && priorities > 0 {
        return -libc::EINVAL;
    }
    if !crate::run::is_running() {
        return -libc::ENXIO;
    }
    let wanted = (0..priorities).fold(Priorities::default(), |wanted, priority| {
        // SAFETY: by C's contract.
        wanted.with(priority, unsafe { counts.add(priority).read() } as usize)
    });
    cores::request(wanted);
    0
}

/// Returns how many cores are requested, at all priorities together. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_cores_requested() -> usize {
    if crate::run::is_running() { cores::requested().total() } else { 0 }
}

/// Returns how many of the requested cores are granted. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_cores_granted() -> usize {
    if crate::run::is_running() { cores::granted() } else { 0 }
}

/// Waits for changes of the cores that the program holds, for one thread.
pub struct tw_core_changes {
    changes: Changes,
}

/// Begins to look for changes, once in `period_ns` nanoseconds. The first change has gained the
/// cores held then. Free it by `tw_core_changes_free`. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_core_changes_new(period_ns: u64) -> *mut tw_core_changes {
    let changes = cores::changes(Duration::from_nanos(period_ns));
    Box::into_raw(Box::new(tw_core_changes { changes }))
}

/// Frees what `tw_core_changes_new` has made. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_core_changes_free(changes: *mut tw_core_changes) {
    if !changes.is_null() {
        // SAFETY: by C's contract.
        drop(unsafe { Box::from_raw(changes) });
    }
}

/// Waits for a change. Stores the cores that came, at most `capacity`, in `gained`, and those that
/// went in `lost`, and how many they are in `*n_gained` and `*n_lost`. Switches threads. Cores that
/// came and went between two looks are not reported. There has to be a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_core_changes_next(
    changes: *mut tw_core_changes,
    gained: *mut u32,
    n_gained: *mut usize,
    lost: *mut u32,
    n_lost: *mut usize,
    capacity: usize,
) {
    // SAFETY: by C's contract.
    unsafe {
        let change = (*changes).changes.next().unwrap_or_default();
        n_gained.write(store(&change.gained, gained, capacity));
        n_lost.write(store(&change.lost, lost, capacity));
    }
}
