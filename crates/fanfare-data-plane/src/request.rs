//! The life of one request.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fanfare_dispatch::{Event, Outcome, Refusal};
use fanfare_http1::{RequestBody, Rest, Settled, Watched};
use fanfare_types::{Reason, Timestamp};
use http::header::{CONNECTION, EXPECT, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body::Body as _;

use crate::activity::UnderWay;
use crate::asynchronous::{self, INVOCATION_ID};
use crate::body::{Body, Held};
use crate::clock;
use crate::core::Core;
use crate::find::{self, Found};
use crate::form;
use crate::function::{Answer, Function, Slot, Taken};
use crate::headers::{self, Client};
use crate::incoming::Incoming;
use crate::invoke::{Attempt, Call};
use crate::lease::Lease;
use crate::payload::{BrokenOff, ClientBody, Payload};
use crate::peers::{self, Forwarded};
use crate::problem::Problem;
use crate::request_id::REQUEST_ID;
use crate::timing;
use crate::trail::Trail;
use crate::upgrade::Upgrade;
use crate::uploader;
use crate::wait::{Waiting, wait};
use crate::webhook::{self, Received};

/// On an answer: the number of the revision that served it.
const REVISION: HeaderName = HeaderName::from_static("x-fanfare-revision");
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Bytes of a request's fields.
const FIELDS_BYTES_MAX: usize = 64 * 1024;
/// Bytes of those that another data plane has added.
const FIELDS_ADDED_BYTES_MAX: usize = 2 * 1024;
/// Sandboxes that a request is offered to, where each one provably got nothing of it.
const ATTEMPTS_MAX: u32 = 5;
/// The platform's own paths.
const OWN_PREFIX: &str = "/_fanfare/";

/// A refusal, where its time went if it had a slot, and the function it is counted for.
struct Failure {
    problem: Problem,
    timing: Option<HeaderValue>,
    function: Option<Arc<Function>>,
    /// Nothing that its client says after it is believed.
    closes: bool,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure { problem, timing: None, function: None, closes: false }
    }
}

impl Failure {
    fn of_form(problem: Problem) -> Self {
        Failure { closes: true, ..Failure::from(problem) }
    }

    fn of(mut self, function: Arc<Function>) -> Self {
        self.function = Some(function);
        self
    }
}

/// Answers a request: by its function, or with a problem that says why not.
pub(crate) async fn serve(
    core: Rc<Core>,
    client: Rc<Client>,
    under_way: UnderWay,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let accepted = clock::now();
    let id = core.ids.choose(request.headers().get(REQUEST_ID));
    let version = request.version();
    let expects = headers::expects_leave(request.headers());
    let (mut parts, body) = request.into_parts();
    // HTTP/2 ends the stream of a request that is not read, and nothing else.
    let (body, rest) = match version {
        Version::HTTP_2 => (Watched::unwatched(body), Rest::none()),
        _ => Watched::new(body),
    };
    parts.headers.insert(REQUEST_ID, id.clone());
    let mut trail = Trail::new(core.clone(), &id, accepted);
    let (mut closes, mut refused) = (false, false);
    let mut response = match answer(&core, &client, under_way, parts, body, &mut trail, accepted).await {
        Ok(response) => response,
        Err(failure) => {
            let Failure { problem, timing, function, .. } = failure;
            (closes, refused) = (failure.closes, true);
            match &function {
                Some(function) => {
                    function.count_problem(problem.reason);
                    core.shared.failures.note(function.id, &problem, &id);
                }
                None => core.shared.count_problem(problem.reason),
            }
            trail.refused(&problem, function.as_ref().map(|function| function.id));
            tracing::debug!(reason = %problem.reason, request = ?id, "refused");
            let mut response = problem.response(&id, function.as_ref().map(|function| &function.name));
            let timing = timing.unwrap_or_else(|| timing::queue_only(accepted, clock::now()));
            response.headers_mut().insert(SERVER_TIMING, timing);
            response
        }
    };
    response.headers_mut().insert(REQUEST_ID, id);
    closes |= core.shared.is_leaving() || client.state.has_ended();
    // Reading would be the leave to send what nobody wants.
    let unread = match rest.settle(!closes && !expects).await {
        Settled::Read => false,
        Settled::Unread => true,
        // A function's answer may begin before the request's end, and end after it.
        Settled::Open => refused,
    };
    if unread {
        client.state.unread();
    }
    // Reading the rest may have shown that the client says no more. Nothing would end such a connection but this answer.
    let ends = closes || unread || client.state.has_ended();
    if ends && version != Version::HTTP_2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if version == Version::HTTP_10 && response.body().size_hint().exact().is_none() {
        client.state.unframed();
    }
    Ok(response)
}

