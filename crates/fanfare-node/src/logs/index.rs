//! Which segments there are.

use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use std::{fs, io};

use fanfare_types::FunctionId;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{LogLimits, segment};

/// Segments that one function's ring has at most: what is dropped at once is one of so many parts.
const SEGMENTS_MAX: u64 = 8;

/// Where the number is kept that a new log's lines begin with.
const FIRST_SEQ: &str = "first-seq";

/// All functions that have a log or a reader.
#[derive(Debug)]
pub(super) struct Index {
    dir: PathBuf,
    /// Differs when the numbers of lines have begun anew.
    pub(super) id: u64,
    pub(super) limits: LogLimits,
    functions: Mutex<HashMap<FunctionId, Arc<FunctionLog>>>,
    /// Bytes on disk.
    total_bytes: AtomicU64,
    /// What a new log's lines are numbered from: no number of a log that was removed is given again.
    first_seq: AtomicU64,
    /// Counts writes, to tell which log has been quiet the longest.
    writes: AtomicU64,
}

/// One function's ring. Changed by the writer alone; the lock is never held across a file operation.
#[derive(Debug)]
pub(super) struct FunctionLog {
    pub(super) dir: PathBuf,
    state: Mutex<State>,
    /// The number of the next line: what readers wait on.
    written: watch::Sender<u64>,
    last_write: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    segments: VecDeque<Segment>,
}

/// One file of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first_seq: u64,
    /// Readable bytes.
    pub(super) bytes: u64,
}

impl Index {
    pub(super) fn open(dir: PathBuf, limits: LogLimits) -> io::Result<Self> {
        // What functions print may be anybody's secret.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let id = identity(&dir)?;
        let first_seq = first_seq(&dir)?;
        let mut found = Vec::new();
        let mut total_bytes = 0;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let Some(function) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let log = FunctionLog::open(entry.path())?;
            total_bytes += log.bytes();
            found.push((log.modified(), function, log));
        }
        found.sort_unstable_by_key(|(modified, function, _)| (*modified, *function));
        let writes = found.len() as u64;
        let mut functions = HashMap::new();
        for ((_, function, log), turn) in found.into_iter().zip(1..) {
            log.last_write.store(turn, Ordering::Relaxed);
            functions.insert(FunctionId(function), Arc::new(log));
        }
        Ok(Index {
            dir,
            id,
            limits,
            functions: Mutex::new(functions),
            total_bytes: AtomicU64::new(total_bytes),
            first_seq: AtomicU64::new(first_seq),
            writes: AtomicU64::new(writes),
        })
    }

    pub(super) fn function(&self, id: FunctionId) -> Arc<FunctionLog> {
        let first_seq = self.first_seq.load(Ordering::Relaxed);
        let new = || Arc::new(FunctionLog::new(self.dir.join(id.0.to_string()), VecDeque::new(), first_seq));
        self.functions.lock().entry(id).or_insert_with(new).clone()
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        (self.limits.function_bytes / SEGMENTS_MAX).max(1)
    }

    /// Accounts for appended bytes and makes room where a limit is exceeded.
    pub(super) fn appended(&self, log: &FunctionLog, bytes: u64) {
        log.last_write.store(self.writes.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        while log.bytes() > self.limits.function_bytes && self.drop_oldest(log, 1) {}
        while self.total_bytes.load(Ordering::Relaxed) > self.limits.total_bytes {
            let quietest = self.quietest();
            if !quietest.is_some_and(|quietest| self.drop_oldest(&quietest, 0)) {
                break;
            }
        }
    }

    fn quietest(&self) -> Option<Arc<FunctionLog>> {
        let functions = self.functions.lock();
        let with_bytes = functions.values().filter(|log| log.bytes() > 0);
        with_bytes.min_by_key(|log| log.last_write.load(Ordering::Relaxed)).cloned()
    }

    /// Removes the logs that have been quiet the longest while there are too many; says which.
    pub(super) fn remove_surplus(&self) -> Vec<FunctionId> {
        let surplus: Vec<_> = {
            let functions = self.functions.lock();
            let count = functions.len().saturating_sub(self.limits.functions_max);
            if count == 0 {
                return Vec::new();
            }
            let mut unread: Vec<_> = functions.iter().filter(|(_, log)| is_unread(log)).collect();
            unread.sort_unstable_by_key(|(_, log)| log.last_write.load(Ordering::Relaxed));
            unread.into_iter().take(count).map(|(function, _)| *function).collect()
        };
        surplus.iter().for_each(|function| self.remove(*function));
        surplus
    }

    /// Removes a log, unless it is being read.
    pub(super) fn remove(&self, function: FunctionId) {
        let log = {
            let mut functions = self.functions.lock();
            match functions.get(&function) {
                Some(log) if is_unread(log) => {}
                _ => return,
            }
            // Before anyone can ask for it anew.
            if let Some(log) = functions.get(&function) {
                self.first_seq.fetch_max(log.next_seq(), Ordering::Relaxed);
            }
            functions.remove(&function)
        };
        let Some(log) = log else { return };
        self.total_bytes.fetch_sub(log.bytes(), Ordering::Relaxed);
        let first_seq = self.first_seq.load(Ordering::Relaxed);
        let noted = fs::write(self.dir.join(FIRST_SEQ), format!("{first_seq}\n"));
        let removed = noted.and_then(|()| match fs::remove_dir_all(&log.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        });
        if let Err(error) = removed {
            tracing::warn!(dir = %log.dir.display(), %error, "cannot remove a function's log");
        }
    }

    /// Removes the oldest segment, unless only `keep` are left.
    fn drop_oldest(&self, log: &FunctionLog, keep: usize) -> bool {
        let oldest = {
            let mut state = log.state.lock();
            if state.segments.len() <= keep {
                return false;
            }
            state.segments.pop_front()
        };
        let Some(oldest) = oldest else { return false };
        self.total_bytes.fetch_sub(oldest.bytes, Ordering::Relaxed);
        if let Err(error) = fs::remove_file(log.path(oldest.first_seq)) {
            tracing::warn!(dir = %log.dir.display(), %error, "cannot remove an old log segment");
        }
        true
    }
}

