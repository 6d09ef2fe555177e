//! Log lines.

use fanfare_types::SandboxId;

use super::common::checked;
use super::{Malformed, TEXT_BYTES_MAX, proto};
use crate::{LogRecord, LogStream};

/// A line that is too long for the wire is cut: a reader would rather have its beginning than none.
pub(crate) fn log_to_wire(mut record: LogRecord) -> proto::LogRecord {
    record.text.truncate(record.text.floor_char_boundary(TEXT_BYTES_MAX));
    let stream = match record.stream {
        LogStream::Stdout => 0,
        LogStream::Stderr => 1,
        LogStream::Platform => 2,
    };
    proto::LogRecord {
        seq: record.seq,
        time_unix_ms: record.time_unix_ms,
        sandbox: record.sandbox.map(|sandbox| sandbox.0),
        stream,
        text: record.text,
    }
}

pub(crate) fn log_from_wire(record: proto::LogRecord) -> Result<LogRecord, Malformed> {
    let stream = match record.stream {
        0 => LogStream::Stdout,
        1 => LogStream::Stderr,
        2 => LogStream::Platform,
        stream => return Err(Malformed::Value { what: "a log stream", value: stream.into() }),
    };
    Ok(LogRecord {
        seq: record.seq,
        time_unix_ms: record.time_unix_ms,
        sandbox: record.sandbox.map(SandboxId),
        stream,
        text: checked("a log line", record.text)?,
    })
}
