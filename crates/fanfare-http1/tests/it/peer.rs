//! hyper's server at the other end of a unix socket.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use fanfare_http1::{Connection, RequestBody, RequestHead};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::script::{exchange_with, host};

const PATIENCE: Duration = Duration::from_secs(30);

struct Peer {
    dir: TempDir,
}

impl Peer {
    /// Serves until the test ends.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        tokio::spawn(async move {
            loop {
                let (io, _) = listener.accept().await.unwrap();
                let serve = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(io), service_fn(answer));
                tokio::spawn(serve.with_upgrades());
            }
        });
        Peer { dir }
    }

    async fn connect(&self) -> Connection<UnixStream> {
        Connection::new(UnixStream::connect(self.dir.path().join("sock")).await.unwrap())
    }
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

fn full(bytes: impl Into<Bytes>) -> BoxBody<Bytes, hyper::Error> {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer(mut request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    Ok(match request.uri().path() {
        "/echo" => Response::new(request.into_body().boxed()),
        "/count" => Response::new(full(request.into_body().collect().await?.to_bytes().len().to_string())),
        "/trailers" => {
            let collected = request.into_body().collect().await?;
            let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
            Response::new(full(sum.map_or(Bytes::new(), |sum| Bytes::copy_from_slice(sum.as_bytes()))))
        }
        "/refuse" => {
            let mut answer = Response::new(full("no"));
            *answer.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            answer
        }
        "/nothing" => {
            let mut answer = Response::new(full(""));
            *answer.status_mut() = StatusCode::NO_CONTENT;
            answer
        }
        "/upgrade" => {
            tokio::spawn(async move {
                let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                let mut byte = [0; 5];
                io.read_exact(&mut byte).await.unwrap();
                io.write_all(&byte).await.unwrap();
            });
            let mut answer = Response::new(full(""));
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            answer.headers_mut().insert("upgrade", HeaderValue::from_static("ping"));
            answer.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
            answer
        }
        _ => Response::new(full("hello")),
    })
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the exchange ends")
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>().into()
}

async fn send<B>(
    connection: Connection<UnixStream>,
    method: &Method,
    target: &str,
    body: B,
) -> (Response<Bytes>, Option<Connection<UnixStream>>)
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut back = None;
    let headers = host();
    let head = RequestHead::new(method, target, &headers);
    let sent = connection.send(head, RequestBody::new(body), |connection| back = Some(connection));
    let (parts, body) = within(sent).await.map_err(|sent| sent.error).unwrap().into_parts();
    let bytes = within(body.collect()).await.unwrap().to_bytes();
    (Response::from_parts(parts, bytes), back)
}

#[tokio::test]
async fn one_connection_serves_many_exchanges() {
    let peer = Peer::start();
    let mut connection = peer.connect().await;
    for n in 0..500_usize {
        let body = pattern(n * 97);
        let (method, target) = (&[Method::GET, Method::POST][n % 2], ["/echo", "/count", "/"][n % 3]);
        let (response, back) = send(connection, method, target, Full::new(body.clone())).await;
        assert_eq!(response.status(), 200);
        match n % 3 {
            0 => assert_eq!(response.body(), &body),
            1 => assert_eq!(response.body(), &body.len().to_string()),
            _ => assert_eq!(response.body(), "hello"),
        }
        connection = back.expect("the connection is kept");
        assert_eq!(connection.served(), n as u64 + 1);
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let peer = Peer::start();
    let body = pattern(32 << 20);
    // With a length.
    let (response, back) = send(peer.connect().await, &Method::POST, "/echo", Full::new(body.clone())).await;
    assert!(response.body() == &body, "bytes were lost or changed");
    // In chunks of odd sizes, on the same connection.
    let frames: Vec<_> =
        body.chunks(70_001).map(|chunk| Ok::<_, Infallible>(Frame::data(body.slice_ref(chunk)))).collect();
    let chunks = StreamBody::new(stream::iter(frames));
    let (response, back) = send(back.unwrap(), &Method::POST, "/echo", chunks).await;
    assert!(response.body() == &body, "bytes were lost or changed");
    assert_eq!(back.unwrap().served(), 2);
}

#[tokio::test]
async fn both_directions_stream_at_once() {
    let peer = Peer::start();
    let (feed, fed) = mpsc::unbounded_channel::<Bytes>();
    let frames = stream::unfold(fed, |mut fed| async move { Some((fed.recv().await?, fed)) });
    let body = StreamBody::new(frames.map(|data| Ok::<_, Infallible>(Frame::data(data))).boxed());
    let mut back = None;
    let headers = host();
    let head = RequestHead::new(&Method::POST, "/echo", &headers);
    let connection = peer.connect().await;
    let sent = connection.send(head, RequestBody::new(body), |connection| back = Some(connection));
    let mut response = within(sent).await.map_err(|sent| sent.error).unwrap();
    // The head is here though the request has not sent a byte of its body. Each word comes back before the next.
    for word in ["one", "two", "three"] {
        feed.send(Bytes::from_static(word.as_bytes())).unwrap();
        let frame = within(response.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), word);
    }
    drop(feed);
    assert!(within(response.body_mut().frame()).await.is_none());
    drop(response);
    assert!(back.is_some());
}

