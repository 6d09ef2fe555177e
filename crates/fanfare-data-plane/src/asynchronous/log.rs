//! The durable log: what the state machine orders to be written, in the embedded store.
//!
//! Keys, with numbers of 16 digits so that they sort: `format` says what this is; `i/SEQUENCE` is a record;
//! `p/SEQUENCE/CHUNK` and `r/SEQUENCE/CHUNK` are parts of a request and of a result; `chain/NUMBER` is the last
//! transaction. Each transaction requires its predecessor's number and puts its own in its place: one that fails takes
//! all that were to follow it along, so the log is always what a prefix of the steps has written. The value beside the
//! number is where the log's time line stands.

#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use fanfare_async::{Calls, Command, Record};
use fanfare_store::{Op, Precondition, RedbStore, Scan, Store, StoreError, Txn};
use fanfare_types::Timestamp;

use super::stored;

const FORMAT: &str = "format";
/// What the value of [`FORMAT`] begins with; the version follows.
const FORMAT_NAME: &str = "fanfare-async ";
const FORMAT_VERSION: u32 = 1;
/// Bytes of a request or a result in one value.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// Operations and bytes of one transaction, with room for one more record and its removals and for the chain.
const TXN_OPS: usize = 48;
const TXN_BYTES: usize = 1 << 20;
/// Entries read at once.
const RECORDS_PAGE: usize = 1_000;
const CHUNKS_PAGE: usize = 16;

/// Why a log cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The store below it.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Not a log of asynchronous calls, or a damaged one.
    #[error(
        "the log of asynchronous invocations is damaged ({0}); it was left as it is. Restore it from a backup, or move it away to begin with an empty one"
    )]
    Corrupt(String),
    /// Written by a later version.
    #[error(
        "the log of asynchronous invocations has format {found}, and this version knows formats up to {FORMAT_VERSION}; it was left as it is. Start the version that wrote it, or a later one"
    )]
    Newer {
        /// Its format.
        found: u32,
    },
}

/// Where the log's time line and numbers stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) at: Timestamp,
    pub(crate) sequence: u64,
}

/// What a log holds.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) records: Vec<Record>,
    pub(crate) clock: Clock,
}

/// A log that is open.
#[derive(Debug)]
pub(crate) struct Log {
    store: Arc<dyn Store>,
    /// Of the last transaction that was ordered.
    chain: u64,
}

/// What is written together: a record with the removals that follow it, or one chunk.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    ops: Vec<Op>,
    bytes: usize,
}

impl Unit {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Opens the store. Blocks.
///
/// # Errors
/// The store's.
pub(crate) fn open(directory: &Path) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(RedbStore::open(directory)?))
}

impl Log {
    /// Reads all that is there, and removes bodies whose record a crash took.
    ///
    /// # Errors
    /// [`LogError`]; nothing was changed then, or only such bodies were removed.
    pub(crate) async fn load(store: Arc<dyn Store>) -> Result<(Log, Loaded), LogError> {
        let scan = |prefix: &str| Scan { prefix: prefix.to_owned(), after: None, limit: 2 };
        match store.get(FORMAT.to_owned()).await? {
            Some(entry) => check_format(&entry.value)?,
            None if store.scan(scan("")).await?.entries.is_empty() => begin(&store).await?,
            None => return Err(LogError::Corrupt("it holds something else".to_owned())),
        }
        let chain = store.scan(scan("chain/")).await?.entries;
        let [(key, entry)] = chain.as_slice() else {
            return Err(LogError::Corrupt(format!("it has {} last transactions", chain.len())));
        };
        let (chain, mut clock) = parse_chain(key, &entry.value)
            .ok_or_else(|| LogError::Corrupt(format!("its last transaction is {key:?}")))?;
        let records = read_records(&store).await?;
        let last = records.last().map_or(0, |record| record.id.sequence);
        clock.sequence = clock.sequence.max(last + 1);
        let mut log = Log { store, chain };
        let orphans = log.orphans(&records, last).await?;
        if !orphans.is_empty() {
            tracing::info!(parts = orphans.len(), "removing what a crash left of requests and results");
            let units = orphans
                .chunks(TXN_OPS)
                .map(|keys| Unit { ops: keys.iter().cloned().map(Op::Delete).collect(), bytes: 0 });
            log.commit(units.collect(), clock).await?;
        }
        Ok((log, Loaded { records, clock }))
    }

