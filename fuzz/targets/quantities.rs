//! Sizes, CPUs and durations as people write them.

#![no_main]

use fanfare_api::{parse_bytes, parse_cpus, parse_duration};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = (parse_bytes(text), parse_cpus(text), parse_duration(text));
});
