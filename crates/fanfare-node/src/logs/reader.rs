//! From the files to whoever reads.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use fanfare_link::{LogRecord, LogStream};
use fanfare_types::{LogSelect, SandboxId};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::{Semaphore, watch};

use super::index::FunctionLog;
use super::segment::{self, HEADER_BYTES, TEXT_BYTES_MAX};
use super::{Wanted, platform_record};

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
    filter: Filter,
    ready: VecDeque<LogRecord>,
    failed: bool,
}

/// The lines that are wanted; those of an age as it is at `now_unix_ms`.
pub(super) fn read(log: Arc<FunctionLog>, wanted: Wanted, now_unix_ms: u64) -> BoxStream<'static, LogRecord> {
    let Wanted { tail_lines, follow, select } = wanted;
    let next = log.next_seq();
    if let Some(after) = select.after {
        return from(log, after.saturating_add(1), follow, Filter::new(select, now_unix_ms));
    }
    let filter = Filter::new(select, now_unix_ms);
    if !select.has_gaps() {
        return from(log, next.saturating_sub(u64::from(tail_lines)).max(1), follow, filter);
    }
    // How far back the last lines that are selected reach is not known before all have been looked at.
    let looked = tail(from(log.clone(), 1, false, filter), tail_lines, next);
    let last = stream::once(looked).flat_map(stream::iter);
    match follow {
        true => last.chain(from(log, next, true, filter)).boxed(),
        false => last.boxed(),
    }
}

/// The last `tail_lines` of those before the line `next`.
async fn tail(lines: BoxStream<'static, LogRecord>, tail_lines: u32, next: u64) -> VecDeque<LogRecord> {
    let mut last = VecDeque::new();
    let mut lines = lines.take_while(|line| std::future::ready(line.seq < next));
    while let Some(line) = lines.next().await {
        if last.len() >= tail_lines as usize {
            last.pop_front();
        }
        if tail_lines > 0 {
            last.push_back(line);
        }
    }
    last
}

fn from(log: Arc<FunctionLog>, seq: u64, follow: bool, filter: Filter) -> BoxStream<'static, LogRecord> {
    let written = log.watch();
    let position = Position { seq, segment: 0, offset: 0 };
    let reader = Reader { log, written, position, follow, filter, ready: VecDeque::new(), failed: false };
    stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) }).boxed()
}

/// Which lines are let through.
#[derive(Clone, Copy, Debug)]
struct Filter {
    sandbox: Option<SandboxId>,
    from_unix_ms: u64,
    to_unix_ms: u64,
}

impl Filter {
    fn new(select: LogSelect, now_unix_ms: u64) -> Self {
        let before =
            |age: Duration| now_unix_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Filter {
            sandbox: select.sandbox,
            from_unix_ms: select.age_max.map_or(0, before),
            to_unix_ms: select.age_min.map_or(u64::MAX, before),
        }
    }

    fn passes(&self, record: &LogRecord) -> bool {
        // What the platform says of the log as a whole is about every sandbox.
        let platform = record.stream == LogStream::Platform && record.sandbox.is_none();
        let whose = self.sandbox.is_none_or(|wanted| platform || record.sandbox == Some(wanted));
        whose && (self.from_unix_ms..=self.to_unix_ms).contains(&record.time_unix_ms)
    }
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
                // The turn ends with the step, also where nobody waits for it any more.
                let step = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    #[cfg(test)]
                    let _seen = seen::Step::begin();
                    step(&log, position)
                });
                match step.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
                    Ok((records, position)) => {
                        self.position = position;
                        self.ready = records;
                        self.ready.retain(|record| self.filter.passes(record));
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

/// How many steps are taken at once in this process.
#[cfg(test)]
pub(super) mod seen {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    pub(super) struct Step;

    impl Step {
        pub(super) fn begin() -> Self {
            MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            Step
        }
    }

    impl Drop for Step {
        fn drop(&mut self) {
            NOW.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(in crate::logs) fn most() -> usize {
        MOST.load(Ordering::SeqCst)
    }
}
