//! See [`tailwater_fuzz::dns_zone`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::dns_zone(data));
