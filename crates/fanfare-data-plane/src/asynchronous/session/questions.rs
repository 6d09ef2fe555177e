//! What the cores ask.

use fanfare_async::{Accepted, Command, InvocationId, Refusal};
use tokio::sync::oneshot;

use super::{Session, Then, WATCHERS_MAX, read_result};
use crate::asynchronous::door::{Ask, Outcome};

impl Session {
    /// Answers once all that was ordered before is durable. Whoever asked may have left.
    fn tell<T: 'static>(&mut self, tell: oneshot::Sender<T>, answer: T) {
        self.then.push(Then::Tell(Box::new(move || drop(tell.send(answer)))));
    }

    pub(super) fn answer(&mut self, ask: Ask) {
        let now = self.now();
        let mut commands = Vec::new();
        match ask {
            Ask::Offer { offer, payload, room, tell } => {
                let answer = self.calls.offer(now, offer, &mut commands);
                for command in &commands {
                    if let (Command::Prepare { sequence, .. }, Ok(Accepted::New(id))) = (command, answer)
                        && *sequence == id.sequence
                    {
                        self.fresh.insert(*sequence, payload.clone());
                    }
                }
                self.obey(commands, Some(&payload));
                self.tell(tell, answer);
                self.then.push(Then::Tell(Box::new(move || drop(room))));
            }
            Ask::Known { function, key, tell } => {
                let known = self.calls.known(function, &key);
                self.tell(tell, known);
            }
            Ask::Look { id, tell } => {
                let seen = self.calls.get(id).map(|record| self.seen(record));
                self.tell(tell, seen);
            }
            Ask::Watch { id, tell } => self.watch(id, tell),
            Ask::Result { id, tell } => self.result(id, tell),
            Ask::Cancel { id, tell } => {
                let cancelled = self.calls.cancel(now, id, &mut commands);
                self.obey(commands, None);
                let seen = cancelled.and_then(|()| {
                    let record = self.calls.get(id).ok_or(Refusal::Unknown)?;
                    Ok(self.seen(record))
                });
                self.tell(tell, seen);
            }
            Ask::Replay { id, nonce, tell } => {
                let name = self.calls.get(id).map(|record| record.name.clone());
                let function = name.and_then(|name| self.core.shared.directory.find(name.as_str()));
                let answer = match function {
                    Some(function) => self.calls.replay_for(now, id, function.id, nonce, &mut commands),
                    None => self.calls.replay(now, id, nonce, &mut commands),
                };
                self.obey(commands, None);
                self.tell(tell, answer);
            }
            Ask::List { filter, after, limit, tell } => {
                let (records, more) = self.calls.list(&filter, after, limit);
                let page = records.into_iter().map(|record| self.seen(record)).collect();
                self.tell(tell, (page, more));
            }
        }
    }

    fn watch(&mut self, id: InvocationId, tell: oneshot::Sender<()>) {
        if self.calls.get(id).is_none_or(|record| record.state.is_final()) {
            return self.tell(tell, ());
        }
        if self.watchers.values().map(Vec::len).sum::<usize>() >= WATCHERS_MAX {
            self.watchers.values_mut().for_each(|watchers| watchers.retain(|watcher| !watcher.is_closed()));
            self.watchers.retain(|_, watchers| !watchers.is_empty());
        }
        // One too many asks again when its time is over.
        if self.watchers.values().map(Vec::len).sum::<usize>() < WATCHERS_MAX {
            self.watchers.entry(id.sequence).or_default().push(tell);
        }
    }

    fn result(&mut self, id: InvocationId, tell: oneshot::Sender<Option<Outcome>>) {
        let Some(record) = self.calls.get(id) else { return self.tell(tell, None) };
        let (seen, store) = (self.seen(record), self.store.clone());
        let read = async move {
            let result = match seen.record.result_bytes.filter(|_| seen.record.state.is_final()) {
                None => Ok(None),
                Some(bytes) => read_result(&store, &seen.record, bytes).await.map(Some),
            };
            let _ = tell.send(Some(Outcome { seen, result }));
        };
        self.then.push(Then::Tell(Box::new(move || drop(tokio::task::spawn_local(read)))));
    }
}
