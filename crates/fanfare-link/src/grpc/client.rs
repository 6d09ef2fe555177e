//! The dialling side.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{CodeDigest, FromDataPlane, FromNode, ToDataPlane, ToNode};
use futures_util::stream::{BoxStream, ReadyChunks};
use futures_util::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Response, Status};

use super::severable::Severable;
use super::stream::{Outgoing, describe, incoming};
use super::{FRAME_BYTES_MAX, LOG_RECORDS_MAX, PING_AFTER, PING_TIMEOUT};
use crate::outbox::Outbox;
use crate::wire::proto::{self, internal_client::InternalClient};
use crate::wire::{Wire, log_to_wire};
use crate::{BlobError, BlobReader, DialError, EpochGate, Link, LogRecord, Message, Receiver, Sender};

/// On every answer of a control API.
const VERSION_HEADER: &str = "x-fanfare-version";
/// On every refusal, a data plane's too.
const REASON_HEADER: &str = "x-fanfare-reason";

type Client = InternalClient<tonic::transport::Channel>;

/// A control plane somewhere else. Each call has a connection of its own, so that a large blob cannot hold up a
/// heartbeat, and so that closing a link closes its connection.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    endpoint: Endpoint,
}

impl Remote {
    pub(crate) fn new(uri: &str) -> Result<Self, DialError> {
        let address = |why: &str| DialError::Address(format!("{uri:?} {why}"));
        let parsed: Uri = uri.parse().map_err(|_| address("is not a URI"))?;
        if parsed.scheme_str() != Some("http")
            || parsed.host().is_none_or(str::is_empty)
            || parsed.port_u16().is_none()
        {
            return Err(address("does not look like http://HOST:PORT"));
        }
        let endpoint = Endpoint::from(parsed)
            .connect_timeout(LIVENESS_TIMEOUT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Remote { endpoint })
    }

    pub(crate) fn ping_after(&self, silence: Duration) -> Self {
        let endpoint = self.endpoint.clone().http2_keep_alive_interval(silence);
        Remote { endpoint: endpoint.keep_alive_timeout(silence) }
    }

    async fn connect(&self, token: &CancellationToken) -> Result<Client, DialError> {
        let token = token.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let token = token.clone();
            async move { open(&uri).await.map(|io| TokioIo::new(Severable::new(io, token))) }
        });
        let channel = self.endpoint.connect_with_connector(connector).await;
        let channel = channel
            .map_err(|error| DialError::Unreachable(format!("{}: {}", self.endpoint.uri(), root(&error))))?;
        Ok(InternalClient::new(channel)
            .max_decoding_message_size(FRAME_BYTES_MAX)
            .max_encoding_message_size(FRAME_BYTES_MAX))
    }

    pub(crate) async fn node(&self, gate: EpochGate) -> Result<Link<FromNode, ToNode>, DialError> {
        let half = Half::new(gate);
        let open = async {
            let mut client = self.connect(&half.outbox.closed).await?;
            client.node(Outgoing::new(half.outbox.clone())).await.map_err(|status| refused(&status))
        };
        let frames = self.streams(within_liveness(open).await?)?;
        Ok(half.link(incoming::<ToNode>(frames)))
    }

    pub(crate) async fn data_plane(
        &self,
        gate: EpochGate,
    ) -> Result<Link<FromDataPlane, ToDataPlane>, DialError> {
        let half = Half::new(gate);
        let open = async {
            let mut client = self.connect(&half.outbox.closed).await?;
            client.data_plane(Outgoing::new(half.outbox.clone())).await.map_err(|status| refused(&status))
        };
        let frames = self.streams(within_liveness(open).await?)?;
        Ok(half.link(incoming::<ToDataPlane>(frames)))
    }

    /// The frames of an answer; an answer from something else than a control plane's port for streams would only end.
    fn streams<T>(&self, answer: Response<T>) -> Result<T, DialError> {
        let field = |name: &str| answer.metadata().get(name).and_then(|value| value.to_str().ok());
        if field("content-type").is_some_and(|kind| kind.starts_with("application/grpc")) {
            return Ok(answer.into_inner());
        }
        let uri = self.endpoint.uri();
        let what = match (field(VERSION_HEADER), field(REASON_HEADER)) {
            (Some(_), _) => "the control API",
            (None, Some(_)) => "a data plane",
            (None, None) => "another server",
        };
        let where_else = "streams are at the control plane's --grpc-listen, by default port 9090";
        Err(DialError::Refused(format!("{uri} is {what}: {where_else}")))
    }

    pub(crate) async fn fetch_blob(&self, digest: CodeDigest) -> Result<BlobReader, BlobError> {
        let connected = self.connect(&CancellationToken::new()).await;
        let mut client = connected.map_err(|error| BlobError::Unavailable(error.to_string()))?;
        let request = proto::BlobRequest { digest: digest.0.to_vec().into() };
        let chunks = client.fetch_blob(request).await.map_err(|status| blob_error(digest, &status))?;
        let chunks = chunks.into_inner().map(move |chunk| match chunk {
            Ok(chunk) => Ok(chunk.data),
            Err(status) => Err(blob_error(digest, &status)),
        });
        Ok(chunks.boxed())
    }

    pub(crate) async fn push_logs(
        &self,
        transfer: u64,
        lines: BoxStream<'static, LogRecord>,
    ) -> Result<(), DialError> {
        let mut client = self.connect(&CancellationToken::new()).await?;
        client.push_logs(LogFrames::new(transfer, lines)).await.map_err(|status| refused(&status))?;
        Ok(())
    }
}

