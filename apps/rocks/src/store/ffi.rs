//! The part of RocksDB's C API that the store uses, as declared in `rocksdb/c.h` of version 7.8,
//! with which it is tested.
//!
//! Conventions of that header: an error is a string stored into `*errptr`, which was null, and
//! freed by `rocksdb_free`; booleans are `unsigned char`; an object made by a `create` function is
//! freed by `destroy`.

use core::ffi::{c_char, c_int, c_uchar};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])* #[derive(Debug)] #[repr(C)] pub struct $name { _opaque: [u8; 0] })*
    };
}

opaque! {
    /// `rocksdb_t`: an open database. May be used by any number of threads at once.
    Db
    /// `rocksdb_options_t`
    Options
    /// `rocksdb_readoptions_t`
    ReadOptions
    /// `rocksdb_writeoptions_t`
    WriteOptions
    /// `rocksdb_flushoptions_t`
    FlushOptions
    /// `rocksdb_iterator_t`: one thread at a time.
    Iterator
    /// `rocksdb_writebatch_t`
    WriteBatch
}

/// `rocksdb_no_compression`
pub const NO_COMPRESSION: c_int = 0;
/// `InfoLogLevel::ERROR_LEVEL`
pub const LOG_ERRORS: c_int = 3;

unsafe extern "C" {
    pub fn rocksdb_free(block: *mut core::ffi::c_void);

    pub fn rocksdb_options_create() -> *mut Options;
    pub fn rocksdb_options_destroy(options: *mut Options);
    pub fn rocksdb_options_set_create_if_missing(options: *mut Options, on: c_uchar);
    pub fn rocksdb_options_set_allow_mmap_reads(options: *mut Options, on: c_uchar);
    pub fn rocksdb_options_set_plain_table_factory(
        options: *mut Options,
        key_len: u32,
        bloom_bits_per_key: c_int,
        hash_table_ratio: f64,
        index_sparseness: usize,
    );
    pub fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    pub fn rocksdb_options_set_max_background_jobs(options: *mut Options, jobs: c_int);
    pub fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    pub fn rocksdb_options_set_info_log_level(options: *mut Options, level: c_int);
    pub fn rocksdb_options_set_keep_log_file_num(options: *mut Options, files: usize);
    pub fn rocksdb_options_set_avoid_unnecessary_blocking_io(options: *mut Options, on: c_uchar);

    pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub fn rocksdb_readoptions_set_background_purge_on_iterator_cleanup(
        options: *mut ReadOptions,
        on: c_uchar,
    );

    pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub fn rocksdb_writeoptions_disable_WAL(options: *mut WriteOptions, on: c_int);
    pub fn rocksdb_writeoptions_set_no_slowdown(options: *mut WriteOptions, on: c_uchar);

    pub fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    pub fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);

    pub fn rocksdb_open(options: *const Options, name: *const c_char, errptr: *mut *mut c_char) -> *mut Db;
    pub fn rocksdb_close(db: *mut Db);
    pub fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        errptr: *mut *mut c_char,
    );
    pub fn rocksdb_multi_get(
        db: *mut Db,
        options: *const ReadOptions,
        keys: usize,
        key_list: *const *const c_char,
        key_lens: *const usize,
        values: *mut *mut c_char,
        value_lens: *mut usize,
        errors: *mut *mut c_char,
    );
    pub fn rocksdb_write(
        db: *mut Db,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        errptr: *mut *mut c_char,
    );
    pub fn rocksdb_flush(db: *mut Db, options: *const FlushOptions, errptr: *mut *mut c_char);
    pub fn rocksdb_compact_range(
        db: *mut Db,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );

    pub fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_clear(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_put(
        batch: *mut WriteBatch,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );

    pub fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iterator;
    pub fn rocksdb_iter_destroy(iterator: *mut Iterator);
    pub fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
    pub fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, key_len: usize);
    pub fn rocksdb_iter_next(iterator: *mut Iterator);
    pub fn rocksdb_iter_key(iterator: *const Iterator, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_value(iterator: *const Iterator, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_get_error(iterator: *const Iterator, errptr: *mut *mut c_char);
}