impl FunctionLog {
    fn new(dir: PathBuf, segments: VecDeque<Segment>, next_seq: u64) -> Self {
        FunctionLog {
            dir,
            state: Mutex::new(State { segments }),
            written: watch::Sender::new(next_seq),
            last_write: AtomicU64::new(0),
        }
    }

    /// What an earlier process left. Half a record at the end is cut off.
    fn open(dir: PathBuf) -> io::Result<Self> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(first_seq) = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok())
            else {
                continue;
            };
            segments.push(Segment { first_seq, bytes: entry.metadata()?.len() });
        }
        segments.sort_unstable_by_key(|segment| segment.first_seq);
        let mut next_seq = 1;
        if let Some(last) = segments.last_mut() {
            let path = segment_path(&dir, last.first_seq);
            let (whole, next) = segment::recover(&fs::read(&path)?, last.first_seq);
            fs::File::options().write(true).open(&path)?.set_len(whole as u64)?;
            last.bytes = whole as u64;
            next_seq = next;
        }
        Ok(FunctionLog::new(dir, segments.into(), next_seq))
    }

    /// When it was last written to, by an earlier process.
    fn modified(&self) -> Option<SystemTime> {
        let last = self.last_segment()?;
        fs::metadata(self.path(last.first_seq)).and_then(|metadata| metadata.modified()).ok()
    }

    pub(super) fn path(&self, first_seq: u64) -> PathBuf {
        segment_path(&self.dir, first_seq)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().segments.iter().map(|segment| segment.bytes).sum()
    }

    pub(super) fn next_seq(&self) -> u64 {
        *self.written.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    pub(super) fn last_segment(&self) -> Option<Segment> {
        self.state.lock().segments.back().copied()
    }

    /// The segment that holds this line, or the oldest when the line has rotated away; and whether it is the last.
    pub(super) fn segment_of(&self, seq: u64) -> Option<(Segment, bool)> {
        let state = self.state.lock();
        let after = state.segments.partition_point(|segment| segment.first_seq <= seq);
        let at = after.saturating_sub(1);
        state.segments.get(at).map(|segment| (*segment, at + 1 == state.segments.len()))
    }

    /// The number of the first line of the segment after this one.
    pub(super) fn segment_after(&self, first_seq: u64) -> Option<u64> {
        let state = self.state.lock();
        state.segments.iter().map(|segment| segment.first_seq).find(|first| *first > first_seq)
    }

    pub(super) fn begin_segment(&self, first_seq: u64) {
        self.state.lock().segments.push_back(Segment { first_seq, bytes: 0 });
    }

    /// Makes appended bytes readable. Those of a segment that is gone meanwhile are nobody's.
    pub(super) fn publish(&self, first_seq: u64, bytes: u64, next_seq: u64) {
        if let Some(segment) =
            self.state.lock().segments.iter_mut().find(|segment| segment.first_seq == first_seq)
        {
            segment.bytes += bytes;
        }
        self.written.send_replace(next_seq);
    }
}

/// The number that was given to this directory when it was made.
fn identity(dir: &Path) -> io::Result<u64> {
    let path = dir.join("id");
    match fs::read_to_string(&path) {
        Ok(text) => {
            if let Ok(id) = text.trim().parse() {
                return Ok(id);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = crate::uplink::random();
    fs::write(&path, format!("{id}\n"))?;
    Ok(id)
}

/// The number that is kept in this directory.
fn first_seq(dir: &Path) -> io::Result<u64> {
    match fs::read_to_string(dir.join(FIRST_SEQ)) {
        Ok(text) => Ok(text.trim().parse().unwrap_or(1)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1),
        Err(error) => Err(error),
    }
}

/// Whether nobody holds it. Whoever wants it must ask, under the lock of all.
fn is_unread(log: &Arc<FunctionLog>) -> bool {
    Arc::strong_count(log) == 1
}

fn segment_path(dir: &Path, first_seq: u64) -> PathBuf {
    // As many digits as the largest number has: names sort as numbers do.
    dir.join(format!("{first_seq:020}.log"))
}
