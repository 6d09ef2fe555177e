//! How calls run and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fanfare_types::{ExitCause, SandboxId, ToDataPlane};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use super::{Keeping, call, ended, ids, list, result, send, status};
use crate::client::{get, get_later};
use crate::rig::{F, within};
use crate::sandbox::{HeldSandbox, RawSandbox, Sandbox, text};

/// A function that answers as its path says: `/503/2` is a status and a `Retry-After`.
fn answering(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let mut words = path.trim_start_matches('/').split('/');
    let status: u16 = words.next().and_then(|word| word.parse().ok()).unwrap_or(200);
    let mut response = text(format!("answer {status}"));
    *response.status_mut() = status.try_into().unwrap();
    if let Some(after) = words.next() {
        response.headers_mut().insert("retry-after", after.parse().unwrap());
    }
    response.headers_mut().insert("x-own", "kept".parse().unwrap());
    response.headers_mut().insert("server-timing", "own;dur=1".parse().unwrap());
    response
}

#[tokio::test]
async fn a_result_outlives_the_connection_and_is_the_function_s_answer() {
    let keeping = Keeping::new().await;
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let address = keeping.address();
    // The connection is closed with the answer 202.
    let id = call(address, "hello/work", &[], "").await;
    let held = sandbox.next().await;
    assert_eq!(held.path, "/work");
    assert_eq!(status(address, &id).await["state"], "running");
    let early = result(address, &id).await;
    assert_eq!((early.status.as_u16(), early.headers["retry-after"].to_str().unwrap()), (202, "1"));
    let waiting = {
        let id = id.clone();
        tokio::spawn(async move { ended(address, &id).await })
    };
    held.answer("done");
    assert_eq!(waiting.await.unwrap()["state"], "succeeded");
    let kept = result(address, &id).await;
    assert_eq!((kept.status.as_u16(), kept.text()), (200, "done"));
    assert_eq!(kept.headers["x-fanfare-state"], "succeeded");
    assert_eq!(kept.headers["x-fanfare-invocation-id"], id.as_str());
    assert_eq!(kept.headers["x-fanfare-attempt"], "1");
}

#[tokio::test]
async fn what_the_function_answers_decides() {
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, |request| async move { answering(&request) });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let once: &[(&str, &str)] = &[("x-fanfare-max-attempts", "1")];
    for (code, state, cause) in [
        (204, "succeeded", None),
        (307, "succeeded", None),
        (404, "failed", None),
        (422, "failed", None),
        (500, "dead", Some("attempts-exhausted")),
        (429, "dead", Some("attempts-exhausted")),
    ] {
        let id = call(keeping.address(), &format!("hello/{code}"), once, "").await;
        let document = ended(keeping.address(), &id).await;
        assert_eq!((document["state"].as_str(), document["cause"].as_str()), (Some(state), cause), "{code}");
        assert_eq!(document["status"], code);
        let kept = result(keeping.address(), &id).await;
        assert_eq!((kept.status.as_u16(), kept.headers["x-own"].to_str().unwrap()), (code, "kept"));
        let timings: Vec<_> = kept.headers.get_all("server-timing").iter().collect();
        assert!(timings.iter().any(|timing| *timing == "own;dur=1"), "{timings:?}");
    }
    assert_eq!(sandbox.seen.requests.load(Ordering::SeqCst), 6, "none of them was repeated");
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_with_its_number_and_retry_after_is_waited_for() {
    let keeping = Keeping::new().await;
    let attempts = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, move |request: Request<Incoming>| {
        let number = request.headers().get("x-fanfare-attempt").map(|v| v.to_str().unwrap().to_owned());
        if request.uri().path() == "/flaky" {
            seen.lock().push((number.clone(), Instant::now()));
        }
        async move {
            let mut response = text("again");
            if request.uri().path() == "/flaky" && number.as_deref() == Some("1") {
                *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert("retry-after", "2".parse().unwrap());
            }
            response
        }
    });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let id = call(keeping.address(), "hello/flaky", &[], "").await;
    // It is seen pausing before it is tried again.
    let pausing = async {
        loop {
            let document = status(keeping.address(), &id).await;
            if document["state"] == "retrying" {
                return document;
            }
        }
    };
    let document = within("the pause", pausing).await;
    let next_in_ms = document["next_attempt_in_ms"].as_u64().unwrap();
    assert!((500..=2_000).contains(&next_in_ms), "{document}");
    assert!(document["next_attempt_unix_ms"].as_u64() > document["accepted_unix_ms"].as_u64());
    assert_eq!((document["status"].as_u64(), document["attempts"].as_u64()), (Some(429), Some(1)));
    let other = call(keeping.address(), "hello/other", &[], "").await;
    assert_eq!(ended(keeping.address(), &other).await["state"], "succeeded");
    assert_eq!(attempts.lock().len(), 1, "the other was not held up by the pause");
    let document = ended(keeping.address(), &id).await;
    assert_eq!((document["state"].as_str(), document["attempts"].as_u64()), (Some("succeeded"), Some(2)));
    let attempts = attempts.lock();
    let numbers: Vec<_> = attempts.iter().map(|(number, _)| number.as_deref()).collect();
    assert_eq!(numbers, [Some("1"), Some("2")]);
    let pause = attempts[1].1 - attempts[0].1;
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
}

