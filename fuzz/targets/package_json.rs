//! The list of dependencies that a deployer puts beside a JavaScript handler.

#![no_main]

libfuzzer_sys::fuzz_target!(|manifest: &[u8]| fanfare_sandbox_process::fuzz::package_json(manifest));
