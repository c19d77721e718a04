//! Keys of thread-local values, as POSIX has them, for user threads and ordinary ones.
//!
//! `_Thread_local` and `thread_local` work on user threads and cost less; a key is for values whose
//! number is not known before, and in C for those that have a destructor.

use crate::border;
use core::cell::RefCell;
use core::ffi::{c_int, c_void};
use tailwater::internals::SpinLock;

/// Number of keys at most.
const KEYS: usize = 1024;

/// A key. Values of a deleted key are not found by a key that is made later.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct tw_key {
    /// The library's.
    slot: u32,
    /// The library's.
    generation: u32,
}

type Destructor = unsafe extern "C" fn(*mut c_void);

/// A slot for keys. Its generation is odd while it has one.
#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    destructor: Option<Destructor>,
}

static SLOTS: SpinLock<[Slot; KEYS]> = SpinLock::new([Slot { generation: 0, destructor: None }; KEYS]);

/// A value of one thread.
#[derive(Debug, Clone, Copy)]
struct Value {
    generation: u32,
    address: *mut c_void,
}

const NONE: Value = Value { generation: 0, address: core::ptr::null_mut() };

/// The values of one thread, by slot.
#[derive(Default)]
struct Values(RefCell<Vec<Value>>);

impl Drop for Values {
    fn drop(&mut self) {
        let with_value = |(_, value): &(usize, Value)| !value.address.is_null();
        for (slot, value) in self.0.take().into_iter().enumerate().filter(with_value) {
            let current = SLOTS.lock()[slot];
            if let Some(destructor) = current.destructor.filter(|_| current.generation == value.generation) {
                // SAFETY: 1. by its type. 2. The program gave it for the values of this key.
                unsafe { border::call(destructor as usize, [value.address as usize, 0, 0, 0]) };
            }
        }
    }
}

thread_local! {
    static VALUES: Values = Values::default();
}

/// Makes a key, whose value is NULL in every thread. At the end of a thread `destructor`, which may
/// be NULL, is called with its value, unless that is NULL; it finds no values of keys, and sets
/// none. Never switches threads.
///
/// Returns 0, or `-EAGAIN` if there are 1024 keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_key_create(
    key: *mut tw_key,
    destructor: Option<unsafe extern "C" fn(value: *mut c_void)>,
) -> c_int {
    let mut slots = SLOTS.lock();
    let Some((index, slot)) =
        slots.iter_mut().enumerate().find(|(_, slot)| slot.generation.is_multiple_of(2))
    else {
        return -libc::EAGAIN;
    };
    *slot = Slot { generation: slot.generation.wrapping_add(1), destructor };
    // SAFETY: by C's contract.
    unsafe { key.write(tw_key { slot: index as u32, generation: slot.generation }) };
    0
}

/// Deletes a key; destructors of its values are not called. Never switches threads.
///
/// Returns 0, or `-EINVAL` if there is no such key.
#[unsafe(no_mangle)]
pub extern "C" fn tw_key_delete(key: tw_key) -> c_int {
    let mut slots = SLOTS.lock();
    match slots.get_mut(key.slot as usize) {
        Some(slot) if slot.generation == key.generation && !key.generation.is_multiple_of(2) => {
            *slot = Slot { generation: slot.generation.wrapping_add(1), destructor: None };
            0
        }
        _ => -libc::EINVAL,
    }
}

/// Sets the calling thread's value. Never switches threads.
///
/// Returns 0, or `-EINVAL` if there is no such key, or in a destructor.
#[unsafe(no_mangle)]
pub extern "C" fn tw_key_set(key: tw_key, value: *mut c_void) -> c_int {
    let slot = key.slot as usize;
    if SLOTS
        .lock()
        .get(slot)
        .is_none_or(|slot| slot.generation != key.generation || key.generation.is_multiple_of(2))
    {
        return -libc::EINVAL;
    }
    let set = VALUES.try_with(|values| {
        let mut values = values.0.borrow_mut();
        if values.len() <= slot {
            values.resize(slot + 1, NONE);
        }
        values[slot] = Value { generation: key.generation, address: value };
    });
    // The thread has ended, and its destructors run.
    if set.is_err() { -libc::EINVAL } else { 0 }
}

/// Returns the calling thread's value; NULL if it has none. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_key_get(key: tw_key) -> *mut c_void {
    let found = VALUES.try_with(|values| {
        let values = values.0.borrow();
        let value = values.get(key.slot as usize).filter(|value| value.generation == key.generation);
        value.map(|value| value.address)
    });
    found.ok().flatten().unwrap_or(core::ptr::null_mut())
}
