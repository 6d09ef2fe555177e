//! Telling a call's end to where its caller wants it told.
//!
//! One POST, never redirected, to an address that is looked at after the name is looked up: a name that leads to a
//! forbidden address, or to where the platform itself listens, leads nowhere. The receiver's answer is its status and nothing more.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fanfare_store::Store;
use fanfare_types::CALLBACK_ID_FIELD;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::Service;

use super::api::document;
use super::door::Seen;
use super::session::read_result;
use super::targets::{Reach, port_of};
use super::{ATTEMPT, INVOCATION_ID, STATE};

/// How long the receiver may take, looking up its name included.
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same on every try of one callback: what has it already needs it no more.
const CALLBACK_ID: HeaderName = HeaderName::from_static(CALLBACK_ID_FIELD);
const FUNCTION: HeaderName = HeaderName::from_static("x-fanfare-function");
/// The function's status, where it answered.
const STATUS: HeaderName = HeaderName::from_static("x-fanfare-status");

type Http = Client<HttpsConnector<Connector>, Full<Bytes>>;

/// Sends callbacks.
pub(super) struct Caller {
    reach: Arc<Reach>,
    /// Made with the first one: it reads the system's certificates.
    http: OnceLock<Http>,
}

impl Caller {
    pub(super) fn new(reach: Reach) -> Self {
        Caller { reach: Arc::new(reach), http: OnceLock::new() }
    }

    /// Tells the call's end once; whether that was taken.
    pub(super) async fn call(&self, store: &Arc<dyn Store>, seen: &Seen) -> bool {
        let id = seen.record.id;
        match self.send(store, seen).await {
            Ok(status) if status.is_success() => true,
            Ok(status) => {
                tracing::warn!(%id, %status, "a callback was not taken");
                false
            }
            // The URL may hold a secret, and is not repeated.
            Err(error) => {
                tracing::warn!(%id, %error, "a callback was not taken");
                false
            }
        }
    }

    async fn send(&self, store: &Arc<dyn Store>, seen: &Seen) -> Result<http::StatusCode, String> {
        let record = &seen.record;
        let url = record.settings.callback.as_deref().unwrap_or_default();
        // What was allowed when the call was accepted may not be any more.
        self.reach.check(url)?;
        let uri: Uri = url.parse().map_err(|_| "it is no URL".to_owned())?;
        let mut headers = HeaderMap::new();
        let text = |text: String| HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("fanfare/", env!("CARGO_PKG_VERSION"))));
        headers.insert(INVOCATION_ID, text(record.id.to_string()));
        headers.insert(CALLBACK_ID, text(record.id.to_string()));
        headers.insert(STATE, HeaderValue::from_static(seen.kind.word()));
        headers.insert(FUNCTION, text(record.name.to_string()));
        headers.insert(ATTEMPT, HeaderValue::from(record.attempts));
        if let Some(status) = record.last.as_ref().and_then(|last| last.status) {
            headers.insert(STATUS, HeaderValue::from(status));
        }
        let body = match record.result_bytes {
            Some(bytes) => {
                let result = read_result(store, record, bytes).await?;
                for name in [CONTENT_TYPE, CONTENT_ENCODING] {
                    if let Some(value) = result.headers.get(&name) {
                        headers.insert(name, value.clone());
                    }
                }
                result.body
            }
            None => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Bytes::from(serde_json::to_vec(&document(seen)).unwrap_or_default())
            }
        };
        let mut request = Request::builder().method(Method::POST).uri(uri).body(Full::new(body));
        if let Ok(request) = &mut request {
            *request.headers_mut() = headers;
        }
        let request = request.map_err(|error| error.to_string())?;
        match tokio::time::timeout(TIMEOUT, self.http()?.request(request)).await {
            Ok(Ok(response)) => Ok(response.status()),
            Ok(Err(error)) => Err(innermost(&error)),
            Err(_) => Err(format!("the receiver did not answer within {TIMEOUT:?}")),
        }
    }

    fn http(&self) -> Result<&Http, String> {
        if let Some(http) = self.http.get() {
            return Ok(http);
        }
        let mut roots = rustls::RootCertStore::empty();
        // Without certificates, https fails and says so; http goes on.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Connector { reach: self.reach.clone() });
        // No connection is kept: the address is looked at anew for each callback.
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(self.http.get_or_init(|| http))
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Connects to what a name leads to, if a callback may go there.
#[derive(Clone, Debug)]
struct Connector {
    reach: Arc<Reach>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let resolver = Resolver { reach: self.reach.clone(), port: port_of(&uri) };
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Box::pin(async move { http.call(uri).await.map_err(|error| io::Error::other(innermost(&error))) })
    }
}

/// Looks names up, and passes on only addresses that callbacks may go to.
#[derive(Clone, Debug)]
struct Resolver {
    reach: Arc<Reach>,
    port: u16,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (reach, port) = (self.reach.clone(), self.port);
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), port)).await?.collect();
            let good: Vec<_> = found.iter().copied().filter(|to| reach.allows(*to)).collect();
            if good.is_empty() {
                let what = format!(
                    "{} of its host's addresses may be called back; --callbacks says which",
                    found.len()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("none of the {what}")));
            }
            Ok(good.into_iter())
        })
    }
}
