//! Comma-separated values, read in bounds, whose errors say where.

use std::io::Read;

use crate::error::TraceError;

/// Reads rows of a file.
pub(crate) struct Table<R> {
    file: String,
    reader: csv::Reader<Limited<R>>,
    record: csv::StringRecord,
}

impl<R: Read> Table<R> {
    /// `file` is the name by which errors call it; it has at most `bytes_max` bytes.
    pub(crate) fn new(file: &str, reader: R, bytes_max: u64) -> Table<R> {
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Limited {
            reader,
            left: bytes_max,
            max: bytes_max,
            ended: false,
        });
        Table { file: file.to_owned(), reader, record: csv::StringRecord::new() }
    }

    /// The next row; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        let read = self.reader.read_record(&mut self.record);
        let more = read.map_err(|error| {
            let line = error.position().map_or(self.reader.position().line(), csv::Position::line);
            let problem = match error.kind() {
                csv::ErrorKind::Utf8 { .. } => "this is not UTF-8".to_owned(),
                csv::ErrorKind::Io(error) => format!("cannot be read: {error}"),
                _ => error.to_string(),
            };
            TraceError::line(&self.file, line, problem)
        })?;
        let ended_in_line = self.reader.position().line().saturating_sub(1);
        Ok(more.then_some(Row { file: &self.file, ended_in_line, record: &self.record }))
    }

    /// The next row, which has to be there.
    pub(crate) fn expect(&mut self, what: &str) -> Result<Row<'_>, TraceError> {
        let (file, line) = (self.file.clone(), self.reader.position().line());
        self.next()?
            .ok_or_else(|| TraceError::line(&file, line, format!("the file ends where {what} should be")))
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    file: &'a str,
    ended_in_line: u64,
    record: &'a csv::StringRecord,
}

impl<'a> Row<'a> {
    pub(crate) fn len(&self) -> usize {
        self.record.len()
    }

    /// Its first line: the library's own count is off after empty lines.
    fn line(&self) -> u64 {
        let within: usize = self.record.iter().map(|field| field.matches('\n').count()).sum();
        self.ended_in_line.saturating_sub(within as u64)
    }

    /// All its fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'a str> {
        self.record.iter()
    }

    /// Refuses a row that has not as many fields as there are columns.
    pub(crate) fn has(&self, columns: usize) -> Result<(), TraceError> {
        if self.len() == columns {
            return Ok(());
        }
        Err(self.wrong(format!("there are {} fields where {columns} should be", self.len())))
    }

    /// The field at `at`, which is in the row by [`has`](Self::has).
    pub(crate) fn text(&self, at: usize) -> &'a str {
        self.record.get(at).unwrap_or_default()
    }

    /// A whole number from `min` to `max`.
    pub(crate) fn whole(&self, at: usize, column: &str, min: u64, max: u64) -> Result<u64, TraceError> {
        let text = self.text(at);
        let number = text.trim().parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| self.wrong_field(at, column, format!("is no whole number from {min} to {max}")))
    }

    /// The same in 32 bits.
    pub(crate) fn whole32(&self, at: usize, column: &str, min: u32, max: u32) -> Result<u32, TraceError> {
        let number = self.whole(at, column, min.into(), max.into())?;
        // It is at most `max`.
        Ok(u32::try_from(number).unwrap_or(max))
    }

    /// A number whose amount is at most `max`.
    pub(crate) fn number(&self, at: usize, column: &str, max: f64) -> Result<f64, TraceError> {
        let number = self.text(at).trim().parse().ok().filter(|number: &f64| number.abs() <= max);
        number.ok_or_else(|| self.wrong_field(at, column, format!("is no number from -{max} to {max}")))
    }

    /// What is wrong with a field.
    pub(crate) fn wrong_field(&self, at: usize, column: &str, problem: impl Into<String>) -> TraceError {
        TraceError::field(self.file, self.line(), column, self.text(at), problem)
    }

    /// What is wrong with the row.
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> TraceError {
        TraceError::line(self.file, self.line(), problem)
    }
}

/// Fails where more is read than is allowed: to cut it off would be to lose a part silently. Leaves out carriage returns and
/// ends the last line, so that every line ends in one way.
struct Limited<R> {
    reader: R,
    left: u64,
    max: u64,
    ended: bool,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let got = self.reader.read(buffer)?;
            self.left = self.left.checked_sub(got as u64).ok_or_else(|| {
                std::io::Error::other(format!("it has more than {} bytes, which is the limit", self.max))
            })?;
            let mut kept = 0;
            for at in 0..got {
                if buffer[at] != b'\r' {
                    buffer[kept] = buffer[at];
                    kept += 1;
                }
            }
            if got == 0 && !self.ended && !buffer.is_empty() {
                self.ended = true;
                buffer[0] = b'\n';
                return Ok(1);
            }
            // Nothing kept of something is not the end.
            if kept > 0 || got == 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_know_their_lines_and_what_is_wrong() {
        let text = "\u{feff}a,b\n1,\"x\ny\"\n\n-7,2";
        for text in [text.to_owned(), format!("{text}\n"), text.replace('\n', "\r\n")] {
            check(&text);
        }
    }

    fn check(text: &str) {
        let mut table = Table::new("t.csv", text.as_bytes(), 1_000);
        let row = table.next().unwrap().unwrap();
        assert_eq!((row.text(0), row.line()), ("a", 1));
        let row = table.next().unwrap().unwrap();
        assert_eq!((row.text(1), row.line(), row.whole(0, "a", 0, 9).unwrap()), ("x\ny", 2, 1));
        // The line break within quotes and the empty line count.
        let row = table.next().unwrap().unwrap();
        let error = row.whole(0, "a", 0, 9).unwrap_err().to_string();
        assert_eq!(error, "t.csv, line 5, a: \"-7\" is no whole number from 0 to 9");
        assert_eq!(row.number(0, "a", 9.0).unwrap(), -7.0);
        assert!(row.number(0, "a", 6.0).is_err());
        assert_eq!(
            row.has(3).unwrap_err().to_string(),
            "t.csv, line 5: there are 2 fields where 3 should be"
        );
        assert!(table.next().unwrap().is_none());
        assert!(table.expect("a row").unwrap_err().to_string().contains("ends where a row should be"));
    }

    #[test]
    fn too_much_is_refused_and_not_cut() {
        let text = "1234\n".repeat(20_000);
        let mut table = Table::new("t.csv", text.as_bytes(), 50_000);
        let error = loop {
            match table.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("cut off"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("which is the limit"), "{error}");
    }

    #[test]
    fn what_is_no_text_or_no_number_is_told() {
        let mut table = Table::new("t.csv", &b"a\n\xff\xfe\n"[..], 100);
        table.next().unwrap();
        let error = table.next().err().unwrap().to_string();
        assert_eq!(error, "t.csv, line 2: this is not UTF-8");
        for wrong in ["nan", "inf", "1e99", "", "x"] {
            let text = format!("{wrong},1\n");
            let mut table = Table::new("t.csv", text.as_bytes(), 100);
            assert!(table.next().unwrap().unwrap().number(0, "a", 1e9).is_err(), "{wrong}");
        }
    }
}
