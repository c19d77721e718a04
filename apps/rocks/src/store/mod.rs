//! The store: a RocksDB database of 8-byte keys, in plain tables that are memory-mapped and read in
//! place.
//!
//! Owns the database, its settings, and how RocksDB's code runs in a user thread. Every call may be
//! made from user threads and from ordinary ones. All `unsafe` code of this crate is here and in
//! `ffi`.
//!
//! # RocksDB in user threads
//! *Never preempted inside.* RocksDB takes pthread locks and forms queues of writers whose first
//! works for the others. A user thread preempted inside would leave them locked, and a thread that
//! needs one sleeps in the kernel, on the core on which the holder should continue. So each call
//! runs with preemption off (`no_preempt`). Then a holder is always a running thread or one of
//! RocksDB's own, and a wait is short. A GET or a PUT takes microseconds. A SCAN enables preemption
//! after every [`STEPS`] entries, so it yields within a microsecond or two of a request.
//!
//! *A PUT that would wait does so elsewhere.* If memory tables fill faster than they are flushed,
//! RocksDB makes writers wait for milliseconds. Writes are configured to fail instead
//! (`no_slowdown`), and then repeated by [`tailwater::blocking`].
//!
//! *Thread-local storage* is the user thread's own, including C++'s `thread_local`. RocksDB keeps
//! there a pointer to a record, with the version of the database that the thread read last; a
//! destructor of `pthread_key_create` would free it, which user threads do not run. So each user
//! thread that ever calls leaves about 100 bytes behind: let a bounded number of threads call, not
//! one per request.
//!
//! *Stacks*: [`STACK`].
//!
//! # Values are copied before their table can be unmapped
//! In mapped plain tables a value is found without being copied, and after `rocksdb_get` has
//! released the version nothing keeps the table from being compacted away and unmapped, while that
//! function still copies. `rocksdb_multi_get` copies first, so a GET is one of those, with one key.
//! An iterator holds its version until it is destroyed.

#![allow(unsafe_code)]

mod cursor;
mod ffi;
mod handle;

use core::ffi::c_char;
use core::ptr::{self, NonNull};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use tailwater::no_preempt;
use tailwater::sync::RwLock;
use tailwater_workload::rocks::{ScanSum, write_value};

use cursor::Cursor;
use handle::{Failure, Owned};

/// Length of a key in bytes.
const KEY_LEN: usize = 8;

/// Entries that a SCAN reads with preemption off: about a microsecond.
pub const STEPS: u32 = 8;

/// Stack size in bytes that a calling user thread needs: the deepest call observed took less than
/// 16 KiB (except opening, which is for ordinary threads), a preempt signal's frame comes on top,
/// and librocksdb is not ours, so there is ample room. Memory is committed as it is touched.
pub const STACK: usize = 256 * 1024;

/// Maximum number of background jobs of RocksDB: one flush and one compaction.
const BACKGROUND_JOBS: i32 = 2;

/// Bits per key of a table's Bloom filter: 1 % false positives (the usual choice of RocksDB's
/// documentation).
const BLOOM_BITS: i32 = 10;

/// Keys between two entries of a table's index: the index is searched in halves, the keys between
/// two entries linearly.
const INDEX_SPARSENESS: usize = 16;

/// Number of log files kept.
const LOG_FILES: usize = 2;

/// Number of entries per batch when loading.
const LOAD_BATCH: u64 = 1_000;

/// Configuration of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The store's folder; made if there is none, in an existing folder.
    pub path: PathBuf,
    /// Keep a write-ahead log. Without it, a process that dies without [`Store::flush`] loses what
    /// was put since the last one.
    pub wal: bool,
    /// Size of a memory table in bytes, at which it is written to a file.
    pub write_buffer: usize,
}

impl Config {
    /// Returns a configuration for folder `path`, without a log, with memory tables of 64 MiB.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), wal: false, write_buffer: 64 << 20 }
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// RocksDB reported an error.
    #[error("cannot {attempt}: {answer}")]
    RocksDb {
        /// What was attempted.
        attempt: &'static str,
        /// RocksDB's message.
        answer: String,
    },
    /// Not a valid path: it holds a zero byte.
    #[error("{} cannot be a path: it holds a zero byte", .0.display())]
    Path(PathBuf),
    /// An entry whose key does not have the 8 bytes that all keys of this service have.
    #[error("the store holds a key of {len} bytes, not {KEY_LEN}: another program wrote it")]
    Key {
        /// Its length.
        len: usize,
    },
    /// A PUT after [`Store::finish`].
    #[error("the store accepts no more writes: it is shutting down")]
    Finished,
}

/// Result of a SCAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// Entries read.
    pub entries: u32,
    /// Sums over them.
    pub sum: ScanSum,
}

/// An open store; dropping it closes it. Shared in an `Arc`.
#[derive(Debug)]
pub struct Store {
    // Before the options: fields are dropped in this order.
    db: Owned<ffi::Db>,
    read: Owned<ffi::ReadOptions>,
    /// Makes a write fail instead of waiting.
    hasty: Owned<ffi::WriteOptions>,
    patient: Owned<ffi::WriteOptions>,
    unlogged: Owned<ffi::WriteOptions>,
    /// True if [`Store::finish`] was called. A PUT holds the lock for reading, so setting it waits
    /// for those in progress.
    finished: RwLock<bool>,
}

