//! One attempt to have a request answered by the sandbox of its slot.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_dispatch::Outcome;
use fanfare_http1::{ErrorKind, Malformed, RequestBody, RequestHead, SendError};
use fanfare_types::{Protocol, Reason, Timestamp};
use http::header::{HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Response, StatusCode, Version};
use tokio::time::timeout;

use crate::body::{Body, Broken, Held, Recycle, Upstream};
use crate::clock;
use crate::core::Core;
use crate::failures;
use crate::headers::{self, Client};
use crate::lease::Lease;
use crate::payload::Payload;
use crate::problem::Problem;
use crate::progress::{self, Late};
use crate::proof::{Http1Exchange, Sent};
use crate::request::SERVER_TIMING;
use crate::timing::Timing;
use crate::trail::Trail;
use crate::upgrade::Upgrade;
use crate::upstream::{Connection, LAST_WORDS_WAIT};

/// Tells the sandbox how many milliseconds the request has left.
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("x-fanfare-deadline-ms");
/// A sandbox that cannot be connected to within this is to blame for it; with less the request came too late.
pub(crate) const CONNECT_TIME_FAIR: Duration = Duration::from_millis(100);

/// A request as the sandbox gets it.
pub(crate) struct Call<'a> {
    pub(crate) core: &'a Rc<Core>,
    pub(crate) client: &'a Client,
    pub(crate) method: &'a Method,
    pub(crate) target: &'a str,
    pub(crate) headers: &'a mut HeaderMap,
    pub(crate) accepted: Timestamp,
    pub(crate) upgrade: Option<Upgrade>,
    /// The client takes trailers.
    pub(crate) trailers: bool,
    pub(crate) trail: &'a mut Trail,
}

/// What came of an attempt.
pub(crate) enum Attempt {
    Answered(Response<Body>),
    /// With its `Server-Timing`.
    Failed(Problem, HeaderValue),
    /// Nothing of the request was sent to the sandbox, which is condemned: another may have it.
    Unreached {
        body: RequestBody<Payload>,
        held: Held,
        why: io::Error,
    },
}

