//! The control API, as calls.

mod schedules;
mod webhooks;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fanfare_api::{
    BlobDocument, ClusterStatusDocument, DeployResult, FileDocument, FunctionDocument, FunctionListDocument,
    FunctionStatusDocument, FunctionSummaryDocument, PROBLEM_CONTENT_TYPE, PrepareResult, Problem,
    RequestExplanationDocument, RevisionListDocument, RollbackDocument, SecretDocument, SecretListDocument,
    TrafficDocument, TrafficResult,
};
use fanfare_types::{CodeDigest, FunctionName, Reason, SecretName, limits};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::io::ReaderStream;
use zeroize::Zeroizing;

use crate::args::{DEFAULT_API, WhichLines};
use crate::exit::{Exit, Failure};
use crate::http::{Base, Body, Http, full_body, header_text, no_body};
use crate::lines::Lines;
use crate::package::Package;
use crate::printer::Printer;
use crate::suggest;

/// Longest wait for an answer, uploads and preparations apart.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Longest preparation, on top of the function's start timeout: dependencies may have to be installed.
pub(crate) const PREPARE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Bytes of one answer: a page of functions at most.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Functions in one page of a list.
const PAGE: usize = 1_000;
/// Names the release of the control plane that answers.
const VERSION_HEADER: &str = "x-fanfare-version";
/// Names the platform's reason for a refusal.
pub(crate) const REASON_HEADER: &str = "x-fanfare-reason";
/// A command says once that releases differ.
static SKEW_TOLD: AtomicBool = AtomicBool::new(false);

/// Talks to one control API.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: Http,
    base: Base,
}

impl Client {
    pub(crate) fn new(api: &str, printer: Printer) -> Result<Self, Failure> {
        Ok(Client { http: Http::new(printer), base: Base::parse(api, "--api")? })
    }

