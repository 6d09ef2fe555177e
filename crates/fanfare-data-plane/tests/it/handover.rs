//! One data plane gives way to another.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;
use fanfare_data_plane::{Inheritance, Sockets};
use fanfare_types::FromDataPlane;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, get, get_later, request};
use crate::rig::{Control, Rig, hello, within};
use crate::sandbox::{HeldSandbox, Sandbox};

async fn offering(path: &Path) -> (Rig, Control) {
    let (rig, control) = Rig::synced_with(vec![hello()], |o| o.handover = Some(path.to_owned())).await;
    within("the offer", async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    (rig, control)
}

async fn take(path: &Path) -> Inheritance {
    let path = path.to_owned();
    let taken = tokio::task::spawn_blocking(move || Inheritance::take(&path));
    within("the sockets", taken).await.unwrap().unwrap().expect("somebody offers them")
}

#[tokio::test]
async fn a_successor_has_the_sockets_and_its_predecessor_finishes_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data-plane.sock");
    let (old, mut old_control) = offering(&path).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut busy = HeldSandbox::new(old.dir(), 1);
    old_control.grant(1, busy.endpoint(), 1, None);
    let running = get_later(old.address(), "/function/hello/running");
    let held = busy.next().await;
    let mut idle: Connection<Full<Bytes>> = Connection::open(old.address()).await;
    idle.call(request("/_fanfare/health")).await;

    let inheritance = take(&path).await;
    assert_eq!((inheritance.name(), inheritance.address().unwrap()), ("test", old.address()));
    let mut new = Rig::on(Sockets::Inherited(inheritance), |o| {
        o.name = "test:1".into();
        o.handover = Some(path.clone());
    });
    assert_eq!(new.address(), old.address());
    assert_eq!(
        get(old.address(), "/_fanfare/health").await.status,
        200,
        "before its turn the old one answers"
    );
    let mut new_control = new.control().await;
    assert_eq!(new_control.hello().await.name.as_ref(), "test:1");
    new_control.sync(vec![hello()]);
    old_control.hear(|m| matches!(m, FromDataPlane::Draining).then_some(())).await;

    // A request that was on its way on an idle connection is answered, and told that it was the last.
    let last = idle.call(request("/function/helo")).await;
    assert_eq!((last.status.as_u16(), &last.headers["connection"]), (404, &"close".parse().unwrap()));
    let sandbox = Sandbox::named(new.dir(), 2);
    new_control.grant(2, &sandbox.endpoint, 1, None);
    assert_eq!(get(new.address(), "/function/hello").await.text(), "2", "new connections are the new one's");
    held.answer("finished");
    assert_eq!(within("the old answer", running).await.unwrap().text(), "finished");
    old_control.hear(|m| matches!(m, FromDataPlane::Left).then_some(())).await;
    within("the old one's end", old.data_plane.stopped()).await;
    assert!(old.data_plane.handed_over() && !new.data_plane.handed_over());
    drop(old);
    // And so on.
    let again = take(&path).await;
    assert_eq!(again.name(), "test:1");
    drop(again);
    new.shutdown.cancel();
    within("the end", new.data_plane.stopped()).await;
    assert!(!path.exists(), "nothing is left behind");
}

#[tokio::test]
async fn whoever_asks_and_does_not_follow_up_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data-plane.sock");
    assert!(Inheritance::take(&path).unwrap().is_none(), "there is none");
    let (rig, control) = offering(&path).await;
    for word in [b"".as_slice(), b"X"] {
        let mut stranger = tokio::net::UnixStream::connect(&path).await.unwrap();
        stranger.write_all(word).await.unwrap();
        drop(stranger);
        drop(take(&path).await);
    }
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1");
    assert!(!rig.data_plane.handed_over());
}

#[tokio::test]
async fn sockets_that_are_given_are_served_by_every_core() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It waits in the backlog since before there is a data plane.
    let mut early = TcpStream::connect(address).await.unwrap();
    early.write_all(b"GET /_fanfare/health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let rig = Rig::on(Sockets::Given(vec![listener]), |options| options.threads = 2);
    assert_eq!(rig.address(), address);
    assert!(within("an answer", early.read_u8()).await.is_ok());
    for _ in 0..10 {
        assert_eq!(get(address, "/_fanfare/health").await.reason(), "not-synced");
    }
}
