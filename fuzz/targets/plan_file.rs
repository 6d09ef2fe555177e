//! A plan's file: what is read is within its limits, and is read again as it is written.

#![no_main]

use fanfare_trace::Plan;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(plan) = Plan::read("plan.csv", input) else { return };
    plan.check().expect("what is read is within its limits");
    let mut written = Vec::new();
    plan.write(&mut written).expect("memory takes it");
    assert_eq!(Plan::read("plan.csv", written.as_slice()).as_ref(), Ok(&plan));
});
