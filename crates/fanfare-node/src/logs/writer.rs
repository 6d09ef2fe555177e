//! From the runtimes to the files.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, thread};

use fanfare_link::{LogRecord, LogStream};
use fanfare_sandbox::LogLine;
use fanfare_types::FunctionId;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::index::Index;
use super::segment::{self, HEADER_BYTES};
use super::{LogLimits, now_unix_ms, platform_record};

/// Items written before readers are told: bounds how late a line can be under load.
const BATCH_MAX: usize = 1_024;
/// Segment files kept open.
const OPEN_FILES_MAX: usize = 64;

/// The entrance to the writer thread. The thread ends when the last of these is gone.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Item>,
    waiting_bytes: Arc<AtomicUsize>,
    queue_bytes: usize,
    dropped: Arc<Mutex<HashMap<FunctionId, u64>>>,
}

#[derive(Debug)]
enum Item {
    Line(LogLine, u64),
    Deleted(FunctionId),
    Flush(oneshot::Sender<()>),
}

impl Writer {
    pub(super) fn start(index: Arc<Index>, limits: LogLimits) -> io::Result<Self> {
        let (queue, items) = mpsc::channel(limits.queue_lines);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let dropped = Arc::new(Mutex::new(HashMap::new()));
        let work = Work {
            index,
            items,
            waiting_bytes: waiting_bytes.clone(),
            dropped: dropped.clone(),
            open: HashMap::new(),
            deleted: VecDeque::new(),
        };
        thread::Builder::new().name("logs".into()).spawn(move || work.run())?;
        Ok(Writer { queue, waiting_bytes, queue_bytes: limits.queue_bytes, dropped })
    }

    pub(super) fn push(&self, line: LogLine) {
        let bytes = line.text.len() + HEADER_BYTES;
        let function = line.function;
        let fits = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.queue_bytes;
        if !fits || self.queue.try_send(Item::Line(line, now_unix_ms())).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            *self.dropped.lock().entry(function).or_default() += 1;
        }
    }

    /// A queue that is full loses the note: the log then goes when it has been quiet the longest.
    pub(super) fn deleted(&self, function: FunctionId) {
        let _ = self.queue.try_send(Item::Deleted(function));
    }

    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.send(Item::Flush(done)).await.is_ok() {
            // An error says that the writer is gone, and with it all that could be waited for.
            let _ = flushed.await;
        }
    }
}

/// The writer thread.
struct Work {
    index: Arc<Index>,
    items: mpsc::Receiver<Item>,
    waiting_bytes: Arc<AtomicUsize>,
    dropped: Arc<Mutex<HashMap<FunctionId, u64>>>,
    /// The last segment of functions written lately.
    open: HashMap<FunctionId, (u64, File)>,
    /// Functions that write no more, the one deleted first in front; at most as many as are kept.
    deleted: VecDeque<FunctionId>,
}

impl Work {
    fn run(mut self) {
        let mut batch = Vec::new();
        while self.items.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            let mut lines: HashMap<FunctionId, Vec<LogRecord>> = HashMap::new();
            let mut flushes = Vec::new();
            let mut deleted = Vec::new();
            for item in batch.drain(..) {
                match item {
                    Item::Line(line, time_unix_ms) => {
                        self.waiting_bytes.fetch_sub(line.text.len() + HEADER_BYTES, Ordering::Relaxed);
                        lines.entry(line.function).or_default().push(record(line, time_unix_ms));
                    }
                    Item::Deleted(function) => deleted.push(function),
                    Item::Flush(done) => flushes.push(done),
                }
            }
            // The queue was full when these were dropped, so something of it is in this batch or was before it.
            for (function, count) in std::mem::take(&mut *self.dropped.lock()) {
                let text =
                    format!("{count} lines were dropped: the log was written faster than the disk takes it");
                lines.entry(function).or_default().push(platform_record(text));
            }
            for (function, records) in lines {
                if let Err(error) = self.append(function, records) {
                    self.open.remove(&function);
                    tracing::warn!(%function, %error, "cannot write a function's log");
                }
            }
            self.make_room(deleted);
            for flush in flushes {
                // Whoever asked may have left.
                let _ = flush.send(());
            }
        }
    }

    /// Removes logs beyond what is kept.
    fn make_room(&mut self, deleted: Vec<FunctionId>) {
        self.deleted.retain(|known| !deleted.contains(known));
        self.deleted.extend(deleted);
        let surplus = self.deleted.len().saturating_sub(self.index.limits.deleted_max);
        let mut removed: Vec<_> = self.deleted.drain(..surplus).collect();
        removed.iter().for_each(|function| self.index.remove(*function));
        removed.extend(self.index.remove_surplus());
        for function in removed {
            self.open.remove(&function);
        }
    }

    /// Appends records, each segment with one write.
    fn append(&mut self, function: FunctionId, records: Vec<LogRecord>) -> io::Result<()> {
        let log = self.index.function(function);
        let mut next_seq = log.next_seq();
        let mut records = records.into_iter().peekable();
        let mut bytes = Vec::new();
        while records.peek().is_some() {
            let current = log.last_segment().filter(|segment| segment.bytes < self.index.segment_bytes());
            let (first_seq, used) = match current {
                Some(segment) => (segment.first_seq, segment.bytes),
                None => {
                    fs::create_dir_all(&log.dir)?;
                    (next_seq, 0)
                }
            };
            while let Some(mut record) =
                records.next_if(|_| used + (bytes.len() as u64) < self.index.segment_bytes())
            {
                record.seq = next_seq;
                next_seq += 1;
                segment::encode(&record, &mut bytes);
            }
            self.file(function, &log.path(first_seq), first_seq, current.is_none())?.write_all(&bytes)?;
            if current.is_none() {
                log.begin_segment(first_seq);
            }
            log.publish(first_seq, bytes.len() as u64, next_seq);
            self.index.appended(&log, bytes.len() as u64);
            bytes.clear();
        }
        Ok(())
    }

    fn file(
        &mut self,
        function: FunctionId,
        path: &std::path::Path,
        first_seq: u64,
        new: bool,
    ) -> io::Result<&mut File> {
        if self.open.get(&function).is_none_or(|(open, _)| *open != first_seq) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.open.clear();
            }
            let mut options = File::options();
            // What a failed write may have left of a segment that never became one goes.
            options.create(new).truncate(new).write(true);
            let mut file = options.open(path)?;
            if !new {
                // Appends begin where the readable part ends, whatever a failed write left behind it.
                let readable =
                    self.index.function(function).last_segment().map_or(0, |segment| segment.bytes);
                file.set_len(readable)?;
                io::Seek::seek(&mut file, io::SeekFrom::Start(readable))?;
            }
            self.open.insert(function, (first_seq, file));
        }
        match self.open.get_mut(&function) {
            Some((_, file)) => Ok(file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn record(line: LogLine, time_unix_ms: u64) -> LogRecord {
    let stream = match line.stream {
        fanfare_sandbox::LogStream::Stdout => LogStream::Stdout,
        fanfare_sandbox::LogStream::Stderr => LogStream::Stderr,
        fanfare_sandbox::LogStream::Platform => LogStream::Platform,
    };
    LogRecord { seq: 0, time_unix_ms, sandbox: line.sandbox, stream, text: line.text }
}
