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
    builder.http2().max_concurrent_streams(fanfare_types::limits::CONCURRENCY_MAX);
    // A connection that ends early is its client's affair.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}
