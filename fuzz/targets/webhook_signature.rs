//! What a sender of a webhook shows to be believed.

#![no_main]

const NAMES: [&str; 7] = [
    "x-hub-signature-256",
    "x-github-delivery",
    "stripe-signature",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "authorization",
];

libfuzzer_sys::fuzz_target!(|input: (u64, &str, &[u8], Vec<(u8, &str)>)| {
    let (now_s, query, body, fields) = input;
    let named = |(which, value): &(u8, _)| (NAMES[usize::from(*which) % NAMES.len()], *value);
    let fields: Vec<_> = fields.iter().map(named).collect();
    fanfare_data_plane::fuzz::webhook_signature(&fields, query, body, now_s);
});
