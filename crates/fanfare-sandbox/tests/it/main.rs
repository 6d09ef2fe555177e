//! The fake runtime, by the suite of all runtimes and by cases of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod broken;
mod fake;
mod subject;

use std::sync::Arc;

use fanfare_sandbox::conformance::{self, Subject};

#[tokio::test(flavor = "multi_thread")]
async fn conformance_with_an_address_for_each_sandbox() {
    conformance::suite(|| async { Arc::new(subject::FakeSubject::tcp()) as Arc<dyn Subject> }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_on_one_unix_socket() {
    conformance::suite(|| async { Arc::new(subject::FakeSubject::unix()) as Arc<dyn Subject> }).await;
}

#[tokio::test]
async fn conformance_on_one_thread() {
    conformance::suite(|| async { Arc::new(subject::FakeSubject::tcp()) as Arc<dyn Subject> }).await;
}
