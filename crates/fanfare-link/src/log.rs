//! Log lines on their way from a node to whoever reads them.

use fanfare_types::SandboxId;

/// Which of a sandbox's outputs a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The platform's own word (started, killed, lines dropped).
    Platform,
}

/// One line of a function's log, as its node keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Counts the function's lines on this node from 1; a gap means that lines have rotated away before they were
    /// read.
    pub seq: u64,
    /// The node's wall clock when the line was taken, in milliseconds since 1970. For display: orders nothing.
    pub time_unix_ms: u64,
    /// Who wrote it; `None` for a template or a build.
    pub sandbox: Option<SandboxId>,
    /// Where it was written.
    pub stream: LogStream,
    /// The line, without its newline.
    pub text: String,
}
