//! A value on cache lines of its own.

/// Two cache lines of 64 bytes, which Intel's prefetcher fetches as a pair.
#[repr(align(128))]
#[derive(Debug)]
pub struct Padded<T>(pub T);
