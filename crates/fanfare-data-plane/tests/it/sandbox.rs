//! Sandboxes: HTTP servers on unix sockets.

use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::rig::within;

/// Counts what a sandbox sees.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) open: AtomicUsize,
    pub(crate) open_max: AtomicUsize,
    pub(crate) busy: AtomicUsize,
    pub(crate) busy_max: AtomicUsize,
    pub(crate) requests: AtomicUsize,
}

impl Seen {
    fn enter(gauge: &AtomicUsize, max: &AtomicUsize) {
        max.fetch_max(gauge.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }
}

pub(crate) struct Sandbox {
    pub(crate) endpoint: String,
    pub(crate) seen: Arc<Seen>,
    server: JoinHandle<()>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("s{number}.sock"))
}

impl Sandbox {
    /// A server that answers with `handler`.
    pub(crate) fn new<H, F, B>(dir: &Path, number: u64, handler: H) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = path(dir, number);
        let listener = UnixListener::bind(&path).unwrap();
        let seen = Arc::new(Seen::default());
        let counts = seen.clone();
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counts.connections.fetch_add(1, Ordering::SeqCst);
                Seen::enter(&counts.open, &counts.open_max);
                let (handler, counts) = (handler.clone(), counts.clone());
                tokio::spawn(async move {
                    let per_request = |request| {
                        let (handler, counts) = (handler.clone(), counts.clone());
                        async move {
                            counts.requests.fetch_add(1, Ordering::SeqCst);
                            Seen::enter(&counts.busy, &counts.busy_max);
                            let response = handler(request).await;
                            counts.busy.fetch_sub(1, Ordering::SeqCst);
                            Ok::<_, Infallible>(response)
                        }
                    };
                    let http = hyper::server::conn::http1::Builder::new();
                    // Connections end as the data plane or the test wants.
                    let _ = http.serve_connection(TokioIo::new(stream), service_fn(per_request)).await;
                    counts.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Sandbox { endpoint: format!("unix:{}", path.display()), seen, server }
    }

    /// A server that says its number.
    pub(crate) fn named(dir: &Path, number: u64) -> Self {
        Self::new(dir, number, move |_| async move { text(number.to_string()) })
    }
}

pub(crate) fn text(text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(text.into()))
}

/// The request as text: its line, its fields, and its body.
pub(crate) async fn echo(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut out = format!("{} {}\n", parts.method, parts.uri);
    for (name, value) in &parts.headers {
        out.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    out.push('\n');
    out.push_str(&String::from_utf8_lossy(&body));
    text(out)
}

/// A request that waits for the test to answer it.
pub(crate) struct Held {
    pub(crate) path: String,
    answer: tokio::sync::oneshot::Sender<Response<Full<Bytes>>>,
}

impl Held {
    pub(crate) fn answer(self, with: &str) {
        let _ = self.answer.send(text(with.to_owned()));
    }
}

/// A sandbox whose requests the test answers one by one.
pub(crate) struct HeldSandbox {
    pub(crate) sandbox: Sandbox,
    held: mpsc::UnboundedReceiver<Held>,
}

impl HeldSandbox {
    pub(crate) fn new(dir: &Path, number: u64) -> Self {
        let (to_test, held) = mpsc::unbounded_channel();
        let sandbox = Sandbox::new(dir, number, move |request: Request<Incoming>| {
            let to_test = to_test.clone();
            async move {
                let (answer, answered) = tokio::sync::oneshot::channel();
                let _ = to_test.send(Held { path: request.uri().to_string(), answer });
                answered.await.unwrap_or_else(|_| text(""))
            }
        });
        HeldSandbox { sandbox, held }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.sandbox.endpoint
    }

    pub(crate) async fn next(&mut self) -> Held {
        within("a request in the sandbox", self.held.recv()).await.unwrap()
    }
}

/// A sandbox that is a bare socket in the test's hand.
pub(crate) struct RawSandbox {
    pub(crate) endpoint: String,
    listener: UnixListener,
}

impl RawSandbox {
    pub(crate) fn new(dir: &Path, number: u64) -> Self {
        let path = path(dir, number);
        RawSandbox {
            endpoint: format!("unix:{}", path.display()),
            listener: UnixListener::bind(path).unwrap(),
        }
    }

    pub(crate) async fn accept(&self) -> RawConnection {
        let (stream, _) = within("a connection", self.listener.accept()).await.unwrap();
        RawConnection { stream, read: Vec::new() }
    }
}

pub(crate) struct RawConnection {
    pub(crate) stream: UnixStream,
    read: Vec<u8>,
}

impl RawConnection {
    /// Reads until `end` has come, and returns all up to it.
    pub(crate) async fn read_to(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end.as_bytes()) {
                let rest = self.read.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            let read = within(end, self.stream.read_buf(&mut self.read)).await.unwrap();
            assert!(read > 0, "closed before {end:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        self.read_to("\r\n\r\n").await
    }

    pub(crate) async fn write(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// What comes until the data plane closes its end.
    pub(crate) async fn rest(&mut self) -> String {
        // A reset is an end, too.
        let _ = within("the end of a connection", self.stream.read_to_end(&mut self.read)).await;
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// Resolves when the data plane has closed its end.
    pub(crate) async fn closed(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = within("the end of a connection", self.stream.read_to_end(&mut rest)).await;
    }
}
