//! What a client registers: any JSON, or anything else.

#![no_main]

use fanfare_api::{FunctionDocument, decode_stored, encode_stored};
use fanfare_types::FunctionSpec;

libfuzzer_sys::fuzz_target!(|json: &[u8]| {
    let Ok(document) = FunctionDocument::from_json(json) else { return };
    let Ok(spec) = FunctionSpec::try_from(document) else { return };
    // What is accepted can be kept and read again, and says the same.
    let kept = decode_stored(&encode_stored(&spec)).expect("what was kept can be read");
    assert_eq!(kept, spec);
    let again = FunctionDocument::from(&spec);
    assert_eq!(FunctionSpec::try_from(again).expect("what was shown can be registered"), spec);
});
