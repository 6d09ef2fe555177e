//! What is to be done.

/// In the order in which they are given: first what is to be written, then what is to be done once that is durable
/// ([`Command::Start`] need not wait).
///
/// What is written need not be written as one: bodies come first, then records, each ([`Command::Put`] or
/// [`Command::Remove`]) with the removals that follow it. A crash may let any first part of that through, as long as
/// a record and the removals that follow it are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write the request of a call that was just accepted.
    PutPayload(u64),
    /// Write the answer of the attempt that has just ended.
    PutResult(u64),
    /// Write a call's record.
    Put(u64),
    /// Remove the request that was written for a call.
    DropPayload {
        /// The call that it was written for.
        key: u64,
        /// Its length.
        bytes: u64,
    },
    /// Remove a call's result.
    DropResult {
        /// The call.
        sequence: u64,
        /// Its length.
        bytes: u64,
    },
    /// Remove a call's record.
    Remove(u64),
    /// Say [`crate::Event::Durable`] once what was ordered before this is.
    Prepare {
        /// Whose attempt is about to begin.
        sequence: u64,
        /// Its number.
        attempt: u32,
    },
    /// Begin an attempt: at once, for all that it needs is durable already.
    Start {
        /// Whose.
        sequence: u64,
        /// Its number, from 1.
        attempt: u32,
    },
    /// End an attempt at once, user code included.
    Abort {
        /// Whose.
        sequence: u64,
        /// Its number.
        attempt: u32,
    },
    /// Tell a call's end to where its caller wants it told.
    CallBack(u64),
    /// A call has ended: whoever waits for it may be told.
    Finished(u64),
}

impl Command {
    /// Whether it is something to write.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Command::PutPayload(_)
                | Command::PutResult(_)
                | Command::Put(_)
                | Command::DropPayload { .. }
                | Command::DropResult { .. }
                | Command::Remove(_)
        )
    }
}
