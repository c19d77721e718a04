//! See [`tailwater_fuzz::kv_datagram`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::kv_datagram(data));
