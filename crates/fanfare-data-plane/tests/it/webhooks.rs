//! Webhooks: who is believed, what the function sees, and what comes once.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fanfare_types::{
    FunctionName, SecretName, SecretValue, ToDataPlane, WebhookRoute, WebhookScheme, WebhookSpec,
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::asynchronous::{Keeping, ended, ids, list, result, send};
use crate::rig::Control;
use crate::sandbox::{Sandbox, echo};

/// The example of GitHub's documentation.
const KEY: &[u8] = b"It's a Secret to Everybody";
const BODY: &str = "Hello, World!";
const SIGNATURE: (&str, &str) =
    ("x-hub-signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17");

/// Method, path, fields and body of a request; status and reason of its answer.
type Case =
    (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str, u16, &'static str);

fn webhook(name: &str, scheme: WebhookScheme, wait: bool) -> WebhookRoute {
    let spec = WebhookSpec {
        name: FunctionName::new(name).unwrap(),
        function: FunctionName::new("hello").unwrap(),
        scheme,
        secret: SecretName::new("key").unwrap(),
        wait,
        tolerance: Duration::from_secs(300),
    };
    WebhookRoute { spec: Arc::new(spec), key: Some(SecretValue::new(KEY.to_vec())) }
}

/// Has the data plane know these webhooks and no others.
async fn tell(control: &mut Control, webhooks: Vec<WebhookRoute>) {
    for webhook in webhooks {
        control.say(ToDataPlane::Webhook(Arc::new(webhook)));
    }
    control.say(ToDataPlane::WebhooksSynced);
    control.settle().await;
}

#[tokio::test]
async fn a_signed_request_is_accepted_once_under_its_delivery_and_seen_as_it_came() {
    let mut keeping = Keeping::new().await;
    tell(&mut keeping.control, vec![webhook("gh", WebhookScheme::Github, false)]).await;
    let address = keeping.address();
    let fields = [
        SIGNATURE,
        ("x-github-delivery", "d-1"),
        ("content-type", "text/plain"),
        ("x-fanfare-webhook", "no"),
    ];
    let first = send(address, "POST", "/webhook/gh/push?x=1", &fields, BODY).await;
    assert_eq!(first.status.as_u16(), 202, "{first:?}");
    let id = first.headers["x-fanfare-invocation-id"].to_str().unwrap().to_owned();
    let again = send(address, "POST", "/webhook/gh/push?x=1", &fields, BODY).await;
    assert_eq!(again.headers["x-fanfare-invocation-id"].to_str().unwrap(), id, "the same delivery");
    let other = [SIGNATURE, ("x-github-delivery", "d-2")];
    send(address, "POST", "/webhook/gh/push?x=1", &other, BODY).await;
    let none = [SIGNATURE];
    send(address, "POST", "/webhook/gh", &none, BODY).await;
    send(address, "POST", "/webhook/gh", &none, BODY).await;
    assert_eq!(ids(&list(address, "").await).len(), 4, "what has no id is another each time");
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(ended(address, &id).await["state"], "succeeded");
    let seen = String::from_utf8_lossy(&result(address, &id).await.body).into_owned();
    assert!(seen.starts_with("POST /push?x=1\n") && seen.ends_with(BODY), "{seen}");
    for line in
        ["x-fanfare-webhook: gh\n", "content-type: text/plain\n", "x-github-delivery: d-1\n", SIGNATURE.1]
    {
        assert!(seen.contains(line), "{line}: {seen}");
    }
    assert!(!seen.contains("webhook: no"), "{seen}");
}

#[tokio::test]
async fn a_token_is_neither_kept_nor_given_to_the_function() {
    const CANARY: &str = "canary-4f1d+/7";
    let mut keeping = Keeping::new().await;
    let key = || Some(SecretValue::new(CANARY.as_bytes().to_vec()));
    let later = WebhookRoute { key: key(), ..webhook("later", WebhookScheme::Token, false) };
    let now = WebhookRoute { key: key(), ..webhook("now", WebhookScheme::Token, true) };
    tell(&mut keeping.control, vec![later, now]).await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let address = keeping.address();
    let bearer = format!("Bearer {CANARY}");
    let of_url = "?a=b&token=canary-4f1d%2B%2F7&c=%20";
    let field = [("authorization", bearer.as_str())];
    let both = [("?a=b&c=%20", "authorization: Bearer", &field[..]), (of_url, "token", &[])];
    for (query, gone, fields) in both {
        let accepted = send(address, "POST", &format!("/webhook/later/x{query}"), fields, BODY).await;
        assert_eq!(accepted.status.as_u16(), 202, "{accepted:?}");
        let id = accepted.headers["x-fanfare-invocation-id"].to_str().unwrap().to_owned();
        assert_eq!(ended(address, &id).await["state"], "succeeded");
        let kept = result(address, &id).await;
        let answered = send(address, "POST", &format!("/webhook/now/x{query}"), fields, BODY).await;
        for seen in [String::from_utf8_lossy(&kept.body).into_owned(), answered.text().to_owned()] {
            assert!(seen.starts_with("POST /x?a=b&c=%20\n") && seen.ends_with(BODY), "{seen}");
            assert!(!seen.contains("canary-4f1d") && !seen.contains(gone), "{seen}");
        }
    }
    let log = keeping.stop().await;
    let kept = contents(log.path());
    let has = |what: &[u8]| kept.windows(what.len()).any(|window| window == what);
    assert!(has(BODY.as_bytes()), "the call is in there");
    assert!(!has(b"canary-4f1d"), "and the token is not");
}

/// What all files below a directory hold.
fn contents(directory: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        all.extend(if path.is_dir() { contents(&path) } else { std::fs::read(&path).unwrap() });
    }
    all
}

