//! Traffic, tags and rollbacks as a client of the control API writes them.

#![no_main]

use fanfare_api::{RollbackDocument, TrafficDocument};

libfuzzer_sys::fuzz_target!(|json: &[u8]| {
    let _ = RollbackDocument::from_json(json);
    if let Ok(document) = TrafficDocument::from_json(json)
        && let Ok(change) = document.check()
    {
        let sum: u32 = change.shares.iter().flatten().map(|(_, percent)| percent).sum();
        assert!(change.shares.is_none() || sum == 100, "{sum} per cent");
    }
});
