//! Fuzz target `directory`; see the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uext4_fuzz::run("directory", data));
