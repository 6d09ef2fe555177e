//! A control API and a data plane that answer as told, on one port of this machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use fanfare_api::{
    BlobDocument, ClusterStatusDocument, DataPlaneDocument, DecisionDocument, DeployOutcome, DeployResult,
    FailedName, FailureCountDocument, FailureDocument, FunctionDocument, FunctionListDocument, FunctionState,
    FunctionStatusDocument, FunctionSummaryDocument, LeaderDocument, LogLineDocument, LogStreamName,
    NodeDocument, PrepareResult, Problem, ResourcesDocument, RevisionDocument, RevisionFailureDocument,
    RevisionListDocument, RollbackDocument, SandboxCounts, ShareDocument, TargetDocument, TrafficDocument,
    TrafficResult,
};
use fanfare_types::{FunctionSpec, Reason};

/// What the double holds and has seen.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) functions: BTreeMap<String, (u32, FunctionDocument)>,
    pub(crate) blobs: BTreeMap<String, Bytes>,
    /// Names in the order of their registration, unchanged ones included.
    pub(crate) puts: Vec<String>,
    /// Functions proved so far.
    pub(crate) prepared: Vec<String>,
    /// How a function's preparation fails.
    pub(crate) broken: BTreeMap<String, Problem>,
    /// Code (by what it contains) that does not start.
    pub(crate) broken_code: Option<&'static [u8]>,
    /// The release it says it is.
    pub(crate) version: Option<&'static str>,
    /// Ready sandboxes of earlier revisions, of every function.
    pub(crate) old_ready: u32,
    /// The revision that serves, where that is not the latest.
    pub(crate) serving: Option<u32>,
    /// Revisions that were named in rollbacks.
    pub(crate) rolled_back_to: Vec<Option<u32>>,
    /// Where it says that its streams are.
    pub(crate) streams: Option<String>,
    /// Proofs do not end.
    pub(crate) slow: bool,
    /// By name: told when the function is deleted.
    pub(crate) deleted: BTreeMap<String, Arc<tokio::sync::Notify>>,
    /// So many functions had the name before.
    pub(crate) replaced: u32,
    /// Functions have written nothing.
    pub(crate) silent: bool,
    /// Traffic and tags, of every function.
    pub(crate) traffic: TrafficDocument,
}

pub(crate) struct Double {
    pub(crate) api: String,
    held: Arc<Mutex<Held>>,
    proving: Arc<tokio::sync::Notify>,
}

type Shared = State<(String, Arc<Mutex<Held>>)>;
type Proving = axum::Extension<Arc<tokio::sync::Notify>>;

impl Double {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let held = Arc::new(Mutex::new(Held::default()));
        let proving = Arc::new(tokio::sync::Notify::new());
        let router = Router::new()
            .route("/v1/functions", get(list))
            .route("/v1/functions/{name}", put(register).get(describe).delete(delete))
            .route("/v1/functions/{name}/prepare", post(prepare))
            .route("/v1/functions/{name}/revisions", get(revisions))
            .route("/v1/functions/{name}/traffic", put(traffic))
            .route("/v1/functions/{name}/rollback", post(rollback))
            .route("/v1/functions/{name}/logs", get(logs))
            .route("/v1/blobs/{digest}", put(upload).head(has_blob))
            .route("/v1/status", get(status))
            .route("/function/{name}/{*path}", any(invoke))
            .route("/function/{name}/", any(invoke_root))
            .route(
                "/data-plane/{*path}",
                any(|| async { problem(Problem::new(Reason::RouteNotFound, "no function")) }),
            )
            .layer(axum::middleware::from_fn_with_state(held.clone(), release))
            .layer(axum::Extension(proving.clone()))
            .with_state((address.clone(), held.clone()));
        tokio::spawn(async move { axum::serve(Listener(listener), router).await });
        Double { api: format!("http://{address}"), held, proving }
    }

    /// Until a proof is asked for that does not end.
    pub(crate) async fn proving(&self) {
        self.proving.notified().await;
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap()
    }

    /// Registers a fake function.
    pub(crate) fn with_function(self, name: &str) -> Self {
        let document = FunctionDocument::new(name, fanfare_api::HandlerDocument::Fake {});
        let spec = FunctionSpec::try_from(document).unwrap();
        self.held().functions.insert(name.to_owned(), (1, FunctionDocument::from(&spec)));
        self
    }

    /// Deletes every function, and registers others of the same names.
    pub(crate) fn replace(&self) {
        let mut held = self.held();
        held.replaced += 1;
        held.deleted.values().for_each(|deleted| deleted.notify_one());
    }
}

