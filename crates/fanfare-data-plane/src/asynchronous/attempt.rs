//! One attempt of one call.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use fanfare_async::{End, InvocationId, Payload as Kept};
use fanfare_store::Store;
use fanfare_types::limits::FAILURE_DETAIL_BYTES_MAX;
use fanfare_types::{ExitCause, FunctionId, FunctionName, Reason};
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, request};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::log::{self, Kind};
use super::message;
use super::session::{Answer, Happened, Inbox};
use super::{ATTEMPT, INVOCATION_ID};
use crate::activity::Activity;
use crate::body::{Body, Cut};
use crate::core::Core;
use crate::function::{Function, Slot};
use crate::payload::Payload;
use crate::problem::REASON;
use crate::request::{self as requests, SERVER_TIMING};
use crate::request_id::REQUEST_ID;
use crate::upstream::Upstream;

/// A result up to this takes no turn.
const SMALL_RESULT_BYTES: usize = 64 << 10;
/// Larger results that are read at once; others wait, and their functions with them.
pub(super) const LARGE_RESULTS_MAX: usize = 16;
/// How long the control plane may take to say that the node was lost that ran a sandbox which hung up.
const CAUSE_WAIT: Duration = Duration::from_secs(2);
/// How long the first word of the control plane is waited for.
const SYNC_WAIT: Duration = Duration::from_secs(5);

pub(super) struct Attempt {
    pub(super) core: Rc<Core>,
    pub(super) store: Arc<dyn Store>,
    pub(super) inbox: Rc<Inbox>,
    pub(super) activity: Rc<Activity>,
    pub(super) large: Arc<Semaphore>,
    pub(super) result_bytes_max: u64,
    pub(super) id: InvocationId,
    pub(super) number: u32,
    pub(super) function: FunctionId,
    pub(super) name: FunctionName,
    pub(super) payload: Kept,
    /// The request, where it is still in memory.
    pub(super) fresh: Option<Bytes>,
    /// What it ran in last.
    pub(super) upstream: Rc<RefCell<Option<Arc<Upstream>>>>,
}

impl Attempt {
    /// Runs to its end, and reports it. Dropped before that, it ends the sandbox if user code may have begun.
    pub(super) async fn run(mut self) {
        let (end, answer) = match self.execute().await {
            Ok(response) => self.keep(response).await,
            Err(end) => (end, None),
        };
        let end = self.blame(end).await;
        tracing::debug!(id = %self.id, attempt = self.number, ?end, "an attempt has ended");
        self.inbox.push(Happened::Ended { sequence: self.id.sequence, attempt: self.number, end, answer });
    }

    async fn execute(&mut self) -> Result<Response<Body>, End> {
        let function = self.find().await?;
        let (parts, trailers, payload) = self.request().await?;
        let (inbox, sequence, attempt) = (self.inbox.clone(), self.id.sequence, self.number);
        let upstream = self.upstream.clone();
        let assigned = Box::new(move |slot: &Slot| {
            *upstream.borrow_mut() = Some(slot.upstream.clone());
            inbox.push(Happened::Assigned { sequence, attempt });
        });
        let answered = requests::attempt(
            &self.core,
            &function,
            parts,
            trailers,
            payload,
            self.activity.begin(),
            assigned,
        );
        Box::pin(answered).await.map_err(|failed| {
            let (reason, detail) = (failed.problem.reason, short(failed.problem.detail()));
            if failed.reached {
                return End::Broken { reason, detail, by_platform: false };
            }
            let retry_after = failed.problem.retry_after_s().map(|s| Duration::from_secs(s.into()));
            End::Refused { reason, detail, retry_after }
        })
    }

    /// Whether the platform is to blame that no answer came. Of a sandbox that hung up it is said late that its node was
    /// lost; one that lives is stopped for having hung up.
    async fn blame(&self, end: End) -> End {
        let End::Broken { reason, detail, .. } = end else { return end };
        let upstream = self.upstream.borrow().clone();
        let cause = match (&upstream, reason) {
            (Some(upstream), Reason::ConnectionClosed) => upstream.cause(CAUSE_WAIT).await,
            (Some(upstream), Reason::SandboxExited) => upstream.gone(),
            _ => None,
        };
        let exit = cause.map(|cause| cause.exit);
        match (reason, exit) {
            (Reason::ConnectionClosed, Some(ExitCause::NodeLost)) => {
                End::Broken { reason: Reason::NodeLost, detail, by_platform: true }
            }
            (Reason::SandboxExited, Some(ExitCause::Stopped)) | (Reason::NodeLost, _) => {
                End::Broken { reason, detail, by_platform: true }
            }
            _ => End::Broken { reason, detail, by_platform: false },
        }
    }

    async fn find(&self) -> Result<Arc<Function>, End> {
        let shared = &self.core.shared;
        let mut synced = shared.synced.subscribe();
        if tokio::time::timeout(SYNC_WAIT, synced.wait_for(|synced| *synced)).await.is_err() {
            return Err(refused(
                Reason::NotSynced,
                "the control plane has not said yet which functions there are",
            ));
        }
        let found = shared.directory.find(self.name.as_str()).filter(|found| found.id == self.function);
        found.ok_or_else(|| refused(Reason::FunctionNotFound, "the function was removed"))
    }

