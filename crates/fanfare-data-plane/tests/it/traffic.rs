//! Requests shared among the revisions of a function.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_types::{
    DataPlaneId, FunctionId, FunctionRoute, NodeId, Reach, SandboxId, Share, Tag, ToDataPlane, Traffic,
};
use http::Request;
use http_body_util::Full;

use crate::client::{Answer, Connection, get, get_later};
use crate::rig::{Control, F, Rig, hello, within};
use crate::sandbox::Sandbox;

/// What runs revision 1 of `hello`, whose latest is 2.
const UNIT: FunctionId = FunctionId(50);

fn unit() -> FunctionRoute {
    FunctionRoute { id: UNIT, reach: Reach::Unit, ..hello() }
}

/// `hello` with so much of its requests for the unit, which is also its `canary`.
fn shared(percent: u32) -> FunctionRoute {
    let shares = vec![Share { unit: UNIT, percent }, Share { unit: F, percent: 100 - percent }];
    let tags = vec![(Tag::new("canary").unwrap(), UNIT), (Tag::new("live").unwrap(), F)];
    FunctionRoute { revision: 2, reach: Reach::Shared(Arc::new(Traffic { shares, tags })), ..hello() }
}

fn grant(control: &Control, function: FunctionId, sandbox: u64, endpoint: &str) {
    control.say(ToDataPlane::Grant {
        function,
        revision: if function == UNIT { 1 } else { 2 },
        sandbox: SandboxId(sandbox),
        node: NodeId(1),
        endpoint: endpoint.into(),
        slots: 1,
        stages: None,
    });
}

fn request(path: &str, host: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", host).header("x-fanfare-unit", "50");
    request.body(Full::default()).unwrap()
}

fn revision(answer: &Answer) -> String {
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    answer.headers["x-fanfare-revision"].to_str().unwrap().to_owned()
}

/// How many of so many requests each revision served.
async fn served(client: &mut Connection<Full<Bytes>>, requests: u32) -> BTreeMap<String, u32> {
    let mut served = BTreeMap::new();
    for _ in 0..requests {
        *served
            .entry(revision(&client.call(request("/function/hello", "gateway.test")).await))
            .or_default() += 1;
    }
    served
}

/// χ² of two parts, at a significance of 1 in 100,000.
fn assert_share(served: &BTreeMap<String, u32>, revision: &str, percent: u32) {
    let all = f64::from(served.values().sum::<u32>());
    let share = f64::from(percent) / 100.0;
    let seen = f64::from(served.get(revision).copied().unwrap_or(0));
    let chi_squared = (seen - all * share).powi(2) / (all * share * (1.0 - share));
    assert!(chi_squared < 19.6, "{served:?}: {percent} % were for {revision}");
}

#[tokio::test]
async fn requests_are_shared_by_weight_and_chosen_by_tag() {
    let (rig, mut control) = Rig::synced(vec![unit(), shared(10)]).await;
    let (old, new) = (Sandbox::named(rig.dir(), 1), Sandbox::named(rig.dir(), 2));
    grant(&control, UNIT, 1, &old.endpoint);
    grant(&control, F, 2, &new.endpoint);
    control.settle().await;
    let mut client = Connection::open(rig.address()).await;
    // What a client says of units is not heard.
    assert_share(&served(&mut client, 3_000).await, "1", 10);
    let cases = [
        ("/function/hello@canary", "gateway.test", "1"),
        ("/function/hello@canary/a?b", "gateway.test", "1"),
        ("/function/hello@live", "gateway.test", "2"),
        ("/", "canary--hello", "1"),
        ("/", "Live--hello.example.com:80", "2"),
    ];
    for (path, host, expected) in cases {
        for _ in 0..20 {
            assert_eq!(revision(&client.call(request(path, host)).await), expected, "{path} {host}");
        }
    }
    for (path, host) in
        [("/function/hello@1", "x.test"), ("/function/hello@", "x.test"), ("/", "beta--hello")]
    {
        let answer = client.call(request(path, host)).await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (404, "tag-not-found"), "{path} {host}");
    }
    let answer = get(rig.address(), "/function/nobody@canary").await;
    assert_eq!(answer.reason(), "function-not-found");
    // All of them elsewhere, and back.
    for (percent, expected) in [(100, "1"), (0, "2")] {
        control.say(ToDataPlane::Functions(vec![shared(percent)]));
        control.settle().await;
        assert_eq!(served(&mut client, 50).await, BTreeMap::from([(expected.to_owned(), 50)]));
    }
}

#[tokio::test]
async fn a_forwarded_request_is_for_what_was_chosen_where_it_came_in() {
    let member = |route| {
        Rig::synced_with(vec![unit(), route], |options| options.cluster_token = Some("cluster-secret".into()))
    };
    // The owner would choose otherwise.
    let ((entry, mut entry_control), (owner, owner_control)) =
        (member(shared(50)).await, member(shared(1)).await);
    let (old, new) = (Sandbox::named(owner.dir(), 1), Sandbox::named(owner.dir(), 2));
    grant(&owner_control, UNIT, 1, &old.endpoint);
    grant(&owner_control, F, 2, &new.endpoint);
    let address: Arc<str> = owner.address().to_string().into();
    entry_control.say(ToDataPlane::Peers(vec![(DataPlaneId(1), "me".into()), (DataPlaneId(2), address)]));
    entry_control.say(ToDataPlane::Owners(vec![(F, Some(DataPlaneId(2))), (UNIT, Some(DataPlaneId(2)))]));
    entry_control.settle().await;
    let mut client = Connection::open(entry.address()).await;
    assert_share(&served(&mut client, 1_000).await, "1", 50);
    let tagged = client.call(request("/function/hello@live", "gateway.test")).await;
    assert_eq!(revision(&tagged), "2");
    assert_eq!(entry.data_plane.stats().forwarded, 1_001);
}

#[tokio::test]
async fn requests_that_wait_for_a_unit_that_is_removed_go_where_requests_go_by_then() {
    let (rig, mut control) = Rig::synced(vec![unit(), shared(100)]).await;
    let waiting: Vec<_> = (0..5).map(|_| get_later(rig.address(), "/function/hello")).collect();
    control.demand(5).await;
    control.say(ToDataPlane::Functions(vec![FunctionRoute { revision: 2, ..hello() }]));
    control.say(ToDataPlane::FunctionRemoved(UNIT));
    let sandbox = Sandbox::named(rig.dir(), 2);
    grant(&control, F, 2, &sandbox.endpoint);
    for answer in waiting {
        assert_eq!(revision(&within("an answer", answer).await.unwrap()), "2");
    }
    // What is deleted is gone, also for those that came for one of its units.
    control.say(ToDataPlane::Functions(vec![unit(), shared(100)]));
    control.settle().await;
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.say(ToDataPlane::FunctionRemoved(F));
    control.say(ToDataPlane::FunctionRemoved(UNIT));
    let answer = within("the refusal", waiting).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (404, "function-not-found"));
}
