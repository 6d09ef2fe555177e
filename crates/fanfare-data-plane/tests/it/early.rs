//! Refusals that are there before their request is read to its end.

use http::{Request, Version};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{complete, http2};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{Sandbox, echo};

const NEXT: &str = "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

async fn rig() -> (Rig, Sandbox, crate::rig::Control) {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    (rig, sandbox, control)
}

fn head(fields: &str) -> String {
    format!("POST /function/none HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n")
}

/// One answer, whole.
async fn answer(client: &mut TcpStream) -> String {
    let mut received = Vec::new();
    while !received.ends_with(b"}") {
        assert!(within("an answer", client.read_buf(&mut received)).await.unwrap() > 0, "{received:?}");
    }
    String::from_utf8(received).unwrap()
}

/// What comes until the connection ends in good order.
async fn rest(client: &mut TcpStream) -> String {
    let mut received = Vec::new();
    within("the end", client.read_to_end(&mut received)).await.expect("no reset");
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn a_connection_whose_body_is_not_here_is_told_to_end() {
    let (rig, _sandbox, _control) = rig().await;
    for fields in
        ["content-length: 2", "transfer-encoding: chunked", "content-length: 2\r\nexpect: 100-continue"]
    {
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        client.write_all(head(fields).as_bytes()).await.unwrap();
        let refused = answer(&mut client).await;
        assert!(refused.starts_with("HTTP/1.1 404 "), "{fields}: {refused}");
        assert!(refused.contains("\r\nconnection: close\r\n"), "{fields}: {refused}");
        // What comes late does not turn the end into a reset.
        client.write_all(b"{}").await.unwrap();
        assert_eq!(rest(&mut client).await, "", "{fields}");
    }
}

#[tokio::test]
async fn a_connection_whose_body_came_with_the_head_goes_on() {
    let (rig, _sandbox, _control) = rig().await;
    let large = format!("{}{}", head("content-length: 60000"), "x".repeat(60_000));
    let small = head("content-length: 2") + "{}";
    let chunked = head("transfer-encoding: chunked") + "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
    for request in [small, chunked, large] {
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        // Once it has been heard, everything that follows is there when it is looked for.
        client.write_all(b"GET /_fanfare/health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        client.write_all(NEXT.as_bytes()).await.unwrap();
        let answers = rest(&mut client).await;
        let (refused, next) =
            answers.split_once("HTTP/1.1 404 ").unwrap().1.split_once("HTTP/1.1 200 ").unwrap();
        assert!(!refused.contains("connection: close"), "{refused}");
        assert!(next.contains("GET /\n"), "{next}");
    }
}

#[tokio::test]
async fn a_client_that_sends_on_gets_the_refusal() {
    const BYTES: usize = 8 << 20;
    let (rig, _sandbox, _control) = rig().await;
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(head(&format!("content-length: {BYTES}")).as_bytes()).await.unwrap();
    within("all to be sent", client.write_all(&vec![b'x'; BYTES])).await.expect("nobody resets it");
    let refused = rest(&mut client).await;
    assert!(
        refused.starts_with("HTTP/1.1 404 ") && refused.contains("\r\nconnection: close\r\n"),
        "{refused}"
    );
}

/// Some clients make nothing of an answer right behind which their stream is reset.
#[tokio::test]
async fn a_refused_request_of_http2_may_come_to_its_end() {
    let (rig, _sandbox, _control) = rig().await;
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut client, driven) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(driven);
    let part = || bytes::Bytes::from(vec![b'x'; 30_000]);
    for ends in [true, false] {
        let request = Request::post("http://none.test/").body(()).unwrap();
        let (response, mut upload) = client.send_request(request, false).unwrap();
        upload.send_data(part(), false).unwrap();
        let response = within("a response", response).await.unwrap();
        assert_eq!(response.status(), 404);
        let mut body = response.into_body();
        while let Some(data) = within("its document", body.data()).await {
            data.unwrap();
        }
        if ends {
            upload.send_data(part(), true).unwrap();
            client = within("room", client.ready()).await.unwrap();
            continue;
        }
        // Not for ever.
        let reset = std::future::poll_fn(|cx| upload.poll_reset(cx));
        assert_eq!(within("the reset", reset).await.unwrap(), h2::Reason::NO_ERROR);
    }
}

#[tokio::test]
async fn http2_ends_the_stream_alone() {
    let (rig, _sandbox, _control) = rig().await;
    let mut client = http2::<Full<bytes::Bytes>>(rig.address()).await;
    for (name, status) in [("none", 404), ("hello", 200)] {
        let request =
            Request::post(format!("http://gateway.test:80/function/{name}")).version(Version::HTTP_2);
        let body = Full::new(bytes::Bytes::from(vec![b'x'; 30_000]));
        let response = within("a response", client.send_request(request.body(body).unwrap())).await.unwrap();
        let answer = complete(response).await;
        assert_eq!(answer.status, status);
        assert!(!answer.headers.contains_key("connection"), "{answer:?}");
    }
}
