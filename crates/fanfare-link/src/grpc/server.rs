//! The control plane's side.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{CALLBACK_ID_FIELD, FromDataPlane, FromNode, ToDataPlane, ToNode};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::severable::{Severable, Severance};
use super::stream::{Outgoing, describe, incoming};
use super::{CALLS_PER_CONNECTION_MAX, CHUNK_BYTES_MAX, FRAME_BYTES_MAX, PING_AFTER, PING_TIMEOUT};
use crate::outbox::Outbox;
use crate::wire::proto::{self, internal_server};
use crate::wire::{Wire, digest, log_from_wire};
use crate::{BlobError, EpochGate, Hub, Link, LogRecord, Receiver, Sender};

/// Pause after the system could not accept a connection (no descriptors left): it would fail at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves links to nodes and data planes that dial in, until `shutdown`; then cuts them all.
///
/// # Errors
/// When the transport itself fails; single connections that fail are only logged.
pub async fn serve(
    listener: TcpListener,
    hub: Arc<dyn Hub>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let token = CancellationToken::new();
    let service = internal_server::InternalServer::new(Service { hub })
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(FRAME_BYTES_MAX);
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .add_service(InterceptedService::new(service, no_callback));
    let shutdown = async {
        shutdown.await;
        token.cancel();
    };
    let serving = server.serve_with_incoming_shutdown(accept(listener, token.clone()), shutdown);
    let grace = async {
        token.cancelled().await;
        tokio::time::sleep(LIVENESS_TIMEOUT).await;
    };
    tokio::select! {
        result = serving => result.map_err(io::Error::other),
        () = grace => Ok(()),
    }
}

/// Refuses a callback of an asynchronous invocation: where it goes and what it says is for its caller to choose.
#[allow(clippy::result_large_err)] // tonic's own signature
fn no_callback(request: Request<()>) -> Result<Request<()>, Status> {
    match request.metadata().contains_key(CALLBACK_ID_FIELD) {
        true => Err(Status::permission_denied("callbacks do not call the control plane")),
        false => Ok(request),
    }
}

fn accept(
    listener: TcpListener,
    token: CancellationToken,
) -> Pin<Box<dyn Stream<Item = io::Result<Severable>> + Send>> {
    stream::unfold((listener, token), |(listener, token)| async move {
        let io = accept_one(&listener).await;
        let severable = Severable::accepted(io, token.child_token(), LIVENESS_TIMEOUT);
        Some((Ok(severable), (listener, token)))
    })
    .boxed()
}

async fn accept_one(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((io, peer)) => match io.set_nodelay(true) {
                Ok(()) => return io,
                Err(error) => tracing::debug!(%peer, %error, "a connection broke at once"),
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Service {
    hub: Arc<dyn Hub>,
}

type Frames<M> = BoxStream<'static, Result<<M as Wire>::Frame, Status>>;

/// Both halves of a link on one call. The link ends with the connection and the connection with the link.
fn link<Down: Wire, Up: Wire>(request: Request<Streaming<Up::Frame>>) -> (Link<Down, Up>, Frames<Down>) {
    let severance = request.extensions().get::<Severance>();
    let closed = severance.map_or_else(CancellationToken::new, |severance| severance.0.clone());
    let outbox = Arc::new(Outbox::new(EpochGate::default(), closed.clone()));
    let frames = Outgoing::new(outbox.clone()).map(Ok).boxed();
    let rx = Receiver::new(incoming::<Up>(request.into_inner()), None, closed);
    (Link { tx: Sender::new(outbox), rx }, frames)
}

#[tonic::async_trait]
impl internal_server::Internal for Service {
    type NodeStream = Frames<ToNode>;
    type DataPlaneStream = Frames<ToDataPlane>;
    type FetchBlobStream = BoxStream<'static, Result<proto::BlobChunk, Status>>;

    async fn node(
        &self,
        request: Request<Streaming<proto::NodeFrame>>,
    ) -> Result<Response<Self::NodeStream>, Status> {
        let (link, frames) = link::<ToNode, FromNode>(request);
        self.hub.node(link);
        Ok(Response::new(frames))
    }

    async fn data_plane(
        &self,
        request: Request<Streaming<proto::DataPlaneFrame>>,
    ) -> Result<Response<Self::DataPlaneStream>, Status> {
        let (link, frames) = link::<ToDataPlane, FromDataPlane>(request);
        self.hub.data_plane(link);
        Ok(Response::new(frames))
    }

    async fn fetch_blob(
        &self,
        request: Request<proto::BlobRequest>,
    ) -> Result<Response<Self::FetchBlobStream>, Status> {
        let digest =
            digest(&request.get_ref().digest).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let reader = self.hub.blob(digest).await.map_err(blob_status)?;
        let chunks = reader.flat_map(|chunk| match chunk {
            Ok(bytes) => stream::iter(pieces(bytes)).map(|data| Ok(proto::BlobChunk { data })).left_stream(),
            Err(error) => stream::once(std::future::ready(Err(blob_status(error)))).right_stream(),
        });
        Ok(Response::new(chunks.boxed()))
    }

    async fn push_logs(
        &self,
        request: Request<Streaming<proto::LogFrame>>,
    ) -> Result<Response<proto::PushLogsReply>, Status> {
        let mut frames = request.into_inner();
        let Some(first) = frames.message().await? else {
            return Err(Status::invalid_argument("the first frame names the transfer"));
        };
        let transfer = first.transfer;
        let lines = stream::iter([Ok(first)]).chain(frames).flat_map(|frame| stream::iter(lines(frame)));
        // Ends at the first thing that is wrong; `lines` has said what it was.
        let lines =
            lines.take_while(|line| std::future::ready(line.is_some())).filter_map(std::future::ready);
        self.hub.logs(transfer, lines.boxed()).await;
        Ok(Response::new(proto::PushLogsReply {}))
    }
}

/// The lines of a frame; `None` after the last good one when something is wrong.
fn lines(frame: Result<proto::LogFrame, Status>) -> Vec<Option<LogRecord>> {
    let records = match frame {
        Ok(frame) => frame.records,
        Err(status) => {
            tracing::debug!(error = describe(&status), "log lines have ended");
            return vec![None];
        }
    };
    let mut lines = Vec::with_capacity(records.len());
    for record in records {
        match log_from_wire(record) {
            Ok(record) => lines.push(Some(record)),
            Err(error) => {
                tracing::warn!(%error, "a node sent a malformed log line");
                lines.push(None);
                break;
            }
        }
    }
    lines
}

fn pieces(mut bytes: Bytes) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    while bytes.len() > CHUNK_BYTES_MAX {
        pieces.push(bytes.split_to(CHUNK_BYTES_MAX));
    }
    pieces.push(bytes);
    pieces
}

fn blob_status(error: BlobError) -> Status {
    match error {
        BlobError::NotFound(_) => Status::not_found(error.to_string()),
        BlobError::Unavailable(why) => Status::unavailable(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_is_no_peer() {
        let mut request = Request::new(());
        request
            .metadata_mut()
            .insert("content-type", tonic::metadata::MetadataValue::from_static("application/grpc"));
        let mut request = no_callback(request).expect("a peer's request passes");
        request
            .metadata_mut()
            .insert(CALLBACK_ID_FIELD, tonic::metadata::MetadataValue::from_static("d1-1-a"));
        let refused = no_callback(request).expect_err("a callback does not");
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    }
}
