//! A client.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::rig::within;

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn reason(&self) -> &str {
        self.headers.get("x-fanfare-reason").map_or("", |reason| reason.to_str().unwrap())
    }

    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One connection.
pub(crate) struct Connection<B> {
    pub(crate) send: SendRequest<B>,
}

impl<B> Connection<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (send, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Connection { send }
    }

    pub(crate) async fn start(&mut self, request: Request<B>) -> Response<Incoming> {
        within("a response", self.send.send_request(request)).await.unwrap()
    }

    pub(crate) async fn call(&mut self, request: Request<B>) -> Answer {
        complete(self.start(request).await).await
    }
}

/// A connection of HTTP/2, begun with it.
pub(crate) async fn http2<B>(address: SocketAddr) -> http2::SendRequest<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_header_list_size(128 * 1024);
    let (send, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    send
}

pub(crate) async fn complete(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = within("a body", body.collect()).await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}

pub(crate) fn request(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "gateway.test:80").body(Full::default()).unwrap()
}

/// One request on a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    Connection::open(address).await.call(request(path)).await
}

/// The same, in the background.
pub(crate) fn get_later(address: SocketAddr, path: &'static str) -> JoinHandle<Answer> {
    tokio::spawn(get(address, path))
}
