//! Where a block of header fields ends.

use crate::{HEADERS_MAX, Malformed};

/// Finds the empty line that ends a block of lines, without looking at any byte twice however it arrives.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Looked at so far.
    seen: usize,
    /// Where the current line begins.
    line: usize,
    lines: usize,
}

impl Scan {
    /// The length of the block with its empty line, once it is there. `bytes` begins at the block and only grows.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while let Some(offset) = memchr::memchr(b'\n', &bytes[self.seen..]) {
            let feed = self.seen + offset;
            // A lone line feed ends a line for some readers and not for others.
            if feed == self.line || bytes[feed - 1] != b'\r' {
                return Err(Malformed::BareLineFeed);
            }
            let empty = feed - 1 == self.line;
            self.seen = feed + 1;
            self.line = feed + 1;
            if empty {
                return Ok(Some(feed + 1));
            }
            self.lines += 1;
            if self.lines > HEADERS_MAX + 1 {
                return Err(Malformed::TooManyHeaders);
            }
        }
        self.seen = bytes.len();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_wherever_the_bytes_are_split() {
        let block = b"HTTP/1.1 200 OK\r\na: b\r\n\r\nrest";
        for step in 1..block.len() {
            let mut scan = Scan::default();
            let mut at = 0;
            let end = loop {
                at = (at + step).min(block.len());
                if let Some(end) = scan.end(&block[..at]).unwrap() {
                    break end;
                }
            };
            assert_eq!(end, block.len() - 4, "{step}");
        }
    }

    #[test]
    fn lone_line_feeds_and_endless_heads_are_refused() {
        for bad in [&b"a\n"[..], b"\n", b"a\r\n\n", b"a\r\nb\n\r\n"] {
            assert_eq!(Scan::default().end(bad), Err(Malformed::BareLineFeed), "{bad:?}");
        }
        assert_eq!(Scan::default().end(b"\r\n"), Ok(Some(2)));
        let many = b"a: b\r\n".repeat(HEADERS_MAX + 2);
        assert_eq!(Scan::default().end(&many), Err(Malformed::TooManyHeaders));
    }
}