#[tokio::test]
async fn a_replayed_stripe_webhook_is_no_other_call() {
    let mut keeping = Keeping::new().await;
    let pay = webhook("pay", WebhookScheme::Stripe, false);
    let spec = WebhookSpec { tolerance: Duration::from_secs(86_400), ..(*pay.spec).clone() };
    tell(&mut keeping.control, vec![WebhookRoute { spec: Arc::new(spec), ..pay }]).await;
    let address = keeping.address();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut calls = Vec::new();
    for (time, extra) in [(now, ""), (now, ",v1=00"), (now - 1, "")] {
        let mut mac = Hmac::<Sha256>::new_from_slice(KEY).unwrap();
        mac.update(format!("{time}.{BODY}").as_bytes());
        let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let field = format!("t={time}{extra},v1={hex}");
        let fields = [("stripe-signature", field.as_str())];
        let answer = send(address, "POST", "/webhook/pay", &fields, BODY).await;
        assert_eq!(answer.status.as_u16(), 202, "{answer:?}");
        calls.push(answer.headers["x-fanfare-invocation-id"].to_str().unwrap().to_owned());
    }
    assert_eq!(calls[0], calls[1], "the same signature");
    assert_ne!(calls[0], calls[2], "a new attempt is signed anew");
}

#[tokio::test]
async fn with_wait_the_sender_gets_the_functions_answer_and_nothing_is_kept() {
    let mut keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    tell(&mut keeping.control, vec![webhook("ask", WebhookScheme::Token, true)]).await;
    let token = format!("Bearer {}", String::from_utf8_lossy(KEY));
    let fields = [("authorization", token.as_str())];
    let answer = send(keeping.address(), "POST", "/webhook/ask/a?b=c", &fields, BODY).await;
    let seen = answer.text();
    assert!(
        answer.status.as_u16() == 200 && seen.starts_with("POST /a?b=c\n") && seen.ends_with(BODY),
        "{seen}"
    );
    assert!(
        seen.contains("x-fanfare-webhook: ask\n") && seen.contains("x-forwarded-for: 127.0.0.1\n"),
        "{seen}"
    );
    assert!(ids(&list(keeping.address(), "").await).is_empty());
}

