//! From the files to whoever reads.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use fanfare_link::LogRecord;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::{Semaphore, watch};

use super::index::FunctionLog;
use super::platform_record;
use super::segment::{self, HEADER_BYTES, TEXT_BYTES_MAX};

/// Bytes of a segment that one step reads; at least one record of the largest size.
const STEP_BYTES: usize = 256 * 1024;
const _: () = assert!(STEP_BYTES >= HEADER_BYTES + TEXT_BYTES_MAX);

/// Steps taken at once. Each keeps a thread busy: with one for every reader, those that must be in time, such as the
/// node's heartbeat, would get their turn too late.
pub(super) const STEPS_MAX: usize = 2;
static STEPS: Semaphore = Semaphore::const_new(STEPS_MAX);

/// Where a reader is.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The next line wanted.
    seq: u64,
    /// The segment read last and how far; only a hint.
    segment: u64,
    offset: u64,
}

struct Reader {
    log: Arc<FunctionLog>,
    written: watch::Receiver<u64>,
    position: Position,
    follow: bool,
    ready: VecDeque<LogRecord>,
    failed: bool,
}

pub(super) fn read(log: Arc<FunctionLog>, tail_lines: u32, follow: bool) -> BoxStream<'static, LogRecord> {
    let written = log.watch();
    let seq = log.next_seq().saturating_sub(u64::from(tail_lines)).max(1);
    let position = Position { seq, segment: 0, offset: 0 };
    let reader = Reader { log, written, position, follow, ready: VecDeque::new(), failed: false };
    stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) }).boxed()
}

impl Reader {
    async fn next(&mut self) -> Option<LogRecord> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Some(record);
            }
            if self.failed {
                return None;
            }
            if *self.written.borrow_and_update() > self.position.seq {
                let (log, position) = (self.log.clone(), self.position);
                // An error would say that the semaphore is closed, which nobody does.
                let turn = STEPS.acquire().await;
                let step = tokio::task::spawn_blocking(move || step(&log, position)).await;
                drop(turn);
                match step.unwrap_or_else(|error| Err(io::Error::other(error))) {
                    Ok((records, position)) => {
                        self.position = position;
                        self.ready = records;
                    }
                    Err(error) => {
                        self.failed = true;
                        return Some(platform_record(format!("the log cannot be read further: {error}")));
                    }
                }
            } else if !self.follow || self.written.changed().await.is_err() {
                return None;
            }
        }
    }
}

/// Reads some of what is there from `position` on, and says where to go on.
fn step(log: &FunctionLog, mut position: Position) -> io::Result<(VecDeque<LogRecord>, Position)> {
    let Some((found, last)) = log.segment_of(position.seq) else {
        // Everything has rotated away.
        position.seq = log.next_seq();
        return Ok((VecDeque::new(), position));
    };
    if position.seq < found.first_seq {
        position.seq = found.first_seq;
    }
    if position.segment != found.first_seq {
        position.segment = found.first_seq;
        position.offset = 0;
    }
    let left = found.bytes.saturating_sub(position.offset);
    if left == 0 && !last {
        // The segment has fewer lines than it should: half of one was lost in a crash.
        position.seq = log.segment_after(found.first_seq).unwrap_or_else(|| log.next_seq());
        return Ok((VecDeque::new(), position));
    }
    let mut bytes = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(STEP_BYTES)];
    let read = File::open(log.path(found.first_seq)).and_then(|mut file| {
        file.seek(SeekFrom::Start(position.offset))?;
        file.read_exact(&mut bytes)
    });
    match read {
        Ok(()) => {}
        // Rotated away between the look and the read: the next look finds what is there.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && log.segment_of(position.seq) != Some((found, last)) =>
        {
            return Ok((VecDeque::new(), position));
        }
        Err(error) => return Err(error),
    }
    let mut records = VecDeque::new();
    let mut used = 0;
    while let Some((record, len)) = segment::decode(&bytes[used..]) {
        used += len;
        if record.seq >= position.seq {
            position.seq = record.seq + 1;
            records.push_back(record);
        }
    }
    position.offset += used as u64;
    if used == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a segment is damaged"));
    }
    Ok((records, position))
}
