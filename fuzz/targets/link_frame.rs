//! What one role says to another over the network.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| fanfare_link::fuzz::frame(input.0, input.1));