#[tokio::test]
async fn trailers_of_a_request_arrive() {
    let peer = Peer::start();
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))]);
    let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers)];
    let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
    let (response, back) = send(peer.connect().await, &Method::POST, "/trailers", body).await;
    assert_eq!(response.body(), "7");
    assert!(back.is_some());
}

#[tokio::test]
async fn answers_without_a_body_keep_the_connection() {
    let peer = Peer::start();
    let (response, back) = send(peer.connect().await, &Method::HEAD, "/", Empty::<Bytes>::new()).await;
    assert_eq!(response.headers()["content-length"], "5");
    assert!(response.body().is_empty());
    let (response, back) = send(back.unwrap(), &Method::GET, "/nothing", Empty::<Bytes>::new()).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    assert!(back.is_some());
}

#[tokio::test]
async fn a_refusal_reaches_a_sender_that_is_not_done() {
    let peer = Peer::start();
    let (response, back) =
        send(peer.connect().await, &Method::POST, "/refuse", Full::new(pattern(32 << 20))).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(response.body(), "no");
    assert!(back.is_none());
}

#[tokio::test]
async fn an_upgrade_hands_the_stream_back() {
    let peer = Peer::start();
    let headers = host();
    let protocol = HeaderValue::from_static("ping");
    let head =
        RequestHead { upgrade: Some(&protocol), ..RequestHead::new(&Method::GET, "/upgrade", &headers) };
    let body = RequestBody::new(Empty::<Bytes>::new());
    let sent = peer.connect().await.send(head, body, |_| panic!("an upgraded connection came back"));
    let response = within(sent).await.map_err(|sent| sent.error).unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let (mut io, early) = response.into_body().into_upgraded().unwrap();
    assert!(early.is_empty());
    io.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    within(io.read_exact(&mut echoed)).await.unwrap();
    assert_eq!(&echoed, b"hello");

    // A peer that does not want to: an ordinary response.
    let head = RequestHead { upgrade: Some(&protocol), ..RequestHead::new(&Method::GET, "/", &headers) };
    let body = RequestBody::new(Empty::<Bytes>::new());
    let response =
        within(peer.connect().await.send(head, body, |_| {})).await.map_err(|sent| sent.error).unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().into_upgraded().is_none());
}

#[tokio::test]
async fn a_body_dropped_early_closes_the_connection() {
    let (io, mut peer) = UnixStream::pair().unwrap();
    let headers = host();
    let head = RequestHead::new(&Method::GET, "/", &headers);
    let body = RequestBody::new(Empty::<Bytes>::new());
    peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome").await.unwrap();
    let sent = Connection::new(io).send(head, body, |_| panic!("kept"));
    let mut response = within(sent).await.map_err(|sent| sent.error).unwrap();
    assert_eq!(within(response.body_mut().frame()).await.unwrap().unwrap().into_data().unwrap(), "some");
    drop(response);
    let mut request = Vec::new();
    within(peer.read_to_end(&mut request)).await.unwrap();
    assert!(request.starts_with(b"GET / HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_server_that_hangs_up_between_exchanges_is_noticed() {
    let (io, mut peer) = UnixStream::pair().unwrap();
    let serve = async move {
        let mut buffer = [0; 1024];
        let _ = peer.read(&mut buffer).await.unwrap();
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        peer
    };
    let (outcome, peer) =
        tokio::join!(exchange_with(Connection::new(io), Method::GET, Empty::<Bytes>::new()), serve);
    let mut connection = outcome.unwrap().1.unwrap();
    assert!(connection.is_open());
    drop(peer);
    connection.get_ref().readable().await.unwrap();
    assert!(!connection.is_open());
}
