//! Records in a file.
//!
//! A record is: length of the text u32, sequence number u64, wall time u64, sandbox u64, flags u8 (bits 0 and 1 the
//! stream, bit 2 whether there is a sandbox), text; numbers little-endian. A segment is records one after another and
//! is named by the number of its first.

use fanfare_link::{LogRecord, LogStream};
use fanfare_types::SandboxId;

/// Bytes of a record without its text.
pub(super) const HEADER_BYTES: usize = 4 + 8 + 8 + 8 + 1;
/// Bytes of one line; longer ones are cut.
pub(super) const TEXT_BYTES_MAX: usize = 64 * 1024;

const HAS_SANDBOX: u8 = 4;

pub(super) fn encode(record: &LogRecord, out: &mut Vec<u8>) {
    let text = &record.text[..record.text.floor_char_boundary(TEXT_BYTES_MAX)];
    let stream = match record.stream {
        LogStream::Stdout => 0,
        LogStream::Stderr => 1,
        LogStream::Platform => 2,
    };
    let flags = stream | if record.sandbox.is_some() { HAS_SANDBOX } else { 0 };
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.seq.to_le_bytes());
    out.extend_from_slice(&record.time_unix_ms.to_le_bytes());
    out.extend_from_slice(&record.sandbox.map_or(0, |sandbox| sandbox.0).to_le_bytes());
    out.push(flags);
    out.extend_from_slice(text.as_bytes());
}

/// The record that `bytes` begins with, and its length; `None` when there is no whole one.
pub(super) fn decode(bytes: &[u8]) -> Option<(LogRecord, usize)> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |from: usize| header[from..from + 8].try_into().ok().map(u64::from_le_bytes);
    let len = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    if len > TEXT_BYTES_MAX {
        return None;
    }
    let flags = header[HEADER_BYTES - 1];
    let stream = match flags & !HAS_SANDBOX {
        0 => LogStream::Stdout,
        1 => LogStream::Stderr,
        2 => LogStream::Platform,
        _ => return None,
    };
    let text = std::str::from_utf8(rest.get(..len)?).ok()?.to_owned();
    let sandbox = number(20)?;
    let record = LogRecord {
        seq: number(4)?,
        time_unix_ms: number(12)?,
        sandbox: (flags & HAS_SANDBOX != 0).then_some(SandboxId(sandbox)),
        stream,
        text,
    };
    Some((record, HEADER_BYTES + len))
}

/// How much of a segment is whole, and the number after its last record. A crash can leave half a record at the end.
pub(super) fn recover(bytes: &[u8], first_seq: u64) -> (usize, u64) {
    let mut whole = 0;
    let mut next_seq = first_seq;
    while let Some((record, len)) = decode(&bytes[whole..]) {
        if record.seq != next_seq {
            break;
        }
        whole += len;
        next_seq += 1;
    }
    (whole, next_seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = LogRecord> {
        let stream = prop::sample::select(vec![LogStream::Stdout, LogStream::Stderr, LogStream::Platform]);
        (any::<u64>(), any::<u64>(), any::<Option<u64>>(), stream, ".{0,80}").prop_map(
            |(seq, time_unix_ms, sandbox, stream, text)| LogRecord {
                seq,
                time_unix_ms,
                sandbox: sandbox.map(SandboxId),
                stream,
                text,
            },
        )
    }

    proptest! {
        #[test]
        fn records_survive(record in record()) {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            prop_assert_eq!(decode(&bytes), Some((record, bytes.len())));
            prop_assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn recovery_keeps_what_is_whole(
            texts in prop::collection::vec(".{0,20}", 1..20),
            garbage in prop::collection::vec(any::<u8>(), 0..40),
            cut in 0_usize..30,
        ) {
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for (n, text) in texts.into_iter().enumerate() {
                let record = LogRecord { seq: 7 + n as u64, text, ..crate::logs::platform_record(String::new()) };
                encode(&record, &mut bytes);
                ends.push(bytes.len());
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let expected = ends.iter().rposition(|end| *end <= bytes.len()).unwrap();
            if expected + 1 == ends.len() {
                bytes.extend(garbage);
            }
            let (whole, next_seq) = recover(&bytes, 7);
            prop_assert!(whole >= ends[expected] && whole <= bytes.len());
            prop_assert!(next_seq >= 7 + expected as u64);
        }
    }
}
