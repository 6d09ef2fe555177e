//! Power loss, full disks and damage, on a disk that can have all of them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::disk::Disk;
use super::engine::Engine;
use super::format::header;
use crate::{Op, Precondition, Scan, StoreError, Txn};

/// A disk in memory. Writes are durable only after a sync; until then a power cut may keep any of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDisk(Arc<Sim>);

#[derive(Debug, Default)]
struct Sim {
    state: Mutex<SimState>,
    full: AtomicBool,
    note: AtomicU64,
    /// Writes until the power fails; then nothing succeeds.
    power: Mutex<Option<usize>>,
}

#[derive(Debug, Default)]
struct SimState {
    durable: Vec<u8>,
    volatile: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::SetLen(len) => bytes.resize(*len, 0),
            Change::Write(offset, data) => {
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[*offset..offset + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl SimDisk {
    fn with(bytes: Vec<u8>) -> SimDisk {
        let disk = SimDisk::default();
        disk.0.state.lock().durable.clone_from(&bytes);
        disk.0.state.lock().volatile = bytes;
        disk
    }

    pub(crate) fn volatile(&self) -> Vec<u8> {
        self.0.state.lock().volatile.clone()
    }

    pub(crate) fn durable(&self) -> Vec<u8> {
        self.0.state.lock().durable.clone()
    }

    fn fill(&self, full: bool) {
        self.0.full.store(full, Ordering::SeqCst);
    }

    /// What a power cut leaves: everything synced, and those later writes that `keep` picks.
    fn after_power_cut(&self, keep: &[bool]) -> SimDisk {
        let state = self.0.state.lock();
        let mut bytes = state.durable.clone();
        for (change, keep) in state.unsynced.iter().zip(keep.iter().cycle()) {
            if *keep {
                change.make(&mut bytes);
            }
        }
        let after = SimDisk::with(bytes);
        after.0.note.store(self.0.note.load(Ordering::SeqCst), Ordering::SeqCst);
        after
    }

    /// Lets the power fail at the write after so many.
    fn fail_after(&self, writes: usize) {
        *self.0.power.lock() = Some(writes);
    }

    fn change(&self, change: Change) -> io::Result<()> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(left) = &mut *self.0.power.lock() {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        }
        let mut state = self.0.state.lock();
        change.make(&mut state.volatile);
        state.unsynced.push(change);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.lock().volatile.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.state.lock();
        let begin = usize::try_from(offset).unwrap();
        let bytes = state.volatile.get(begin..begin + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(usize::try_from(offset).unwrap(), data.to_vec()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::SetLen(usize::try_from(len).unwrap()))
    }

    fn sync(&self) -> io::Result<()> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if *self.0.power.lock() == Some(0) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut state = self.0.state.lock();
        for change in std::mem::take(&mut state.unsynced) {
            change.make(&mut state.durable);
        }
        Ok(())
    }

    fn acknowledged(&self) -> io::Result<u64> {
        Ok(self.0.note.load(Ordering::SeqCst))
    }

    fn acknowledge(&self, revision: u64) -> io::Result<()> {
        self.0.note.store(revision, Ordering::SeqCst);
        Ok(())
    }
}

fn open(disk: &SimDisk) -> Result<Engine, StoreError> {
    Engine::open(PathBuf::from("simulated"), Arc::new(disk.clone()))
}

fn put(key: String, value: Vec<u8>) -> Txn {
    Txn { ops: vec![Op::Put(key, Bytes::from(value))], ..Txn::default() }
}

fn count(engine: &Engine) -> usize {
    let all = Scan { prefix: String::new(), after: None, limit: 10_000 };
    engine.reader().scan(&all).unwrap().entries.len()
}

#[test]
fn a_full_disk_acknowledges_nothing_and_heals() {
    let disk = SimDisk::with(header());
    let mut engine = open(&disk).unwrap();
    engine.apply([&put("before".into(), vec![1])].into_iter()).unwrap();
    disk.fill(true);
    for _ in 0..3 {
        let error = engine.apply([&put("full".into(), vec![2; 100_000])].into_iter()).unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
    }
    disk.fill(false);
    let verdicts = engine.apply([&put("after".into(), vec![3])].into_iter()).unwrap();
    assert!(verdicts[0].is_ok());
    let reader = engine.reader();
    assert!(reader.get("before").unwrap().is_some() && reader.get("after").unwrap().is_some());
}

#[test]
fn a_batch_sees_its_own_earlier_transactions() {
    let disk = SimDisk::with(header());
    let mut engine = open(&disk).unwrap();
    let create = |by: u8| Txn {
        fence: None,
        require: vec![Precondition::Absent("a".into())],
        ops: vec![Op::Put("a".into(), Bytes::from(vec![by]))],
    };
    let syncs_nothing_when_refused = |engine: &mut Engine| {
        let before = disk.volatile();
        let verdicts = engine.apply([&create(9)].into_iter()).unwrap();
        assert!(matches!(verdicts[..], [Err(StoreError::Conflict { precondition: 0 })]));
        assert_eq!(disk.volatile(), before);
    };
    let verdicts = engine.apply([&create(1), &create(2), &put("b".into(), vec![])].into_iter()).unwrap();
    assert!(
        matches!(verdicts[..], [Ok(_), Err(StoreError::Conflict { precondition: 0 }), Ok(_)]),
        "{verdicts:?}"
    );
    assert_eq!(engine.reader().get("a").unwrap().unwrap().value, Bytes::from_static(&[1]));
    syncs_nothing_when_refused(&mut engine);
}

#[test]
fn a_damaged_file_is_refused_and_left_as_it_is() {
    let disk = SimDisk::with(header());
    let mut engine = open(&disk).unwrap();
    for i in 0..50 {
        engine.apply([&put(format!("key-{i}"), vec![i; 200])].into_iter()).unwrap();
    }
    // As a crash leaves it, and as an orderly end does.
    let crashed = disk.volatile();
    drop(engine);
    let closed = disk.volatile();
    let mut refused = 0;
    for (good, fewest) in [(crashed, 49), (closed, 50)] {
        assert_eq!(count(&open(&SimDisk::with(good.clone())).unwrap()), 50);
        for position in (4096..good.len()).step_by(509) {
            let mut bad = good.clone();
            bad[position] ^= 0x40;
            let disk = SimDisk::with(bad.clone());
            match open(&disk) {
                // A page that is not in use, or one of two copies. After a crash the newest transaction may be given
                // up: damage to its pages cannot be told from a write that was never finished.
                Ok(engine) => assert!((fewest..=50).contains(&count(&engine)), "byte {position}"),
                Err(StoreError::Corrupt { .. }) => {
                    refused += 1;
                    assert_eq!(disk.volatile(), bad, "byte {position}: changed though refused");
                }
                Err(error) => panic!("byte {position}: {error}"),
            }
        }
        for len in [4096, 4097, 5000, 8192, good.len() / 2, good.len() - 1] {
            let disk = SimDisk::with(good[..len].to_vec());
            match open(&disk) {
                Ok(engine) => assert!(count(&engine) >= fewest || len == 4096, "{len} bytes"),
                Err(StoreError::Corrupt { .. }) => assert_eq!(disk.volatile(), good[..len], "{len} bytes"),
                Err(error) => panic!("{len} bytes: {error}"),
            }
        }
    }
    assert!(refused >= 20, "only {refused} of the damages were noticed");
}

#[test]
fn a_power_cut_while_it_opens_loses_nothing() {
    let disk = SimDisk::with(header());
    let mut engine = open(&disk).unwrap();
    for i in 0..50 {
        engine.apply([&put(format!("key-{i}"), vec![i; 200])].into_iter()).unwrap();
    }
    // What a crash leaves is repaired by the next open, what an orderly end leaves is only marked as open.
    let crashed = disk.durable();
    drop(engine);
    for (what, bytes) in [("crashed", crashed), ("closed", disk.durable())] {
        let mut cuts = 0;
        for writes in 0.. {
            let disk = SimDisk::with(bytes.clone());
            disk.fail_after(writes);
            if open(&disk).is_ok() && disk.0.power.lock().is_some_and(|left| left > 0) {
                break;
            }
            cuts += 1;
            for keep in [&[true][..], &[false], &[true, false], &[false, true], &[true, true, false]] {
                match open(&disk.after_power_cut(keep)) {
                    Ok(engine) => assert_eq!(count(&engine), 50, "{what}, cut after {writes} writes"),
                    Err(error) => panic!("{what}, cut after {writes} writes, of which {keep:?}: {error}"),
                }
            }
        }
        assert!(cuts > 0, "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_power_cut_loses_no_acknowledged_write(
        batches in prop::collection::vec(prop::collection::vec((0_u8..30, 0_usize..9_000), 1..5), 1..12),
        keep in prop::collection::vec(any::<bool>(), 1..64),
    ) {
        let disk = SimDisk::with(header());
        let mut engine = open(&disk).unwrap();
        let mut acknowledged = std::collections::BTreeMap::new();
        for (round, batch) in batches.iter().enumerate() {
            let txns: Vec<_> = batch
                .iter()
                .map(|(key, len)| put(format!("k{key}"), vec![u8::try_from(round).unwrap(); *len]))
                .collect();
            for (txn, verdict) in txns.iter().zip(engine.apply(txns.iter()).unwrap()) {
                prop_assert!(verdict.is_ok());
                if let Op::Put(key, value) = &txn.ops[0] {
                    acknowledged.insert(key.clone(), value.clone());
                }
            }
            let after = open(&disk.after_power_cut(&keep)).unwrap();
            for (key, value) in &acknowledged {
                prop_assert_eq!(&after.reader().get(key).unwrap().unwrap().value, value);
            }
            prop_assert_eq!(count(&after), acknowledged.len());
        }
    }
}
