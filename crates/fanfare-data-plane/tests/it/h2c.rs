//! Sandboxes that speak HTTP/2.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{Condemned, FunctionRoute};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::client::{Connection, get_later, http2};
use crate::rig::{Control, Rig, hello, within};

type ServerConnection = h2::server::Connection<UnixStream, Bytes>;
type Asked = (Request<h2::RecvStream>, h2::server::SendResponse<Bytes>);

/// A sandbox whose frames the test sends one by one.
struct H2cSandbox {
    endpoint: String,
    listener: UnixListener,
}

impl H2cSandbox {
    fn new(dir: &Path, number: u64) -> Self {
        let path = dir.join(format!("h{number}.sock"));
        H2cSandbox {
            endpoint: format!("h2c+unix:{}", path.display()),
            listener: UnixListener::bind(path).unwrap(),
        }
    }

    async fn stream(&self) -> UnixStream {
        within("a connection", self.listener.accept()).await.unwrap().0
    }

    async fn accept(&self) -> ServerConnection {
        h2::server::handshake(self.stream().await).await.unwrap()
    }
}

async fn next(connection: &mut ServerConnection) -> Asked {
    within("a request", connection.accept()).await.expect("a request").unwrap()
}

/// Drives a connection that gets no more requests.
fn drive(mut connection: ServerConnection) {
    tokio::spawn(async move { while connection.accept().await.is_some() {} });
}

fn ok(mut respond: h2::server::SendResponse<Bytes>, text: &'static str) {
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
}

async fn world(change: impl FnOnce(&mut FunctionRoute)) -> (Rig, Control, H2cSandbox) {
    let mut route = FunctionRoute { concurrency: 10, ..hello() };
    change(&mut route);
    let concurrency = route.concurrency;
    let (rig, control) = Rig::synced_with(vec![route], |o| o.abandoned_wait = Duration::ZERO).await;
    let sandbox = H2cSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, concurrency, None);
    (rig, control, sandbox)
}

fn post(body: &'static str) -> Request<Full<Bytes>> {
    let request = Request::post("/function/hello/a%2Fb?x=%20").header("host", "x.test:81");
    request.header("content-type", "text/plain").body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

#[tokio::test]
async fn requests_of_http11_reach_a_function_that_speaks_http2() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut client = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(post("body")).await });
    let mut connection = sandbox.accept().await;
    let (request, respond) = next(&mut connection).await;
    assert_eq!(request.uri(), "http://x.test:81/a%2Fb?x=%20");
    assert_eq!(
        (request.method().as_str(), &request.headers()["content-type"]),
        ("POST", &"text/plain".parse().unwrap())
    );
    assert_eq!(request.headers()["x-forwarded-host"], "x.test:81");
    assert!(
        request.headers().contains_key("x-fanfare-deadline-ms") && !request.headers().contains_key("host")
    );
    ok(respond, "answer");
    drive(connection);
    let answer = within("an answer", call).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "answer"));
}

