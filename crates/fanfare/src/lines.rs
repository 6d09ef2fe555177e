//! Newline-delimited JSON, as it arrives.

use bytes::{Buf, BytesMut};
use fanfare_api::LogLineDocument;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::exit::Failure;
use crate::http::root_cause;

/// Bytes of one line.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Lines of a log.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(body: Incoming) -> Self {
        Lines { body, buffer: BytesMut::new(), ended: false }
    }

    /// The next line; `None` when the server has ended the log. Cancel-safe.
    ///
    /// # Errors
    /// The connection broke, or a line is not what this release expects.
    pub(crate) async fn next(&mut self) -> Result<Option<LogLineDocument>, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return parse(&line).map(Some);
            }
            if self.ended {
                let rest = self.buffer.split();
                return if rest.trim_ascii().is_empty() { Ok(None) } else { parse(&rest).map(Some) };
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(Failure::platform(format!("a log line is over {LINE_BYTES_MAX} bytes")));
            }
            match self.body.frame().await {
                None => self.ended = true,
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().ok()),
                Some(Err(e)) => {
                    return Err(Failure::platform(format!("the log broke off: {}", root_cause(&e))));
                }
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<LogLineDocument, Failure> {
    serde_json::from_slice(line)
        .map_err(|e| Failure::platform(format!("a log line is not what this release expects: {e}")))
}
