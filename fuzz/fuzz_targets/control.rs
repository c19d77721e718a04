//! See [`tailwater_fuzz::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::control(data));