#[tokio::test]
async fn requests_share_one_connection_and_no_slot_is_exceeded() {
    let (rig, _control, sandbox) = world(|route| route.concurrency = 3).await;
    let mut calls: Vec<_> = (0..1).map(|_| get_later(rig.address(), "/function/hello")).collect();
    let mut connection = sandbox.accept().await;
    let mut asked = vec![next(&mut connection).await];
    calls.extend((0..4).map(|_| get_later(rig.address(), "/function/hello")));
    asked.push(next(&mut connection).await);
    asked.push(next(&mut connection).await);
    let fourth = tokio::time::timeout(Duration::from_millis(100), connection.accept()).await;
    assert!(fourth.is_err(), "three slots, three requests");
    ok(asked.remove(0).1, "1");
    asked.push(next(&mut connection).await);
    ok(asked.remove(0).1, "2");
    asked.push(next(&mut connection).await);
    asked.into_iter().for_each(|(_, respond)| ok(respond, "3"));
    drive(connection);
    for call in calls {
        assert_eq!(within("an answer", call).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_refused_stream_is_tried_again_with_its_body() {
    let (rig, mut control, sandbox) = world(|_| {}).await;
    let mut client = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(post("precious")).await });
    let mut first = sandbox.accept().await;
    let (mut request, mut respond) = next(&mut first).await;
    let read = tokio::spawn(async move { request.body_mut().data().await });
    let refuse = async {
        // Its body has been read, and it is refused all the same.
        assert_eq!(within("a body", read).await.unwrap().unwrap().unwrap(), "precious");
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    };
    tokio::select! { () = refuse => {}, _ = first.accept() => panic!("one request") }
    drive(first);
    let mut second = sandbox.accept().await;
    let (mut request, respond) = next(&mut second).await;
    drive(second);
    let again = within("the body again", request.body_mut().data()).await.unwrap().unwrap();
    assert_eq!(again, "precious");
    ok(respond, "at last");
    assert_eq!(within("an answer", call).await.unwrap().text(), "at last");
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_is_not_sent_twice() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut client = Connection::open(rig.address()).await;
    let large = Full::new(Bytes::from(vec![7; 1 << 20]));
    let request = Request::post("/function/hello").header("host", "x.test").body(large).unwrap();
    let call = tokio::spawn(async move { client.call(request).await });
    let mut first = sandbox.accept().await;
    let (mut request, mut respond) = next(&mut first).await;
    drive(first);
    let mut read = 0;
    while read < 200_000 {
        let data = within("data", request.body_mut().data()).await.unwrap().unwrap();
        read += data.len();
        request.body_mut().flow_control().release_capacity(data.len()).unwrap();
    }
    respond.send_reset(h2::Reason::REFUSED_STREAM);
    let answer = within("an answer", call).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "connection-closed"));
    assert!(answer.problem()["detail"].as_str().unwrap().contains("too large to send again"));
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0, "it provably ran nothing");
}

/// Reads frames up to and with one of HEADERS.
async fn headers_frame(stream: &mut UnixStream) {
    let mut preface = [0; 24];
    within("the preface", stream.read_exact(&mut preface)).await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    loop {
        let mut head = [0; 9];
        within("a frame", stream.read_exact(&mut head)).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        within("a frame", stream.read_exact(&mut vec![0; length])).await.unwrap();
        if head[3] == 1 {
            return;
        }
    }
}

#[tokio::test]
async fn a_request_that_crosses_a_goaway_is_sent_on_the_next_connection() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut client = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(post("precious")).await });
    let mut first = sandbox.stream().await;
    headers_frame(&mut first).await;
    // It was sent, and the peer says that it has looked at no stream.
    first.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
    let mut second = sandbox.accept().await;
    let (mut request, respond) = next(&mut second).await;
    drive(second);
    assert_eq!(within("the body", request.body_mut().data()).await.unwrap().unwrap(), "precious");
    ok(respond, "at last");
    assert_eq!(within("an answer", call).await.unwrap().text(), "at last");
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_connection_that_closed_while_idle_is_replaced_unnoticed() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    for round in 0..3 {
        let call = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        let (_, respond) = next(&mut connection).await;
        ok(respond, "answer");
        let served = tokio::spawn(async move {
            // The answer is out when the client has it; then the connection ends without a word.
            let _ = tokio::time::timeout(Duration::from_millis(50), connection.accept()).await;
        });
        assert_eq!(within("an answer", call).await.unwrap().text(), "answer", "round {round}");
        served.await.unwrap();
    }
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn what_may_have_reached_user_code_is_not_repeated() {
    let (rig, mut control, sandbox) = world(|_| {}).await;
    let call = get_later(rig.address(), "/function/hello");
    let mut stream = sandbox.stream().await;
    headers_frame(&mut stream).await;
    drop(stream);
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
    let answer = within("an answer", call).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "connection-closed"));
    let again = tokio::time::timeout(Duration::from_millis(100), sandbox.listener.accept()).await;
    assert!(again.is_err(), "never a second time");
}

#[tokio::test]
async fn a_client_that_leaves_resets_the_stream_and_no_other() {
    let (rig, mut control, sandbox) = world(|_| {}).await;
    let leaves = get_later(rig.address(), "/function/hello/leaves");
    let mut connection = sandbox.accept().await;
    let (_, mut left) = next(&mut connection).await;
    let stays = get_later(rig.address(), "/function/hello/stays");
    let (_, respond) = next(&mut connection).await;
    drive(connection);
    leaves.abort();
    let reason = within("a reset", std::future::poll_fn(|cx| left.poll_reset(cx))).await.unwrap();
    assert_eq!(reason, h2::Reason::CANCEL);
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    ok(respond, "unharmed");
    assert_eq!(within("the neighbour", stays).await.unwrap().text(), "unharmed");
}