/// The part of a dialled link that exists before the connection does.
struct Half<Up: Message> {
    outbox: Arc<Outbox<Up>>,
    gate: EpochGate,
}

impl<Up: Wire> Half<Up> {
    fn new(gate: EpochGate) -> Self {
        let outbox = Arc::new(Outbox::new(gate.clone(), CancellationToken::new()));
        Half { outbox, gate }
    }

    fn link<Down: Wire>(self, source: crate::link::Source<Down>) -> Link<Up, Down> {
        let rx = Receiver::new(source, Some(self.gate), self.outbox.closed.clone());
        Link { tx: Sender::new(self.outbox), rx }
    }
}

/// Log lines as frames. A named type: with an anonymous one the compiler cannot prove the call `Send`.
struct LogFrames {
    transfer: u64,
    lines: ReadyChunks<BoxStream<'static, LogRecord>>,
    named: bool,
}

impl LogFrames {
    fn new(transfer: u64, lines: BoxStream<'static, LogRecord>) -> Self {
        LogFrames { transfer, lines: lines.ready_chunks(LOG_RECORDS_MAX), named: false }
    }
}

impl Stream for LogFrames {
    type Item = proto::LogFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<proto::LogFrame>> {
        let transfer = self.transfer;
        if !self.named {
            // The first frame names the transfer, however long the first line takes.
            self.named = true;
            return Poll::Ready(Some(proto::LogFrame { transfer, records: Vec::new() }));
        }
        let lines = ready!(self.lines.poll_next_unpin(cx));
        Poll::Ready(lines.map(|lines| {
            let records = lines.into_iter().map(log_to_wire).collect();
            proto::LogFrame { transfer, records }
        }))
    }
}

async fn open(uri: &Uri) -> io::Result<TcpStream> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn within_liveness<T>(open: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
    match tokio::time::timeout(LIVENESS_TIMEOUT, open).await {
        Ok(result) => result,
        Err(_) => Err(DialError::Unreachable(format!("no answer within {LIVENESS_TIMEOUT:?}"))),
    }
}

fn refused(status: &Status) -> DialError {
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::Unknown => DialError::Unreachable(describe(status)),
        _ => DialError::Refused(describe(status)),
    }
}

fn blob_error(digest: CodeDigest, status: &Status) -> BlobError {
    match status.code() {
        Code::NotFound => BlobError::NotFound(digest),
        _ => BlobError::Unavailable(describe(status)),
    }
}

/// What really happened: those above it only say that something did.
fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}