    /// Where the control API is.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The client that requests to functions go through.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    pub(crate) async fn status(&self) -> Result<ClusterStatusDocument, Failure> {
        self.get("/v1/status").await
    }

    /// The control plane's figures, as Prometheus reads them.
    pub(crate) async fn metrics(&self) -> Result<String, Failure> {
        let request = self.request(Method::GET, "/metrics", no_body())?;
        let response = self.send(request, ANSWER_TIMEOUT, None).await?;
        if !response.status().is_success() {
            return Err(problem(response).await);
        }
        let body = collect(response, ANSWER_BYTES_MAX).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub(crate) async fn function(&self, name: &FunctionName) -> Result<FunctionStatusDocument, Failure> {
        let got = self.get(&format!("/v1/functions/{name}")).await;
        self.suggesting(name, got).await
    }

    /// What is registered under a name, if anything is.
    pub(crate) async fn registered(&self, name: &FunctionName) -> Result<Option<FunctionDocument>, Failure> {
        let got: Result<FunctionStatusDocument, _> = self.get(&format!("/v1/functions/{name}")).await;
        match got {
            Ok(status) => Ok(Some(status.function)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Every function, page by page.
    pub(crate) async fn functions(&self) -> Result<Vec<FunctionSummaryDocument>, Failure> {
        let mut all = Vec::new();
        let mut path = format!("/v1/functions?limit={PAGE}");
        loop {
            let page: FunctionListDocument = self.get(&path).await?;
            let more = !page.functions.is_empty() && all.len() < limits::FUNCTIONS_MAX;
            all.extend(page.functions);
            match page.next {
                Some(next) if more => path = format!("/v1/functions?limit={PAGE}&after={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// Names that begin with `prefix`, about a page of them at most.
    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        // Names come in order, after a given one: all but the last letter of the prefix is before all that have it.
        let before = prefix.char_indices().next_back().map_or("", |(end, _)| &prefix[..end]);
        let mut after = FunctionName::new(before).map(|name| name.to_string()).ok();
        loop {
            let after_which = after.map(|name| format!("&after={name}")).unwrap_or_default();
            let path = format!("/v1/functions?limit={PAGE}{after_which}");
            let page: FunctionListDocument = self.get(&path).await?;
            let passed = page.functions.iter().any(|f| *f.name > *prefix && !f.name.starts_with(prefix));
            names.extend(page.functions.into_iter().map(|f| f.name).filter(|name| name.starts_with(prefix)));
            match page.next {
                Some(next) if !passed && names.len() < PAGE => after = Some(next),
                _ => return Ok(names),
            }
        }
    }

    pub(crate) async fn put_function(&self, document: &FunctionDocument) -> Result<DeployResult, Failure> {
        let body = serde_json::to_vec(document)
            .map_err(|e| Failure::usage(format!("the function cannot be written as JSON: {e}")))?;
        let shown = shown_document(document);
        let path = format!("/v1/functions/{}", document.name);
        let mut request = self.request(Method::PUT, &path, full_body(body))?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        answer(self.send(request, ANSWER_TIMEOUT, Some(&shown)).await?).await
    }

    pub(crate) async fn delete_function(&self, name: &FunctionName) -> Result<(), Failure> {
        let deleted = self.delete(&format!("/v1/functions/{name}")).await;
        self.suggesting(name, deleted).await
    }

    /// Deletes what has this path.
    async fn delete(&self, path: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, path, no_body())?;
        let response = self.send(request, ANSWER_TIMEOUT, None).await?;
        match response.status() {
            status if status.is_success() => Ok(()),
            _ => Err(problem(response).await),
        }
    }

    /// Has a node prove that the function starts.
    pub(crate) async fn prepare(
        &self,
        name: &FunctionName,
        limit: Option<Duration>,
    ) -> Result<PrepareResult, Failure> {
        let request = self.request(Method::POST, &format!("/v1/functions/{name}/prepare"), no_body())?;
        answer(self.send(request, limit.unwrap_or(PREPARE_TIMEOUT), None).await?).await
    }

    pub(crate) async fn has_blob(&self, digest: CodeDigest) -> Result<bool, Failure> {
        let request = self.request(Method::HEAD, &format!("/v1/blobs/{digest}"), no_body())?;
        let response = self.send(request, ANSWER_TIMEOUT, None).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(problem(response).await),
        }
    }

    /// Uploads packed code, as a stream.
    pub(crate) async fn put_blob(&self, package: Package) -> Result<BlobDocument, Failure> {
        let file = tokio::fs::File::from_std(package.archive);
        let chunks = futures_util::StreamExt::map(ReaderStream::with_capacity(file, 64 << 10), |chunk| {
            chunk.map(Frame::data)
        });
        let path = format!("/v1/blobs/{}", package.digest);
        let mut request = self.request(Method::PUT, &path, BodyExt::boxed(StreamBody::new(chunks)))?;
        request.headers_mut().insert(header::CONTENT_LENGTH, package.size_bytes.into());
        answer(self.send(request, UPLOAD_TIMEOUT, Some("@code.tar")).await?).await
    }

    /// What is remembered of a request.
    pub(crate) async fn explain(&self, id: &str) -> Result<RequestExplanationDocument, Failure> {
        self.get(&format!("/v1/requests/{}", encoded(id))).await
    }

    /// Lines of a function's log, oldest first.
    pub(crate) async fn logs(
        &self,
        name: &FunctionName,
        tail: u32,
        follow: bool,
        which: &WhichLines,
    ) -> Result<Lines, Failure> {
        let mut path = format!("/v1/functions/{name}/logs?tail={tail}&follow={follow}");
        if let Some(since) = which.since {
            path.push_str(&format!("&since={}ms", since.as_millis()));
        }
        for (field, value) in [("sandbox", &which.sandbox), ("request", &which.request)] {
            if let Some(value) = value {
                path.push_str(&format!("&{field}={}", encoded(value)));
            }
        }
        let request = self.request(Method::GET, &path, no_body())?;
        let response = self.send(request, ANSWER_TIMEOUT, None).await?;
        let lines = match response.status() {
            status if status.is_success() => Ok(Lines::new(response.into_body())),
            _ => Err(problem(response).await),
        };
        self.suggesting(name, lines).await
    }

    /// Adds the name that was probably meant to a failure of the kind "no such function".
    pub(crate) async fn suggesting<T>(
        &self,
        name: &FunctionName,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failure = match result {
            Err(failure) if failure.is_not_found() => failure,
            other => return other,
        };
        let page: Result<FunctionListDocument, _> = self.get(&format!("/v1/functions?limit={PAGE}")).await;
        let known = page.map(|page| page.functions).unwrap_or_default();
        Err(match suggest::closest(name.as_str(), known.iter().map(|f| f.name.as_str())) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure,
        })
    }

    /// Registers again what revision `to` was, or the one to go back to.
    pub(crate) async fn rollback(
        &self,
        name: &FunctionName,
        to: Option<u32>,
    ) -> Result<DeployResult, Failure> {
        let path = format!("/v1/functions/{name}/rollback");
        let result = self.send_json(Method::POST, &path, &RollbackDocument { to }).await;
        self.suggesting(name, result).await
    }

    /// Shares a function's requests so, as far as the document says it.
    pub(crate) async fn put_traffic(
        &self,
        name: &FunctionName,
        change: &TrafficDocument,
    ) -> Result<TrafficResult, Failure> {
        let result = self.send_json(Method::PUT, &format!("/v1/functions/{name}/traffic"), change).await;
        self.suggesting(name, result).await
    }

    /// The revisions of a function that are kept.
    pub(crate) async fn revisions(&self, name: &FunctionName) -> Result<RevisionListDocument, Failure> {
        let got = self.get(&format!("/v1/functions/{name}/revisions")).await;
        self.suggesting(name, got).await
    }

    /// Every secret, without its value.
    pub(crate) async fn secrets(&self) -> Result<Vec<SecretDocument>, Failure> {
        let list: SecretListDocument = self.get("/v1/secrets").await?;
        Ok(list.secrets)
    }

    pub(crate) async fn secret(&self, name: &SecretName) -> Result<SecretDocument, Failure> {
        let got = self.get(&format!("/v1/secrets/{name}")).await;
        self.suggesting_secret(name, got).await
    }

    /// Gives a secret a value.
    pub(crate) async fn put_secret(
        &self,
        name: &SecretName,
        value: &[u8],
    ) -> Result<SecretDocument, Failure> {
        let text = Zeroizing::new(STANDARD.encode(value));
        // Base64 is JSON text as it is.
        let body = format!("{{\"value_base64\":\"{}\"}}", *text);
        let mut request = self.request(Method::PUT, &format!("/v1/secrets/{name}"), full_body(body))?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        answer(self.send(request, ANSWER_TIMEOUT, Some("{\"value_base64\":\"***\"}")).await?).await
    }

    pub(crate) async fn delete_secret(&self, name: &SecretName) -> Result<(), Failure> {
        let deleted = self.delete(&format!("/v1/secrets/{name}")).await;
        self.suggesting_secret(name, deleted).await
    }

    /// Adds the name that was probably meant to a failure of the kind "no such secret".
    async fn suggesting_secret<T>(
        &self,
        name: &SecretName,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failure = match result {
            Err(failure) if failure.is(Reason::SecretNotFound) => failure,
            other => return other,
        };
        let known = self.secrets().await.unwrap_or_default();
        Err(match suggest::closest(name.as_str(), known.iter().map(|secret| secret.name.as_str())) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure,
        })
    }

    /// Sends a document without secrets.
    async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        document: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_string(document)
            .map_err(|e| Failure::usage(format!("the request cannot be written as JSON: {e}")))?;
        let mut request = self.request(method, path, full_body(body.clone()))?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        answer(self.send(request, ANSWER_TIMEOUT, Some(&body)).await?).await
    }

    /// Sends a request to the control API; warns where that is of another release.
    async fn send(
        &self,
        request: Request<Body>,
        limit: Duration,
        shown: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self.http.send(request, Some(limit), shown).await.map_err(advise)?;
        let ours = env!("CARGO_PKG_VERSION");
        match header_text(response.headers(), VERSION_HEADER) {
            Some(theirs) if theirs != ours && !SKEW_TOLD.swap(true, Ordering::Relaxed) => {
                let what = format!("this is Fanfare {ours}, the control plane is {theirs}");
                self.http
                    .printer
                    .warning(format_args!("{what}: use the same release, or some of it may not work"));
            }
            _ => {}
        }
        // A data plane answers too, of functions: it knows none of these paths.
        let reason = header_text(response.headers(), REASON_HEADER);
        if reason == Some(Reason::RouteNotFound.code()) && !response.headers().contains_key(VERSION_HEADER) {
            return Err(Failure::platform(format!("{} is a data plane, not a control API", self.base)).next(
                format!("functions are called there; the control API is {DEFAULT_API} by default: --api URL"),
            ));
        }
        Ok(response)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.request(Method::GET, path, no_body())?;
        answer(self.send(request, ANSWER_TIMEOUT, None).await?).await
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>, Failure> {
        let request =
            Request::builder().method(method).uri(self.base.join(path)).header(header::ACCEPT, "*/*");
        request.body(body).map_err(|e| Failure::usage(format!("--api makes no URL: {e}")))
    }
}

/// What to do when the API cannot be reached.
fn advise(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Platform => {
            failure.next(format!(
                "start the platform with `fanfare up`, or say where its control API is with --api URL; it listens at \
                 {DEFAULT_API} by default"
            ))
        }
        _ => failure,
    }
}

pub(crate) async fn answer<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    if !response.status().is_success() {
        return Err(problem(response).await);
    }
    let body = collect(response, ANSWER_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|e| {
        Failure::platform(format!("the control API's answer is not what this release expects: {e}"))
    })
}

