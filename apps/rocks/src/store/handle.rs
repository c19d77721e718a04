//! Ownership of what RocksDB's C API returns: objects and error strings.

use core::ffi::{CStr, c_char};
use core::ptr::{self, NonNull};

use super::{StoreError, ffi};

/// An object of RocksDB, destroyed when dropped.
#[derive(Debug)]
pub struct Owned<T> {
    object: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

// SAFETY: options and databases belong to no thread, and are only read, or synchronised by RocksDB,
// when shared (`rocksdb/c.h`, `db.h`: thread safety). What is not, iterators and batches, is used
// through `&mut` of its owner or on one thread.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl Sync for Owned<ffi::Db> {}
// SAFETY: as above.
unsafe impl Sync for Owned<ffi::ReadOptions> {}
// SAFETY: as above.
unsafe impl Sync for Owned<ffi::WriteOptions> {}

impl<T> Owned<T> {
    /// # Safety
    /// 1. `object` was made by RocksDB and no other code destroys it.
    /// 2. `destroy` is its destructor.
    pub unsafe fn new(object: NonNull<T>, destroy: unsafe extern "C" fn(*mut T)) -> Self {
        Self { object, destroy }
    }

    /// Returns the object, for calls while `self` lives.
    pub fn get(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: 1 and 2 of `new`; dropped once.
        unsafe { (self.destroy)(self.object.as_ptr()) };
    }
}

/// The error argument of a call of RocksDB.
#[derive(Debug)]
pub struct Failure(*mut c_char);

impl Default for Failure {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

impl Failure {
    /// Returns the `errptr` argument of one call.
    pub fn slot(&mut self) -> *mut *mut c_char {
        &raw mut self.0
    }

    /// Returns the result of the call.
    pub fn result(self, attempt: &'static str) -> Result<(), StoreError> {
        if self.0.is_null() {
            return Ok(());
        }
        // SAFETY: a call put a string here.
        let answer = unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned();
        Err(StoreError::RocksDb { attempt, answer })
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: ours, from RocksDB, and not used any more.
            unsafe { ffi::rocksdb_free(self.0.cast()) };
        }
    }
}