#[tokio::test]
async fn resets_and_deadlines_in_mid_stream_reset_the_clients_stream() {
    for by_function in [true, false] {
        let (rig, mut control, sandbox) = world(|route| {
            route.request_timeout = Duration::from_millis(if by_function { 20_000 } else { 500 });
        })
        .await;
        let mut client = http2(rig.address()).await;
        let request = Request::get("http://hello/").body(Empty::<Bytes>::new()).unwrap();
        let call = tokio::spawn(client.send_request(request));
        let mut connection = sandbox.accept().await;
        let (_, mut respond) = next(&mut connection).await;
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::from_static(b"part"), false).unwrap();
        drive(connection);
        let mut body = within("a head", call).await.unwrap().unwrap().into_body();
        assert_eq!(within("a part", body.frame()).await.unwrap().unwrap().into_data().unwrap(), "part");
        if by_function {
            stream.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
        }
        let cut = within("the cut", body.frame()).await.unwrap().unwrap_err();
        let shown = format!("{cut:?}");
        assert!(shown.contains("Reset("), "{shown}");
        assert_eq!(shown.contains("ENHANCE_YOUR_CALM"), by_function, "the function's own reason: {shown}");
        let why = if by_function { Condemned::Broken } else { Condemned::Timeout };
        assert_eq!(control.condemned().await, (1, why));
    }
}

/// There is something to send, and nothing may be sent.
#[tokio::test]
async fn a_deadline_resets_the_stream_of_a_client_that_has_stopped_reading() {
    let (rig, mut control, sandbox) = world(|route| route.request_timeout = Duration::from_millis(500)).await;
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (mut client, driven) = builder.initial_window_size(8).handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(driven);
    let (response, _) = client.send_request(Request::get("http://hello/").body(()).unwrap(), true).unwrap();
    let mut connection = sandbox.accept().await;
    let (_, mut respond) = next(&mut connection).await;
    let mut answer = respond.send_response(Response::new(()), false).unwrap();
    answer.send_data(Bytes::from_static(b"more than the window"), false).unwrap();
    drive(connection);
    let mut body = within("a head", response).await.unwrap().into_body();
    assert_eq!(within("a part", body.data()).await.unwrap().unwrap(), "more tha");
    let cut = within("the cut", body.data()).await.expect("no clean end").unwrap_err();
    assert!(cut.is_reset(), "{cut:?}");
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
}

/// `Keep-Alive` is a field like any other in a trailer of HTTP/1.1, and none of HTTP/2.
#[tokio::test]
async fn trailers_with_fields_of_connections_cost_nobody_anything() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let said = "POST /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nkeep-alive: x\r\nx-own: kept\r\n\r\n";
    client.write_all(said.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    let (request, respond) = next(&mut connection).await;
    drive(connection);
    let mut body = request.into_body();
    assert_eq!(within("a body", body.data()).await.unwrap().unwrap(), "body");
    let trailers = within("trailers", body.trailers()).await.unwrap().unwrap();
    assert_eq!((trailers.len(), &trailers["x-own"]), (1, &"kept".parse().unwrap()));
    ok(respond, "done");
    let mut received = String::new();
    within("an answer", client.read_to_string(&mut received)).await.unwrap();
    assert!(received.starts_with("HTTP/1.1 200 OK\r\n") && received.ends_with("done"), "{received}");
}

#[tokio::test]
async fn a_client_whose_body_breaks_off_after_the_answer_has_begun_condemns_nothing() {
    let (rig, mut control, sandbox) = world(|_| {}).await;
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut client, driven) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(driven);
    let (response, mut upload) =
        client.send_request(Request::post("http://hello/").body(()).unwrap(), false).unwrap();
    let mut connection = sandbox.accept().await;
    let (_request, mut respond) = next(&mut connection).await;
    let mut answer = respond.send_response(Response::new(()), false).unwrap();
    drive(connection);
    let response = within("a head", response).await.unwrap();
    upload.send_reset(h2::Reason::CANCEL);
    let reset = within("the reset", std::future::poll_fn(|cx| answer.poll_reset(cx))).await.unwrap();
    assert_eq!(reset, h2::Reason::CANCEL);
    drop(response);
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
}