/// The failure that an answer with an error status states.
pub(crate) async fn problem(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let stated =
        header_text(response.headers(), "content-type").is_some_and(|t| t.starts_with(PROBLEM_CONTENT_TYPE));
    let body = match collect(response, limits::API_BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(failure) => return failure,
    };
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if stated => problem.into(),
        _ => Failure::platform(format!("the server answered {status} without a reason"))
            .next(format!("check that --api names a Fanfare control API; it is {DEFAULT_API} by default")),
    }
}

/// The whole body, within `limit` bytes.
pub(crate) async fn collect(response: Response<Incoming>, limit: usize) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), limit).collect();
    match tokio::time::timeout(ANSWER_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) => Err(Failure::platform(format!("the answer broke off: {e}"))),
        Err(_) => {
            Err(Failure::new(Exit::Timeout, format!("the answer did not end within {ANSWER_TIMEOUT:?}")))
        }
    }
}

/// A text as one part of a path.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    let byte = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    // A part of a path that is `.` or `..` would be resolved: no dot is plain.
    text.bytes().map(byte).collect()
}

/// The document with the values of its variables masked, and without what is in its files.
fn shown_document(document: &FunctionDocument) -> String {
    let mut shown = document.clone();
    for (_, value) in &mut shown.env.0 {
        "***".clone_into(value);
    }
    for file in shown.files.values_mut() {
        *file = FileDocument::Text("…".to_owned());
    }
    serde_json::to_string(&shown).unwrap_or_default()
}