#[tokio::test]
async fn a_refusal_by_the_platform_uses_no_attempt() {
    let mut keeping = Keeping::new().await;
    let id = call(keeping.address(), "hello", &[("x-fanfare-delivery", "at-most-once")], "").await;
    keeping.control.demand(1).await;
    keeping.control.say(ToDataPlane::Unavailable {
        function: F,
        reason: fanfare_types::Reason::NoCapacity,
        detail: "no node has room".into(),
        log_tail: "".into(),
    });
    let pausing = async {
        loop {
            let document = status(keeping.address(), &id).await;
            if document["reason"] == "no-capacity" {
                return document;
            }
        }
    };
    let document = within("the refusal", pausing).await;
    assert_eq!(
        (document["attempts"].as_u64(), document["detail"].as_str()),
        (Some(0), Some("no node has room"))
    );
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let document = ended(keeping.address(), &id).await;
    assert_eq!((document["state"].as_str(), document["attempts"].as_u64()), (Some("succeeded"), Some(1)));
}

#[tokio::test]
async fn a_sandbox_that_ends_under_a_call_is_told_apart() {
    let keeping = Keeping::new().await;
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let id = call(keeping.address(), "hello", &[("x-fanfare-delivery", "at-most-once")], "").await;
    let _held = sandbox.next().await;
    keeping.control.gone(1, ExitCause::NodeLost, "");
    let document = ended(keeping.address(), &id).await;
    assert_eq!((document["state"].as_str(), document["cause"].as_str()), (Some("dead"), Some("lost")));
    let answer = result(keeping.address(), &id).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "invocation-lost"));
}

#[tokio::test]
async fn a_node_that_is_lost_uses_no_attempt_and_a_sandbox_that_hangs_up_does() {
    let mut keeping = Keeping::new().await;
    let fields: &[(&str, &str)] = &[("x-fanfare-max-attempts", "1")];
    for (number, cause, state) in [(1, ExitCause::NodeLost, "succeeded"), (3, ExitCause::Stopped, "dead")] {
        let sandbox = RawSandbox::new(keeping.rig.dir(), number);
        keeping.control.grant(number, &sandbox.endpoint, 1, None);
        let id = call(keeping.address(), "hello", fields, "").await;
        let mut connection = sandbox.accept().await;
        connection.head().await;
        // It hangs up, and why is said later than a client would be let wait: the sandbox is condemned by then.
        drop(connection);
        keeping.control.condemned().await;
        keeping.control.gone(number, cause, "");
        let named = Sandbox::named(keeping.rig.dir(), number + 1);
        keeping.control.grant(number + 1, &named.endpoint, 1, None);
        let document = ended(keeping.address(), &id).await;
        assert_eq!(document["state"], state, "{document}");
        keeping.control.say(ToDataPlane::Revoke { sandbox: SandboxId(number + 1), slots: 1 });
    }
}

#[tokio::test]
async fn cancelling_ends_the_running_attempt_and_its_sandbox() {
    let mut keeping = Keeping::new().await;
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let id = call(keeping.address(), "hello", &[], "").await;
    let queued = call(keeping.address(), "hello", &[], "").await;
    let held = sandbox.next().await;
    let address = keeping.address();
    let cancel = |id: String| async move { send(address, "DELETE", &format!("/async/{id}"), &[], "").await };
    let answer = cancel(id.clone()).await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap()["state"], "cancelled");
    assert_eq!(keeping.control.condemned().await.0, 1, "user code may still run, so its sandbox is ended");
    held.answer("too late");
    assert_eq!(cancel(queued.clone()).await.status.as_u16(), 200);
    assert_eq!(cancel(id.clone()).await.status.as_u16(), 200, "once more changes nothing");
    for id in [&id, &queued] {
        assert_eq!(status(keeping.address(), id).await["state"], "cancelled");
        let answer = result(keeping.address(), id).await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (410, "invocation-cancelled"));
    }
    let named = Sandbox::named(keeping.rig.dir(), 2);
    keeping.control.grant(2, &named.endpoint, 1, None);
    let done = call(keeping.address(), "hello", &[], "").await;
    ended(keeping.address(), &done).await;
    let answer = cancel(done).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (409, "invocation-ended"));
    assert_eq!(named.seen.requests.load(Ordering::SeqCst), 1, "nothing cancelled ran");
}