async fn answer(
    core: &Rc<Core>,
    client: &Client,
    under_way: UnderWay,
    mut parts: request::Parts,
    body: ClientBody,
    trail: &mut Trail,
    accepted: Timestamp,
) -> Result<Response<Body>, Failure> {
    let shared = &core.shared;
    if parts.uri.path().starts_with(OWN_PREFIX) {
        let response = own(core, &parts)?;
        trail.forget();
        return Ok(response);
    }
    let Some(held) = Held::new(core, under_way) else {
        let detail = format!("{} requests are held; no more may be", shared.options.requests_max);
        return Err(Problem::new(Reason::DataPlaneFull, detail).into());
    };
    // Whoever sent it on: without the right token it is not believed, but never sent on again either.
    let travelled = parts.headers.contains_key(peers::FORWARDED);
    let added = if travelled { FIELDS_ADDED_BYTES_MAX } else { 0 };
    if headers::size(&parts.headers) > FIELDS_BYTES_MAX + added {
        let detail = format!("the header fields take more than {FIELDS_BYTES_MAX} bytes");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(Problem::new(Reason::TooLarge, detail).with_status(status).into());
    }
    form::check(&parts).map_err(Failure::of_form)?;
    if webhook::route(target_of(&parts)).is_some() && !find::host_is_a_functions(shared, &parts).await? {
        return of_webhook(core, client, parts, body, held, trail, accepted).await;
    }
    let dialect = match asynchronous::dirigent::is_on(shared) {
        true => asynchronous::dirigent::asked(shared, &parts, &body).await?,
        false => None,
    };
    let is_later = dialect.is_some()
        || asynchronous::route::parse(target_of(&parts)).is_some()
            && !find::host_is_a_functions(shared, &parts).await?;
    if is_later {
        let refused = |refused: asynchronous::api::Refused| Failure {
            function: refused.function,
            ..Failure::from(refused.problem)
        };
        let answered = match dialect {
            Some(asked) => {
                let answer = asynchronous::dirigent::answer(core, client, asked, parts, body, accepted);
                Box::pin(answer).await
            }
            None => Box::pin(asynchronous::api::answer(core, client, parts, body, accepted)).await,
        };
        if answered.is_ok() {
            // What is accepted is remembered as it is executed, attempt by attempt.
            trail.forget();
        }
        return answered.map_err(refused);
    }
    let Found { function, tagged, target } = find::find(shared, &parts).await?;
    // Chosen once, by whoever saw the request first.
    let unit = peers::chosen_unit(core, &parts)
        .and_then(|chosen| function.unit(chosen))
        .or(tagged)
        .unwrap_or_else(|| function.choose(&mut core.chance.borrow_mut()));
    let forwarded = peers::is_forwarded(core, &parts);
    let upgrade = Upgrade::take(parts.version, &parts.headers, &mut parts.extensions);
    let trailers = headers::accepts_trailers(&parts.headers);
    headers::strip_hop_by_hop(&mut parts.headers);
    headers::strip_platform(&mut parts.headers);
    if !client.state.interim.is_held() || body.is_end_stream() {
        // Nobody waits for leave, be it that the client's protocol has no way to give it.
        parts.headers.remove(EXPECT);
        client.state.interim.give_leave();
    }
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers);
    }
    find::settle_host(&mut parts, &function);
    if !forwarded {
        client.append(&mut parts.headers);
    }
    let mut body = Unsent::Fresh(Payload::new(body, client.state.clone()));
    let mut held = held;
    // What asks for another protocol is served where it came: the answer is a connection, and that has one end here.
    // The same holds for trailers, which the server passes on over HTTP/1.1 only where they were announced.
    if !travelled
        && upgrade.is_none()
        && !trailers
        && let Some(address) = unit.owner().and_then(|owner| shared.peer(owner))
    {
        let deadline = accepted + unit.request_timeout();
        match peers::forward(core, (&address, unit.id), client, &parts, body.whole(), deadline, held).await {
            Forwarded::Answered(response) => {
                // The owner remembers it.
                trail.forget();
                return Ok(response);
            }
            Forwarded::Failed(problem) => {
                return Err(Failure::from(problem).of(function));
            }
            Forwarded::ServeHere(whole, still) => (body, held) = (Unsent::Again(whole), still),
        }
    }
    let work = Work { parts, target, upgrade, trailers, accepted, unit, assigned: None, forwarded };
    invoke(core, client, &function, work, body, held, trail).await.map_err(|failure| failure.of(function))
}

