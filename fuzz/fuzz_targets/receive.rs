//! See [`tailwater_fuzz::receive`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::receive(data));
