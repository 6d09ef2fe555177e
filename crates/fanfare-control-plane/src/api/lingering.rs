//! A connection as its server writes it: what is no request is refused with a reason, and the last answer is not lost
//! though its request was not read to its end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use fanfare_api::{PROBLEM_CONTENT_TYPE, Problem};
use fanfare_http1::{Heard, Linger, OwnFrames, OwnWords, Turn};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::guard::REQUEST_ID;
use super::problem::REASON_HEADER;

/// What is said to what is no request, in place of the server's own.
pub(super) type Refuse = Arc<dyn Fn(StatusCode, &Heard, &Turn) -> Problem + Send + Sync>;

/// Reads on for a moment when it is closed, if it was closed too early.
pub(super) struct Lingering {
    stream: TcpStream,
    own: Own,
    heard: Heard,
    turn: Arc<Turn>,
    refuse: Refuse,
    early: Arc<AtomicBool>,
    /// Since it was closed for writing.
    linger: Option<Linger>,
}

impl Lingering {
    /// `early` says, by the time it is closed, whether something was not read.
    pub(super) fn new(stream: TcpStream, turn: Arc<Turn>, refuse: Refuse, early: Arc<AtomicBool>) -> Self {
        Lingering { stream, own: Own::Unknown, heard: Heard::default(), turn, refuse, early, linger: None }
    }
}

/// How the server's own words are found.
enum Own {
    /// It has said nothing yet.
    Unknown,
    Http1(OwnWords),
    Http2(OwnFrames),
}

impl Own {
    /// What a server says first tells what it speaks.
    fn known(&mut self, first: &[u8]) {
        if matches!(self, Own::Unknown) && !first.is_empty() {
            *self = match first.starts_with(b"HTTP/") {
                true => Own::Http1(OwnWords::default()),
                false => Own::Http2(OwnFrames::default()),
            };
        }
    }

    /// Whether there were some that end the connection.
    fn end(&self) -> bool {
        matches!(self, Own::Http1(words) if words.are_there())
    }
}

/// A refusal as HTTP/1.1 writes it.
fn written(problem: &Problem) -> Vec<u8> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    // A document of texts and numbers always has a JSON form.
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-type: {PROBLEM_CONTENT_TYPE}\r\n").into_bytes();
    for (name, value) in fields(problem, body.len()) {
        head.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    [&head, &b"connection: close\r\n\r\n"[..], &body].concat()
}

fn fields(problem: &Problem, body_bytes: usize) -> Vec<(HeaderName, HeaderValue)> {
    let text = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    vec![
        (REASON_HEADER, text(&problem.reason)),
        (REQUEST_ID, text(&problem.request_id)),
        (http::header::CONTENT_LENGTH, HeaderValue::from(body_bytes)),
    ]
}

impl AsyncRead for Lingering {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if !matches!(this.own, Own::Http2(_)) {
            this.heard.read(&this.turn, &buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.own.known(bufs.first().map_or(&[], |first| first));
        match &mut this.own {
            Own::Unknown => Pin::new(&mut this.stream).poll_write_vectored(cx, bufs),
            Own::Http1(words) => {
                let refuse = |status| written(&(this.refuse)(status, &this.heard, &this.turn));
                words.poll_write(cx, &mut this.stream, bufs, &this.turn, refuse)
            }
            Own::Http2(frames) => {
                let nothing = Heard::default();
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                let refuse = || fields(&(this.refuse)(status, &nothing, &this.turn), 0);
                frames.poll_write(cx, &mut this.stream, bufs, refuse)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.early.load(Ordering::Relaxed) && !this.own.end() {
                return Poll::Ready(Ok(()));
            }
        }
        this.linger.get_or_insert_default().poll(cx, &mut this.stream).map(Ok)
    }
}
