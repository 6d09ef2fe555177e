//! What callers ask for.

use std::sync::Arc;

use fanfare_types::FunctionId;

use crate::command::Command;
use crate::event::{Accepted, Now, Offer, Refusal};
use crate::id::InvocationId;
use crate::limits::KEY_WINDOW;
use crate::record::{Callback, Payload, Record, State};

use super::Calls;

impl Calls {
    /// A call asks to be accepted. It is, once what this orders to be written is durable, and a known one once
    /// everything ordered before is.
    ///
    /// # Errors
    /// [`Refusal::TooMany`], [`Refusal::TooManyBytes`] or [`Refusal::KeyReused`].
    pub fn offer(
        &mut self,
        now: Now,
        offer: Offer,
        commands: &mut Vec<Command>,
    ) -> Result<Accepted, Refusal> {
        if let Some(key) = &offer.key
            && let Some(known) = self.keys.get(&(offer.function, key.key.clone()))
            && let Some(known) = self.calls.get(known)
            && now.at < known.accepted + KEY_WINDOW
        {
            let same = known.key.as_ref().is_some_and(|first| first.fingerprint == key.fingerprint);
            return if same { Ok(Accepted::Known(known.id)) } else { Err(Refusal::KeyReused(known.id)) };
        }
        self.room(offer.payload_bytes)?;
        let sequence = self.sequence;
        self.step.bodies.push(Command::PutPayload(sequence));
        let id = self.insert(now, offer, None, Payload { key: sequence, bytes: 0 });
        self.settle(now, commands);
        Ok(Accepted::New(id))
    }

    /// The call that was accepted for this function under this key, however long ago, if it is kept.
    #[must_use]
    pub fn known(&self, function: FunctionId, key: &Arc<str>) -> Option<InvocationId> {
        let sequence = self.keys.get(&(function, key.clone()))?;
        self.calls.get(sequence).map(|record| record.id)
    }

    /// A failed or dead call is to be called again: as a new one, with the same request and settings.
    ///
    /// # Errors
    /// Every [`Refusal`] but [`Refusal::KeyReused`] and [`Refusal::Ended`].
    pub fn replay(
        &mut self,
        now: Now,
        id: InvocationId,
        nonce: u64,
        commands: &mut Vec<Command>,
    ) -> Result<InvocationId, Refusal> {
        let letter = self.get(id).ok_or(Refusal::Unknown)?;
        if let Some(replayed) = letter.replayed_as {
            return Err(Refusal::Replayed(replayed));
        }
        let Some(payload) = letter.payload.filter(|_| letter.state.is_letter()) else {
            return Err(Refusal::NoLetter(letter.state));
        };
        let offer = Offer {
            data_plane: id.data_plane,
            nonce,
            function: letter.function,
            name: letter.name.clone(),
            settings: letter.settings.clone(),
            key: None,
            payload_bytes: payload.bytes,
        };
        self.room(payload.bytes)?;
        let again = self.insert(now, offer, Some(id), payload);
        self.change(now, id.sequence, |record| {
            record.replayed_as = Some(again);
            record.payload = None;
        });
        self.settle(now, commands);
        Ok(again)
    }

    /// The function that a failed or dead call was for is another one now: its replay is for that.
    ///
    /// # Errors
    /// As [`Calls::replay`].
    pub fn replay_for(
        &mut self,
        now: Now,
        id: InvocationId,
        function: FunctionId,
        nonce: u64,
        commands: &mut Vec<Command>,
    ) -> Result<InvocationId, Refusal> {
        let letter = self.get(id).ok_or(Refusal::Unknown)?;
        if letter.function != function && letter.replayed_as.is_none() && letter.state.is_letter() {
            self.change(now, id.sequence, |record| record.function = function);
        }
        self.replay(now, id, nonce, commands)
    }

    /// The caller does not want a call any more. One that is cancelled already stays so.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] or [`Refusal::Ended`].
    pub fn cancel(&mut self, now: Now, id: InvocationId, commands: &mut Vec<Command>) -> Result<(), Refusal> {
        let record = self.get(id).ok_or(Refusal::Unknown)?;
        match record.state {
            State::Cancelled => return Ok(()),
            state if state.is_final() => return Err(Refusal::Ended(state)),
            _ => {}
        }
        let attempt = record.attempts;
        let ahead = self.feed.take_back(id.sequence);
        if self.feed.end(id.sequence, attempt) {
            self.step.effects.push(Command::Abort { sequence: id.sequence, attempt });
        }
        self.change(now, id.sequence, |record| {
            record.attempts -= u32::from(ahead);
            record.state = State::Cancelled;
        });
        self.settle(now, commands);
        Ok(())
    }

    /// A crash may have let a replay through and not what it did to the dead letter: the request is the replay's.
    pub(super) fn settle_replays(&mut self, now: Now) {
        let open = |record: &Record| Some((record.replay_of?, record.id, record.payload?.key));
        let replays: Vec<_> = self.all().filter_map(open).collect();
        for (letter, replay, key) in replays {
            let half = |record: &Record| record.payload.is_some_and(|payload| payload.key == key);
            if self.get(letter).is_some_and(half) {
                self.change(now, letter.sequence, |record| {
                    record.replayed_as = Some(replay);
                    record.payload = None;
                });
            }
        }
    }

    pub(super) fn room(&self, bytes: u64) -> Result<(), Refusal> {
        if self.open >= self.limits.open_max {
            return Err(Refusal::TooMany { limit: self.limits.open_max });
        }
        if self.open_bytes.saturating_add(bytes) > self.limits.open_bytes_max {
            return Err(Refusal::TooManyBytes { limit: self.limits.open_bytes_max });
        }
        Ok(())
    }

    pub(super) fn insert(
        &mut self,
        now: Now,
        offer: Offer,
        replay_of: Option<InvocationId>,
        payload: Payload,
    ) -> InvocationId {
        let sequence = self.sequence;
        self.sequence += 1;
        let id = InvocationId { data_plane: offer.data_plane, sequence, nonce: offer.nonce };
        if let Some(key) = &offer.key {
            self.keys.insert((offer.function, key.key.clone()), sequence);
        }
        let record = Record {
            id,
            function: offer.function,
            name: offer.name,
            settings: offer.settings,
            key: offer.key,
            payload: Some(Payload { key: payload.key, bytes: offer.payload_bytes }),
            state: State::Queued,
            accepted: now.at,
            accepted_shown_ms: now.shown_ms,
            attempts: 0,
            failures: 0,
            interruptions: 0,
            last: None,
            result_bytes: None,
            finished: None,
            callback: Callback::None,
            replay_of,
            replayed_as: None,
        };
        self.count(&record);
        self.arm(&record);
        self.feed.ready(record.function, sequence, record.ready());
        self.calls.insert(sequence, record);
        self.step.touched.insert(sequence);
        id
    }
}