    /// Orders units to be written, in this order; resolves when all are durable. The order between calls is that of
    /// the calls, if each future is polled before the next call.
    pub(crate) fn commit(
        &mut self,
        units: Vec<Unit>,
        clock: Clock,
    ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>>>> {
        let txns = self.pack(units, clock);
        let mut commits: Vec<_> = txns.into_iter().map(|txn| Some(self.store.commit(txn))).collect();
        // Each is queued when it is polled for the first time; that is done in order.
        Box::pin(poll_fn(move |cx| {
            let mut pending = false;
            for place in &mut commits {
                if let Some(commit) = place {
                    match commit.as_mut().poll(cx) {
                        Poll::Ready(Ok(_)) => *place = None,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => pending = true,
                    }
                }
            }
            if pending { Poll::Pending } else { Poll::Ready(Ok(())) }
        }))
    }

    fn pack(&mut self, units: Vec<Unit>, clock: Clock) -> Vec<Txn> {
        let mut txns: Vec<(Vec<Op>, usize)> = vec![(Vec::new(), 0)];
        for unit in units {
            let (ops, bytes) = txns.last().map_or((0, 0), |(ops, bytes)| (ops.len(), *bytes));
            if ops > 0 && (ops + unit.ops.len() > TXN_OPS || bytes + unit.bytes > TXN_BYTES) {
                txns.push((Vec::new(), 0));
            }
            if let Some((ops, bytes)) = txns.last_mut() {
                ops.extend(unit.ops);
                *bytes += unit.bytes;
            }
        }
        let chained = txns.into_iter().map(|(mut ops, _)| {
            let before = chain_key(self.chain);
            self.chain += 1;
            ops.push(Op::Delete(before.clone()));
            ops.push(Op::Put(chain_key(self.chain), chain_value(clock)));
            Txn { fence: None, require: vec![Precondition::Present(before)], ops }
        });
        chained.collect()
    }

    /// Parts of requests after the last record, and of results of calls that have none.
    async fn orphans(&self, records: &[Record], last: u64) -> Result<Vec<String>, StoreError> {
        let mut orphans = self.keys("p/".to_owned(), Some(format!("p/{last:016x}/~"))).await?;
        for record in records.iter().filter(|record| !record.state.is_final()) {
            orphans.extend(self.keys(format!("r/{:016x}/", record.id.sequence), None).await?);
        }
        Ok(orphans)
    }

    async fn keys(&self, prefix: String, mut after: Option<String>) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        loop {
            let scan = Scan { prefix: prefix.clone(), after: after.take(), limit: CHUNKS_PAGE };
            let page = self.store.scan(scan).await?;
            keys.extend(page.entries.into_iter().map(|(key, _)| key));
            if !page.more {
                return Ok(keys);
            }
            after = keys.last().cloned();
        }
    }
}

/// What a request or a result is kept as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Payload,
    Result,
}

impl Kind {
    fn key(self, sequence: u64, chunk: usize) -> String {
        let letter = match self {
            Kind::Payload => 'p',
            Kind::Result => 'r',
        };
        format!("{letter}/{sequence:016x}/{chunk:04x}")
    }
}

/// Reads a request or a result.
///
/// # Errors
/// The store's, or that it is not there whole.
pub(crate) async fn read(
    store: &Arc<dyn Store>,
    kind: Kind,
    sequence: u64,
    bytes: u64,
) -> Result<Bytes, LogError> {
    let mut whole = BytesMut::new();
    for chunk in 0..chunks(bytes) {
        let key = kind.key(sequence, chunk);
        let Some(entry) = store.get(key.clone()).await? else {
            return Err(LogError::Corrupt(format!("{key} is missing")));
        };
        if chunks(bytes) == 1 {
            return Ok(entry.value);
        }
        whole.extend_from_slice(&entry.value);
    }
    Ok(whole.freeze())
}

fn chunks(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(CHUNK_BYTES)
}

