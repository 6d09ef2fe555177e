//! The stream to the control plane: load, resync, drain.

use fanfare_types::{DataPlaneId, Epoch, FromDataPlane, HeldLease, SandboxId, ToDataPlane};

use crate::client::{get, get_later};
use crate::rig::{F, Rig, hello, within};
use crate::sandbox::{HeldSandbox, Sandbox};

#[tokio::test]
async fn a_broken_stream_is_replaced_and_states_what_is_held() {
    let (mut rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    let spare = Sandbox::named(rig.dir(), 2);
    control.grant(2, &spare.endpoint, 1, None);
    control.grant(1, sandbox.endpoint(), 1, None);
    control.settle().await;
    let running = get_later(rig.address(), "/function/hello");
    let held = sandbox.next().await;
    control.cut();
    let mut control = rig.control().await;
    assert_eq!(
        get(rig.address(), "/function/hello").await.text(),
        "2",
        "warm traffic goes on without a stream"
    );
    let hello_again = control.hello().await;
    let lease = |n| HeldLease { sandbox: SandboxId(n), slots: 1 };
    assert_eq!(hello_again.leases, [lease(1), lease(2)]);
    assert_eq!(hello_again.name.as_ref(), "test");
    assert_eq!(hello_again.address.as_ref(), rig.address().to_string());
    assert_eq!(hello_again.epoch_seen, Epoch(1).min(hello_again.epoch_seen));
    control.sync(vec![hello()]);
    control.say(ToDataPlane::Revoke { sandbox: SandboxId(2), slots: 1 });
    assert_eq!(control.released().await, (2, 1, false), "the new stream is obeyed");
    held.answer("done");
    assert_eq!(running.await.unwrap().text(), "done");
}

#[tokio::test]
async fn waiting_requests_and_condemned_sandboxes_survive_a_broken_stream() {
    let (mut rig, control) = Rig::synced(vec![hello()]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let leaves = get_later(rig.address(), "/function/hello");
    let _held = sandbox.next().await;
    control.cut();
    leaves.abort();
    let mut control = rig.control().await;
    let waits = get_later(rig.address(), "/function/hello");
    let first = control.hello().await;
    // The client may leave before or after the hello, and the next one come before or after that; it is told either way.
    let (mut condemned, mut waiting) = (!first.condemned.is_empty(), false);
    if condemned {
        assert_eq!((first.condemned, first.leases), (vec![SandboxId(1)], vec![]));
    }
    control.sync(vec![hello()]);
    while !condemned || !waiting {
        let said = control.hear(|m| match m {
            FromDataPlane::Condemned { sandbox: SandboxId(1), .. } => Some((true, false)),
            FromDataPlane::Demand(load) if load.queued == 1 => Some((false, true)),
            _ => None,
        });
        let said = said.await;
        (condemned, waiting) = (condemned || said.0, waiting || said.1);
    }
    control.cut();
    let mut control = rig.control().await;
    let second = control.hello().await;
    assert_eq!((second.condemned, second.leases), (vec![SandboxId(1)], vec![]));
    control.demand(1).await;
    control.sync(vec![hello()]);
    let good = Sandbox::named(rig.dir(), 2);
    control.grant(2, &good.endpoint, 1, None);
    assert_eq!(within("the waiting one", waits).await.unwrap().text(), "2");
}

#[tokio::test]
async fn what_a_sync_leaves_out_is_gone() {
    let (mut rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1");
    control.cut();
    let mut control = rig.control().await;
    control.hello().await;
    control.sync(vec![]);
    assert_eq!(control.released().await, (1, 1, true));
    assert_eq!(get(rig.address(), "/function/hello").await.reason(), "function-not-found");
}

#[tokio::test]
async fn load_is_reported_while_there_is_any() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let held = sandbox.next().await;
    let load = control
        .hear(|m| match m {
            FromDataPlane::Report(loads) if !loads.is_empty() => Some(loads[0]),
            _ => None,
        })
        .await;
    assert_eq!((load.function, load.in_flight, load.queued), (F, 1, 0));
    assert!(load.concurrency_avg > 0.9 && load.concurrency_avg <= 1.0 + 1e-9, "{load:?}");
    held.answer("done");
    answer.await.unwrap();
    let load = control
        .hear(|m| match m {
            FromDataPlane::Report(loads) if !loads.is_empty() => Some(loads[0]),
            _ => None,
        })
        .await;
    assert!(load.execution_s.is_some_and(|took| took > 0.5), "{load:?}");
    assert_eq!((load.in_flight, load.idle_sandboxes), (0, 1));
    control.hear(|m| matches!(m, FromDataPlane::Report(loads) if loads.is_empty()).then_some(())).await;
}

#[tokio::test]
async fn a_grant_that_makes_no_sense_is_given_back_or_condemned() {
    let (_rig, mut control) = Rig::synced(vec![hello()]).await;
    control.grant(1, "carrier-pigeon:coop", 1, None);
    assert_eq!(control.condemned().await.0, 1);
    assert_eq!(control.released().await, (1, 1, false), "nothing runs in it that would have to finish");
    control.say(ToDataPlane::FunctionRemoved(F));
    control.grant(2, "unix:/x", 3, None);
    assert_eq!(control.released().await, (2, 3, true));
}

#[tokio::test]
async fn shutting_down_finishes_what_is_there_and_gives_everything_back() {
    let (mut rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut busy = HeldSandbox::new(rig.dir(), 1);
    let idle = Sandbox::named(rig.dir(), 2);
    control.grant(1, busy.endpoint(), 1, None);
    control.settle().await;
    let running = get_later(rig.address(), "/function/hello/running");
    let held = busy.next().await;
    let waiting = get_later(rig.address(), "/function/hello/waiting");
    control.demand(1).await;
    control.say(ToDataPlane::Peers(vec![(DataPlaneId(1), "x".into())]));
    rig.shutdown.cancel();
    control.hear(|m| matches!(m, FromDataPlane::Draining).then_some(())).await;
    // It is said again on every stream.
    control.cut();
    let mut control = rig.control().await;
    control.hello().await;
    control.sync(vec![hello()]);
    control.hear(|m| matches!(m, FromDataPlane::Draining).then_some(())).await;
    let mut refused = tokio::net::TcpStream::connect(rig.address()).await;
    while refused.is_ok() {
        refused = tokio::net::TcpStream::connect(rig.address()).await;
    }
    held.answer("first");
    let held = busy.next().await;
    assert_eq!(held.path, "/waiting", "those that wait are served, too");
    held.answer("second");
    assert_eq!(within("the running one", running).await.unwrap().text(), "first");
    assert_eq!(within("the waiting one", waiting).await.unwrap().text(), "second");
    assert_eq!(control.released().await, (1, 1, false));
    control.hear(|m| matches!(m, FromDataPlane::Left).then_some(())).await;
    control.cut();
    within("the end", rig.data_plane.stopped()).await;
    drop(idle);
}

#[tokio::test]
async fn shutting_down_does_not_wait_for_ever() {
    let (rig, mut control) =
        Rig::synced_with(vec![hello()], |o| o.drain_timeout = std::time::Duration::from_millis(100)).await;
    let mut stuck = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, stuck.endpoint(), 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let _held = stuck.next().await;
    rig.shutdown.cancel();
    assert_eq!(control.condemned().await, (1, fanfare_types::Condemned::Abandoned));
    control.cut();
    within("the end", rig.data_plane.stopped()).await;
    assert!(answer.await.is_err(), "its connection was closed without an answer");
}

#[tokio::test]
async fn a_sync_of_many_functions_does_not_silence_it() {
    const MESSAGES: u32 = 250;
    let (_rig, mut control) = Rig::synced(vec![hello()]).await;
    let route = |number: u32| {
        let name = fanfare_types::FunctionName::new(&format!("f{number}")).unwrap();
        fanfare_types::FunctionRoute { id: fanfare_types::FunctionId(number), name, ..hello() }
    };
    for message in 1..=MESSAGES {
        control.say(ToDataPlane::Functions((0..1_000).map(|n| route(message * 1_000 + n)).collect()));
    }
    control.grant(1, "carrier-pigeon:coop", 1, None);
    let began = std::time::Instant::now();
    let beats = std::cell::Cell::new(0);
    control
        .hear(|m| {
            beats.set(beats.get() + u32::from(matches!(m, FromDataPlane::Heartbeat)));
            matches!(m, FromDataPlane::Condemned { .. }).then_some(())
        })
        .await;
    let beats = beats.get();
    let due = began.elapsed().as_millis() / (2 * fanfare_types::limits::HEARTBEAT_INTERVAL.as_millis());
    assert!(u128::from(beats) >= due, "{beats} heartbeats, {due} were due");
}
