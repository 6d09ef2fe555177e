//! Bodies pass chunk by chunk, in both directions at once.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use crate::client::Connection;
use crate::rig::{Rig, hello, within};
use crate::sandbox::RawSandbox;

type Frames = mpsc::UnboundedReceiver<Result<Frame<Bytes>, std::convert::Infallible>>;

fn channel() -> (
    mpsc::UnboundedSender<&'static str>,
    impl hyper::body::Body<Data = Bytes, Error = std::convert::Infallible> + Send,
) {
    let (send, mut receive) = mpsc::unbounded_channel::<&'static str>();
    let (to_body, mut frames): (_, Frames) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(text) = receive.recv().await {
            let _ = to_body.send(Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
        }
    });
    (send, StreamBody::new(futures_util::stream::poll_fn(move |cx| frames.poll_recv(cx))))
}

#[tokio::test]
async fn chunks_pass_as_they_come_in_both_directions() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let (send, body) = channel();
    let mut client = Connection::open(rig.address()).await;
    let request = Request::post("/function/hello").header("host", "x.test").body(body).unwrap();
    let call = tokio::spawn(async move { (client.start(request).await, client) });
    let mut connection = sandbox.accept().await;
    assert!(connection.head().await.contains("transfer-encoding: chunked\r\n"));
    send.send("one").unwrap();
    assert_eq!(connection.read_to("one\r\n").await, "3\r\none\r\n");
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let (response, _client) = within("the head before the body", call).await.unwrap();
    let mut answer = response.into_body();
    for (up, down) in [("a", "1"), ("bc", "22"), ("def", "333")] {
        send.send(up).unwrap();
        assert_eq!(connection.read_to(&format!("{up}\r\n")).await, format!("{:x}\r\n{up}\r\n", up.len()));
        connection.write(&format!("{:x}\r\n{down}\r\n", down.len())).await;
        let frame = within("a chunk", answer.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), down.as_bytes());
    }
    drop(send);
    assert_eq!(connection.read_to("0\r\n\r\n").await, "0\r\n\r\n");
    connection.write("0\r\n\r\n").await;
    assert!(within("the end", answer.frame()).await.is_none());
    // The same connection carries the next request: everything was read and written to its end.
    let again = crate::client::get_later(rig.address(), "/function/hello");
    connection.head().await;
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(again.await.unwrap().status, 204);
}

#[tokio::test]
async fn a_response_that_breaks_off_never_ends_cleanly() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    for (n, head) in [(1, "content-length: 100"), (2, "transfer-encoding: chunked")] {
        let sandbox = RawSandbox::new(rig.dir(), n);
        control.grant(n, &sandbox.endpoint, 1, None);
        let mut client: Connection<http_body_util::Full<Bytes>> = Connection::open(rig.address()).await;
        let call = tokio::spawn(async move { client.start(crate::client::request("/function/hello")).await });
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.write(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n4\r\npart\r\n")).await;
        let response = within("the head", call).await.unwrap();
        drop(connection);
        let body = within("the cut", response.into_body().collect()).await;
        assert!(body.is_err(), "{head}");
        assert_eq!(control.condemned().await, (n, fanfare_types::Condemned::Broken));
    }
}

#[tokio::test]
async fn large_bodies_pass_whole() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox =
        crate::sandbox::Sandbox::new(rig.dir(), 1, |request: Request<hyper::body::Incoming>| async {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            http::Response::new(http_body_util::Full::new(body))
        });
    control.grant(1, &sandbox.endpoint, 1, None);
    let sent: Bytes = (0..8_u32 << 18).flat_map(u32::to_le_bytes).collect::<Vec<_>>().into();
    let request = Request::put("/function/hello")
        .header("host", "x.test")
        .body(http_body_util::Full::new(sent.clone()))
        .unwrap();
    let answer = Connection::open(rig.address()).await.call(request).await;
    assert!(answer.body == sent, "{} bytes came back of {}", answer.body.len(), sent.len());
}