/// Answers a request of a webhook: believed, it is accepted, or its function is called now.
async fn of_webhook(
    core: &Rc<Core>,
    client: &Client,
    parts: request::Parts,
    body: ClientBody,
    held: Held,
    trail: &mut Trail,
    accepted: Timestamp,
) -> Result<Response<Body>, Failure> {
    let target = target_of(&parts).to_owned();
    let Some(route) = webhook::route(&target) else {
        return Err(Problem::new(Reason::RouteNotFound, "there is no webhook here").into());
    };
    let received = Box::pin(webhook::receive(core, client, route, parts, body, accepted)).await;
    let received =
        received.map_err(|refused| Failure { function: refused.function, ..Failure::from(refused.problem) });
    match received? {
        Received::Accepted(response) => {
            // What is accepted is remembered as it is executed, attempt by attempt.
            trail.forget();
            Ok(response)
        }
        Received::Now { function, parts, target, payload, room } => {
            let unit = function.choose(&mut core.chance.borrow_mut());
            let target = Some(target);
            let (upgrade, trailers, forwarded) = (None, false, false);
            let work = Work { parts, target, upgrade, trailers, accepted, unit, assigned: None, forwarded };
            let body = Unsent::Fresh(payload);
            let answered = invoke(core, client, &function, work, body, held, trail).await;
            drop(room);
            answered.map_err(|failure| failure.of(function))
        }
    }
}

/// A request that is ready to be sent.
struct Work {
    parts: request::Parts,
    /// What the function sees instead of the client's target.
    target: Option<String>,
    upgrade: Option<Upgrade>,
    /// The client takes trailers.
    trailers: bool,
    accepted: Timestamp,
    /// What of the function is to serve it.
    unit: Arc<Function>,
    /// Told of each slot that it gets.
    assigned: Option<OnSlot>,
    /// Another data plane has sent it on.
    forwarded: bool,
}

