//! What a store holds of a function, by this version or another.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(spec) = fanfare_api::decode_stored(bytes) {
        assert_eq!(fanfare_api::decode_stored(&fanfare_api::encode_stored(&spec)).expect("kept again"), spec);
    }
});