#[tokio::test]
async fn a_change_of_protocol_that_nobody_asked_for_is_not_passed_on() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    let (_, mut respond) = next(&mut connection).await;
    respond.send_informational(Response::builder().status(101).body(()).unwrap()).unwrap();
    ok(respond, "done");
    drive(connection);
    let mut received = String::new();
    within("an answer", client.read_to_string(&mut received)).await.unwrap();
    assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
}

#[tokio::test]
async fn early_hints_of_a_function_that_speaks_http2_pass_to_any_client() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let mut old = TcpStream::connect(rig.address()).await.unwrap();
    old.write_all(b"GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    let say = |respond: &mut h2::server::SendResponse<Bytes>| {
        let hints = Response::builder().status(103).header("link", "</s.css>").header("x-fanfare-no", "1");
        respond.send_informational(hints.body(()).unwrap()).unwrap();
    };
    let (_, mut respond) = next(&mut connection).await;
    say(&mut respond);
    ok(respond, "done");
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut client, driven) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(driven);
    let (mut response, _) =
        client.send_request(Request::get("http://hello/").body(()).unwrap(), true).unwrap();
    let (_, mut respond) = next(&mut connection).await;
    say(&mut respond);
    drive(connection);
    let hints = std::future::poll_fn(|cx| response.poll_informational(cx));
    let hints = within("the hints", hints).await.unwrap().unwrap();
    assert_eq!((hints.status().as_u16(), &hints.headers()["link"]), (103, &"</s.css>".parse().unwrap()));
    assert_eq!(hints.headers().len(), 1, "{hints:?}");
    ok(respond, "done");
    assert_eq!(within("the answer", response).await.unwrap().status(), 200);
    let mut received = String::new();
    within("the other's", old.read_to_string(&mut received)).await.unwrap();
    let expected = "HTTP/1.1 103 Early Hints\r\nlink: </s.css>\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert!(received.starts_with(expected), "{received}");
}

#[tokio::test]
async fn a_body_that_its_client_resets_never_looks_complete() {
    for code in [h2::Reason::NO_ERROR, h2::Reason::CANCEL] {
        let (rig, _control, sandbox) = world(|_| {}).await;
        let stream = TcpStream::connect(rig.address()).await.unwrap();
        let (mut client, driven) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(driven);
        let request = Request::post("http://hello/").body(()).unwrap();
        let (_response, mut body) = client.send_request(request, false).unwrap();
        body.send_data(Bytes::from_static(b"part"), false).unwrap();
        let mut connection = sandbox.accept().await;
        let (request, _respond) = next(&mut connection).await;
        drive(connection);
        let mut seen = request.into_body();
        assert_eq!(within("a part", seen.data()).await.unwrap().unwrap(), "part");
        body.send_reset(code);
        let end = within("the end", seen.data()).await.expect("no clean end").unwrap_err();
        assert!(end.is_reset(), "{code:?}: {end:?}");
    }
}

#[tokio::test]
async fn bodies_and_trailers_stream_both_ways_over_http2() {
    let (rig, _control, sandbox) = world(|_| {}).await;
    let trailers = http::HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
    let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers)];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
    let request = Request::post("http://hello/").header("te", "trailers").body(body).unwrap();
    let mut client = http2(rig.address()).await;
    let call = tokio::spawn(client.send_request(request));
    let mut connection = sandbox.accept().await;
    let (mut request, mut respond) = next(&mut connection).await;
    drive(connection);
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(within("the body", request.body_mut().data()).await.unwrap().unwrap(), "body");
    let trailers = within("trailers", request.body_mut().trailers()).await.unwrap().unwrap();
    assert_eq!(trailers["x-sum"], "7");
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(Bytes::from_static(b"ok"), false).unwrap();
    stream.send_trailers(trailers).unwrap();
    let response = within("a response", call).await.unwrap().unwrap();
    let body = within("a body", response.into_body().collect()).await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "7");
    assert_eq!(body.to_bytes(), "ok");
}
