//! What a template, or user code in its place, says of its children: a packet in each line.

#![no_main]

libfuzzer_sys::fuzz_target!(|lines: &[u8]| {
    let packets: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    fanfare_sandbox_process::fuzz::zygote_words(&packets);
});
