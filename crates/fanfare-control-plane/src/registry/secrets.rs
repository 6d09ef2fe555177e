//! Secrets: kept sealed, in memory as in the store, and opened where they are used.

use std::collections::BTreeMap;

use bytes::Bytes;
use fanfare_store::{Entry, Op, Revision, Store};
use fanfare_types::{SecretName, SecretValue, limits};
use serde::{Deserialize, Serialize};

use super::changes::{Plan, Planned};
use super::load::for_each;
use super::{Change, Done, Known, Registry, RegistryError, history};
use crate::ControlPlaneError;
use crate::vault::{Sealed, Vault, unreadable};

/// Secrets' keys begin so.
const SECRETS: &str = "secrets/";

/// A secret that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Secret {
    /// Counts from 1 with each value.
    pub(crate) version: u64,
    /// By the wall clock of that time. For display: orders nothing.
    pub(crate) created_unix_ms: u64,
    /// Of the present value.
    pub(crate) updated_unix_ms: u64,
    pub(crate) sealed: Sealed,
    pub(super) stored: Revision,
}

#[derive(Serialize, Deserialize)]
struct StoredSecret {
    v: u32,
    version: u64,
    created_unix_ms: u64,
    updated_unix_ms: u64,
    sealed: String,
}

pub(super) fn secret_key(name: &SecretName) -> String {
    format!("{SECRETS}{name}")
}

pub(super) fn read_secret(key: &str, entry: &Entry) -> Result<(SecretName, Secret), ControlPlaneError> {
    let read = || {
        let name = SecretName::new(key.strip_prefix(SECRETS)?).ok()?;
        let value: StoredSecret =
            serde_json::from_slice(&entry.value).ok().filter(|v: &StoredSecret| v.v == 1)?;
        let StoredSecret { version, created_unix_ms, updated_unix_ms, sealed, .. } = value;
        let sealed = Sealed::decode(&sealed)?;
        Some((name, Secret { version, created_unix_ms, updated_unix_ms, sealed, stored: entry.revision }))
    };
    read().ok_or_else(|| unreadable(key, entry))
}

/// Every secret in the store.
pub(crate) async fn secrets_kept(
    store: &dyn Store,
) -> Result<BTreeMap<SecretName, Secret>, ControlPlaneError> {
    let mut secrets = BTreeMap::new();
    for_each(store, SECRETS, |key, entry| {
        let (name, secret) = read_secret(key, entry)?;
        secrets.insert(name, secret);
        Ok(())
    })
    .await?;
    Ok(secrets)
}

/// One secret, if there is one of that name.
pub(super) async fn secret_kept(
    store: &dyn Store,
    name: &SecretName,
) -> Result<Option<Secret>, ControlPlaneError> {
    let key = secret_key(name);
    let entry = store.get(key.clone()).await?;
    entry.map(|entry| read_secret(&key, &entry).map(|(_, secret)| secret)).transpose()
}

/// What setting a secret comes down to; `under_way` others are being made.
pub(super) fn set(
    known: &Known,
    vault: &Vault,
    name: &SecretName,
    value: &SecretValue,
    under_way: usize,
) -> Result<Planned, ControlPlaneError> {
    let before = known.secrets.get(name);
    let limit = limits::SECRETS_MAX;
    if before.is_none() && known.secrets.len() + under_way >= limit {
        return Ok(Planned::Answer(Err(RegistryError::Full { what: "secrets", limit })));
    }
    let now = history::unix_ms();
    let version = before.map_or(1, |secret| secret.version + 1);
    let Some(sealed) = vault.seal(name, version, value) else {
        let why = "the secret cannot be sealed: there is no key, or the system gives no random bytes";
        return Ok(Planned::Answer(Err(RegistryError::Unavailable(why.to_owned()))));
    };
    let created_unix_ms = before.map_or(now, |secret| secret.created_unix_ms);
    let stored =
        StoredSecret { v: 1, version, created_unix_ms, updated_unix_ms: now, sealed: sealed.encode() };
    let key = secret_key(name);
    let bytes = serde_json::to_vec(&stored)
        .map_err(|e| ControlPlaneError::Entry { key: key.clone(), detail: e.to_string() })?;
    let secret =
        Secret { version, created_unix_ms, updated_unix_ms: now, sealed, stored: Revision::default() };
    let done = Done::SecretSet { version };
    Ok(Planned::Write(
        Plan::KeepSecret { secret: Box::new(secret), done },
        vec![Op::Put(key, Bytes::from(bytes))],
    ))
}

/// What deleting a secret comes down to.
pub(super) fn delete(known: &Known, name: &SecretName) -> Planned {
    match known.secrets.contains_key(name) {
        true => Planned::Write(Plan::RemoveSecret, vec![Op::Delete(secret_key(name))]),
        false => Planned::Answer(Err(RegistryError::NotFound)),
    }
}

impl Registry {
    /// Gives a secret a value; resolves when that is durable. Answers [`Done::SecretSet`].
    pub(crate) async fn set_secret(
        &self,
        name: SecretName,
        value: SecretValue,
    ) -> Result<Done, RegistryError> {
        let vault = self.vault.clone();
        let made = tokio::task::spawn_blocking(move || vault.ensure_key()).await;
        made.unwrap_or_else(|e| Err(e.to_string())).map_err(RegistryError::Unavailable)?;
        self.change(Change::SetSecret(name, value)).await
    }

    /// A secret without its value.
    pub(crate) fn secret(&self, name: &str) -> Option<Secret> {
        self.known.read().secrets.get(name).cloned()
    }

    /// What a secret holds: for those who are to get it, nobody else.
    #[allow(dead_code, reason = "for what is told to nodes and data planes")]
    pub(crate) fn secret_value(&self, name: &SecretName) -> Option<SecretValue> {
        let secret = self.secret(name.as_str())?;
        let value = self.vault.unseal(name, secret.version, &secret.sealed);
        if value.is_none() {
            // Each was opened at the start or sealed since.
            tracing::error!(secret = %name, "cannot be opened with the key that it was sealed with");
        }
        value
    }

    /// Every secret in the order of their names.
    pub(crate) fn secrets(&self) -> Vec<(SecretName, Secret)> {
        self.known.read().secrets.iter().map(|(name, secret)| (name.clone(), secret.clone())).collect()
    }
}
