//! Questions to data planes about requests, and their answers on the way back to who asked.

use fanfare_types::{DataPlaneId, RequestRecord, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::limits::QUESTIONS_MAX;

/// What one data plane remembers.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) data_plane: DataPlaneId,
    /// When it said so, by the engine's clock.
    pub(crate) at: Timestamp,
    pub(crate) records: Vec<RequestRecord>,
    /// For how long requests are remembered there at present.
    pub(crate) kept: Option<Duration>,
}

/// A question that was put to data planes.
#[derive(Debug)]
pub(crate) struct Asked {
    /// To which, by name.
    pub(crate) data_planes: Vec<(DataPlaneId, Arc<str>)>,
    /// One answer of each that gives one.
    pub(crate) answers: mpsc::Receiver<Remembered>,
}

/// Questions that somebody still waits for the answers to.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    last: u64,
    open: Vec<(u64, mpsc::Sender<Remembered>)>,
}

impl Questions {
    /// A number for a question to so many; `None` when as many are open as may.
    pub(crate) fn open(&mut self, data_planes: usize) -> Option<(u64, mpsc::Receiver<Remembered>)> {
        self.open.retain(|(_, answers)| !answers.is_closed());
        if self.open.len() >= QUESTIONS_MAX {
            return None;
        }
        self.last += 1;
        // Room for every answer: passing one on never waits.
        let (answers, answered) = mpsc::channel(data_planes.max(1));
        self.open.push((self.last, answers));
        Some((self.last, answered))
    }

    /// Passes an answer on, if it is waited for.
    pub(crate) fn answered(&mut self, number: u64, answer: Remembered) {
        self.open.retain(|(_, answers)| !answers.is_closed());
        if let Some((_, answers)) = self.open.iter().find(|(open, _)| *open == number) {
            // Full only when a data plane answers twice.
            let _ = answers.try_send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(of: u32) -> Remembered {
        Remembered { data_plane: DataPlaneId(of), at: Timestamp::ZERO, records: Vec::new(), kept: None }
    }

    #[test]
    fn answers_reach_who_asked_and_abandoned_questions_make_room() {
        let mut questions = Questions::default();
        let (first, mut answers) = questions.open(2).unwrap();
        let (second, other) = questions.open(2).unwrap();
        questions.answered(first, answer(1));
        questions.answered(first, answer(2));
        questions.answered(first, answer(3));
        questions.answered(99, answer(4));
        let got: Vec<_> = std::iter::from_fn(|| answers.try_recv().ok()).map(|a| a.data_plane.0).collect();
        assert_eq!(got, [1, 2], "no more than were asked");
        drop(other);
        questions.answered(second, answer(1));
        assert_eq!(questions.open.len(), 1);
        let kept: Vec<_> = std::iter::from_fn(|| questions.open(1)).take(QUESTIONS_MAX).collect();
        assert_eq!(kept.len(), QUESTIONS_MAX - 1);
        drop(kept);
        assert!(questions.open(1).is_some());
    }
}
