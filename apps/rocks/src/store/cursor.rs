//! An iterator of RocksDB over the entries from a key on.
//!
//! Bound to the database by a borrow, and to no thread: its user may continue on another kthread
//! between two calls.

use core::ptr;

use super::handle::{Failure, Owned};
use super::{KEY_LEN, Scan, StoreError, chars, ffi, made};

/// A position in the store as it was when the cursor was made.
#[derive(Debug)]
pub struct Cursor<'a> {
    iterator: Owned<ffi::Iterator>,
    _db: &'a Owned<ffi::Db>,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the first entry whose key is at least `first`.
    pub fn new(db: &'a Owned<ffi::Db>, options: &Owned<ffi::ReadOptions>, first: u64) -> Self {
        let first = first.to_be_bytes();
        // SAFETY: an open database, which outlives the cursor; the options are copied. A slice with
        // its length, copied too.
        unsafe {
            let iterator = Owned::new(
                made(ffi::rocksdb_create_iterator(db.get(), options.get())),
                ffi::rocksdb_iter_destroy,
            );
            ffi::rocksdb_iter_seek(iterator.get(), chars(&first), KEY_LEN);
            Self { iterator, _db: db }
        }
    }

    /// Reads entries until `scan` has `until`; returns false if there are no more.
    ///
    /// # Errors
    /// RocksDB's error; [`StoreError::Key`].
    pub fn read(&mut self, scan: &mut Scan, until: u32) -> Result<bool, StoreError> {
        while scan.entries < until {
            let Some((key, value_len)) = self.entry()? else { return Ok(false) };
            scan.entries += 1;
            scan.sum.keys = scan.sum.keys.wrapping_add(key);
            scan.sum.value_bytes = scan.sum.value_bytes.wrapping_add(value_len as u64);
            // SAFETY: a valid position, as `entry` has found.
            unsafe { ffi::rocksdb_iter_next(self.iterator.get()) };
        }
        Ok(true)
    }

    /// Returns the current key and the length of its value.
    fn entry(&self) -> Result<Option<(u64, usize)>, StoreError> {
        let iterator = self.iterator.get();
        // SAFETY: an iterator of this cursor.
        if unsafe { ffi::rocksdb_iter_valid(iterator) } == 0 {
            let mut failure = Failure::default();
            // SAFETY: as above.
            unsafe { ffi::rocksdb_iter_get_error(iterator, failure.slot()) };
            return failure.result("scan the store").map(|()| None);
        }
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: a valid position; the key may be read until the iterator moves.
        let key = unsafe {
            let key: *const u8 = ffi::rocksdb_iter_key(iterator, &raw mut key_len).cast();
            let value = ffi::rocksdb_iter_value(iterator, &raw mut value_len);
            // The value is part of the scan: reading its first byte brings it into the cache.
            if value_len > 0 {
                ptr::read_volatile(value);
            }
            core::slice::from_raw_parts(key, key_len)
        };
        let key = key.try_into().map_err(|_| StoreError::Key { len: key_len })?;
        Ok(Some((u64::from_be_bytes(key), value_len)))
    }
}
