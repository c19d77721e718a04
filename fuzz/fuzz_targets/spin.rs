//! See [`tailwater_fuzz::spin`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::spin(data));
