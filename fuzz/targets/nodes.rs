#![no_main]
#![expect(dead_code, reason = "the other targets' bodies")]

#[path = "../../tests/fuzz_bodies/mod.rs"]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::nodes(bytes));
