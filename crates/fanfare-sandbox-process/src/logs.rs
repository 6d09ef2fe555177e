//! Output of sandboxes: cut into lines, passed on, and the last of it kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_sandbox::{LogLine, LogSink, LogStream};
use fanfare_types::limits::{LOG_TAIL_BYTES, LOG_TAIL_LINES};
use fanfare_types::{FunctionId, SandboxId};
use parking_lot::Mutex;
use rustix::pipe::PipeFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pace::Pace;

/// Bytes of one line; a longer one is passed on in pieces that say so.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// How fast one output is taken: so many lines and bytes in a second, and what comes at once of [`BURST`] seconds. The
/// daemon works longer on a line than a program that prints nothing but line ends, and has others to serve.
const LINES_PER_S: u32 = 5_000;
const BYTES_PER_S: u32 = 4 << 20;
const BURST: Duration = Duration::from_secs(4);
/// End of a piece of a line that goes on.
const CONTINUES: &str = " [line continues]";
/// How long the end of the output is waited for once all processes have ended. Everything written is in the pipe by
/// then; only a descriptor that leaked out could keep it open.
const DRAIN: Duration = Duration::from_secs(1);

/// Where one sandbox's lines go.
#[derive(Clone)]
pub(crate) struct Log {
    sink: LogSink,
    function: FunctionId,
    sandbox: Option<SandboxId>,
    tail: Arc<Mutex<Tail>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

impl Log {
    /// An empty log. `sandbox` is `None` for templates and builds.
    pub(crate) fn new(sink: LogSink, function: FunctionId, sandbox: Option<SandboxId>) -> Self {
        Log { sink, function, sandbox, tail: Arc::default() }
    }

    /// Passes a line on.
    pub(crate) fn line(&self, stream: LogStream, text: String) {
        self.tail.lock().push(&text);
        (self.sink)(LogLine { function: self.function, sandbox: self.sandbox, stream, text });
    }

