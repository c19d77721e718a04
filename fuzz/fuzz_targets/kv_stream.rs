//! See [`tailwater_fuzz::kv_stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tailwater_fuzz::kv_stream(data));