#[tokio::test]
async fn who_is_not_known_is_refused_with_a_reason_and_nothing_of_the_secret() {
    let mut keeping = Keeping::with(|options| options.payload_bytes_max = 1_000).await;
    let gone = WebhookRoute { key: None, ..webhook("keyless", WebhookScheme::Github, false) };
    let elsewhere = WebhookSpec {
        function: FunctionName::new("none").unwrap(),
        ..(*webhook("lost", WebhookScheme::Github, false).spec).clone()
    };
    let lost = WebhookRoute { spec: Arc::new(elsewhere), ..webhook("lost", WebhookScheme::Github, false) };
    let known = vec![
        webhook("gh", WebhookScheme::Github, false),
        webhook("std", WebhookScheme::Standard, false),
        webhook("pay", WebhookScheme::Stripe, true),
        webhook("tok", WebhookScheme::Token, true),
        gone,
        lost,
    ];
    tell(&mut keeping.control, known).await;
    let address = keeping.address();
    let cases: &[Case] = &[
        ("POST", "gh", &[], BODY, 401, "webhook-unverified"),
        ("POST", "gh", &[SIGNATURE], "Hello, World?", 401, "webhook-unverified"),
        ("POST", "gh", &[SIGNATURE, SIGNATURE], BODY, 401, "webhook-unverified"),
        ("POST", "pay", &[("stripe-signature", "t=1,v1=00")], BODY, 401, "webhook-unverified"),
        ("POST", "std", &[("webhook-id", "1")], BODY, 401, "webhook-unverified"),
        ("POST", "tok", &[("authorization", "Bearer x")], BODY, 401, "webhook-unverified"),
        ("POST", "tok?token=x", &[], BODY, 401, "webhook-unverified"),
        ("POST", "keyless", &[SIGNATURE], BODY, 503, "unavailable"),
        ("POST", "lost", &[SIGNATURE], BODY, 404, "function-not-found"),
        ("POST", "lost", &[SIGNATURE], "Hello, World?", 401, "webhook-unverified"),
        ("POST", "unknown", &[SIGNATURE], BODY, 404, "webhook-not-found"),
        ("GET", "gh", &[SIGNATURE], "", 405, "method-not-allowed"),
    ];
    for (method, path, fields, body, status, reason) in cases {
        let answer = send(address, method, &format!("/webhook/{path}"), fields, *body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.reason()),
            (*status, *reason),
            "{method} {path}: {answer:?}"
        );
        assert!(!answer.text().contains("Everybody"), "{answer:?}");
        let words = format!("{answer:?}");
        let strangers = *status == 401 || *status == 503;
        assert!(!strangers || (!words.contains("hello") && !words.contains("\"key\"")), "{words}");
    }
    let large = send(address, "POST", "/webhook/gh", &[SIGNATURE], vec![b'x'; 1_001]).await;
    assert_eq!((large.status.as_u16(), large.reason()), (413, "too-large"));
    assert!(ids(&list(address, "").await).is_empty(), "nothing was called");
}

#[tokio::test]
async fn what_is_changed_or_deleted_counts_at_once_and_a_new_stream_tells_all() {
    let mut keeping = Keeping::new().await;
    let (first, second) = ("gh", "other");
    let both =
        vec![webhook(first, WebhookScheme::Github, false), webhook(second, WebhookScheme::Github, false)];
    tell(&mut keeping.control, both).await;
    let address = keeping.address();
    let status = async |name: &str| {
        send(address, "POST", &format!("/webhook/{name}"), &[SIGNATURE], BODY).await.status.as_u16()
    };
    assert_eq!((status(first).await, status(second).await), (202, 202));
    let key = Some(SecretValue::new(b"another".to_vec()));
    let changed = WebhookRoute { key, ..webhook(first, WebhookScheme::Github, false) };
    keeping.control.say(ToDataPlane::Webhook(Arc::new(changed)));
    keeping.control.say(ToDataPlane::WebhookRemoved(FunctionName::new(second).unwrap()));
    keeping.control.settle().await;
    assert_eq!((status(first).await, status(second).await), (401, 404));
    let Keeping { mut rig, control, .. } = keeping;
    control.cut();
    let mut control = rig.control().await;
    control.hello().await;
    control.sync(vec![crate::rig::hello()]);
    assert_eq!(
        status(first).await,
        401,
        "what was known holds while there is no stream, and until all is told"
    );
    tell(&mut control, vec![webhook(second, WebhookScheme::Github, false)]).await;
    assert_eq!((status(first).await, status(second).await), (404, 202));
}