    /// The last lines so far.
    pub(crate) fn tail(&self) -> String {
        self.tail.lock().text()
    }
}

/// The last lines within the limits.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, line: &str) {
        // Of a long line the end is worth most.
        let mut start = line.len().saturating_sub(LOG_TAIL_BYTES - 1);
        while !line.is_char_boundary(start) {
            start += 1;
        }
        self.bytes += line.len() - start + 1;
        self.lines.push_back(line[start..].to_owned());
        while self.lines.len() > LOG_TAIL_LINES || self.bytes > LOG_TAIL_BYTES {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len() + 1);
        }
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(self.bytes);
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text.pop();
        text
    }
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            self.append(&bytes[..at], &mut line);
            line(Self::text(&self.partial));
            self.partial.clear();
            bytes = &bytes[at + 1..];
        }
        self.append(bytes, &mut line);
    }

    fn append(&mut self, mut bytes: &[u8], line: &mut impl FnMut(String)) {
        while self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            let (now, later) = bytes.split_at(LINE_BYTES_MAX - self.partial.len());
            self.partial.extend_from_slice(now);
            line(Self::text(&self.partial) + CONTINUES);
            self.partial.clear();
            bytes = later;
        }
        self.partial.extend_from_slice(bytes);
    }

    fn finish(&mut self, mut line: impl FnMut(String)) {
        if !self.partial.is_empty() {
            line(Self::text(&std::mem::take(&mut self.partial)));
        }
    }

    fn text(bytes: &[u8]) -> String {
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// Output in pieces: nothing is lost, and no line is longer than the limit.
pub(crate) fn fuzz(piece: usize, output: &[u8]) {
    let (mut lines, mut tail, mut count) = (Lines::default(), Tail::default(), 0);
    let mut take = |line: String| {
        // A byte that is no UTF-8 becomes a character of three.
        assert!(line.len() <= 3 * LINE_BYTES_MAX + CONTINUES.len());
        tail.push(&line);
        count += 1;
    };
    for bytes in output.chunks(piece) {
        lines.feed(bytes, &mut take);
    }
    lines.finish(&mut take);
    let ends = output.iter().filter(|byte| **byte == b'\n').count();
    assert!(count >= ends && count <= ends + 1 + output.len() / LINE_BYTES_MAX);
    assert!(tail.text().len() <= LOG_TAIL_BYTES);
}

/// The reading of one sandbox's output.
#[derive(Debug)]
pub(crate) struct Outputs {
    tasks: Vec<JoinHandle<()>>,
    /// True once no more can be written.
    ending: watch::Sender<bool>,
}

impl Outputs {
    /// Makes the two pipes and reads them until all writers have ended. Returns the writing ends: stdout, stderr. They
    /// belong to `uid`, for programs that open `/dev/stderr`.
    pub(crate) fn open(log: &Log, uid: Option<u32>) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let (ending, ended) = watch::channel(false);
        let mut tasks = Vec::new();
        let mut open = |stream| -> io::Result<OwnedFd> {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&read, true)?;
            if uid.is_some() {
                std::os::unix::fs::fchown(&write, uid, uid)?;
            }
            tasks.push(tokio::spawn(pump(
                Receiver::from_owned_fd(read)?,
                log.clone(),
                stream,
                ended.clone(),
            )));
            Ok(write)
        };
        let (stdout, stderr) = (open(LogStream::Stdout)?, open(LogStream::Stderr)?);
        Ok((Outputs { tasks, ending }, stdout, stderr))
    }

    /// Waits until everything has been read; the writers must have ended.
    pub(crate) async fn drain(&mut self) {
        self.ending.send_replace(true);
        for task in &mut self.tasks {
            if tokio::time::timeout(DRAIN, &mut *task).await.is_err() {
                task.abort();
            }
        }
        self.tasks.clear();
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn pump(mut pipe: Receiver, log: Log, stream: LogStream, mut ending: watch::Receiver<bool>) {
    let mut lines = Lines::default();
    let mut buffer = Vec::new();
    let mut pace = Pace::new(BURST, Instant::now());
    let mut told = false;
    loop {
        // The buffer exists only while there is something to read: most sandboxes are silent.
        if pipe.readable().await.is_err() {
            break;
        }
        buffer.reserve(READ_BYTES);
        let mut count = 0;
        let read = match pipe.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => u32::try_from(read).unwrap_or(u32::MAX),
        };
        lines.feed(&buffer, |text| {
            count += 1;
            log.line(stream, text);
        });
        buffer = Vec::new();
        let cost = Duration::from_secs(1) / LINES_PER_S * count + Duration::from_secs(1) / BYTES_PER_S * read;
        if let Some(resume) = pace.spend(cost, Instant::now()) {
            if !std::mem::replace(&mut told, true) {
                let text = format!(
                    "writes faster than {LINES_PER_S} lines or {BYTES_PER_S} bytes in a second: it waits"
                );
                log.line(LogStream::Platform, text);
            }
            // What is in the pipe when its writers have ended is little, and read at once.
            let _ = tokio::time::timeout_at(resume.into(), ending.wait_for(|ending| *ending)).await;
        }
    }
    lines.finish(|text| log.line(stream, text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for chunk in chunks {
            lines.feed(chunk, |l| out.push(l));
        }
        lines.finish(|l| out.push(l));
        out
    }

    #[test]
    fn lines_are_whole_whatever_the_chunks() {
        assert_eq!(cut(&[b"a\nb", b"c\r\n\n", b"d"]), ["a", "bc", "", "d"]);
        assert_eq!(cut(&[b"\xffx\n"]), ["\u{fffd}x"]);
        assert_eq!(cut(&[b""]), Vec::<String>::new());
    }

    #[test]
    fn a_long_line_comes_in_marked_pieces() {
        let long = vec![b'x'; LINE_BYTES_MAX + 3];
        let lines = cut(&[&long, b"\ny\n"]);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].len(), LINE_BYTES_MAX + CONTINUES.len());
        assert!(lines[0].ends_with(CONTINUES));
        assert_eq!(lines[1..], ["xxx", "y"]);
    }

    #[tokio::test]
    async fn a_flood_is_paced_and_its_end_is_not_lost() {
        let count = Arc::new(Mutex::new((0, 0)));
        let counted = count.clone();
        let sink: LogSink = Arc::new(move |line: LogLine| match line.stream {
            LogStream::Platform => counted.lock().1 += 1,
            _ => counted.lock().0 += 1,
        });
        let (mut outputs, stdout, stderr) =
            Outputs::open(&Log::new(sink, FunctionId(1), None), None).unwrap();
        drop(stderr);
        let written = tokio::task::spawn_blocking(move || {
            let mut file = std::fs::File::from(stdout);
            (0..3).for_each(|_| std::io::Write::write_all(&mut file, &[b'\n'; 16 << 10]).unwrap());
        });
        written.await.unwrap();
        outputs.drain().await;
        assert_eq!(*count.lock(), (3 * (16 << 10), 1), "all of it, and one word about it");
    }

    #[test]
    fn the_tail_keeps_to_its_limits() {
        let mut tail = Tail::default();
        for n in 0..100 {
            tail.push(&format!("line {n}"));
        }
        assert_eq!(tail.text().lines().count(), LOG_TAIL_LINES);
        assert!(tail.text().ends_with("line 99"));
        tail.push(&"é".repeat(LOG_TAIL_BYTES));
        assert!(tail.text().len() <= LOG_TAIL_BYTES);
        assert_eq!(tail.lines.len(), 1);
        tail.push("last");
        assert_eq!(tail.text(), "last");
    }
}
