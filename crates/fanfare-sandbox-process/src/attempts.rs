//! Values that are made once for all who need them, where making may fail.

use std::future::Future;
use std::sync::Arc;

use fanfare_types::StartFailure;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

type Attempt<T> = Arc<OnceCell<Result<T, StartFailure>>>;

/// A value that is made at its first use. A failure is for all who waited for that attempt: hundreds of starts that
/// need the same broken thing try it once, not one after another. Whoever asks later tries anew.
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
        self.current.lock().get()?.as_ref().ok().cloned()
    }

    /// The value, made by `make` unless it is there or being made.
    pub(crate) async fn get_or_make(
        &self,
        make: impl Future<Output = Result<T, StartFailure>>,
    ) -> Result<T, StartFailure> {
        let attempt = {
            let mut current = self.current.lock();
            if matches!(current.get(), Some(Err(_))) {
                *current = Attempt::default();
            }
            current.clone()
        };
        attempt.get_or_init(|| make).await.clone()
    }

    /// Puts a new attempt in the place of a value that `is_over`; gives that value.
    pub(crate) fn renew(&self, is_over: impl Fn(&T) -> bool) -> Option<T> {
        let mut current = self.current.lock();
        let over = current.get()?.as_ref().ok().filter(|value| is_over(value)).cloned()?;
        *current = Attempt::default();
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::node_failure;

    #[tokio::test]
    async fn a_failure_is_for_those_who_waited() {
        let attempts = Attempts::<u32>::default();
        let (go, waits) = tokio::sync::oneshot::channel::<()>();
        let first = attempts.get_or_make(async {
            let _ = waits.await;
            Err(node_failure("first", "no"))
        });
        let second = attempts.get_or_make(async { Ok(2) });
        let (first, second, ()) = tokio::join!(biased; first, second, async { go.send(()).unwrap() });
        assert!(first.is_err() && second == first);
        assert_eq!(attempts.get(), None);
        assert_eq!(attempts.get_or_make(async { Ok(3) }).await, Ok(3));
        assert_eq!(attempts.get_or_make(async { Ok(4) }).await, Ok(3));
        assert_eq!((attempts.renew(|n| *n > 3), attempts.renew(|n| *n == 3)), (None, Some(3)));
        assert_eq!((attempts.get(), attempts.renew(|_| true)), (None, None));
    }
}
