//! A request in the queue.

use std::sync::Arc;

use fanfare_dispatch::{Event, Outcome};
use fanfare_types::Reason;
use tokio::sync::oneshot;

use crate::clock;
use crate::function::{Answer, Function, Place};
use crate::problem::Problem;
use crate::shared::Shared;

/// Waits for a slot or a refusal, at most until the request's deadline. A request that is dropped meanwhile leaves the queue, or
/// gives back the slot that was just on its way.
pub(crate) async fn wait(
    shared: &Shared,
    function: &Arc<Function>,
    place: Place,
    answer: oneshot::Receiver<Answer>,
) -> Result<Answer, Problem> {
    let mut waiting = Waiting::new(shared, function, place, answer);
    loop {
        let until = clock::instant(place.deadline);
        match tokio::time::timeout_at(until, &mut waiting.answer).await {
            Ok(answer) => {
                waiting.answered = true;
                return answer.map_err(|_| Problem::new(Reason::Internal, "the queue lost the request"));
            }
            // The queue refuses all whose time is over; the answer is here at once.
            Err(_) => function.apply(shared, Event::Tick),
        }
    }
}

/// A place in the queue, given up when it is dropped.
pub(crate) struct Waiting<'a> {
    shared: &'a Shared,
    function: &'a Arc<Function>,
    waiter: u64,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        function: &'a Arc<Function>,
        place: Place,
        answer: oneshot::Receiver<Answer>,
    ) -> Self {
        Waiting { shared, function, waiter: place.waiter, answer, answered: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // After this an answer that comes too late is returned to its sender, who undoes it.
        self.answer.close();
        match self.answer.try_recv() {
            Ok(Answer::Slot(slot)) => {
                self.function.finish(self.shared, &slot, Outcome::NeverSent, clock::now());
            }
            Ok(Answer::Refused(_)) => {}
            Err(_) => self.function.leave(self.shared, self.waiter),
        }
    }
}
