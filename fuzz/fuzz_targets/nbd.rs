//! Fuzz target `nbd`; see the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uext4_fuzz::run_nbd(data));
