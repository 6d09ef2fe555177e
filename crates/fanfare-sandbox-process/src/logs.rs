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
use tokio::task::JoinHandle;

use crate::pace::Pace;

/// Bytes of one line; a longer one is passed on in pieces that say so. A node keeps four times as much: a byte that is
/// no UTF-8 becomes a character of three.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// How much of one output is kept: so many lines and bytes in a second, and what comes at once of [`BURST`] seconds. The
/// daemon works longer on a line than a program that prints nothing but line ends, and has others to serve. Of what
/// comes faster the last [`LOG_TAIL_LINES`] lines are kept and the others are counted.
const LINES_PER_S: u32 = 5_000;
const BYTES_PER_S: u32 = 4 << 20;
const BURST: Duration = Duration::from_secs(4);
/// How fast it is read at all, with the same burst; what comes faster waits in its pipe, and its program with it.
const READ_LINES_PER_S: u32 = 500_000;
const READ_BYTES_PER_S: u32 = 32 << 20;
/// How long the beginning of a line is held back; then it is passed on as a piece.
const UNENDED_MAX: Duration = Duration::from_millis(500);
/// End of a piece of a line that goes on, or may.
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
    /// The line's beginning was passed on because its end did not come.
    given_out: bool,
}

impl Lines {
    fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            self.append(&bytes[..at], &mut line);
            // The end alone of what was passed on is no line.
            if !std::mem::take(&mut self.given_out) || !self.partial.is_empty() {
                line(Self::text(&self.partial));
            }
            self.partial.clear();
            bytes = &bytes[at + 1..];
        }
        self.append(bytes, &mut line);
    }

    fn append(&mut self, mut bytes: &[u8], line: &mut impl FnMut(String)) {
        while self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            let (now, later) = bytes.split_at(LINE_BYTES_MAX - self.partial.len());
            self.partial.extend_from_slice(now);
            // A character is not cut in two.
            let rest = self.partial.split_off(whole_characters(&self.partial));
            line(String::from_utf8_lossy(&self.partial).into_owned() + CONTINUES);
            self.partial = rest;
            bytes = later;
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Passes on the beginning of a line that has not ended, but for half a character.
    fn give_out(&mut self, line: impl FnOnce(String)) {
        let rest = self.partial.split_off(whole_characters(&self.partial));
        let whole = std::mem::replace(&mut self.partial, rest);
        if !whole.is_empty() {
            self.given_out = true;
            line(String::from_utf8_lossy(&whole).into_owned() + CONTINUES);
        }
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

/// How many of these bytes are not the beginning of a character that goes on.
fn whole_characters(bytes: &[u8]) -> usize {
    let begins = |byte: u8| byte & 0xC0 != 0x80;
    let last = bytes.iter().rev().take(4).position(|byte| begins(*byte)).map_or(0, |back| back + 1);
    match bytes.len().checked_sub(last).and_then(|at| std::str::from_utf8(&bytes[at..]).err()) {
        Some(error) if error.error_len().is_none() => bytes.len() - last + error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Lines that came faster than they are taken.
#[derive(Debug, Default)]
struct Skipped {
    /// The last of them.
    last: VecDeque<String>,
    dropped: u64,
}

impl Skipped {
    fn push(&mut self, line: String) {
        self.last.push_back(line);
        if self.last.len() > LOG_TAIL_LINES {
            self.last.pop_front();
            self.dropped += 1;
        }
    }

    /// Says how many there were and passes the last of them on.
    fn tell(&mut self, log: &Log, stream: LogStream) {
        if self.dropped > 0 {
            let text = format!(
                "{} lines were dropped here: more than {LINES_PER_S} lines or {BYTES_PER_S} bytes in a second",
                std::mem::take(&mut self.dropped)
            );
            log.line(LogStream::Platform, text);
        }
        self.last.drain(..).for_each(|text| log.line(stream, text));
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
}

impl Outputs {
    /// Makes the two pipes and reads them until all writers have ended. Returns the writing ends: stdout, stderr. They
    /// belong to `uid`, for programs that open `/dev/stderr`.
    pub(crate) fn open(log: &Log, uid: Option<u32>) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let mut tasks = Vec::new();
        let mut open = |stream| -> io::Result<OwnedFd> {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&read, true)?;
            if uid.is_some() {
                std::os::unix::fs::fchown(&write, uid, uid)?;
            }
            tasks.push(tokio::spawn(pump(Receiver::from_owned_fd(read)?, log.clone(), stream)));
            Ok(write)
        };
        let (stdout, stderr) = (open(LogStream::Stdout)?, open(LogStream::Stderr)?);
        Ok((Outputs { tasks }, stdout, stderr))
    }

    /// Waits until everything has been read; the writers must have ended.
    pub(crate) async fn drain(&mut self) {
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

/// What `count` take of a second that has room for `per_s`.
fn cost(count: u32, per_s: u32) -> Duration {
    Duration::from_nanos(u64::from(count) * 1_000_000_000 / u64::from(per_s))
}

async fn pump(mut pipe: Receiver, log: Log, stream: LogStream) {
    let mut lines = Lines::default();
    let mut skipped = Skipped::default();
    let mut buffer = Vec::new();
    let mut pace = Pace::new(BURST, Instant::now());
    let mut reading = Pace::new(BURST, Instant::now());
    let mut resume = None;
    // When the line began that has not ended.
    let mut unended: Option<Instant> = None;
    loop {
        // The buffer exists only while there is something to read: most sandboxes are silent.
        let readable = async { pipe.readable().await.is_ok() };
        // What was skipped last is told at the latest when lines would be taken again.
        let told = resume.filter(|_| !skipped.last.is_empty());
        let given_out = unended.map(|since| since + UNENDED_MAX);
        let open = match told.into_iter().chain(given_out).min() {
            Some(at) => tokio::time::timeout_at(Instant::into(at), readable).await,
            None => Ok(readable.await),
        };
        match open {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                let now = Instant::now();
                let skips = resume.is_some_and(|at| now < at);
                if !skips {
                    skipped.tell(&log, stream);
                }
                if given_out.is_some_and(|at| at <= now) {
                    lines.give_out(|text| if skips { skipped.push(text) } else { log.line(stream, text) });
                    unended = (!lines.partial.is_empty()).then_some(now);
                }
                continue;
            }
        }
        buffer.reserve(READ_BYTES);
        let read = match pipe.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => u32::try_from(read).unwrap_or(u32::MAX),
        };
        let now = Instant::now();
        let mut count = 0;
        if resume.is_some_and(|at| now < at) {
            lines.feed(&buffer, |text| {
                count += 1;
                skipped.push(text);
            });
        } else {
            skipped.tell(&log, stream);
            lines.feed(&buffer, |text| {
                count += 1;
                log.line(stream, text);
            });
            resume = pace.spend(cost(count, LINES_PER_S) + cost(read, BYTES_PER_S), now);
        }
        unended = match (lines.partial.is_empty(), count) {
            (true, _) => None,
            (false, 0) => unended.or(Some(now)),
            (false, _) => Some(now),
        };
        buffer = Vec::new();
        let pause = reading.spend(cost(count, READ_LINES_PER_S) + cost(read, READ_BYTES_PER_S), now);
        if let Some(until) = pause {
            tokio::time::sleep_until(until.into()).await;
        }
    }
    skipped.tell(&log, stream);
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

    /// Everything that comes out of a pipe into which `write` writes.
    async fn output(write: impl FnOnce(std::fs::File) + Send + 'static) -> Vec<(LogStream, String)> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let sink: LogSink = Arc::new(move |line: LogLine| kept.lock().push((line.stream, line.text)));
        let (mut outputs, stdout, stderr) =
            Outputs::open(&Log::new(sink, FunctionId(1), None), None).unwrap();
        drop(stderr);
        tokio::task::spawn_blocking(move || write(std::fs::File::from(stdout))).await.unwrap();
        outputs.drain().await;
        std::mem::take(&mut *lines.lock())
    }

    #[tokio::test]
    async fn of_a_million_lines_before_an_exit_the_last_are_kept_and_what_is_dropped_is_counted() {
        const LINES: u64 = 1_000_000;
        let begun = Instant::now();
        let lines = output(|file| {
            let mut file = std::io::BufWriter::new(file);
            (0..LINES)
                .for_each(|n| std::io::Write::write_fmt(&mut file, format_args!("line {n}\n")).unwrap());
        })
        .await;
        assert!(begun.elapsed() < Duration::from_secs(60), "the program waited: {:?}", begun.elapsed());
        let dropped = |text: &str| text.split(' ').next().unwrap().parse::<u64>().unwrap();
        let (mut kept, mut said, mut next) = (0, 0, 0);
        for (stream, text) in &lines {
            if *stream == LogStream::Platform {
                assert!(text.contains("lines were dropped here"), "{text}");
                said += dropped(text);
                next += dropped(text);
            } else {
                assert_eq!(*text, format!("line {next}"), "each gap is where it is said to be");
                (kept, next) = (kept + 1, next + 1);
            }
        }
        assert_eq!(kept + said, LINES);
        assert!(said > 0, "this machine is too slow for the test to mean anything");
        assert_eq!(lines.last().unwrap().1, format!("line {}", LINES - 1));
    }

    #[tokio::test]
    async fn a_line_of_a_mebibyte_and_one_without_an_end_are_whole() {
        let long = "é".repeat(1 << 19);
        let written = format!("{long}\nno end");
        let lines =
            output(move |mut file| std::io::Write::write_all(&mut file, written.as_bytes()).unwrap()).await;
        let (last, pieces) = lines.split_last().unwrap();
        assert_eq!(last.1, "no end");
        let marked = pieces.iter().filter(|(_, piece)| piece.ends_with(CONTINUES)).count();
        assert_eq!(marked, pieces.len() - 1);
        assert!(pieces.iter().all(|(_, piece)| piece.len() <= LINE_BYTES_MAX + CONTINUES.len()));
        let whole: String =
            pieces.iter().map(|(_, piece)| piece.strip_suffix(CONTINUES).unwrap_or(piece)).collect();
        assert!(whole == long, "{} bytes", whole.len());
    }

    #[tokio::test]
    async fn a_line_that_does_not_end_is_passed_on_while_its_program_runs() {
        let (line, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let sink: LogSink = Arc::new(move |line_: LogLine| line.send(line_.text).unwrap());
        let (mut outputs, stdout, stderr) =
            Outputs::open(&Log::new(sink, FunctionId(1), None), None).unwrap();
        drop(stderr);
        let mut stdout = std::fs::File::from(stdout);
        let mut write = |bytes: &[u8]| std::io::Write::write_all(&mut stdout, bytes).unwrap();
        let (euro, mut next) = ("€".as_bytes(), async || lines.recv().await.unwrap());
        write(b"begun");
        assert_eq!(next().await, "begun [line continues]");
        // What comes later is no part of it; the end alone is no line; half a character waits for the rest.
        write(b"later\n");
        assert_eq!(next().await, "later");
        write(b"12 ");
        write(&euro[..1]);
        assert_eq!(next().await, "12  [line continues]");
        write(&euro[1..]);
        assert_eq!(next().await, "€ [line continues]");
        write(b"\n\nnext\n");
        assert_eq!((next().await.as_str(), next().await.as_str()), ("", "next"));
        drop(stdout);
        outputs.drain().await;
        assert_eq!(lines.recv().await, None);
    }

    #[test]
    fn characters_are_not_cut_and_what_is_none_is_replaced() {
        for (bytes, whole) in [
            (&b"abc"[..], 3),
            (b"", 0),
            ("a€".as_bytes(), 4),
            (&"a€".as_bytes()[..3], 1),
            (&"a€".as_bytes()[..2], 1),
            (&"😀".as_bytes()[..3], 0),
            (b"a\xff", 2),
            (b"\x80\x80\x80\x80\x80", 5),
        ] {
            assert_eq!(whole_characters(bytes), whole, "{bytes:?}");
        }
        let mut bad = vec![0xff; LINE_BYTES_MAX + 1];
        bad.push(b'\n');
        let lines = cut(&[&bad]);
        assert_eq!((lines.len(), lines[1].as_str()), (2, "\u{fffd}"));
        assert!(lines[0].ends_with(CONTINUES) && lines[0].len() <= 64 << 10);
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