#[tokio::test]
async fn a_synchronous_request_finds_at_most_two_waiting_before_it() {
    let mut keeping = Keeping::new().await;
    let address = keeping.address();
    for index in 0..30 {
        call(address, &format!("hello/{index}"), &[], "").await;
    }
    assert_eq!(keeping.control.demand(2).await.queued, 2);
    let at_once = get_later(address, "/function/hello/now");
    keeping.control.demand(3).await;
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let mut order = Vec::new();
    for _ in 0..4 {
        let held = sandbox.next().await;
        order.push(held.path.clone());
        held.answer("");
    }
    assert_eq!(order[..3], ["/0", "/1", "/now"], "{order:?}");
    assert_eq!(at_once.await.unwrap().status.as_u16(), 200);
}

#[tokio::test]
async fn dead_letters_are_listed_and_replayed() {
    let keeping = Keeping::new().await;
    let mended = Arc::new(AtomicUsize::new(500));
    let status_now = mended.clone();
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, move |request: Request<Incoming>| {
        let status = u16::try_from(status_now.load(Ordering::SeqCst)).unwrap();
        async move {
            let mut response = crate::sandbox::echo(request).await;
            *response.status_mut() = status.try_into().unwrap();
            response
        }
    });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let once: &[(&str, &str)] = &[("x-fanfare-max-attempts", "1"), ("x-mine", "kept")];
    let first = call(keeping.address(), "hello/a?b", once, "the body").await;
    let second = call(keeping.address(), "hello/c", once, "").await;
    for id in [&first, &second] {
        assert_eq!(ended(keeping.address(), id).await["cause"], "attempts-exhausted");
    }
    let dead = list(keeping.address(), "/dead?function=hello").await;
    assert_eq!(ids(&dead), [&first, &second]);
    mended.store(200, Ordering::SeqCst);
    let answer = send(keeping.address(), "POST", &format!("/async/{first}/replay"), &[], "").await;
    assert_eq!(answer.status.as_u16(), 202, "{answer:?}");
    let again: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(again["replay_of"], first.as_str());
    let again = again["id"].as_str().unwrap().to_owned();
    assert_eq!(ended(keeping.address(), &again).await["state"], "succeeded");
    let kept = result(keeping.address(), &again).await;
    assert!(kept.text().starts_with("POST /a?b\n") && kept.text().ends_with("\n\nthe body"), "{kept:?}");
    assert!(kept.text().contains("x-mine: kept\n"), "{kept:?}");
    assert_eq!(status(keeping.address(), &first).await["replayed_as"], again.as_str());
    assert_eq!(ids(&list(keeping.address(), "/dead").await), [&second]);
    let twice = send(keeping.address(), "POST", &format!("/async/{first}/replay"), &[], "").await;
    assert_eq!((twice.status.as_u16(), twice.reason()), (409, "not-replayable"));
    assert_eq!(ids(&list(keeping.address(), "?state=succeeded").await), [&again]);
    assert_eq!(ids(&list(keeping.address(), "?limit=2").await), [&first, &second]);
    let page = list(keeping.address(), "?limit=2").await;
    let next = page["next"].as_str().unwrap();
    assert_eq!(ids(&list(keeping.address(), &format!("?after={next}")).await), [&again]);
}

#[tokio::test]
async fn a_call_becomes_too_old() {
    let keeping = Keeping::new().await;
    let id = call(keeping.address(), "hello", &[("x-fanfare-max-age", "200ms")], "").await;
    // Two wait for a slot and end in their own time; the third has not begun.
    call(keeping.address(), "hello", &[], "").await;
    let late = call(keeping.address(), "hello", &[("x-fanfare-max-age", "200ms")], "").await;
    let document = ended(keeping.address(), &late).await;
    assert_eq!((document["state"].as_str(), document["cause"].as_str()), (Some("dead"), Some("max-age")));
    let answer = result(keeping.address(), &late).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (504, "max-age-exceeded"));
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(ended(keeping.address(), &id).await["state"], "succeeded");
    assert_eq!(get(keeping.address(), "/function/hello").await.text(), "1");
}