impl Store {
    /// Opens the store, or makes it. Call on an ordinary thread, in a runtime by
    /// [`tailwater::blocking`]: it takes milliseconds and much stack, and the threads that RocksDB
    /// starts inherit the caller's cores, which must not be a kthread's.
    ///
    /// # Errors
    /// RocksDB's: the folder cannot be made or read, another process has it open, the files are
    /// damaged.
    pub fn open(config: &Config) -> Result<Self, StoreError> {
        let path = CString::new(config.path.as_os_str().as_bytes())
            .map_err(|_| StoreError::Path(config.path.clone()))?;
        let options = options(config);
        let mut failure = Failure::default();
        // SAFETY: valid options and a string that ends with zero; the options are copied.
        let db = unsafe { ffi::rocksdb_open(options.get(), path.as_ptr(), failure.slot()) };
        failure.result("open the store")?;
        let db = NonNull::new(db).expect("a database or an error");
        Ok(Self {
            // SAFETY: just opened, and closed by its owner.
            db: unsafe { Owned::new(db, ffi::rocksdb_close) },
            read: read_options(),
            hasty: write_options(config.wal, true),
            patient: write_options(config.wal, false),
            unlogged: write_options(false, false),
            finished: RwLock::new(false),
        })
    }

    /// Appends the value of `key` to `value`; false if there is none, and then nothing is appended.
    ///
    /// # Errors
    /// RocksDB's, about damaged files.
    pub fn get(&self, key: u64, value: &mut Vec<u8>) -> Result<bool, StoreError> {
        let key = key.to_be_bytes();
        let (mut found, mut found_len) = (ptr::null_mut(), 0);
        let mut failure = Failure::default();
        no_preempt(|| {
            let (keys, lens) = ([chars(&key)], [KEY_LEN]);
            // SAFETY: an open database, lists of one entry each, both results in writable places.
            unsafe {
                ffi::rocksdb_multi_get(
                    self.db.get(),
                    self.read.get(),
                    1,
                    keys.as_ptr(),
                    lens.as_ptr(),
                    &raw mut found,
                    &raw mut found_len,
                    failure.slot(),
                );
            }
        });
        failure.result("get a value")?;
        let Some(found) = NonNull::new(found) else { return Ok(false) };
        // SAFETY: a block of this many bytes that the call above made for us; it is freed as the
        // header of the C API says.
        unsafe {
            value.extend_from_slice(core::slice::from_raw_parts(found.as_ptr().cast(), found_len));
            ffi::rocksdb_free(found.as_ptr().cast());
        }
        Ok(true)
    }

    /// Stores `value` under `key`. When writers have to wait, this one does on a thread of
    /// [`tailwater::blocking`].
    ///
    /// # Errors
    /// RocksDB's: no space, damaged files. [`StoreError::Finished`].
    pub fn put(&self, key: u64, value: &[u8]) -> Result<(), StoreError> {
        let finished = self.finished.read().unwrap_or_else(PoisonError::into_inner);
        if *finished {
            return Err(StoreError::Finished);
        }
        let hasty = no_preempt(|| self.write(&self.hasty, key, value));
        // Whatever failed: repeating the write does no harm, and reports the error.
        hasty.or_else(|_| tailwater::blocking(|| self.write(&self.patient, key, value)))
    }

    fn write(&self, options: &Owned<ffi::WriteOptions>, key: u64, value: &[u8]) -> Result<(), StoreError> {
        let key = key.to_be_bytes();
        let mut failure = Failure::default();
        // SAFETY: an open database, slices with their lengths.
        unsafe {
            ffi::rocksdb_put(
                self.db.get(),
                options.get(),
                chars(&key),
                KEY_LEN,
                chars(value),
                value.len(),
                failure.slot(),
            );
        }
        failure.result("put a value")
    }

    /// Reads up to `count` entries from key `first` on, as of when it began. Calls `poll` between
    /// any two groups of [`STEPS`] entries, with preemption on.
    ///
    /// # Errors
    /// RocksDB's, about damaged files; [`StoreError::Key`].
    pub fn scan(&self, first: u64, count: u32, mut poll: impl FnMut()) -> Result<Scan, StoreError> {
        let mut scan = Scan { entries: 0, sum: ScanSum { keys: 0, value_bytes: 0 } };
        if count == 0 {
            return Ok(scan);
        }
        let mut cursor = no_preempt(|| Cursor::new(&self.db, &self.read, first));
        let read = loop {
            let until = count.min(scan.entries.saturating_add(STEPS));
            match no_preempt(|| cursor.read(&mut scan, until)) {
                Ok(true) if scan.entries < count => poll(),
                Ok(_) => break Ok(scan),
                Err(error) => break Err(error),
            }
        };
        no_preempt(|| drop(cursor));
        read
    }

