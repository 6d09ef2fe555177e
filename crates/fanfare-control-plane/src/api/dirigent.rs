//! What Dirigent's control plane answers, for the load generator InVitro: forms that register functions, on any path
//! that nothing else is on.
//!
//! A browser sends a form to any address without asking first, and what comes from a page says so: nothing here is for
//! pages, whichever site they are of.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing;
use fanfare_api::{DeployOutcome, DirigentPatch, DirigentRegistration, FieldError};
use fanfare_types::Reason;
use http::{HeaderMap, HeaderName, Method, Uri, header};
use tokio::sync::oneshot;

use super::problem::Failure;
use super::query::Parameters;
use super::{App, Route, body, functions, get, guard, no_such_path};
use crate::input::Input;
use crate::registry::Change;

/// What browsers say of every request of theirs.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Adds the dialect to what is served.
pub(super) fn routes(mut router: Router<Arc<App>>) -> Router<Arc<App>> {
    for (_, path, methods) in table() {
        router = router.route(path, methods);
    }
    router.fallback(any_path)
}

/// Its methods and paths, but for the one that is any.
pub(super) fn table() -> Vec<Route> {
    vec![
        get("/health", || async { "ok\n" }),
        get("/check", check),
        (Method::POST, "/patch", routing::post(patch)),
    ]
}

/// A registration, whatever path it comes to.
async fn any_path(State(app): State<Arc<App>>, request: Request) -> Result<Response, Failure> {
    let (parts, content) = request.into_parts();
    if parts.method != Method::POST || !body::is_form(&parts.headers) {
        return Err(no_such_path(&parts.method, &parts.uri));
    }
    if parts.uri.path() == "/workflow" {
        return Err(Failure::new(Reason::RouteNotFound, "there are no workflows here: register functions"));
    }
    not_a_page_s(&parts.headers)?;
    register(&app, &parts.uri, &parts.headers, content).await
}

/// Registers a function, or a new revision of it, and answers where it is called.
async fn register(app: &App, uri: &Uri, headers: &HeaderMap, content: Body) -> Result<Response, Failure> {
    let registration = DirigentRegistration::from_form(&body::form(content).await?)?;
    let image = app.images.as_ref().and_then(|images| images.find(&registration.image));
    let image = image.ok_or_else(|| unknown_image(app, &registration.image))?;
    let spec = registration.function(image)?;
    let endpoints = endpoints(app, guard::authority(uri, headers)?).await?;
    let name = spec.name.to_string();
    functions::registered(app, Change::Put(Arc::new(spec)), &name).await?;
    Ok(endpoints.into_response())
}

fn unknown_image(app: &App, image: &str) -> Failure {
    let known = app.images.as_ref().map(|images| images.some_names()).unwrap_or_default();
    let limit = format!("an image that this control plane was started with: {known}");
    let mut failure = Failure::from(FieldError::new("image", format!("{image:?}"), limit));
    "start the control plane with --dirigent-image NAME=DIRECTORY".clone_into(&mut failure.problem.hint);
    failure
}

/// Where functions are called: every data plane that takes requests, as `HOST:PORT`, with `;` between.
async fn endpoints(app: &App, api: &str) -> Result<String, Failure> {
    let (answer, answered) = oneshot::channel();
    app.engine.send(Input::DataPlanes { answer }).await.map_err(|_| Failure::stopping())?;
    let data_planes = answered.await.map_err(|_| Failure::stopping())?;
    if data_planes.is_empty() {
        return Err(Failure::new(Reason::Unavailable, "no data plane is connected to this control plane"));
    }
    let addresses: Vec<String> =
        data_planes.iter().map(|data_plane| seen_by(api, &data_plane.address)).collect();
    Ok(addresses.join(";"))
}

/// A data plane's address for whoever reaches this API at `api`. One that listens on every address of its machine does
/// not know which of them a client can reach: where it is this machine, the one that the client has just reached.
fn seen_by(api: &str, address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(any) if any.ip().is_unspecified() => {
            let host = api.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
            format!("{}:{}", host.map_or(api, |(host, _)| host), any.port())
        }
        _ => address.to_owned(),
    }
}

/// Whether a function is registered.
async fn check(State(app): State<Arc<App>>, uri: Uri) -> Result<&'static str, Failure> {
    let query = Parameters::read(&uri, &["name"])?;
    let name = query.text("name").filter(|name| !name.is_empty());
    let missing = || FieldError::missing("name", "that of a function: GET /check?name=NAME");
    functions::find(&app, name.ok_or_else(missing)?)?;
    Ok("registered\n")
}

/// Changes a function's scaling.
async fn patch(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    content: Body,
) -> Result<&'static str, Failure> {
    not_a_page_s(&headers)?;
    if !body::is_form(&headers) {
        return Err(body::not_a_form(&headers));
    }
    let patch = DirigentPatch::from_form(&body::form(content).await?)?;
    let name = functions::find(&app, &patch.function)?.spec.name.clone();
    let (_, outcome) = functions::registered(&app, Change::Patch(name.clone(), patch), name.as_str()).await?;
    match outcome {
        DeployOutcome::Unchanged => Ok("unchanged\n"),
        DeployOutcome::Created | DeployOutcome::Updated => Ok("changed\n"),
    }
}

/// The guard lets pages of this API's own address pass; forms are for none.
fn not_a_page_s(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(header::ORIGIN) || headers.contains_key(&FETCH_SITE) {
        return Err(Failure::new(Reason::Forbidden, "forms are taken from programs, not from a web page"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_plane_on_every_address_is_reached_where_the_api_was() {
        let cases = [
            ("10.0.0.1:9091", "0.0.0.0:8080", "10.0.0.1:8080"),
            ("node-1:9091", "0.0.0.0:8080", "node-1:8080"),
            ("node-1", "[::]:8080", "node-1:8080"),
            ("[fd00::1]:9091", "[::]:8080", "[fd00::1]:8080"),
            ("[fd00::1]", "0.0.0.0:8080", "[fd00::1]:8080"),
            ("localhost:9091", "127.0.0.1:8080", "127.0.0.1:8080"),
            ("10.0.0.1:9091", "edge.example:80", "edge.example:80"),
        ];
        for (api, address, seen) in cases {
            assert_eq!(seen_by(api, address), seen, "{api} {address}");
        }
    }
}
