//! Calls that the control plane has accepted.

use std::sync::Arc;

use fanfare_types::{EntrustedCall, FromDataPlane, FunctionName, Reason, ToDataPlane};

use super::{Keeping, call, ended, ids, list, result};
use crate::rig::{Control, Rig, hello};
use crate::sandbox::{Sandbox, echo};

fn entrusted(key: &str, body: &str) -> EntrustedCall {
    EntrustedCall {
        function: FunctionName::new("hello").unwrap(),
        method: "PUT".into(),
        target: "/a%2Fb?x=1".into(),
        headers: vec![
            ("content-type".into(), "text/x".into()),
            ("x-fanfare-schedule".into(), "nightly".into()),
            ("connection".into(), "x-hop".into()),
            ("x-hop".into(), "stays".into()),
        ],
        body: body.as_bytes().into(),
        at_most_once: false,
        attempts_max: None,
        age_max: None,
        key: key.into(),
        only_if_known: false,
    }
}

/// Has it accepted: its id, or the reason why not.
async fn ask(control: &mut Control, number: u64, call: EntrustedCall) -> Result<Arc<str>, Reason> {
    control.say(ToDataPlane::Entrust { number, call: Arc::new(call) });
    let answer = |message: &FromDataPlane| match message {
        FromDataPlane::Entrusted { number: of, outcome } if *of == number => Some(outcome.clone()),
        _ => None,
    };
    control.hear(answer).await.map_err(|refusal| refusal.reason)
}

#[tokio::test]
async fn a_call_of_the_control_plane_is_durable_before_it_is_answered_and_comes_once_under_its_key() {
    let mut keeping = Keeping::new().await;
    let id = ask(&mut keeping.control, 1, entrusted("s1 12:00", "body")).await.unwrap();
    // Another body under the key is the same call, too: what it says was settled when it was first accepted.
    for (number, body) in [(2, "body"), (3, "another")] {
        assert_eq!(ask(&mut keeping.control, number, entrusted("s1 12:00", body)).await, Ok(id.clone()));
    }
    let mut keeping = Keeping::at(keeping.stop().await, vec![hello()], |_| {}).await;
    assert_eq!(
        ask(&mut keeping.control, 1, entrusted("s1 12:00", "body")).await,
        Ok(id.clone()),
        "still known"
    );
    let known = |key| EntrustedCall { only_if_known: true, ..entrusted(key, "") };
    assert_eq!(ask(&mut keeping.control, 3, known("s1 12:00")).await, Ok(id.clone()));
    assert_eq!(ask(&mut keeping.control, 4, known("s1 12:01")).await, Err(Reason::InvocationNotFound));
    assert_eq!(ids(&list(keeping.address(), "").await).len(), 1, "what is asked about only is not accepted");
    // A client cannot take the key.
    let from_client =
        call(keeping.address(), "hello/a%2Fb?x=1", &[("idempotency-key", "s1 12:01")], "body").await;
    let second = ask(&mut keeping.control, 2, entrusted("s1 12:01", "body")).await.unwrap();
    assert_ne!(*second, *from_client);
    assert_eq!(ids(&list(keeping.address(), "").await).len(), 3);

    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(ended(keeping.address(), &id).await["state"], "succeeded");
    let seen = String::from_utf8_lossy(&result(keeping.address(), &id).await.body).into_owned();
    assert!(seen.starts_with("PUT /a%2Fb?x=1\n"), "{seen}");
    for line in
        ["content-type: text/x\n", "x-fanfare-schedule: nightly\n", "host: hello\n", "content-length: 4\n"]
    {
        assert!(seen.contains(line), "{line} in {seen}");
    }
    assert!(!seen.contains("x-hop") && seen.ends_with("body"), "{seen}");
}

#[tokio::test]
async fn what_cannot_be_accepted_is_refused_with_its_reason() {
    let (_rig, mut control) = Rig::synced(vec![hello()]).await;
    assert_eq!(ask(&mut control, 1, entrusted("k", "")).await, Err(Reason::AsyncOff), "no directory");

    let mut keeping = Keeping::with(|options| options.payload_bytes_max = 100).await;
    let cases = [
        (
            EntrustedCall { function: FunctionName::new("none").unwrap(), ..entrusted("a", "") },
            Reason::FunctionNotFound,
        ),
        (EntrustedCall { method: "G T".into(), ..entrusted("b", "") }, Reason::BadRequest),
        (EntrustedCall { target: "no/slash".into(), ..entrusted("c", "") }, Reason::BadRequest),
        (EntrustedCall { target: "/a b".into(), ..entrusted("d", "") }, Reason::BadRequest),
        (EntrustedCall { headers: vec![("a:".into(), "".into())], ..entrusted("e", "") }, Reason::BadRequest),
        (
            EntrustedCall { headers: vec![("a".into(), "\r\n".into())], ..entrusted("f", "") },
            Reason::BadRequest,
        ),
        (entrusted("g", &"x".repeat(101)), Reason::TooLarge),
    ];
    for (number, (call, reason)) in (1..).zip(cases) {
        assert_eq!(ask(&mut keeping.control, number, call).await, Err(reason));
    }
    assert_eq!(ids(&list(keeping.address(), "").await).len(), 0);
}