    /// Writes the keys 0 to `keys`-1 with the values that the load generator expects, of
    /// `value_len` bytes each, without a log; then sorts everything into tables of one level, so
    /// that what was put before is not in the way. For ordinary threads.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn load(&self, keys: u64, value_len: usize) -> Result<(), StoreError> {
        // SAFETY: makes a batch, or fails to allocate and aborts.
        let batch =
            unsafe { Owned::new(made(ffi::rocksdb_writebatch_create()), ffi::rocksdb_writebatch_destroy) };
        let mut value = Vec::with_capacity(value_len);
        for from in (0..keys).step_by(LOAD_BATCH as usize) {
            for key in from..keys.min(from.saturating_add(LOAD_BATCH)) {
                value.clear();
                write_value(key, value_len, &mut value);
                let key = key.to_be_bytes();
                // SAFETY: a batch, which copies; slices with their lengths.
                unsafe {
                    ffi::rocksdb_writebatch_put(
                        batch.get(),
                        chars(&key),
                        KEY_LEN,
                        chars(&value),
                        value.len(),
                    );
                }
            }
            let mut failure = Failure::default();
            // SAFETY: an open database and a batch.
            unsafe {
                ffi::rocksdb_write(self.db.get(), self.unlogged.get(), batch.get(), failure.slot());
                ffi::rocksdb_writebatch_clear(batch.get());
            }
            failure.result("load the store")?;
        }
        self.flush()?;
        // SAFETY: an open database; null stands for no bound.
        unsafe { ffi::rocksdb_compact_range(self.db.get(), ptr::null(), 0, ptr::null(), 0) };
        Ok(())
    }

    /// Writes what is in memory to tables and waits for it. For ordinary threads.
    ///
    /// # Errors
    /// RocksDB's: no space.
    pub fn flush(&self) -> Result<(), StoreError> {
        let mut failure = Failure::default();
        // SAFETY: makes options, whose default is to wait; an open database.
        unsafe {
            let options =
                Owned::new(made(ffi::rocksdb_flushoptions_create()), ffi::rocksdb_flushoptions_destroy);
            ffi::rocksdb_flush(self.db.get(), options.get(), failure.slot());
        }
        failure.result("flush the store")
    }

    /// Lets no PUT begin any more, waits for those under way, and writes what is in memory to
    /// tables: every PUT that was done is in a file then. For ordinary threads.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn finish(&self) -> Result<(), StoreError> {
        *self.finished.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.flush()
    }
}

/// Ends the process at once, without the destructors of C++'s global objects, which other threads
/// are still using.
pub fn end_process(status: i32) -> ! {
    // SAFETY: has no operands in memory and does not return.
    unsafe { libc::_exit(status) }
}

fn options(config: &Config) -> Owned<ffi::Options> {
    // SAFETY: each call takes the options just made, and numbers in the ranges that RocksDB knows.
    unsafe {
        let options = Owned::new(made(ffi::rocksdb_options_create()), ffi::rocksdb_options_destroy);
        let raw = options.get();
        ffi::rocksdb_options_set_create_if_missing(raw, 1);
        ffi::rocksdb_options_set_allow_mmap_reads(raw, 1);
        // Without a prefix extractor and without a hash table the index is in total order, which
        // SCANs need.
        ffi::rocksdb_options_set_plain_table_factory(raw, KEY_LEN as u32, BLOOM_BITS, 0.0, INDEX_SPARSENESS);
        ffi::rocksdb_options_set_compression(raw, ffi::NO_COMPRESSION);
        ffi::rocksdb_options_set_max_background_jobs(raw, BACKGROUND_JOBS);
        ffi::rocksdb_options_set_write_buffer_size(raw, config.write_buffer);
        ffi::rocksdb_options_set_info_log_level(raw, ffi::LOG_ERRORS);
        ffi::rocksdb_options_set_keep_log_file_num(raw, LOG_FILES);
        // Files are deleted by RocksDB's threads, never at the end of a GET.
        ffi::rocksdb_options_set_avoid_unnecessary_blocking_io(raw, 1);
        options
    }
}

fn read_options() -> Owned<ffi::ReadOptions> {
    // SAFETY: as in `options`.
    unsafe {
        let read = Owned::new(made(ffi::rocksdb_readoptions_create()), ffi::rocksdb_readoptions_destroy);
        // As above, at the end of a SCAN.
        ffi::rocksdb_readoptions_set_background_purge_on_iterator_cleanup(read.get(), 1);
        read
    }
}

fn write_options(wal: bool, hasty: bool) -> Owned<ffi::WriteOptions> {
    // SAFETY: as in `options`.
    unsafe {
        let write = Owned::new(made(ffi::rocksdb_writeoptions_create()), ffi::rocksdb_writeoptions_destroy);
        ffi::rocksdb_writeoptions_disable_WAL(write.get(), (!wal).into());
        ffi::rocksdb_writeoptions_set_no_slowdown(write.get(), hasty.into());
        write
    }
}

fn made<T>(object: *mut T) -> NonNull<T> {
    NonNull::new(object).expect("RocksDB makes its objects or aborts")
}

fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

#[cfg(test)]
mod tests;
