//! The function `trace`: takes the time and the memory that a request asks for, as the load generator InVitro expects of
//! the functions that it drives. This program is its code: a control plane that takes Dirigent's forms offers it under
//! the names of that system's own images.
//!
//! It serves HTTP/1.1, HTTP/2 and, by that, gRPC, on the listening socket that it inherits or on `$PORT`.

mod grpc;
mod http;
mod listener;
mod work;

use std::process::ExitCode;
use std::sync::Arc;

use fanfare_types::limits::{CONCURRENCY_MAX, HEADERS_MAX, REQUEST_HEAD_BYTES_MAX};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use listener::Listener;
use work::Work;

/// The argument with which this program is this function.
pub(crate) const ARGUMENT: &str = "__trace-function";
/// The next one, for a function that does nothing unless a request says otherwise.
pub(crate) const EMPTY: &str = "empty";

/// Bytes of a request's head that are read: what the platform passes on, and what it adds.
const HEAD_BYTES_MAX: usize = 2 * REQUEST_HEAD_BYTES_MAX;
/// Header fields of it, likewise.
const FIELDS_MAX: usize = 2 * HEADERS_MAX;

/// What all requests share.
#[derive(Debug)]
struct Function {
    /// Its name.
    name: String,
    /// The sandbox that it runs in.
    sandbox: String,
    /// What the system calls this machine, which is the sandbox.
    machine: String,
    /// Whether it does nothing unless a request says otherwise.
    empty: bool,
}

/// Serves until it is stopped.
pub(crate) fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serve())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
            tracing::error!(%error, "cannot serve");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> std::io::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let function = Arc::new(Function {
        name: variable("FANFARE_FUNCTION_NAME"),
        sandbox: variable("FANFARE_SANDBOX_ID"),
        machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        empty: std::env::args_os().nth(2).is_some_and(|argument| argument == EMPTY),
    });
    // Before it listens, and so before it is ready.
    let startup_ms = variable("COLD_START_BUSY_LOOP_MS").parse().unwrap_or(0);
    Work { cpu_ms: startup_ms, ..Work::default() }.run();
    match Listener::take()? {
        Listener::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(connection(stream, function.clone()));
            }
        }
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                // It only delays small answers if it fails.
                let _ = stream.set_nodelay(true);
                tokio::spawn(connection(stream, function.clone()));
            }
        }
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, function: Arc<Function>) {
    let service = hyper::service::service_fn(move |request| http::answer(function.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(HEAD_BYTES_MAX).max_headers(FIELDS_MAX);
    builder.http2().max_concurrent_streams(CONCURRENCY_MAX).max_header_list_size(HEAD_BYTES_MAX as u32);
    // A connection that ends early is its client's affair.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::client::conn::{http1, http2};

    use super::*;

    fn request(fields: usize, bytes: usize) -> ::http::Request<Full<Bytes>> {
        let mut request = ::http::Request::get("http://f/").header("host", "f");
        for number in 1..fields {
            request = request.header(format!("x-{number}"), "v".repeat(bytes / fields));
        }
        request.body(Full::default()).unwrap()
    }

    fn served() -> impl hyper::rt::Read + hyper::rt::Write + Unpin {
        let (client, server) = tokio::io::duplex(64 << 10);
        let function = Function { name: "f".into(), sandbox: "s1".into(), machine: "m".into(), empty: true };
        tokio::spawn(connection(server, Arc::new(function)));
        TokioIo::new(client)
    }

    #[tokio::test]
    async fn the_trace_function_takes_every_head_that_the_platform_passes() {
        for (fields, bytes) in [(2, 64 << 10), (200, 60 << 10), (HEADERS_MAX, 64 << 10)] {
            let (mut sender, driver) = http1::handshake(served()).await.unwrap();
            tokio::spawn(driver);
            let answer = sender.send_request(request(fields, bytes)).await.unwrap();
            assert_eq!(answer.status(), 200, "HTTP/1.1: {fields} fields, {bytes} bytes");

            let (mut sender, driver) = http2::handshake(TokioExecutor::new(), served()).await.unwrap();
            tokio::spawn(driver);
            let answer = sender.send_request(request(fields, bytes)).await.unwrap();
            assert_eq!(answer.status(), 200, "HTTP/2: {fields} fields, {bytes} bytes");
        }
    }
}
