//! What a change is about: one key of the store.

use std::sync::Arc;

use fanfare_store::Store;
use fanfare_types::{FunctionName, SecretName};

use super::entry::{function_key, peer_key, read_number};
use super::load::{self, Kept};
use super::secrets::{secret_kept, secret_key};
use super::{Change, PeerKind};
use crate::ControlPlaneError;

/// Changes of one subject follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Function(FunctionName),
    Secret(SecretName),
    Peer(PeerKind, Arc<str>),
}

impl Subject {
    pub(super) fn of(change: &Change) -> Subject {
        match change {
            Change::Create(spec) | Change::Put(spec) => Subject::Function(spec.name.clone()),
            Change::Delete(name)
            | Change::Patch(name, _)
            | Change::Rollback(name, _)
            | Change::Traffic(name, _)
            | Change::Proved(name, ..) => Subject::Function(name.clone()),
            Change::SetSecret(name, _) | Change::DeleteSecret(name) | Change::ClaimSecret(name, _) => {
                Subject::Secret(name.clone())
            }
            Change::Peer(kind, name) => Subject::Peer(*kind, name.clone()),
        }
    }

    pub(super) fn key(&self) -> String {
        match self {
            Subject::Function(name) => function_key(name),
            Subject::Secret(name) => secret_key(name),
            Subject::Peer(kind, name) => peer_key(*kind, name),
        }
    }
}

/// What the store holds of a subject.
pub(super) async fn kept(store: &dyn Store, subject: &Subject) -> Result<Kept, ControlPlaneError> {
    match subject {
        Subject::Function(name) => Ok(Kept::Function(load::function(store, name).await?.map(Box::new))),
        Subject::Secret(name) => Ok(Kept::Secret(secret_kept(store, name).await?.map(Box::new))),
        Subject::Peer(..) => {
            let key = subject.key();
            let entry = store.get(key.clone()).await?;
            Ok(Kept::Peer(entry.map(|entry| read_number(&key, &entry)).transpose()?))
        }
    }
}
