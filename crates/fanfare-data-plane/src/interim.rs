//! What passes between a client and a function before the answer: informational responses (1xx) one way, and the leave
//! to send the body (`Expect: 100-continue`) the other.
//!
//! The server of HTTP/1.1 has no say in either: it answers `100 Continue` by itself as soon as a body is read, and sends
//! no other informational response. So a body that was held back by its client is not read before the function asks for
//! it, and other informational responses are written to the connection between two answers of the server. That of
//! HTTP/2 sends both on the request's stream.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use crate::headers;

/// How long a function may take to ask for a body that its client holds back. Many never ask, and read.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);
/// Bytes of informational responses that wait for the connection, and on a stream of HTTP/2, where nothing tells how
/// many wait, of all; what comes beyond is left out, as any of them may be.
const BYTES_MAX: usize = 64 * 1024;

/// Bytes that a status takes, about.
const LINE_BYTES: usize = 32;

/// What a function has said before its answer.
pub(crate) type Informational = (StatusCode, HeaderMap);

/// The state of one connection of HTTP/1 or one stream of HTTP/2. One request at a time is answered on it.
#[derive(Debug, Default)]
pub(crate) struct Interim {
    /// Responses to pass on.
    responses: Mutex<Vec<Informational>>,
    there: AtomicBool,
    bytes: AtomicUsize,
    /// The client waits for leave to send the body.
    held: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Interim {
    /// A request has come, whose client `expects` leave to send the body or does not.
    pub(crate) fn begin(&self, expects: bool) {
        self.held.store(expects, Ordering::Relaxed);
        self.taken();
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Ready when the body may be read.
    pub(crate) fn poll_leave(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.held.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *self.reader.lock() = Some(cx.waker().clone());
        // It may have been given in between.
        if self.held.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Whether the client still waits for leave to send the body.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// The body may be read.
    pub(crate) fn give_leave(&self) {
        if self.held.swap(false, Ordering::Relaxed)
            && let Some(reader) = self.reader.lock().take()
        {
            reader.wake();
        }
    }

    /// The function has said this before its answer; a client that is `listening` is told.
    pub(crate) fn take(&self, status: StatusCode, fields: &HeaderMap, listening: bool) {
        if status == StatusCode::CONTINUE {
            return self.give_leave();
        }
        // A protocol that nobody has asked for is none that could be changed to.
        if !listening || status == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let mut fields = fields.clone();
        headers::strip_hop_by_hop(&mut fields);
        headers::strip_platform(&mut fields);
        let bytes = LINE_BYTES + headers::size(&fields);
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > BYTES_MAX {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        self.responses.lock().push((status, fields));
        self.there.store(true, Ordering::Relaxed);
    }

    /// What is to be passed on now.
    pub(crate) fn taken(&self) -> Vec<Informational> {
        if !self.there.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut *self.responses.lock())
    }

    /// The same as HTTP/1.1 writes it. It waits no more here.
    pub(crate) fn written(&self) -> Option<Vec<u8>> {
        let taken = self.taken();
        if taken.is_empty() {
            return None;
        }
        self.bytes.store(0, Ordering::Relaxed);
        let mut bytes = Vec::new();
        for (status, fields) in taken {
            bytes.extend_from_slice(format!("HTTP/1.1 {status}\r\n").as_bytes());
            for (name, value) in &fields {
                bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
            }
            bytes.extend_from_slice(b"\r\n");
        }
        Some(bytes)
    }

    /// Waits for the head of an answer. A body that is held back goes out when the function asks for it, when it has
    /// taken too long to, or when it has answered without.
    pub(crate) async fn until_answered<T>(&self, exchange: impl Future<Output = T>) -> T {
        if !self.is_held() {
            return exchange.await;
        }
        let impatient = async {
            tokio::time::sleep(CONTINUE_WAIT).await;
            self.give_leave();
            pending::<T>().await
        };
        let answer = tokio::select! {
            biased;
            answer = pin!(exchange) => answer,
            never = impatient => never,
        };
        self.give_leave();
        answer
    }
}
