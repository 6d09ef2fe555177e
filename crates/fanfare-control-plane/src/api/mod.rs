//! The control API over HTTP.
//!
//! One table, [`routes`], says what is served; the OpenAPI document is tested against it. Every answer passes the
//! [`guard`], which names the request, keeps web pages of other sites out, and turns every failure into a problem
//! document.

mod blobs;
mod body;
mod dirigent;
mod explain;
mod extract;
mod functions;
mod guard;
mod lingering;
mod logs;
mod openapi;
mod problem;
mod query;
mod revisions;
mod schedules;
mod secrets;
mod server;
mod status;
mod timeline;
mod webhooks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::MatchedPath;
use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use fanfare_policy::Placement;
use fanfare_types::{Epoch, Reason};
use http::{Method, Uri};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

pub use openapi::openapi_document;
pub(crate) use server::serve;

use crate::blobs::Blobs;
use crate::hub::SharedHub;
use crate::images::Images;
use crate::input::Input;
use crate::limits::LOG_READERS_MAX;
use crate::registry::Registry;
use crate::schedules::Book;
use crate::transfers::Transfers;
use crate::webhooks::Webhooks;
use crate::{MoreMetrics, Options};
use problem::{Failure, quoted};

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) name: String,
    pub(crate) epoch: Epoch,
    pub(crate) placement: Placement,
    pub(crate) more_metrics: Option<MoreMetrics>,
    /// Whether only this machine can reach the API.
    pub(crate) loopback: bool,
    /// Where nodes and data planes connect, if over the network.
    pub(crate) streams: Option<SocketAddr>,
    pub(crate) registry: Registry,
    pub(crate) schedules: Book,
    pub(crate) webhooks: Webhooks,
    pub(crate) engine: mpsc::Sender<Input>,
    pub(crate) blobs: Blobs,
    pub(crate) transfers: Transfers,
    pub(crate) log_readers: Arc<Semaphore>,
    /// What Dirigent's forms may name; `None`: they are not taken.
    pub(crate) images: Option<Arc<Images>>,
    /// Open-ended answers end with it.
    pub(crate) shutdown: CancellationToken,
    /// Requests taken, which also names them.
    pub(crate) requests: AtomicU64,
    /// Requests answered with a 5xx status.
    pub(crate) failures: AtomicU64,
}

impl App {
    pub(crate) fn new(
        options: &Options,
        hub: &SharedHub,
        (schedules, webhooks): (Book, Webhooks),
        (address, streams): (SocketAddr, Option<SocketAddr>),
        images: Option<Arc<Images>>,
        shutdown: CancellationToken,
    ) -> Arc<App> {
        Arc::new(App {
            name: options.name.clone(),
            epoch: hub.0.epoch,
            placement: options.placement,
            more_metrics: options.more_metrics.clone(),
            loopback: address.ip().is_loopback(),
            streams,
            registry: hub.0.registry.clone(),
            schedules,
            webhooks,
            engine: hub.0.engine.clone(),
            blobs: hub.0.blobs.clone(),
            transfers: hub.0.transfers.clone(),
            log_readers: Arc::new(Semaphore::new(LOG_READERS_MAX)),
            images,
            shutdown,
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }
}

/// Every method and path that is served.
#[must_use]
pub fn routes() -> Vec<(Method, &'static str)> {
    table().into_iter().map(|(method, path, _)| (method, path)).collect()
}

type Route = (Method, &'static str, MethodRouter<Arc<App>>);

fn table() -> Vec<Route> {
    vec![
        get("/healthz", status::health),
        get("/metrics", status::metrics),
        get("/v1/status", status::cluster),
        get("/v1/nodes", status::nodes),
        get("/v1/openapi.json", openapi::document),
        get("/v1/functions", functions::list),
        (Method::POST, "/v1/functions", routing::post(functions::create)),
        get("/v1/functions/{name}", functions::get),
        (Method::PUT, "/v1/functions/{name}", routing::put(functions::put)),
        (Method::DELETE, "/v1/functions/{name}", routing::delete(functions::delete)),
        get("/v1/functions/{name}/revisions", revisions::list),
        (Method::PUT, "/v1/functions/{name}/traffic", routing::put(revisions::traffic)),
        (Method::POST, "/v1/functions/{name}/rollback", routing::post(revisions::rollback)),
        (Method::POST, "/v1/functions/{name}/prepare", routing::post(functions::prepare)),
        get("/v1/functions/{name}/logs", logs::logs),
        get("/v1/secrets", secrets::list),
        get("/v1/secrets/{name}", secrets::get),
        (Method::PUT, "/v1/secrets/{name}", routing::put(secrets::put)),
        (Method::DELETE, "/v1/secrets/{name}", routing::delete(secrets::delete)),
        get("/v1/schedules", schedules::list),
        get("/v1/schedules/{name}", schedules::get),
        (Method::PUT, "/v1/schedules/{name}", routing::put(schedules::put)),
        (Method::DELETE, "/v1/schedules/{name}", routing::delete(schedules::delete)),
        (Method::POST, "/v1/schedules/{name}/pause", routing::post(schedules::pause)),
        (Method::POST, "/v1/schedules/{name}/resume", routing::post(schedules::resume)),
        (Method::POST, "/v1/schedules/{name}/run", routing::post(schedules::run)),
        get("/v1/webhooks", webhooks::list),
        get("/v1/webhooks/{name}", webhooks::get),
        (Method::PUT, "/v1/webhooks/{name}", routing::put(webhooks::put)),
        (Method::DELETE, "/v1/webhooks/{name}", routing::delete(webhooks::delete)),
        get("/v1/requests/{id}", explain::explain),
        (Method::PUT, "/v1/blobs/{digest}", routing::put(blobs::put)),
        (Method::HEAD, "/v1/blobs/{digest}", routing::head(blobs::head)),
    ]
}

fn no_such_path(method: &Method, uri: &Uri) -> Failure {
    let path = quoted(uri.path());
    let detail = format!("there is no {method:.20} {path}; GET /v1/openapi.json lists what there is");
    let mut failure = Failure::new(Reason::RouteNotFound, detail);
    "see /v1/openapi.json".clone_into(&mut failure.problem.hint);
    failure
}

/// A path that there is, asked with another method than it has.
async fn not_taken(method: Method, path: MatchedPath) -> Failure {
    let of_path =
        table().into_iter().chain(dirigent::table()).filter(|(_, served, _)| *served == path.as_str());
    let allowed: Vec<String> = of_path.map(|(method, _, _)| method.to_string()).collect();
    let (given, allowed) = (quoted(method.as_str()), allowed.join(", "));
    let detail = format!("the method {given} is not taken on this path; allowed: {allowed}");
    let mut failure = Failure::new(Reason::MethodNotAllowed, detail);
    failure.problem.field = Some("method".to_owned());
    failure.problem.value = Some(given);
    failure.problem.limit = Some(allowed);
    failure
}

fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Route {
    (Method::GET, path, routing::get(handler))
}

fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (_, path, methods) in table() {
        router = router.route(path, methods);
    }
    let router = match app.images {
        Some(_) => dirigent::routes(router),
        None => router.fallback(|method: Method, uri: Uri| async move { no_such_path(&method, &uri) }),
    };
    router
        .method_not_allowed_fallback(not_taken)
        .with_state(app.clone())
        .layer(axum::middleware::from_fn_with_state(app, guard::guard))
}