fn target_of(parts: &request::Parts) -> &str {
    parts.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// Told of each slot that a request gets.
pub(crate) type OnSlot = Box<dyn Fn(&Slot)>;

/// Why an attempt has no answer, and whether user code may have had the request.
pub(crate) struct Unanswered {
    pub(crate) problem: Problem,
    pub(crate) reached: bool,
}

/// Sends a request that was kept to a sandbox, as one that has just come; `assigned` is told of its slot.
pub(crate) async fn attempt(
    core: &Rc<Core>,
    function: &Arc<Function>,
    parts: request::Parts,
    trailers: bool,
    payload: Payload,
    under_way: UnderWay,
    assigned: OnSlot,
) -> Result<Response<Body>, Unanswered> {
    let id = parts.headers.get(REQUEST_ID).cloned().unwrap_or(HeaderValue::from_static(""));
    let invocation = parts.headers.get(INVOCATION_ID).map(|id| id.as_bytes().into());
    let accepted = clock::now();
    let Some(held) = Held::new(core, under_way) else {
        let detail = format!("{} requests are held; no more may be", core.shared.options.requests_max);
        return Err(Unanswered { problem: Problem::new(Reason::DataPlaneFull, detail), reached: false });
    };
    let unit = function.choose(&mut core.chance.borrow_mut());
    let assigned = Some(assigned);
    let (target, upgrade, forwarded) = (None, None, false);
    let work = Work { parts, target, upgrade, trailers, accepted, unit, assigned, forwarded };
    // Its client has left long ago.
    let client = Client::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), false);
    let mut trail = Trail::new(core.clone(), &id, accepted);
    trail.attempt_of(invocation);
    let answered = invoke(core, &client, function, work, Unsent::Fresh(payload), held, &mut trail).await;
    answered.map_err(|failure| {
        let problem = failure.problem;
        trail.refused(&problem, Some(function.id));
        function.count_problem(problem.reason);
        core.shared.failures.note(function.id, &problem, &id);
        // With a slot there is a timing. These reasons say that nothing was sent even so.
        let unsent =
            matches!(problem.reason, Reason::QueueTimeout | Reason::BadRequest | Reason::DataPlaneFull);
        Unanswered { reached: failure.timing.is_some() && !unsent, problem }
    })
}

/// A body of which nothing was sent.
enum Unsent {
    Fresh(Payload),
    /// An attempt to send it failed before its first byte.
    Again(RequestBody<Payload>),
}

impl Unsent {
    fn whole(self) -> RequestBody<Payload> {
        match self {
            Unsent::Fresh(payload) => RequestBody::new(payload),
            Unsent::Again(body) => body,
        }
    }

    /// Whether all of it is here.
    fn is_here(&self) -> bool {
        match self {
            Unsent::Fresh(payload) => payload.is_here(),
            // It was accepted already.
            Unsent::Again(_) => true,
        }
    }

    /// Says when all of it is here. Resolves if the client fails meanwhile, as far as that can be seen.
    async fn client_failed(&mut self, here: impl FnOnce()) -> BrokenOff {
        match self {
            Unsent::Fresh(payload) => payload.client_failed(here).await,
            Unsent::Again(_) => std::future::pending().await,
        }
    }
}

