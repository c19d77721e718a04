//! Read-copy-update of an address.

use crate::border::{self, Address};
use core::ffi::c_void;
use tailwater::sync::Rcu;

/// An address that is read all the time and replaced now and then.
pub struct tw_rcu {
    value: Rcu<Address>,
}

/// Makes a cell with an address. Free it by `tw_rcu_free`. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_rcu_new(value: *mut c_void) -> *mut tw_rcu {
    Box::into_raw(Box::new(tw_rcu { value: Rcu::new(Address(value)) }))
}

/// Frees a cell that no thread uses, and returns its address, for the caller to free. Never
/// switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rcu_free(rcu: *mut tw_rcu) -> *mut c_void {
    // SAFETY: by C's contract.
    let rcu = unsafe { Box::from_raw(rcu) };
    rcu.value.get().0
}

/// Calls `read(value, argument)` with the address that is in the cell, which stays valid until
/// `read` returns. Costs no locked instruction. `read` is not preempted: it must be short, and may
/// not wait for anything, else the process ends. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rcu_read(
    rcu: *const tw_rcu,
    read: Option<unsafe extern "C" fn(value: *mut c_void, argument: *mut c_void)>,
    argument: *mut c_void,
) {
    let Some(read) = read else { return };
    // SAFETY: by C's contract.
    unsafe { &(*rcu).value }.with(|value| {
        // SAFETY: 1. by its type. 2. C asked for this call.
        unsafe { border::call(read as usize, [value.0 as usize, argument as usize, 0, 0]) };
    });
}

/// Replaces the address, and returns the old one, once all readers of it have ended: the caller may
/// free what it points to. Switches threads while it waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_rcu_replace(rcu: *mut tw_rcu, value: *mut c_void) -> *mut c_void {
    // SAFETY: by C's contract.
    unsafe { &(*rcu).value }.replace(Address(value)).0
}