/// States a release, if it is to.
async fn release(
    State(held): State<Arc<Mutex<Held>>>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let mut response = next.run(request).await;
    if let Some(version) = held.lock().unwrap().version {
        response.headers_mut().insert("x-fanfare-version", HeaderValue::from_static(version));
    }
    response
}

struct Listener(tokio::net::TcpListener);

impl axum::serve::Listener for Listener {
    type Io = tokio::net::TcpStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        self.0.accept().await.unwrap()
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

pub(crate) fn problem(problem: Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap();
    let reason = HeaderValue::from_str(&problem.reason).unwrap();
    let mut response = (status, Json(problem)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert("x-fanfare-reason", reason);
    response
}

fn not_found(name: &str) -> Response {
    problem(
        Problem::new(Reason::FunctionNotFound, format!("there is no function {name}")).with_request_id("r-1"),
    )
}

async fn list(
    State((_, held)): Shared,
    Query(query): Query<BTreeMap<String, String>>,
) -> Json<FunctionListDocument> {
    let held = held.lock().unwrap();
    // Pages of two, so that every list has several.
    let after = query.get("after").cloned().unwrap_or_default();
    let page: Vec<_> = held.functions.iter().filter(|(name, _)| **name > after).take(2).collect();
    let next = (page.len() == 2).then(|| page[1].0.clone());
    let functions = page
        .into_iter()
        .map(|(name, (revision, document))| FunctionSummaryDocument {
            name: name.clone(),
            revision: *revision,
            kind: document.handler.kind().to_owned(),
            runtime: document.runtime.clone().unwrap_or_default(),
            state: FunctionState::Ready,
            sandboxes: SandboxCounts { wanted: 2, ready: 1, ..SandboxCounts::default() },
            load: Default::default(),
        })
        .collect();
    Json(FunctionListDocument { functions, next })
}

async fn register(State((_, held)): Shared, Path(name): Path<String>, body: Bytes) -> Response {
    let mut held = held.lock().unwrap();
    let spec = match FunctionDocument::from_json(&body).and_then(FunctionSpec::try_from) {
        Ok(spec) => spec,
        Err(error) => return problem(error.into()),
    };
    if let Some(code) = spec.code.filter(|code| !held.blobs.contains_key(&code.to_string())) {
        return problem(Problem::new(Reason::CodeNotFound, format!("code {code} was never uploaded")));
    }
    held.puts.push(name.clone());
    let document = FunctionDocument::from(&spec);
    let (revision, outcome) = match held.functions.get(&name) {
        None => (1, DeployOutcome::Created),
        Some((revision, known)) if *known == document => (*revision, DeployOutcome::Unchanged),
        Some((revision, _)) => (revision + 1, DeployOutcome::Updated),
    };
    held.functions.insert(name.clone(), (revision, document));
    Json(DeployResult { name, id: "f1".into(), revision, outcome }).into_response()
}

async fn describe(State((_, held)): Shared, Path(name): Path<String>) -> Response {
    let held = held.lock().unwrap();
    let Some((revision, document)) = held.functions.get(&name) else { return not_found(&name) };
    let failed = held.broken.contains_key(&name);
    Json(FunctionStatusDocument {
        function: document.clone(),
        id: format!("f{}", held.replaced + 1),
        revision: *revision,
        serving_revision: held.serving.unwrap_or(*revision),
        state: if failed { FunctionState::Failed } else { FunctionState::Ready },
        sandboxes: SandboxCounts { wanted: 2, ready: 1, starting: 1, stopping: 0, old: held.old_ready },
        lacks_room: false,
        in_flight: 3,
        queued: 4,
        execution_ms: Some(12.5),
        decisions: decisions(),
        last_failure: Some(FailureDocument {
            age_s: 90.0,
            reason: "start-failed".into(),
            detail: "the module raised an error".into(),
            revision: 1,
            node: Some("node-1".into()),
            log_tail: "Traceback\nboom".into(),
        }),
        failures: vec![
            FailureCountDocument {
                failed: FailedName::Requests,
                reason: "handler-error".into(),
                count: 12,
                age_s: 3.0,
                detail: "ValueError: one\ntwo".into(),
                request_id: "r-7".into(),
                log_tail: "Traceback\n  line 2".into(),
            },
            FailureCountDocument {
                failed: FailedName::Sandboxes,
                reason: "out-of-memory".into(),
                count: 1,
                age_s: 60.0,
                detail: "a sandbox was killed: out of memory".into(),
                request_id: String::new(),
                log_tail: String::new(),
            },
        ],
        traffic_pending: false,
        revisions: revision_documents(*revision, failed),
    })
    .into_response()
}

/// Three failed starts on end, and what was before.
fn decisions() -> Vec<DecisionDocument> {
    let decision =
        |age_s, from, to, reason: &str| DecisionDocument { age_s, from, to, reason: reason.into() };
    let attempts = (0..3).flat_map(|n| {
        let age_s = 1.0 + 2.0 * f64::from(n);
        [
            decision(age_s, 2, 1, "start failed: it raised an error\nand more"),
            decision(age_s + 1.0, 1, 2, "1 wanted, 1 there"),
        ]
    });
    attempts.chain([decision(9.0, 0, 2, "2 requests wait")]).collect()
}

/// So many revisions; the one before the latest is broken, and so is the latest if it is said to be.
fn revision_documents(latest: u32, broken: bool) -> Vec<RevisionDocument> {
    let document = |revision: u32| RevisionDocument {
        revision,
        latest: revision == latest,
        created_unix_ms: 1_700_000_000_000,
        digest: format!("{revision:0<64}"),
        weight: if revision == latest { 100 } else { 0 },
        tags: Vec::new(),
        sandboxes: SandboxCounts { ready: 1, ..SandboxCounts::default() },
        failure: (revision + 1 == latest || revision == latest && broken).then(|| RevisionFailureDocument {
            at_unix_ms: 1_700_000_060_000,
            reason: "start-failed".into(),
            detail: format!("revision {revision} raised an error"),
            log_tail: "Traceback\nNameError".into(),
        }),
    };
    (1..=latest).rev().map(document).collect()
}

async fn revisions(State((_, held)): Shared, Path(name): Path<String>) -> Response {
    let held = held.lock().unwrap();
    let Some((revision, _)) = held.functions.get(&name) else { return not_found(&name) };
    let revisions = revision_documents(*revision, held.broken.contains_key(&name));
    Json(RevisionListDocument { name, revisions }).into_response()
}

async fn traffic(
    State((_, held)): Shared,
    Path(name): Path<String>,
    Json(change): Json<TrafficDocument>,
) -> Response {
    let mut held = held.lock().unwrap();
    if !held.functions.contains_key(&name) {
        return not_found(&name);
    }
    held.traffic.traffic = change.traffic.or(held.traffic.traffic.take());
    held.traffic.tags = change.tags.or(held.traffic.tags.take());
    let TrafficDocument { traffic, tags } = held.traffic.clone();
    let all = ShareDocument { revision: TargetDocument(fanfare_types::Target::Latest), weight: 100 };
    let (traffic, tags) = (traffic.unwrap_or_else(|| vec![all]), tags.unwrap_or_default());
    Json(TrafficResult { name, traffic, tags, pending: false }).into_response()
}

async fn rollback(
    State((_, held)): Shared,
    Path(name): Path<String>,
    Json(to): Json<RollbackDocument>,
) -> Response {
    let mut held = held.lock().unwrap();
    let Some((revision, _)) = held.functions.get_mut(&name) else { return not_found(&name) };
    if *revision < 2 {
        return problem(Problem::new(Reason::NoEarlierRevision, "nothing was registered before"));
    }
    if to.to.is_some_and(|to| to > *revision) {
        return problem(Problem::new(Reason::RevisionNotFound, "it is not kept"));
    }
    *revision += 1;
    let revision = *revision;
    held.rolled_back_to.push(to.to);
    held.broken.remove(&name);
    Json(DeployResult { name, id: "f1".into(), revision, outcome: DeployOutcome::Updated }).into_response()
}

async fn delete(State((_, held)): Shared, Path(name): Path<String>) -> Response {
    let mut held = held.lock().unwrap();
    match held.functions.remove(&name) {
        Some(_) => {
            held.deleted.entry(name).or_default().notify_one();
            StatusCode::NO_CONTENT.into_response()
        }
        None => not_found(&name),
    }
}

async fn prepare(
    State((_, held)): Shared,
    axum::Extension(proving): Proving,
    Path(name): Path<String>,
) -> Response {
    if held.lock().unwrap().slow {
        proving.notify_one();
        return futures_util::future::pending().await;
    }
    let mut held = held.lock().unwrap();
    let Some((revision, document)) = held.functions.get(&name).cloned() else { return not_found(&name) };
    if let Some(broken) = held.broken.get(&name) {
        return problem(broken.clone());
    }
    let code = document.code.and_then(|code| held.blobs.get(&code).cloned()).unwrap_or_default();
    if held.broken_code.is_some_and(|broken| code.windows(broken.len()).any(|window| window == broken)) {
        let failure =
            Problem::new(Reason::StartFailed, "the module raised an error").with_log_tail("SyntaxError");
        return problem(failure);
    }
    held.prepared.push(name.clone());
    Json(PrepareResult { name, revision, node: "node-1".into(), elapsed_ms: 21.5 }).into_response()
}

async fn logs(
    State((_, held)): Shared,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if !held.lock().unwrap().functions.contains_key(&name) {
        return not_found(&name);
    }
    if held.lock().unwrap().silent {
        return "".into_response();
    }
    let line = |stream, seq, text: &str| LogLineDocument {
        seq: Some(seq),
        time_unix_ms: Some(1_700_000_000_000 + seq),
        node: Some("node-1".into()),
        sandbox: Some("s1".into()),
        stream,
        text: text.to_owned(),
    };
    let lines = [
        line(LogStreamName::Platform, 1, "started"),
        line(LogStreamName::Stdout, 2, "one"),
        line(LogStreamName::Stderr, 3, "two"),
    ];
    let tail: usize = query["tail"].parse().unwrap();
    let text: String = lines[lines.len().saturating_sub(tail)..]
        .iter()
        .map(|line| serde_json::to_string(line).unwrap() + "\n")
        .collect();
    if query["follow"] == "true" {
        // The log ends by itself only when its function is deleted.
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
        let said = serde_json::to_string(&line(LogStreamName::Platform, 4, "it was deleted")).unwrap();
        let deleted = held.lock().unwrap().deleted.entry(name).or_default().clone();
        let rest = futures_util::stream::once(async move {
            deleted.notified().await;
            Ok(Bytes::from(said + "\n"))
        });
        return Body::from_stream(futures_util::StreamExt::chain(first, rest)).into_response();
    }
    text.into_response()
}

async fn upload(State((_, held)): Shared, Path(digest): Path<String>, body: Bytes) -> Json<BlobDocument> {
    let size_bytes = body.len() as u64;
    held.lock().unwrap().blobs.insert(digest.clone(), body);
    Json(BlobDocument { digest, size_bytes })
}

async fn has_blob(State((_, held)): Shared, Path(digest): Path<String>) -> StatusCode {
    if held.lock().unwrap().blobs.contains_key(&digest) { StatusCode::OK } else { StatusCode::NOT_FOUND }
}

async fn status(State((address, held)): Shared) -> Json<ClusterStatusDocument> {
    let data_plane = |name: &str, address: &str, connected| DataPlaneDocument {
        id: "d1".into(),
        name: name.into(),
        address: address.into(),
        connected,
        in_flight: 0,
        queued: 0,
    };
    let held = held.lock().unwrap();
    let (streams, functions) = (held.streams.clone(), held.functions.len() as u64);
    Json(ClusterStatusDocument {
        version: "0.1.0".into(),
        leader: LeaderDocument { name: "cp-1".into(), epoch: 3, here: true, streams },
        placement: "round-robin".into(),
        functions,
        sandboxes: SandboxCounts { wanted: 2, ready: 1, starting: 1, stopping: 0, old: 0 },
        nodes: vec![NodeDocument {
            id: "n1".into(),
            name: "node-1".into(),
            connected: true,
            capacity: ResourcesDocument { cpu: 2.0, memory_bytes: 4 << 30 },
            reserved: ResourcesDocument { cpu: 0.02, memory_bytes: 32 << 20 },
            sandboxes: 2,
            runtimes: vec!["process".into(), "fake".into()],
        }],
        data_planes: vec![data_plane("lost", "127.0.0.1:1", false), data_plane("data-1", &address, true)],
    })
}

async fn invoke_root(state: Shared, Path(name): Path<String>, request: axum::extract::Request) -> Response {
    invoke(state, Path((name, String::new())), request).await
}

/// Echoes; the first part of the path chooses another behaviour.
async fn invoke(
    State((_, held)): Shared,
    Path((name, path)): Path<(String, String)>,
    request: axum::extract::Request,
) -> Response {
    if !held.lock().unwrap().functions.contains_key(name.split('@').next().unwrap()) {
        return not_found(&name);
    }
    let refuse = |reason| problem(Problem::new(reason, "refused as told").with_request_id("r-9"));
    if let Some(code) = path.strip_prefix("refuse/") {
        return refuse(Reason::ALL.iter().copied().find(|reason| reason.code() == code).unwrap());
    }
    if let Some(status) = path.strip_prefix("status/") {
        return (StatusCode::from_u16(status.parse().unwrap()).unwrap(), "own words").into_response();
    }
    match path.as_str() {
        "handler-error" => {
            let mut response = (StatusCode::BAD_GATEWAY, "ZeroDivisionError").into_response();
            response.headers_mut().insert("x-fanfare-reason", HeaderValue::from_static("handler-error"));
            response
        }
        "silent" => futures_util::future::pending().await,
        _ => echo(request).await,
    }
}

async fn echo(request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let text = |name: &str, headers: &HeaderMap| {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let mut headers = HeaderMap::new();
    headers.insert("server-timing", HeaderValue::from_static("queue;dur=0.25, create;dur=12"));
    headers.insert("x-seen-type", HeaderValue::from_str(&text("content-type", &parts.headers)).unwrap());
    headers.insert("x-seen-note", HeaderValue::from_str(&text("x-note", &parts.headers)).unwrap());
    headers.insert("x-seen-length", HeaderValue::from_str(&text("content-length", &parts.headers)).unwrap());
    let seen = format!("{} {}{query}", parts.method, parts.uri.path());
    headers.insert("x-seen", HeaderValue::from_str(&seen).unwrap());
    if parts.method == Method::GET {
        (headers, "hello").into_response()
    } else {
        (headers, body).into_response()
    }
}
