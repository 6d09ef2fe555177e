//! `fanfare __sample-server`: a small HTTP server on `$PORT`, for `fanfare demo`.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::exit::{Exit, Failure};

/// Serves until it is stopped.
pub(crate) async fn run() -> Result<Exit, Failure> {
    let port = std::env::var("PORT").ok().and_then(|port| port.parse::<u16>().ok());
    let port = port.ok_or_else(|| Failure::usage("PORT is not set to a port"))?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|e| Failure::platform(format!("cannot listen on port {port}: {e}")))?;
    loop {
        // A connection that is gone before it is accepted is its client's affair.
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("{} {} answered by a compiled server\n", request.method(), request.uri().path());
    Ok(Response::new(Full::new(text.into())))
}
