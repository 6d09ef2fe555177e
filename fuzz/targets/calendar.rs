//! When something is to happen, as people write it.

#![no_main]

use fanfare_schedule::{Calendar, Wall};

libfuzzer_sys::fuzz_target!(|input: (u32, &str, &str)| {
    let (seconds, zone, text) = input;
    let now = Wall(u64::from(seconds) * 1_000);
    for zone in [zone, "UTC", "Europe/Zurich"] {
        if let Ok(calendar) = Calendar::cron(text, zone, now) {
            let upcoming = calendar.upcoming(now, 3);
            assert!(!upcoming.is_empty() && upcoming.is_sorted() && upcoming[0] > now);
        }
    }
    if let Ok(Calendar::At(at)) = Calendar::at(text) {
        assert_eq!(Calendar::at(&at.to_string()), Ok(Calendar::At(at)));
    }
});
