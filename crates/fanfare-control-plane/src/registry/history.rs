//! Revisions that were replaced: which of them are kept, and what is known of them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fanfare_api::encode_stored;
use fanfare_types::{CodeDigest, FunctionSpec, SecretName, StartFailure};
use sha2::{Digest, Sha256};

use crate::limits::REVISIONS_KEPT;

/// A revision that was replaced. What it was is in the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Past {
    pub(crate) number: u32,
    /// When it was registered, by the wall clock of that time. For display: orders nothing.
    pub(crate) created_unix_ms: u64,
    /// Of all that was registered: the same for revisions that are the same.
    pub(crate) digest: CodeDigest,
    pub(crate) code: Option<CodeDigest>,
    /// Secrets that it uses.
    pub(crate) secrets: Arc<[SecretName]>,
    /// Why it cannot start, if that is known.
    pub(crate) failed: Option<Arc<Unstartable>>,
    /// It has been proved to start at some time.
    pub(crate) has_started: bool,
}

/// Why a revision cannot start, whatever is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unstartable {
    /// When that was found. For display.
    pub(crate) at_unix_ms: u64,
    pub(crate) failure: StartFailure,
}

/// SHA-256 of what was registered, in the form in which it is stored.
pub(crate) fn digest(spec: &FunctionSpec) -> CodeDigest {
    CodeDigest(Sha256::digest(encode_stored(spec)).into())
}

/// The wall clock, for display.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Takes out of `past`, oldest first, what is not kept: so many are, the latest included, and besides those that are
/// `named` by traffic or a tag, and the newest that is not known to be broken, which is where a rollback goes. Returns
/// the numbers of those taken out.
pub(super) fn forget(past: &mut Vec<Arc<Past>>, named: impl Fn(u32) -> bool) -> Vec<u32> {
    let newest_good = past.iter().rev().find(|p| p.failed.is_none()).map(|p| p.number);
    let surplus = (past.len() + 1).saturating_sub(REVISIONS_KEPT);
    let oldest: Vec<u32> = past.iter().take(surplus).map(|p| p.number).collect();
    let gone = |number: u32| oldest.contains(&number) && Some(number) != newest_good && !named(number);
    past.retain(|p| !gone(p.number));
    oldest.into_iter().filter(|number| past.iter().all(|p| p.number != *number)).collect()
}

/// Where a rollback goes that names no revision: the newest that is not known to be broken, nor the same as `current`.
pub(super) fn before(past: &[Arc<Past>], current: CodeDigest) -> Option<u32> {
    past.iter().rev().find(|p| p.failed.is_none() && p.digest != current).map(|p| p.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    use fanfare_types::StartFailureKind;

    fn past(numbers: impl IntoIterator<Item = u32>, broken: &[u32]) -> Vec<Arc<Past>> {
        let failure = StartFailure {
            kind: StartFailureKind::ImportFailed,
            detail: String::new(),
            log_tail: String::new(),
        };
        let unstartable = Arc::new(Unstartable { at_unix_ms: 0, failure });
        let one = |number| Past {
            number,
            created_unix_ms: 0,
            digest: CodeDigest([u8::try_from(number % 2).unwrap(); 32]),
            code: None,
            secrets: Arc::default(),
            failed: broken.contains(&number).then(|| unstartable.clone()),
            has_started: false,
        };
        numbers.into_iter().map(|number| Arc::new(one(number))).collect()
    }

    #[test]
    fn the_newest_the_named_and_the_last_good_revision_are_kept() {
        let kept = u32::try_from(REVISIONS_KEPT).unwrap();
        let all_broken: Vec<u32> = (3..=40).collect();
        let but_second: Vec<u32> = (1..=40 - kept + 1).filter(|n| *n != 2).collect();
        let none: &[u32] = &[];
        let cases = [
            (kept - 1, none, none, none),
            (kept, none, none, &[1]),
            (kept + 2, &[2], none, &[1, 3]),
            // Twenty broken updates do not take away what serves.
            (40, none, &all_broken, &but_second),
        ];
        for (last, named, broken, gone) in cases {
            let mut past = past(1..=last, broken);
            assert_eq!(forget(&mut past, |number| named.contains(&number)), gone, "{last} {named:?}");
            let left: Vec<u32> = past.iter().map(|p| p.number).collect();
            assert_eq!(left, (1..=last).filter(|n| !gone.contains(n)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_rollback_goes_to_the_newest_that_works_and_differs() {
        let odd = CodeDigest([1; 32]);
        let cases: [(&[u32], &[u32], Option<u32>); 5] = [
            (&[], &[], None),
            (&[1], &[], None),
            (&[1, 2], &[], Some(2)),
            (&[2, 4, 5], &[4], Some(2)),
            (&[2, 3], &[2], None),
        ];
        for (numbers, broken, to) in cases {
            assert_eq!(before(&past(numbers.iter().copied(), broken), odd), to, "{numbers:?} {broken:?}");
        }
    }
}
