//! Which function a request is for.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: (&str, &str)| fanfare_data_plane::fuzz::request_target(input.0, input.1));