impl Call<'_> {
    /// Sends the request to the lease's sandbox.
    pub(crate) async fn attempt(
        &mut self,
        lease: Rc<Lease>,
        mut body: RequestBody<Payload>,
        held: Held,
    ) -> Attempt {
        if lease.slot.upstream.protocol == Protocol::H2c {
            return self.attempt_http2(lease, body, held).await;
        }
        loop {
            let now = clock::now();
            let left = lease.deadline.since(now);
            if left.is_zero() {
                // User code that begins now would only be killed.
                lease.fail(Outcome::NeverSent);
                return self.failed(&lease, self.too_late());
            }
            let pooled = lease.connection(now);
            let reused = pooled.is_some();
            let connection = match pooled {
                Some(connection) => connection,
                None => match lease.slot.upstream.endpoint.connect(left).await {
                    Ok(stream) => Connection::new(stream),
                    Err(why) if no_descriptor(&why) => {
                        lease.fail(Outcome::NeverSent);
                        return self.failed(&lease, without_descriptor(&why));
                    }
                    Err(why) => {
                        let hurried = why.kind() == io::ErrorKind::TimedOut && left < CONNECT_TIME_FAIR;
                        lease.fail(if hurried { Outcome::NeverSent } else { Outcome::Broken });
                        return Attempt::Unreached { body, held, why };
                    }
                },
            };
            match self.send(&lease, connection, body).await {
                Ok(response) => return self.answered(lease, response, held).await,
                Err(Unanswered::Late(late)) => {
                    lease.fail(Outcome::TimedOut);
                    return self.failed(&lease, self.late(&lease, late));
                }
                Err(Unanswered::Gone) => {
                    let problem =
                        lease.slot.upstream.gone().map_or_else(|| self.timed_out(&lease), Problem::gone);
                    // The queue has heard of it, and condemns nothing any more.
                    lease.fail(Outcome::Broken);
                    return self.failed(&lease, problem);
                }
                Err(Unanswered::Failed(SendError { error, body: Some(whole) })) if never_sent(&error) => {
                    lease.unsent();
                    body = whole;
                    // A pooled connection that its peer has closed. Each time round there is one less.
                    if reused {
                        continue;
                    }
                    lease.fail(Outcome::Broken);
                    return Attempt::Unreached { body, held, why: io::Error::other(error.to_string()) };
                }
                Err(Unanswered::Failed(failed)) => {
                    let problem = failure_http1(&lease, &failed.error).await;
                    return self.failed(&lease, problem);
                }
            }
        }
    }

    async fn send(
        &mut self,
        lease: &Rc<Lease>,
        connection: Connection,
        body: RequestBody<Payload>,
    ) -> Result<Response<Upstream>, Unanswered> {
        let left = lease.deadline.since(clock::now());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.headers.insert(DEADLINE, HeaderValue::from(left_ms));
        let upgrade = self.upgrade.as_ref().map(|upgrade| &upgrade.protocol);
        let client = &self.client.state;
        let head = RequestHead {
            upgrade,
            trailers: self.trailers,
            informational: Some(&self.client.informational),
            ..RequestHead::new(self.method, self.target, self.headers)
        };
        let recycle: Recycle = {
            let lease = lease.clone();
            Box::new(move |connection| lease.complete(Some(connection)))
        };
        lease.sending();
        let sent = Sent::new(Http1Exchange(connection.start(head, body, recycle)), lease.clone());
        let exchange = client.interim.until_answered(sent);
        let mut exchange = pin!(progress::within(left, lease.progress.as_ref(), exchange));
        let answer = tokio::select! {
            biased;
            answer = exchange.as_mut() => answer,
            // A machine that is lost closes no connection.
            () = lease.slot.upstream.ended() => match timeout(LAST_WORDS_WAIT, exchange).await {
                Ok(answer) => answer,
                Err(_) => return Err(Unanswered::Gone),
            },
        };
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(failed)) => Err(Unanswered::Failed(failed)),
            Err(late) => Err(Unanswered::Late(late)),
        }
    }

    pub(crate) async fn answered(
        &mut self,
        lease: Rc<Lease>,
        response: Response<Upstream>,
        held: Held,
    ) -> Attempt {
        let (answered, function) = (clock::now(), lease.function());
        let timing = self.timing_at(&lease, answered);
        let (mut parts, rest) = response.into_parts();
        let switching = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        let agreed = parts.headers.get(UPGRADE).filter(|_| switching).cloned();
        headers::strip_hop_by_hop(&mut parts.headers);
        let handler_error = failures::handler_error(parts.status, &parts.headers);
        headers::strip_platforms_words(parts.status, &mut parts.headers);
        // What the function says of its own time stays, in fields before this one.
        parts.headers.append(SERVER_TIMING, timing);
        // A version is of one connection, as those fields are: the server speaks its client's.
        parts.version = Version::HTTP_11;
        if switching && let Some(upgrade) = self.upgrade.take() {
            if let Some(entry) = self.trail.answered(parts.status, answered) {
                lease.carry(entry);
            }
            upgrade.join(&self.core.upgraded, rest, lease, held, &mut parts.headers, agreed);
            return Attempt::Answered(Response::from_parts(parts, Body::Full(None)));
        }
        match Body::of(self.core, rest, Some(lease.clone()), lease.deadline, held).await {
            Ok(body) => {
                let mut entry = self.trail.answered(parts.status, answered);
                if let Some(reason) = handler_error {
                    let said = if let Body::Full(Some(bytes)) = &body { bytes.clone() } else { Bytes::new() };
                    let id = failures::id_of(self.headers);
                    let detail = self.core.shared.failures.note_handler_error(function, reason, id, &said);
                    entry.iter_mut().for_each(|entry| entry.blame(reason, &detail));
                }
                entry.into_iter().for_each(|entry| lease.carry(entry));
                Attempt::Answered(Response::from_parts(parts, body))
            }
            Err(error) => {
                let problem = failure(&lease, &error).await;
                self.failed(&lease, problem)
            }
        }
    }

    pub(crate) fn failed(&self, lease: &Lease, problem: Problem) -> Attempt {
        Attempt::Failed(problem, self.timing(lease))
    }

    /// `Server-Timing` of an answer that is there now.
    fn timing(&self, lease: &Lease) -> HeaderValue {
        self.timing_at(lease, clock::now())
    }

    fn timing_at(&self, lease: &Lease, answered: Timestamp) -> HeaderValue {
        let slot = &lease.slot;
        let (assigned, why, stages) = (slot.at, slot.why, slot.stages.clone());
        Timing { accepted: self.accepted, assigned, why, stages }.header(answered)
    }

    pub(crate) fn too_late(&self) -> Problem {
        let waited = clock::now().since(self.accepted).as_secs_f64();
        Problem::new(
            Reason::QueueTimeout,
            format!("{waited:.3} s passed before a sandbox could be sent the request"),
        )
    }

    /// A time of the request has run out in its sandbox.
    pub(crate) fn late(&self, lease: &Lease, late: Late) -> Problem {
        match (late, &lease.progress) {
            (Late::Idle, Some(progress)) => {
                let limit = progress.limit.as_secs_f64();
                Problem::new(
                    Reason::IdleTimeout,
                    format!("no byte of the request or its answer moved for {limit} s"),
                )
            }
            _ => self.timed_out(lease),
        }
    }

    pub(crate) fn timed_out(&self, lease: &Lease) -> Problem {
        let limit = lease.deadline.since(self.accepted).as_secs_f64();
        Problem::new(Reason::RequestTimeout, format!("the function did not answer within its {limit} s"))
    }
}

