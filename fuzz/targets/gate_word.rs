//! What a shim, or user code in its place, says at its gate.

#![no_main]

libfuzzer_sys::fuzz_target!(|packet: &[u8]| fanfare_sandbox_process::fuzz::gate_word(packet));
