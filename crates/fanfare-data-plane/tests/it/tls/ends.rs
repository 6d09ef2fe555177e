//! How connections with TLS end, and those that only look like it.

use std::time::Duration;

use fanfare_data_plane::{Inheritance, Sockets, TlsOptions};
use fanfare_types::Condemned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Pair, connect, http1, http2, rig};
use crate::client::{get, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{HeldSandbox, RawSandbox, Sandbox};

/// All that comes until the end, be it clean or a reset.
async fn to_end(client: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let _ = within("the end", client.read_to_end(&mut received)).await;
    received
}

/// Waits until so many handshakes have failed, and no connection is left. The client hears of it first.
async fn counted(rig: &Rig, failed: u64) {
    within("the count", async {
        loop {
            let stats = rig.data_plane.stats();
            assert!(stats.handshakes_failed <= failed, "{}", stats.handshakes_failed);
            if stats.handshakes_failed == failed && stats.connections == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_only_looks_like_tls_ends_with_an_alert() {
    const ALERT: u8 = 21;
    let pair = Pair::new();
    let (rig, _control) = rig(&pair, |_| {}).await;
    let long = [&[22, 3, 1, 0x40, 0x01][..], &[1; 20_000]].concat();
    let cases: [&[u8]; 6] = [
        b"\x16GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff",
        b"\x16\x03\x01\xff\xff\x01",
        b"\x16\x02\x00\x00\x01\x01",
        b"\x16\x03\x01\x00\x00\x16\x03\x01\x00\x00",
        &long,
    ];
    for (n, bytes) in (1..).zip(cases) {
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let received = to_end(&mut client).await;
        assert!(received.first().is_none_or(|first| *first == ALERT), "{bytes:?}: {received:?}");
        counted(&rig, n).await;
    }
    assert_eq!(get(rig.address(), "/_fanfare/health").await.status, 200);
    let mut client = http1(rig.address(), &pair.certificate).await;
    assert_eq!(client.call(request("/_fanfare/health")).await.status, 200);
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_cut_off_and_of_too_many_the_oldest_makes_way() {
    let pair = Pair::new();
    let one_for_ever = |tls: &mut TlsOptions| {
        tls.handshakes_max = 1;
        tls.handshake_timeout = Duration::from_secs(3_600);
    };
    let (rig, _control) = rig(&pair, one_for_ever).await;
    let mut slow = TcpStream::connect(rig.address()).await.unwrap();
    slow.write_all(b"\x16\x03\x01\x00\xff\x01").await.unwrap();
    // Cores accept in no order: a client that comes later may have to make way once.
    let clients = async {
        loop {
            drop(connect(rig.address(), &pair.certificate, &[]).await);
        }
    };
    tokio::select! {
        said = to_end(&mut slow) => assert_eq!(said, b"", "it makes way for one of them"),
        () = clients => {}
    }
    let mut client = http1(rig.address(), &pair.certificate).await;
    assert_eq!(client.call(request("/_fanfare/health")).await.status, 200);
    assert_eq!(get(rig.address(), "/_fanfare/health").await.status, 200, "others have nothing to do with it");
    drop(rig);

    let (rig, _control) = super::rig(&pair, |tls| tls.handshake_timeout = Duration::from_millis(50)).await;
    let mut slow = TcpStream::connect(rig.address()).await.unwrap();
    slow.write_all(b"\x16\x03\x01\x00\xff\x01").await.unwrap();
    assert_eq!(to_end(&mut slow).await, b"");
    counted(&rig, 1).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_before_and_after_the_handshake() {
    const IDLE_MAX: Duration = Duration::from_millis(200);
    let pair = Pair::new();
    let options = pair.options();
    let (rig, _control) = Rig::synced_with(vec![hello()], |o| {
        o.tls = Some(options);
        o.header_read_timeout = IDLE_MAX;
    })
    .await;
    let mut silent = TcpStream::connect(rig.address()).await.unwrap();
    assert_eq!(to_end(&mut silent).await, b"");
    for said in ["", "GET / HT", "PRI * HTTP/2.0\r\n\r\n"] {
        let mut stream = connect(rig.address(), &pair.certificate, &[]).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let _ = within("the end", stream.read_to_end(&mut Vec::new())).await;
    }
    let mut leaves = TcpStream::connect(rig.address()).await.unwrap();
    leaves.shutdown().await.unwrap();
    assert_eq!(to_end(&mut leaves).await, b"");
}

#[tokio::test]
async fn a_client_that_has_said_goodbye_gets_its_answer_over_tls() {
    let pair = Pair::new();
    let (rig, mut control) = rig(&pair, |_| {}).await;
    let mut client = connect(rig.address(), &pair.certificate, &["http/1.1"]).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: hello\r\n\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    control.demand(1).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let held = sandbox.next().await;
    let mut asked = [0; 25];
    within("a question", client.read_exact(&mut asked)).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n", "who is there can pass it over");
    held.answer("the answer");
    let mut answer = String::new();
    within("the answer", client.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nthe answer"), "{answer}");
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_client_that_leaves_without_a_goodbye_has_left() {
    let pair = Pair::new();
    let (rig, mut control) = rig(&pair, |_| {}).await;
    let sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let mut client = connect(rig.address(), &pair.certificate, &["http/1.1"]).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: hello\r\n\r\n").await.unwrap();
    let mut sandbox = sandbox;
    let _held = sandbox.next().await;
    // The end of the connection, without the end that TLS knows: anyone on the way can make that.
    let (mut socket, _) = client.into_inner();
    socket.shutdown().await.unwrap();
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
}

#[tokio::test]
async fn an_answer_that_breaks_off_does_not_look_complete_over_tls() {
    let pair = Pair::new();
    let (rig, mut control) = rig(&pair, |_| {}).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = connect(rig.address(), &pair.certificate, &["http/1.1"]).await.unwrap();
    // Without a length or chunks its end is the end of the connection.
    client.write_all(b"GET / HTTP/1.0\r\nhost: hello\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let mut received = Vec::new();
    while !received.ends_with(b"part") {
        assert!(within("a part", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    drop(connection);
    within("the end", client.read_to_end(&mut received)).await.expect_err("no clean end");
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
}

#[tokio::test]
async fn a_drain_ends_connections_with_tls_and_loses_no_request() {
    let pair = Pair::new();
    let (rig, control) = rig(&pair, |_| {}).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let mut idle = connect(rig.address(), &pair.certificate, &["http/1.1"]).await.unwrap();
    idle.write_all(b"GET /_fanfare/health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut first = Vec::new();
    while !first.ends_with(b"\r\n\r\nok\n") {
        assert!(within("an answer", idle.read_buf(&mut first)).await.unwrap() > 0);
    }
    let _silent = TcpStream::connect(rig.address()).await.unwrap();
    let mut halfway = TcpStream::connect(rig.address()).await.unwrap();
    halfway.write_all(b"\x16\x03\x01").await.unwrap();
    let mut send = http2(rig.address(), &pair.certificate).await;
    let call = http::Request::get("https://hello.example/").body(http_body_util::Full::default()).unwrap();
    let call = tokio::spawn(send.send_request(call));
    let held = sandbox.next().await;
    rig.shutdown.cancel();
    assert_eq!(within("the end", idle.read_to_end(&mut Vec::new())).await.unwrap(), 0, "with a goodbye");
    held.answer("finished");
    let answer = within("an answer", call).await.unwrap().unwrap();
    assert_eq!(crate::client::complete(answer).await.text(), "finished");
    drop(send);
    within("the end", rig.data_plane.stopped()).await;
}

#[tokio::test]
async fn a_successor_takes_over_with_tls() {
    let (pair, next) = (Pair::new(), Pair::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data-plane.sock");
    let (options, offered) = (pair.options(), path.clone());
    let (old, _old_control) = Rig::synced_with(vec![hello()], |o| {
        o.tls = Some(options);
        o.handover = Some(offered);
    })
    .await;
    let mut open = http1(old.address(), &pair.certificate).await;
    assert_eq!(open.call(request("/_fanfare/health")).await.status, 200);
    let taken = tokio::task::spawn_blocking(move || {
        loop {
            if let Some(taken) = Inheritance::take(&path).unwrap() {
                return taken;
            }
            std::thread::yield_now();
        }
    });
    let taken = within("the sockets", taken).await.unwrap();
    let mut new = Rig::on(Sockets::Inherited(taken), |o| {
        o.name = "test:1".into();
        o.tls = Some(next.options());
    });
    let mut control = new.control().await;
    control.hello().await;
    control.sync(vec![hello()]);
    let sandbox = Sandbox::named(new.dir(), 2);
    control.grant(2, &sandbox.endpoint, 1, None);
    within("the old one's turn to end", async {
        while !old.data_plane.handed_over() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(open.call(request("/_fanfare/health")).await.headers["connection"], "close");
    let mut client = http1(new.address(), &next.certificate).await;
    assert_eq!(client.call(request("/function/hello")).await.text(), "2");
}
