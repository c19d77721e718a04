//! See [`tailwater_fuzz::tcp_segment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::tcp_segment(data));
