//! The server's side of a client's connection.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use h2::server::{self, Handshake, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, Sleep, sleep};

use super::body::{self, Received};
use super::refusals::Refusals;
use crate::body::Body;
use crate::client_stream::ClientState;
use crate::headers::{self, Client};
use crate::incoming::Incoming;

/// Streams of one connection at once.
const STREAMS_MAX: u32 = 1_024;
/// Bytes of one request that may come before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same of all on a connection: a few uploads that wait for a slot do not hold up the others.
const CONNECTION_WINDOW_BYTES: u32 = 8 * STREAM_WINDOW_BYTES;
/// A connection that answers requests with `serve`, each on a task of its own, until it ends.
pub(crate) struct Connection<S> {
    state: State,
    client: Rc<Client>,
    serve: Box<S>,
    /// How long a client may be silent before it is asked, and after that.
    silence_max: Duration,
    leaving: bool,
}

enum State {
    Beginning(Handshake<Refusals, Bytes>),
    Open(server::Connection<Refusals, Bytes>, KeepAlive),
}

impl<S, F> Connection<S>
where
    S: Fn(Rc<Client>, Request<Incoming>) -> F + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    pub(crate) fn new(stream: Refusals, client: Rc<Client>, serve: S, silence_max: Duration) -> Self {
        let handshake = server::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_MAX)
            // It counts 32 more for each field.
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .handshake(stream);
        let state = State::Beginning(handshake);
        Connection { state, client, serve: Box::new(serve), silence_max, leaving: false }
    }

    /// Takes no more requests, and ends with the last answer.
    pub(crate) fn graceful_shutdown(&mut self) {
        self.leaving = true;
        if let State::Open(connection, _) = &mut self.state {
            connection.graceful_shutdown();
        }
    }

    fn begin(&self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let client = Rc::new(self.client.on_stream());
        let (parts, stream) = request.into_parts();
        let body = Received::of_request(stream, &parts.headers);
        let expects = headers::expects_leave(&parts.headers) && !body.is_end_stream();
        client.state.begin(parts.version, expects);
        let stream = Stream { state: client.state.clone(), expects, respond };
        let request = Request::from_parts(parts, Incoming::Http2(body));
        // Here, and not on its task: the connection is in use from now on.
        let answer = (self.serve)(client, request);
        tokio::task::spawn_local(async move {
            if let Err(error) = stream.answer(answer).await {
                tracing::debug!(%error, "a stream ended early");
            }
        });
    }
}

impl<S, F> Future for Connection<S>
where
    S: Fn(Rc<Client>, Request<Incoming>) -> F + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    type Output = Result<(), h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let this = self.get_mut();
        if let State::Beginning(handshake) = &mut this.state {
            let mut connection = ready!(Pin::new(handshake).poll(cx))?;
            let keep_alive = KeepAlive::new(connection.ping_pong(), this.silence_max);
            if this.leaving {
                connection.graceful_shutdown();
            }
            this.state = State::Open(connection, keep_alive);
        }
        loop {
            let State::Open(connection, keep_alive) = &mut this.state else { return Poll::Pending };
            if keep_alive.poll_silent(cx).is_ready() {
                tracing::debug!("a client of HTTP/2 is silent");
                return Poll::Ready(Ok(()));
            }
            match ready!(connection.poll_accept(cx)) {
                Some(Ok((request, respond))) => this.begin(request, respond),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Asks a client from time to time whether it is there: one that has gone without a word cannot be told goodbye either.
struct KeepAlive {
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    silence_max: Duration,
    asked: bool,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, silence_max: Duration) -> Self {
        KeepAlive { pings, timer: Box::pin(sleep(silence_max)), silence_max, asked: false }
    }

    /// Ready when the client has not answered in time.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        loop {
            // An error is the connection's, and seen there.
            if self.asked && pings.poll_pong(cx).is_ready() {
                self.asked = false;
                self.timer.as_mut().reset(Instant::now() + self.silence_max);
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.asked || pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            self.asked = true;
            self.timer.as_mut().reset(Instant::now() + self.silence_max);
        }
    }
}

/// One request's stream.
struct Stream {
    state: std::sync::Arc<ClientState>,
    /// The client waits for leave to send its body, and has not been told.
    expects: bool,
    respond: SendResponse<Bytes>,
}

impl Stream {
    /// Answers, unless the client resets the stream first.
    async fn answer<F>(mut self, answer: F) -> Result<(), body::Unsent<crate::body::Cut>>
    where
        F: Future<Output = Result<Response<Body>, Infallible>>,
    {
        let mut answer = pin!(answer);
        let answered = poll_fn(|cx| {
            let polled = answer.as_mut().poll(cx);
            self.tell_informational(polled.is_ready())?;
            match polled {
                Poll::Ready(answered) => Poll::Ready(Ok(answered)),
                Poll::Pending => match self.respond.poll_reset(cx) {
                    Poll::Ready(reason) => Poll::Ready(Err(h2::Error::from(reason?))),
                    Poll::Pending => Poll::Pending,
                },
            }
        });
        let Ok(response) = answered.await?;
        let (mut parts, body) = response.into_parts();
        let ends = body.is_end_stream();
        complete(&mut parts.headers, (!ends).then_some(&body));
        let mut stream = self.respond.send_response(Response::from_parts(parts, ()), ends)?;
        if ends { Ok(()) } else { body::send(body, &mut stream).await }
    }

    /// Passes on what the function has said before its answer, which may be `there`.
    fn tell_informational(&mut self, there: bool) -> Result<(), h2::Error> {
        if self.expects && !there && !self.state.interim.is_held() {
            self.expects = false;
            self.inform(StatusCode::CONTINUE, HeaderMap::new())?;
        }
        for (status, fields) in self.state.interim.taken() {
            self.inform(status, fields)?;
        }
        Ok(())
    }

    fn inform(&mut self, status: StatusCode, fields: HeaderMap) -> Result<(), h2::Error> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        self.respond.send_informational(response)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A request that is read on for its sandbox's sake has nobody to tell.
        self.state.ignore_informational();
    }
}

/// The time of day as an answer says it, made once a second.
fn date() -> HeaderValue {
    thread_local! {
        static LAST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|(last, text)| {
        if *last != second
            && let Ok(new) = HeaderValue::try_from(httpdate::fmt_http_date(now))
        {
            (*last, *text) = (second, new);
        }
        text.clone()
    })
}

/// Makes the fields of an answer those of this protocol; `body` is what follows.
fn complete(fields: &mut HeaderMap, body: Option<&Body>) {
    body::strip_connection(fields);
    fields.entry(DATE).or_insert_with(date);
    if let Some(length) = body.and_then(|body| body.size_hint().exact()) {
        fields.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::http2::body::OF_CONNECTIONS;

    #[test]
    fn answers_lose_what_is_of_a_connection_and_get_what_they_lack() {
        let mut fields = HeaderMap::new();
        for name in OF_CONNECTIONS {
            fields.insert(name, HeaderValue::from_static("x"));
        }
        fields.insert("x-own", HeaderValue::from_static("x"));
        complete(&mut fields, Some(&Body::full(Bytes::from_static(b"four"))));
        let mut names: Vec<&str> = fields.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "date", "x-own"]);
        assert_eq!(fields[CONTENT_LENGTH], "4");
    }
}