    async fn request(&mut self) -> Result<(request::Parts, bool, Payload), End> {
        let bytes = match self.fresh.take() {
            Some(bytes) => bytes,
            None => {
                let read = log::read(&self.store, Kind::Payload, self.payload.key, self.payload.bytes).await;
                read.map_err(|error| {
                    tracing::error!(id = %self.id, %error, "the request cannot be read");
                    refused(Reason::Unavailable, &format!("the request cannot be read: {error}"))
                })?
            }
        };
        let damaged = || refused(Reason::BadRequest, "the request that was kept is damaged");
        let kept = message::Request::decode(bytes).ok_or_else(damaged)?;
        let request = http::Request::builder().method(kept.method).uri(kept.target).body(());
        let (mut parts, ()) = request.map_err(|_| damaged())?.into_parts();
        parts.headers = kept.headers;
        let id = HeaderValue::try_from(self.id.to_string()).map_err(|_| damaged())?;
        // What no client sent goes by its own name.
        parts.headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
        parts.headers.insert(INVOCATION_ID, id);
        parts.headers.insert(ATTEMPT, HeaderValue::from(self.number));
        Ok((parts, kept.trailers, Payload::kept(kept.body, kept.counted)))
    }

    /// Reads the answer to its end, be it kept or not: only then user code has ended.
    async fn keep(&self, response: Response<Body>) -> (End, Option<Answer>) {
        let (mut parts, body) = response.into_parts();
        let mut body = pin!(body);
        let mut whole = BytesMut::new();
        let mut room: Option<OwnedSemaphorePermit> = None;
        let mut too_large = false;
        while let Some(frame) = body.frame().await {
            let data = match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => data,
                // Trailers are not kept.
                Ok(Err(_)) => continue,
                Err(cut) => return (broken_off(&cut), None),
            };
            if too_large || (whole.len() + data.len()) as u64 > self.result_bytes_max {
                (whole, too_large) = (BytesMut::new(), true);
                continue;
            }
            if whole.len() + data.len() > SMALL_RESULT_BYTES && room.is_none() {
                // Closed only with the session, which ends this attempt.
                room = self.large.clone().acquire_owned().await.ok();
            }
            whole.extend_from_slice(&data);
        }
        let status = parts.status;
        let retry_after = retry_after(&parts.headers);
        let reason = parts.headers.get(REASON).and_then(|code| code.to_str().ok());
        let reason = reason.and_then(|code| Reason::ALL.iter().copied().find(|r| r.code() == code));
        drop_own_timing(&mut parts.headers);
        let bytes = message::Response::encode(status, &parts.headers, &whole);
        let kept = (!too_large).then_some(bytes.len() as u64);
        let end = End::Answered { status: status.as_u16(), reason, retry_after, bytes: kept };
        (end, kept.map(|_| Answer { bytes, room }))
    }
}

fn refused(reason: Reason, detail: &str) -> End {
    End::Refused { reason, detail: short(detail), retry_after: None }
}

fn broken_off(cut: &Cut) -> End {
    let reason = match cut {
        Cut::Timeout => Reason::RequestTimeout,
        Cut::Idle => Reason::IdleTimeout,
        Cut::Gone => Reason::SandboxExited,
        Cut::Upstream(_) => Reason::ConnectionClosed,
    };
    End::Broken { reason, detail: short(&cut.to_string()), by_platform: false }
}

/// As much of a sentence as is kept.
fn short(text: &str) -> Arc<str> {
    text.get(..text.floor_char_boundary(FAILURE_DETAIL_BYTES_MAX)).unwrap_or(text).into()
}

/// What the platform added to the function's own, if that has any.
fn drop_own_timing(headers: &mut HeaderMap) {
    let mut values: Vec<_> = headers.get_all(SERVER_TIMING).iter().cloned().collect();
    headers.remove(SERVER_TIMING);
    values.pop();
    for value in values {
        headers.append(SERVER_TIMING, value);
    }
}

/// Seconds, or a date, which only a wall clock can make a pause of.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let parse = |text: &str| {
            let value = HeaderValue::try_from(text).unwrap();
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]))
        };
        assert_eq!(parse("120"), Some(Duration::from_secs(120)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "a date that has passed");
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        let left = parse(&date).unwrap();
        assert!((Duration::from_secs(80)..=Duration::from_secs(90)).contains(&left), "{left:?}");
        for bad in ["", "soon", "-1", "1.5"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_platforms_timing_is_taken_off() {
        let mut headers = HeaderMap::new();
        headers.append(SERVER_TIMING, HeaderValue::from_static("db;dur=1"));
        headers.append(SERVER_TIMING, HeaderValue::from_static("queue;dur=2"));
        drop_own_timing(&mut headers);
        assert_eq!(headers.get_all(SERVER_TIMING).iter().collect::<Vec<_>>(), ["db;dur=1"]);
        drop_own_timing(&mut headers);
        assert!(headers.is_empty());
    }
}
