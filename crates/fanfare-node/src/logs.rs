//! What functions wrote, kept on this node in one bounded ring per function.
//!
//! Lines go from the runtimes through a bounded queue to one writer thread, which appends them to segment files and
//! tells readers how far it has come. Readers read the files: a slow one costs nothing but its own lateness, and one
//! that is overtaken by the ring goes on with the oldest line there is.

mod index;
mod reader;
mod segment;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fanfare_link::{LogRecord, LogStream};
use fanfare_sandbox::LogSink;
use fanfare_types::limits::LOG_BYTES_PER_FUNCTION;
use fanfare_types::{FunctionId, LogSelect};
use futures_util::stream::BoxStream;

use index::Index;
use writer::Writer;

/// Sizes of the log store.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Bytes kept for one function; the oldest lines go first.
    pub function_bytes: u64,
    /// Bytes kept for all functions; the log of the function that has been quiet the longest goes first.
    pub total_bytes: u64,
    /// Functions of which something is kept; beyond it the one that has been quiet the longest goes, unless it is read.
    pub functions_max: usize,
    /// Of these, functions of which the node has no revision any more, as they were deleted, or updated and have not
    /// run here since; beyond it the first of them goes.
    pub deleted_max: usize,
    /// Lines that may wait for the disk; beyond it they are dropped, counted, and the count is written.
    pub queue_lines: usize,
    /// Bytes of lines that may wait for the disk.
    pub queue_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits {
            function_bytes: LOG_BYTES_PER_FUNCTION,
            total_bytes: 4 << 30,
            functions_max: 4_096,
            deleted_max: 256,
            queue_lines: 65_536,
            queue_bytes: 32 << 20,
        }
    }
}

/// Which lines are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// So many of the last that are selected.
    pub tail_lines: u32,
    /// Then each further one as it is written.
    pub follow: bool,
    /// Which of them.
    pub select: LogSelect,
}

/// The logs of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LogStore {
    index: Arc<Index>,
    writer: Arc<Writer>,
}

impl LogStore {
    /// Opens the logs in `dir`, with what is there from before. Reads the directory: call it where blocking is fine.
    ///
    /// # Errors
    /// When the directory cannot be made or read, or the writer thread not be started.
    pub fn open(dir: PathBuf, limits: LogLimits) -> io::Result<Self> {
        let index = Arc::new(Index::open(dir, limits)?);
        let writer = Arc::new(Writer::start(index.clone(), limits)?);
        Ok(LogStore { index, writer })
    }

    /// Takes lines. Never blocks; what the disk cannot keep up with is dropped and counted.
    #[must_use]
    pub fn sink(&self) -> LogSink {
        let writer = self.writer.clone();
        Arc::new(move |line| writer.push(line))
    }

    /// Lines of a function.
    #[must_use]
    pub fn read(&self, function: FunctionId, wanted: Wanted) -> BoxStream<'static, LogRecord> {
        reader::read(self.index.function(function), wanted, now_unix_ms())
    }

    /// Takes note that a function will write no more: its log is kept while it is among the last of these.
    pub(crate) fn deleted(&self, function: FunctionId) {
        self.writer.deleted(function);
    }

    /// Differs when the numbers of lines have begun anew.
    pub(crate) fn id(&self) -> u64 {
        self.index.id
    }

    /// Resolves when everything pushed before is on its way to the disk and readable.
    pub async fn flush(&self) {
        self.writer.flush().await;
    }
}

/// The platform's own word in a log.
pub(crate) fn platform_record(text: String) -> LogRecord {
    LogRecord { seq: 0, time_unix_ms: now_unix_ms(), sandbox: None, stream: LogStream::Platform, text }
}

/// For display only.
fn now_unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
