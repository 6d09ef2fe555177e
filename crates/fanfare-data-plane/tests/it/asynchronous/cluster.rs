//! Calls in a cluster of data planes.

use std::sync::Arc;

use fanfare_data_plane::AsyncOptions;
use fanfare_types::{DataPlaneId, Epoch, ToDataPlane};
use tempfile::TempDir;

use super::{call, ended, ids, list, options, result, send};
use crate::rig::{Control, Rig, hello};
use crate::sandbox::Sandbox;

async fn member(number: u32) -> (Rig, Control, TempDir) {
    member_with(number, |_| {}).await
}

pub(super) async fn member_with(
    number: u32,
    change: impl FnOnce(&mut AsyncOptions),
) -> (Rig, Control, TempDir) {
    let log = tempfile::tempdir().unwrap();
    let mut kept = options(log.path());
    change(&mut kept);
    let mut rig = Rig::new(|options| options.asynchronous = Some(kept));
    let mut control = rig.control().await;
    control.hello().await;
    control.say(ToDataPlane::Welcome { you: DataPlaneId(number), epoch: Epoch(1) });
    control.say(ToDataPlane::Functions(vec![hello()]));
    control.say(ToDataPlane::Synced);
    crate::rig::within("sync", rig.data_plane.synced()).await;
    (rig, control, log)
}

#[tokio::test]
async fn any_data_plane_answers_for_the_calls_of_all() {
    let (one, mut one_control, _log) = member(1).await;
    let (two, mut two_control, _log_two) = member(2).await;
    let address = |rig: &Rig| -> Arc<str> { rig.address().to_string().into() };
    let peers = vec![
        (DataPlaneId(1), address(&one)),
        (DataPlaneId(2), address(&two)),
        (DataPlaneId(3), "127.0.0.1:1".into()),
    ];
    for control in [&mut one_control, &mut two_control] {
        control.say(ToDataPlane::Peers(peers.clone()));
        control.settle().await;
    }
    let sandbox = Sandbox::named(two.dir(), 7);
    two_control.grant(7, &sandbox.endpoint, 1, None);
    let at_one = call(one.address(), "hello", &[], "").await;
    let at_two = call(two.address(), "hello", &[], "").await;
    assert!(at_one.starts_with("d1-1-") && at_two.starts_with("d2-1-"));
    // Asked of the other one.
    assert_eq!(ended(one.address(), &at_two).await["state"], "succeeded");
    let answer = result(one.address(), &at_two).await;
    assert_eq!((answer.text(), answer.headers["x-fanfare-state"].to_str().unwrap()), ("7", "succeeded"));
    let answer = send(two.address(), "DELETE", &format!("/async/{at_one}"), &[], "").await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    assert_eq!(ended(one.address(), &at_one).await["state"], "cancelled");
    let wrong = format!("{}0", &at_two[..at_two.len() - 1]);
    let wrong = if wrong == at_two { format!("{}1", &at_two[..at_two.len() - 1]) } else { wrong };
    let answer = send(one.address(), "GET", &format!("/async/{wrong}"), &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (404, "invocation-not-found"));
    let answer = send(one.address(), "GET", "/async/d3-1-0000000000000001", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (503, "unavailable"));
    for rig in [&one, &two] {
        let all = list(rig.address(), "").await;
        assert_eq!(ids(&all), [&at_one, &at_two]);
        assert_eq!(all["unreachable"][0], "d3");
        let first = list(rig.address(), "?limit=1").await;
        assert_eq!(ids(&first), [&at_one]);
        let next = first["next"].as_str().unwrap();
        let rest = list(rig.address(), &format!("?limit=5&after={next}")).await;
        assert_eq!(ids(&rest), [&at_two]);
        assert_eq!(ids(&list(rig.address(), "?state=cancelled").await), [&at_one]);
    }
}