/// Gets a slot and sends the request; again with another sandbox as long as it provably reached none. A unit that is no
/// longer named refuses those that wait for it: they go where requests of `named` go by then.
async fn invoke(
    core: &Rc<Core>,
    client: &Client,
    named: &Arc<Function>,
    mut work: Work,
    mut body: Unsent,
    mut held: Held,
    trail: &mut Trail,
) -> Result<Response<Body>, Failure> {
    let shared = &core.shared;
    let target = match &work.target {
        Some(target) => target.as_str(),
        None => work.parts.uri.path_and_query().map_or("/", |target| target.as_str()),
    };
    let accepted = work.accepted;
    let mut function = work.unit;
    let (key, lane) = (affinity(target), core.lane());
    let uploader = (!body.is_here()).then(|| uploader::of(&work.parts.headers, client, work.forwarded));
    let (mut place, mut taken) = function.arrive(shared, accepted, (key, lane), uploader);
    trail.arrived(named.id, &place);
    if let Some(tracer) = &shared.tracer {
        trail.traced(tracer.begin(&mut work.parts.headers, core.ids.numbers()));
    }
    let (method, headers) = (&work.parts.method, &mut work.parts.headers);
    let (upgrade, trailers) = (work.upgrade, work.trailers);
    let mut call = Call { core, client, method, target, headers, accepted, upgrade, trailers, trail };
    let mut last = None;
    for _ in 0..ATTEMPTS_MAX {
        let answer = match taken {
            Taken::Now(answer) => answer,
            Taken::Later(answer) => tokio::select! {
                biased;
                answer = wait(shared, &function, place, answer) => answer?,
                // Dropping the wait leaves the queue.
                error = body.client_failed(|| function.apply(shared, Event::Uploaded { waiter: place.waiter })) => {
                    let detail = format!("the request's body broke off while it waited: {error}");
                    return Err(Problem::new(Reason::BadRequest, detail).into());
                }
            },
        };
        let slot = match answer {
            Answer::Slot(slot) => slot,
            Answer::Refused(Refusal::Removed) if !Arc::ptr_eq(&function, named) => {
                function = named.choose(&mut core.chance.borrow_mut());
                let uploader = uploader.filter(|_| !body.is_here());
                (place, taken) = function.arrive(shared, accepted, (key, lane), uploader);
                continue;
            }
            Answer::Refused(refusal) => return Err(Problem::refused(&refusal).into()),
        };
        let revision = slot.upstream.revision_value.clone();
        if let Some(assigned) = &work.assigned {
            assigned(&slot);
        }
        call.trail.given(&slot);
        let upstream = slot.upstream.clone();
        let lease = Rc::new(Lease::new(core.clone(), function.clone(), slot, &place));
        let mut whole = body.whole();
        if let Some(progress) = &lease.progress {
            whole.inner_mut().watch(progress);
        }
        match call.attempt(lease, whole, held).await {
            Attempt::Answered(mut response) => {
                response.headers_mut().insert(REVISION, revision);
                return Ok(response);
            }
            Attempt::Failed(problem, timing) => {
                return Err(Failure { timing: Some(timing), ..Failure::from(problem) });
            }
            Attempt::Unreached { body: whole, held: still, why } => {
                if upstream.tell_unreachable() {
                    let (name, sandbox) = (&function.name, upstream.sandbox.0);
                    tracing::warn!(function = %name, sandbox, %why, "a sandbox cannot be reached; trying others");
                }
                (body, held, last) = (Unsent::Again(whole), still, Some(why));
                taken = function.requeue(shared, place);
            }
        }
    }
    // The place that the last attempt took again.
    match taken {
        Taken::Now(Answer::Slot(slot)) => {
            function.finish(shared, &slot, Outcome::NeverSent, clock::now());
        }
        Taken::Now(Answer::Refused(_)) => {}
        Taken::Later(answer) => drop(Waiting::new(shared, &function, place, answer)),
    }
    let why = last.map(|why| why.to_string()).unwrap_or_default();
    let detail = format!("{ATTEMPTS_MAX} sandboxes could not be reached, the last because: {why}");
    Err(Problem::new(Reason::ConnectionClosed, detail).into())
}

/// What consistent hashing keeps together: requests for the same target. FNV-1a, as its inputs are short and nobody
/// gains by colliding with himself.
fn affinity(target: &str) -> u64 {
    target.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The platform's own answers.
fn own(core: &Core, parts: &request::Parts) -> Result<Response<Body>, Problem> {
    if parts.uri.path() != "/_fanfare/health" || !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Problem::new(Reason::RouteNotFound, "the platform answers GET /_fanfare/health"));
    }
    if core.shared.draining.load(Ordering::Relaxed) {
        return Err(Problem::new(Reason::ShuttingDown, "this data plane is shutting down"));
    }
    if !*core.shared.synced.borrow() {
        return Err(Problem::new(
            Reason::NotSynced,
            "this data plane has not heard from the control plane yet",
        ));
    }
    Ok(Response::new(Body::full(bytes::Bytes::from_static(b"ok\n"))))
}
