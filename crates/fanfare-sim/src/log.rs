//! What happens: line by line where somebody listens, and always a digest by which two runs can be compared.

use std::fmt::{self, Arguments, Write};

use fanfare_types::Timestamp;

/// Takes lines of the log, one by one, as things happen.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(String);

/// The log of one run.
pub(crate) struct Log<'a> {
    sink: Option<Sink<'a>>,
    digest: u64,
    events: u64,
}

impl fmt::Debug for Log<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({} events)", self.events)
    }
}

impl<'a> Log<'a> {
    pub(crate) fn new(sink: Option<Sink<'a>>) -> Self {
        Log { sink, digest: 0xcbf2_9ce4_8422_2325, events: 0 }
    }

    /// Counts an event in: its time, and what tells it from others at that time.
    pub(crate) fn event(&mut self, at: Timestamp, kind: u64) {
        self.events += 1;
        // FNV-1a over words: two runs of one seed must agree, and nobody is to be kept from forging anything.
        for word in [at.as_nanos(), kind] {
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn line(&mut self, at: Timestamp, text: Arguments<'_>) {
        if let Some(sink) = &mut self.sink {
            sink(format!("{:>12.6}s  {text}", at.as_nanos() as f64 / 1e9));
        }
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

/// Characters of a message that a line shows.
const SHORT: usize = 160;

/// Enough of a message to tell what it was; costs nothing where no line is kept.
pub(crate) struct Short<'a, T>(pub(crate) &'a T);

impl<T: fmt::Debug> fmt::Display for Short<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format!("{:?}", self.0).chars().take(SHORT).try_for_each(|c| f.write_char(c))
    }
}