/// Whether this process has no descriptor left, which is no fault of whoever it would connect to.
pub(crate) fn no_descriptor(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].iter().any(|none| errno == Some(none.raw_os_error()))
}

pub(crate) fn without_descriptor(error: &io::Error) -> Problem {
    Problem::new(Reason::DataPlaneFull, format!("no connection to a sandbox can be made here: {error}"))
}

/// Whether the connection was found unusable before a byte of the request was written: its peer had closed it, or had
/// said something on it unasked, as some servers do when they are about to close it.
fn never_sent(error: &fanfare_http1::Error) -> bool {
    let unusable = matches!(
        error.kind(),
        ErrorKind::Closed | ErrorKind::Io(_) | ErrorKind::Malformed(Malformed::Unsolicited)
    );
    unusable && error.written_bytes() == 0 && !error.response_started()
}

enum Unanswered {
    Late(Late),
    /// The sandbox has ended, and nothing more came of it.
    Gone,
    Failed(SendError<Payload>),
}

/// Why no response came though user code may have had the request.
pub(crate) async fn failure(lease: &Lease, error: &Broken) -> Problem {
    match error {
        Broken::Http1(error) => failure_http1(lease, error).await,
        Broken::Http2(error) => hung_up(lease, &error.to_string()).await,
    }
}

async fn failure_http1(lease: &Lease, error: &fanfare_http1::Error) -> Problem {
    match error.kind() {
        ErrorKind::Request(why) => {
            lease.fail(Outcome::NeverSent);
            Problem::new(Reason::BadRequest, *why)
        }
        ErrorKind::RequestBody(why) => {
            lease.fail(if error.written_bytes() == 0 { Outcome::NeverSent } else { Outcome::Abandoned });
            Problem::new(Reason::BadRequest, format!("the request's body broke off: {why}"))
        }
        ErrorKind::Malformed(why) => {
            lease.fail(Outcome::Broken);
            Problem::new(Reason::BadResponse, format!("the function's answer is not valid HTTP: {why}"))
        }
        ErrorKind::Closed | ErrorKind::Io(_) => hung_up(lease, &error.to_string()).await,
    }
}

/// The sandbox has closed its connection: why, if it has ended.
async fn hung_up(lease: &Lease, error: &str) -> Problem {
    // The slot stays taken meanwhile: whether the sandbox lives is what is being found out.
    let problem = match lease.slot.upstream.why_hung_up().await {
        Some(cause) => Problem::gone(cause),
        None => Problem::new(Reason::ConnectionClosed, format!("no answer came: {error}")),
    };
    lease.fail(Outcome::Broken);
    problem
}
