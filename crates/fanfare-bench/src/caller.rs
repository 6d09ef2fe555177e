//! One request at a time over one connection that stays open.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::socket::{Socket, Target};
use crate::wire::{self, Answer, Frame};

/// Longest wait for one answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 16 << 10;

/// A connection that is called over.
#[derive(Debug)]
pub(crate) struct Caller {
    target: Target,
    socket: Socket,
    buffer: Vec<u8>,
}

impl Caller {
    pub(crate) fn connect(target: Target) -> Result<Caller> {
        let socket = open(&target)?;
        Ok(Caller { target, socket, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends `request` and waits for its answer: the time is from just before the first byte is written to just after
    /// the last one was read.
    pub(crate) fn call(&mut self, request: &[u8]) -> Result<(Duration, Answer<'_>)> {
        let begun = Instant::now();
        self.socket.write_all(request).context(format!("write to {}", self.target))?;
        let frame = self.read()?;
        let elapsed = begun.elapsed();
        if frame.closes {
            self.socket = open(&self.target)?;
        }
        Ok((elapsed, Answer::new(frame, &self.buffer)))
    }

    fn read(&mut self) -> Result<Frame> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                if filled >= wire::ANSWER_BYTES_MAX {
                    return Err(Error::new(format!("{} answers without end", self.target)));
                }
                self.buffer.resize(filled * 2, 0);
            }
            let target = &self.target;
            let read = self.socket.read(&mut self.buffer[filled..]).context(format!("read from {target}"))?;
            if read == 0 {
                return Err(Error::new(format!("{target} closed the connection within an answer")));
            }
            filled += read;
            if let Some(frame) = wire::parse(&self.buffer[..filled])? {
                return Ok(frame);
            }
        }
    }
}

fn open(target: &Target) -> Result<Socket> {
    let socket = Socket::connect(target)?;
    socket.set_timeout(CALL_TIMEOUT).context("set a timeout")?;
    Ok(socket)
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n").into_bytes();
    if !content_type.is_empty() {
        bytes.extend_from_slice(
            format!("content-type: {content_type}\r\ncontent-length: {}\r\n", body.len()).as_bytes(),
        );
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// The bytes of a request without a body.
pub(crate) fn get(path: &str) -> Vec<u8> {
    request("GET", path, "", b"")
}
