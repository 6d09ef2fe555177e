//! Several cores share one function.

use std::sync::atomic::Ordering;

use fanfare_types::FunctionRoute;

use crate::client::{Connection, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{Sandbox, text};

#[tokio::test]
async fn cores_share_slots_and_connections_never_outnumber_them() {
    const CLIENTS: usize = 24;
    const REQUESTS: usize = 40;
    let route = FunctionRoute { concurrency: 2, queue_limit: 1_000, ..hello() };
    let (rig, control) = Rig::synced_with(vec![route], |options| options.threads = 3).await;
    let sandboxes: Vec<_> = (1..=2)
        .map(|n| {
            Sandbox::new(rig.dir(), n, |_| async {
                // Long enough that requests of all cores wait for slots.
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                text("ok")
            })
        })
        .collect();
    for (n, sandbox) in (1..).zip(&sandboxes) {
        control.grant(n, &sandbox.endpoint, 2, None);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let address = rig.address();
            tokio::spawn(async move {
                let mut client = Connection::open(address).await;
                for _ in 0..REQUESTS {
                    let answer = client.call(request("/function/hello")).await;
                    assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"));
                }
            })
        })
        .collect();
    for client in clients {
        within("a client", client).await.unwrap();
    }
    let mut requests = 0;
    for sandbox in &sandboxes {
        let seen = &sandbox.seen;
        requests += seen.requests.load(Ordering::SeqCst);
        assert!(seen.busy_max.load(Ordering::SeqCst) <= 2, "more requests than slots");
        assert!(seen.connections.load(Ordering::SeqCst) <= 2, "connections move between cores");
    }
    assert_eq!(requests, CLIENTS * REQUESTS);
    let stats = rig.data_plane.stats();
    assert_eq!((stats.functions[0].answered, stats.functions[0].in_flight, stats.requests), (960, 0, 0));
}

#[test]
fn a_taken_address_is_an_error_though_cores_share_theirs() {
    let rig = Rig::new(|options| options.threads = 2);
    let address = rig.address();
    let (to_nobody, _links) = tokio::sync::mpsc::unbounded_channel();
    let started = crate::rig::start_at(address, to_nobody);
    assert!(started.unwrap_err().to_string().contains("in use"));
}
