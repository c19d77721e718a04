//! See [`tailwater_fuzz::tcp_operations`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::tcp_operations(data));
