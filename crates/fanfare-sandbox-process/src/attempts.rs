//! Values that are made once for all who need them, where making may fail.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use fanfare_types::StartFailure;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// What came of it, and when.
type Attempt<T> = Arc<OnceCell<(Result<T, StartFailure>, Instant)>>;

/// A value that is made at its first use. A failure is for all whose need of it is older: hundreds of starts that need
/// the same broken thing try it once, not one after another, however long each takes to get so far. Later needs try
/// anew.
#[derive(Debug)]
pub(crate) struct Attempts<T> {
    current: Mutex<Attempt<T>>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Attempts { current: Mutex::default() }
    }
}

impl<T: Clone> Attempts<T> {
    /// The value, if it has been made.
    pub(crate) fn get(&self) -> Option<T> {
        self.current.lock().get()?.0.as_ref().ok().cloned()
    }

    /// The value, made by `make` unless it is there or being made. It is needed since `since`.
    pub(crate) async fn get_or_make(
        &self,
        since: Instant,
        make: impl Future<Output = Result<T, StartFailure>>,
    ) -> Result<T, StartFailure> {
        let attempt = {
            let mut current = self.current.lock();
            if matches!(current.get(), Some((Err(_), ended)) if *ended < since) {
                *current = Attempt::default();
            }
            current.clone()
        };
        attempt.get_or_init(async || (make.await, Instant::now())).await.0.clone()
    }

    /// Puts a new attempt in the place of a value that `is_over`; gives that value.
    pub(crate) fn renew(&self, is_over: impl Fn(&T) -> bool) -> Option<T> {
        let mut current = self.current.lock();
        let over = current.get()?.0.as_ref().ok().filter(|value| is_over(value)).cloned()?;
        *current = Attempt::default();
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::node_failure;

    #[tokio::test]
    async fn a_failure_is_for_those_who_needed_it_before() {
        let attempts = Attempts::<u32>::default();
        let begun = Instant::now();
        let (go, waits) = tokio::sync::oneshot::channel::<()>();
        let first = attempts.get_or_make(begun, async {
            let _ = waits.await;
            Err(node_failure("first", "no"))
        });
        let second = attempts.get_or_make(begun, async { Ok(2) });
        let (first, second, ()) = tokio::join!(biased; first, second, async { go.send(()).unwrap() });
        assert!(first.is_err() && second == first);
        assert_eq!(attempts.get(), None);
        assert_eq!(
            attempts.get_or_make(begun, async { Ok(2) }).await,
            first,
            "it came late, and needed it before"
        );
        let later = Instant::now();
        assert!(later > begun);
        assert_eq!(attempts.get_or_make(later, async { Ok(3) }).await, Ok(3));
        assert_eq!(attempts.get_or_make(begun, async { Ok(4) }).await, Ok(3));
        assert_eq!((attempts.renew(|n| *n > 3), attempts.renew(|n| *n == 3)), (None, Some(3)));
        assert_eq!((attempts.get(), attempts.renew(|_| true)), (None, None));
    }
}
