//! See [`tailwater_fuzz::egress`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::egress(data));
