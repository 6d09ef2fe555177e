//! What passes between a client and a function before the answer: informational responses (1xx) one way, and the leave
//! to send the body (`Expect: 100-continue`) the other.
//!
//! The server has no say in either: it answers `100 Continue` by itself as soon as a body is read, and sends no other
//! informational response. So a body that was held back by its client is not read before the function asks for it, and
//! other informational responses are written to the connection between two answers of the server. HTTP/2 clients get
//! none: the server (hyper 1.12) has no way to send them, though its frames could (`send_informational` of h2 0.4);
//! hyperium/hyper#4114 is about that. They lose hints, which any hop may leave out, and never wait for leave.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use crate::headers;

/// How long a function may take to ask for a body that its client holds back. Many never ask, and read.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);
/// Bytes of informational responses that wait for the connection; what comes beyond is left out, as any of them may be.
const BYTES_MAX: usize = 64 * 1024;

/// The state of one connection. One request at a time is answered on it.
#[derive(Debug, Default)]
pub(crate) struct Interim {
    /// Responses to write.
    bytes: Mutex<Vec<u8>>,
    there: AtomicBool,
    /// The client waits for leave to send the body.
    held: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Interim {
    /// A request has come, whose client `expects` leave to send the body or does not.
    pub(crate) fn begin(&self, expects: bool) {
        self.held.store(expects, Ordering::Relaxed);
        if self.there.swap(false, Ordering::Relaxed) {
            self.bytes.lock().clear();
        }
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
        if !listening {
            return;
        }
        let mut fields = fields.clone();
        headers::strip_hop_by_hop(&mut fields);
        headers::strip_platform(&mut fields);
        let mut bytes = self.bytes.lock();
        if bytes.len() + headers::size(&fields) > BYTES_MAX {
            return;
        }
        bytes.extend_from_slice(format!("HTTP/1.1 {status}\r\n").as_bytes());
        for (name, value) in &fields {
            bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        self.there.store(true, Ordering::Relaxed);
    }

    /// What is to be written now.
    pub(crate) fn written(&self) -> Option<Vec<u8>> {
        self.there.swap(false, Ordering::Relaxed).then(|| std::mem::take(&mut *self.bytes.lock()))
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
