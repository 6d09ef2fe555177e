//! Output of user code, cut into lines.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| fanfare_sandbox_process::fuzz::log_lines(
    usize::from(input.0) + 1,
    input.1
));
