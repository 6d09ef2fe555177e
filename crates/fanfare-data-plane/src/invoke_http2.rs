//! One attempt to have a request answered by a sandbox that speaks HTTP/2.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use fanfare_dispatch::Outcome;
use fanfare_http1::RequestBody;
use fanfare_types::Reason;
use http::header::{EXPECT, HOST, HeaderValue, TE};
use http::{Request, Response, Uri, Version};
use tokio::time::timeout;

use crate::body::{Broken, Held, Upstream};
use crate::clock;
use crate::http2::{Failure, Http2};
use crate::invoke::{self, Attempt, CONNECT_TIME_FAIR, Call};
use crate::lease::Lease;
use crate::payload::Payload;
use crate::problem::Problem;
use crate::progress::{self, Late};
use crate::proof::{Http2Exchange, Sent};
use crate::upstream::LAST_WORDS_WAIT;

/// Times that a sandbox may refuse a request, or be gone before it got it, until another sandbox is tried.
const TRIES_MAX: u32 = 3;

/// Why there is no answer.
enum Unanswered {
    Late(Late),
    /// The sandbox has ended, and nothing more came of it.
    Gone,
    Failed(Failure),
}

impl Call<'_> {
    /// Sends the request to the lease's sandbox over HTTP/2.
    pub(crate) async fn attempt_http2(
        &mut self,
        lease: Rc<Lease>,
        mut body: RequestBody<Payload>,
        held: Held,
    ) -> Attempt {
        let mut last = String::new();
        for _ in 0..TRIES_MAX {
            let left = lease.deadline.since(clock::now());
            if left.is_zero() {
                lease.fail(Outcome::NeverSent);
                return self.failed(&lease, self.too_late());
            }
            let connection = match self.connection(&lease, left).await {
                Ok(connection) => connection,
                Err(why) if invoke::no_descriptor(&why) => {
                    lease.fail(Outcome::NeverSent);
                    return self.failed(&lease, invoke::without_descriptor(&why));
                }
                Err(why) => {
                    let hurried = why.kind() == io::ErrorKind::TimedOut && left < CONNECT_TIME_FAIR;
                    lease.fail(if hurried { Outcome::NeverSent } else { Outcome::Broken });
                    return Attempt::Unreached { body, held, why };
                }
            };
            match self.send_http2(&lease, &connection, left, body).await {
                Ok(response) => return self.answered(lease, response, held).await,
                Err(Unanswered::Failed(Failure::Unprocessed(why, again))) => {
                    lease.unsent();
                    lease.slot.upstream.forget_http2(&connection);
                    let Some(whole) = again else {
                        lease.fail(Outcome::NeverSent);
                        let detail = format!(
                            "the function refused the request, whose body is too large to send again: {why}"
                        );
                        return self.failed(&lease, Problem::new(Reason::ConnectionClosed, detail));
                    };
                    (body, last) = (whole, why);
                }
                Err(unanswered) => {
                    let problem = self.unanswered(&lease, unanswered).await;
                    return self.failed(&lease, problem);
                }
            }
        }
        // It may be full, or about to end: the next to get the slot finds out.
        lease.fail(Outcome::NeverSent);
        Attempt::Unreached { body, held, why: io::Error::other(last) }
    }

    async fn unanswered(&self, lease: &Rc<Lease>, why: Unanswered) -> Problem {
        match why {
            Unanswered::Late(late) => {
                lease.fail(Outcome::TimedOut);
                self.late(lease, late)
            }
            Unanswered::Gone => {
                let gone = lease.slot.upstream.gone().map(Problem::gone);
                lease.fail(Outcome::Broken);
                gone.unwrap_or_else(|| self.timed_out(lease))
            }
            Unanswered::Failed(Failure::Head(why)) => {
                lease.fail(Outcome::NeverSent);
                Problem::new(Reason::BadRequest, why)
            }
            Unanswered::Failed(Failure::Body(why)) => {
                lease.fail(Outcome::Abandoned);
                Problem::new(Reason::BadRequest, format!("the request's body broke off: {why}"))
            }
            Unanswered::Failed(Failure::Broken(error)) => invoke::failure(lease, &Broken::Http2(error)).await,
            Unanswered::Failed(Failure::Unprocessed(why, _)) => Problem::new(Reason::ConnectionClosed, why),
        }
    }

    /// A connection to the sandbox, one that others use if there is one.
    async fn connection(&self, lease: &Lease, left: Duration) -> io::Result<Http2> {
        let upstream = &lease.slot.upstream;
        if let Some(connection) = upstream.http2(self.core.index) {
            return Ok(connection);
        }
        let stream = upstream.endpoint.connect(left).await?;
        let connection = Http2::open(stream, self.core.index).await.map_err(io::Error::other)?;
        upstream.keep_http2(&connection);
        Ok(connection)
    }

    async fn send_http2(
        &mut self,
        lease: &Rc<Lease>,
        connection: &Http2,
        left: Duration,
        body: RequestBody<Payload>,
    ) -> Result<Response<Upstream>, Unanswered> {
        // Servers of this protocol rarely give leave to send a body, and no client of it waits for one long.
        self.client.state.interim.give_leave();
        let head = match self.head_http2(left) {
            Ok(head) => head,
            Err(why) => return Err(Unanswered::Failed(Failure::Head(why))),
        };
        lease.sending();
        let (connection, informational) = (connection.clone(), self.client.informational.clone());
        let exchange: Http2Exchange = Box::pin(async move {
            let response = connection.send(head, body, informational).await?;
            Ok(response.map(Upstream::Http2))
        });
        let sent = Sent::new(exchange, lease.clone());
        let mut exchange = pin!(progress::within(left, lease.progress.as_ref(), sent));
        let answer = tokio::select! {
            biased;
            answer = exchange.as_mut() => answer,
            () = lease.slot.upstream.ended() => match timeout(LAST_WORDS_WAIT, exchange).await {
                Ok(answer) => answer,
                Err(_) => return Err(Unanswered::Gone),
            },
        };
        match answer {
            Ok(answer) => answer.map_err(Unanswered::Failed),
            Err(late) => Err(Unanswered::Late(late)),
        }
    }

    fn head_http2(&self, left: Duration) -> Result<Request<()>, String> {
        let host = self.headers.get(HOST).map_or(b"function".as_slice(), HeaderValue::as_bytes);
        let uri = Uri::builder().scheme("http").authority(host).path_and_query(self.target).build();
        let mut head = Request::new(());
        *head.uri_mut() = uri.map_err(|error| format!("it cannot be sent over HTTP/2: {error}"))?;
        *head.method_mut() = self.method.clone();
        *head.version_mut() = Version::HTTP_2;
        *head.headers_mut() = self.headers.clone();
        let fields = head.headers_mut();
        fields.remove(HOST);
        fields.remove(EXPECT);
        if self.trailers {
            fields.insert(TE, HeaderValue::from_static("trailers"));
        }
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        fields.insert(invoke::DEADLINE, HeaderValue::from(left_ms));
        Ok(head)
    }
}
