//! See [`tailwater_fuzz::firewall`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::firewall(data));
