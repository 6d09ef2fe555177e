//! A peer that says exactly what it was told to, piece by piece.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fanfare_http1::{Connection, Error, RequestBody, RequestHead};
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads give one piece each; before each piece the reader is made to wait once. Nothing comes before the first
/// write. After the last piece: the end, or silence.
pub struct Script {
    pieces: VecDeque<Bytes>,
    then_end: bool,
    waited: bool,
    /// Bytes that one write takes.
    write_max: usize,
    pub written: Arc<Mutex<Vec<u8>>>,
    reader: Option<Waker>,
}

impl Script {
    pub fn new(pieces: impl IntoIterator<Item = Bytes>, then_end: bool) -> Self {
        Script {
            pieces: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(),
            then_end,
            waited: false,
            write_max: usize::MAX,
            written: Arc::default(),
            reader: None,
        }
    }

    pub fn whole(bytes: impl Into<Vec<u8>>, then_end: bool) -> Self {
        Script::new([Bytes::from(bytes.into())], then_end)
    }

    pub fn write_max(mut self, write_max: usize) -> Self {
        self.write_max = write_max;
        self
    }
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reader = Some(cx.waker().clone());
        if self.written.lock().unwrap().is_empty() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        match self.pieces.pop_front() {
            Some(mut piece) => {
                let now = piece.split_to(piece.len().min(buf.remaining()));
                buf.put_slice(&now);
                if !piece.is_empty() {
                    self.pieces.push_front(piece);
                }
                Poll::Ready(Ok(()))
            }
            None if self.then_end => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Script {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let len = bytes.len().min(self.write_max);
        self.written.lock().unwrap().extend_from_slice(&bytes[..len]);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub fn host() -> HeaderMap {
    HeaderMap::from_iter([(HOST, HeaderValue::from_static("test"))])
}

/// Everything that came of one exchange.
#[derive(Debug)]
pub struct Outcome {
    pub response: Response<Bytes>,
    pub trailers: Option<HeaderMap>,
    pub frames: usize,
    /// Whether the connection came back.
    pub kept: bool,
}

/// One exchange without a request body.
pub async fn exchange(io: Script, method: Method) -> Result<Outcome, Error> {
    exchange_with(Connection::new(io), method, Empty::<Bytes>::new()).await.map(|(outcome, _)| outcome)
}

/// One exchange, and the connection if it came back.
pub async fn exchange_with<IO, B>(
    connection: Connection<IO>,
    method: Method,
    body: B,
) -> Result<(Outcome, Option<Connection<IO>>), Error>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut back = None;
    let headers = host();
    let head = RequestHead::new(&method, "/", &headers);
    let sent = connection.send(head, RequestBody::new(body), |connection| back = Some(connection)).await;
    let (parts, mut body) = sent.map_err(|sent| sent.error)?.into_parts();
    let mut bytes = Vec::new();
    let mut trailers = None;
    let mut frames = 0;
    // As hyper's server does: a body that says it has ended is not asked again.
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await.transpose()? else { break };
        frames += 1;
        match frame.into_data() {
            Ok(data) => {
                assert!(!data.is_empty(), "an empty frame");
                bytes.extend_from_slice(&data);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    drop(body);
    let response = Response::from_parts(parts, bytes.into());
    Ok((Outcome { response, trailers, frames, kept: back.is_some() }, back))
}
