//! What Dirigent's load generator sends, or anybody in its place: forms.

#![no_main]

use fanfare_api::{DirigentPatch, DirigentRegistration, FunctionDocument, HandlerDocument, ProtocolName};
use fanfare_types::FunctionSpec;

libfuzzer_sys::fuzz_target!(|form: &[u8]| {
    let command = vec!["./server".to_owned()];
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol: ProtocolName::H2c };
    let image = FunctionDocument { code: Some("a5".repeat(32)), ..FunctionDocument::new("image", handler) };
    let Ok(registration) = DirigentRegistration::from_form(form) else { return };
    let Ok(spec) = registration.function(&image) else { return };
    assert_eq!(spec.name.as_str(), registration.name);
    // What is registered can be shown and changed.
    let mut document = FunctionDocument::from(&spec);
    assert_eq!(FunctionSpec::try_from(document.clone()).as_ref(), Ok(&spec));
    if let Ok(patch) = DirigentPatch::from_form(form)
        && patch.apply(&mut document).is_ok()
        && let Ok(patched) = FunctionSpec::try_from(document)
    {
        assert_eq!((patched.name, patched.code), (spec.name, spec.code));
    }
});