/// Turns orders to write into units. `body` gives the bytes of a new request or result.
pub(crate) fn units(
    calls: &Calls,
    commands: &[Command],
    mut body: impl FnMut(Kind, u64) -> Option<Bytes>,
    units: &mut Vec<Unit>,
) {
    for command in commands {
        match *command {
            Command::PutPayload(sequence) => put_body(Kind::Payload, sequence, &mut body, units),
            Command::PutResult(sequence) => put_body(Kind::Result, sequence, &mut body, units),
            Command::Put(sequence) => {
                if let Some(record) = calls.at(sequence) {
                    let value = Bytes::from(stored::encode(record));
                    units.push(Unit { bytes: value.len(), ops: vec![Op::Put(record_key(sequence), value)] });
                }
            }
            Command::Remove(sequence) => {
                units.push(Unit { ops: vec![Op::Delete(record_key(sequence))], bytes: 0 });
            }
            Command::DropPayload { key, bytes } => drop_body(Kind::Payload, key, bytes, units),
            Command::DropResult { sequence, bytes } => drop_body(Kind::Result, sequence, bytes, units),
            Command::Prepare { .. }
            | Command::Start { .. }
            | Command::Abort { .. }
            | Command::CallBack(_)
            | Command::Finished(_) => {}
        }
    }
}

fn put_body(
    kind: Kind,
    sequence: u64,
    body: &mut impl FnMut(Kind, u64) -> Option<Bytes>,
    units: &mut Vec<Unit>,
) {
    let Some(mut rest) = body(kind, sequence) else { return };
    let mut chunk = 0;
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(CHUNK_BYTES));
        units.push(Unit { bytes: part.len(), ops: vec![Op::Put(kind.key(sequence, chunk), part)] });
        chunk += 1;
    }
}

/// With the record before it.
fn drop_body(kind: Kind, sequence: u64, bytes: u64, units: &mut Vec<Unit>) {
    let deletes = (0..chunks(bytes)).map(|chunk| Op::Delete(kind.key(sequence, chunk)));
    match units.last_mut() {
        Some(unit) => unit.ops.extend(deletes),
        None => units.push(Unit { ops: deletes.collect(), bytes: 0 }),
    }
}

fn record_key(sequence: u64) -> String {
    format!("i/{sequence:016x}")
}

fn chain_key(number: u64) -> String {
    format!("chain/{number:016x}")
}

fn chain_value(clock: Clock) -> Bytes {
    Bytes::from(format!("{} {}", clock.at.as_nanos() / 1_000_000, clock.sequence))
}

fn parse_chain(key: &str, value: &[u8]) -> Option<(u64, Clock)> {
    let number = u64::from_str_radix(key.strip_prefix("chain/")?, 16).ok()?;
    let (at, sequence) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let at = Timestamp::from_millis(at.parse().ok()?);
    Some((number, Clock { at, sequence: sequence.parse().ok()? }))
}

fn check_format(value: &[u8]) -> Result<(), LogError> {
    let version = std::str::from_utf8(value).ok().and_then(|text| text.strip_prefix(FORMAT_NAME));
    match version.and_then(|version| version.parse().ok()) {
        Some(FORMAT_VERSION) => Ok(()),
        Some(found) if found > FORMAT_VERSION => Err(LogError::Newer { found }),
        _ => Err(LogError::Corrupt("it does not say what it is".to_owned())),
    }
}

async fn begin(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    let format = Bytes::from(format!("{FORMAT_NAME}{FORMAT_VERSION}"));
    let clock = chain_value(Clock { at: Timestamp::ZERO, sequence: 1 });
    let ops = vec![Op::Put(FORMAT.to_owned(), format), Op::Put(chain_key(0), clock)];
    let require = vec![Precondition::Absent(FORMAT.to_owned())];
    store.commit(Txn { fence: None, require, ops }).await.map(drop)
}

async fn read_records(store: &Arc<dyn Store>) -> Result<Vec<Record>, LogError> {
    let mut records = Vec::new();
    let mut after = None;
    loop {
        let scan = Scan { prefix: "i/".to_owned(), after, limit: RECORDS_PAGE };
        let page = store.scan(scan).await?;
        for (key, entry) in &page.entries {
            let record = stored::decode(&entry.value)
                .map_err(|why| LogError::Corrupt(format!("the record {key}: {why}")))?;
            records.push(record);
        }
        if !page.more {
            return Ok(records);
        }
        after = page.entries.last().map(|(key, _)| key.clone());
    }
}
