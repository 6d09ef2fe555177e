//! An answer as the load generator reads it.

#![no_main]

use fanfare_load::server_timing;
use fanfare_load::wire::{self, Answer, Parsed};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match wire::read(input) {
        Ok(Parsed::Whole(frame)) => {
            assert!(frame.head_len <= frame.len && frame.len <= input.len());
            let answer = Answer::new(frame, input);
            let _ = answer.text();
            let _ = server_timing::entries(answer.header("server-timing").unwrap_or_default()).count();
            // What is whole needs nothing of what follows it.
            assert_eq!(wire::parse(&input[..frame.len]), Ok(Some(frame)));
        }
        Ok(Parsed::Partial { needed }) => assert!(needed > input.len()),
        Err(_) => {}
    }
});
