//! `fanfare-bench __upstream`: the server behind the proxies, the same program whether it runs as a function or beside
//! nginx. Answers 12 bytes to everything, on one thread.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::error::{Context, Error, Result};
use crate::inherit;

/// First argument of this mode.
pub(crate) const ARGUMENT: &str = "__upstream";
const BODY: &[u8] = b"hello world\n";

/// Serves until it is stopped, on the inherited listener or on `unix:PATH`, `tcp:ADDRESS` and `h2:ADDRESS` arguments.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("start tokio")?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let mut servers = 0;
        if let Some(fd) = inherit::listener() {
            serve_inherited(fd)?;
            servers += 1;
        }
        for arg in args {
            match arg.split_once(':') {
                Some(("unix", path)) => {
                    let listener = UnixListener::bind(PathBuf::from(path)).context(path)?;
                    tokio::task::spawn_local(serve_unix(listener));
                }
                Some(("tcp", address)) => {
                    let address: SocketAddr = address.parse().context(address)?;
                    let listener = TcpListener::bind(address).await.context(address)?;
                    tokio::task::spawn_local(serve_tcp(listener));
                }
                Some(("h2", address)) => {
                    let address: SocketAddr = address.parse().context(address)?;
                    let listener = TcpListener::bind(address).await.context(address)?;
                    tokio::task::spawn_local(serve_h2(listener));
                }
                _ => return Err(Error::new(format!("{arg}: not unix:PATH, tcp:ADDRESS or h2:ADDRESS"))),
            }
            servers += 1;
        }
        if servers == 0 {
            return Err(Error::new("no listener is inherited and no address is given"));
        }
        std::future::pending::<Result<()>>().await
    })
}

fn serve_inherited(fd: OwnedFd) -> Result<()> {
    let fd = match std::os::unix::net::UnixListener::from(fd) {
        unix if unix.local_addr().is_ok() => {
            unix.set_nonblocking(true).context("make the listener non-blocking")?;
            tokio::task::spawn_local(serve_unix(UnixListener::from_std(unix).context("listen")?));
            return Ok(());
        }
        other => OwnedFd::from(other),
    };
    let tcp = std::net::TcpListener::from(fd);
    tcp.set_nonblocking(true).context("make the listener non-blocking")?;
    tokio::task::spawn_local(serve_tcp(TcpListener::from_std(tcp).context("listen")?));
    Ok(())
}

async fn serve_unix(listener: UnixListener) {
    loop {
        // A connection that is gone before it is accepted is its client's affair.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(stream));
        }
    }
}

async fn serve_tcp(listener: TcpListener) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::task::spawn_local(serve(stream));
        }
    }
}

async fn serve_h2(listener: TcpListener) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let builder = http2::Builder::new(Local);
            let connection = builder.serve_connection(TokioIo::new(stream), service_fn(hello));
            tokio::task::spawn_local(async { drop(connection.await) });
        }
    }
}

/// Runs what comes with an HTTP/2 connection on its thread.
#[derive(Clone, Copy, Debug)]
struct Local;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

async fn hello(_: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(BODY))))
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) {
    // The client's end of a connection ends it.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(hello)).await;
}
