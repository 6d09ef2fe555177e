//! What an installation asks the proxy that lets it out.

#![no_main]

libfuzzer_sys::fuzz_target!(|head: &[u8]| fanfare_sandbox_process::fuzz::egress_request(head));
