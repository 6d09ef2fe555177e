//! Secrets: kept sealed, in memory as in the store, and opened where they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::FieldError;
use fanfare_store::{Entry, Op, Revision, Store};
use fanfare_types::{FunctionName, Given, RevisionId, SecretName, SecretPlace, SecretValue, limits};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::changes::{Plan, Planned};
use super::load::for_each;
use super::subject::Subject;
use super::{Change, Done, Function, Known, Past, Registry, RegistryError, history};
use crate::ControlPlaneError;
use crate::vault::{Sealed, Vault, unreadable};

/// Secrets' keys begin so.
const SECRETS: &str = "secrets/";
/// Before the names of those users of a secret that are webhooks.
pub(crate) const WEBHOOK: &str = "webhook ";

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

/// Secrets that changes under way are about, which are not known yet.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// How many are being made.
    pub(super) created: usize,
    /// Those that are being deleted.
    pub(super) deleted: BTreeSet<SecretName>,
    /// Those that functions on their way to the store use, once for each.
    pub(super) named: Vec<SecretName>,
}

impl UnderWay {
    /// A plan is on its way to the store.
    pub(super) fn begin(&mut self, subject: &Subject, plan: &Plan) {
        match (subject, plan) {
            (Subject::Secret(name), Plan::RemoveSecret) => drop(self.deleted.insert(name.clone())),
            (_, Plan::KeepSecret { done: Done::SecretSet { version: 1 }, .. }) => self.created += 1,
            (_, Plan::Keep { function, .. }) => self.named.extend(function.secrets_in_use()),
            _ => {}
        }
    }

    /// It is known what became of it.
    pub(super) fn end(&mut self, subject: &Subject, plan: &Plan) {
        match (subject, plan) {
            (Subject::Secret(name), Plan::RemoveSecret) => drop(self.deleted.remove(name)),
            (_, Plan::KeepSecret { done: Done::SecretSet { version: 1 }, .. }) => self.created -= 1,
            (_, Plan::Keep { function, .. }) => {
                for name in function.secrets_in_use() {
                    let at = self.named.iter().position(|named| *named == name);
                    at.map(|at| self.named.swap_remove(at));
                }
            }
            _ => {}
        }
    }
}

/// What setting a secret comes down to.
pub(super) fn set(
    known: &Known,
    vault: &Vault,
    name: &SecretName,
    value: &SecretValue,
    under_way: &UnderWay,
) -> Result<Planned, ControlPlaneError> {
    let before = known.secrets.get(name);
    if let Some(why) = misfit(known, vault, name, value) {
        return Ok(Planned::Answer(Err(RegistryError::Field(Box::new(why)))));
    }
    let limit = limits::SECRETS_MAX;
    if before.is_none() && known.secrets.len() + under_way.created >= limit {
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
pub(super) fn delete(known: &Known, name: &SecretName, under_way: &UnderWay) -> Planned {
    let mut by = known.users_of(name);
    if by.is_empty() && under_way.named.contains(name) {
        by.push("a function that is being registered".to_owned());
    }
    match known.secrets.contains_key(name) {
        false => Planned::Answer(Err(RegistryError::NotFound)),
        true if by.is_empty() => Planned::Write(Plan::RemoveSecret, vec![Op::Delete(secret_key(name))]),
        true => Planned::Answer(Err(RegistryError::InUse { by })),
    }
}

/// A webhook uses this secret from now on, if there is one. Changes of one secret follow each other: it is not being
/// deleted.
pub(super) fn claim(
    known: &mut Known,
    name: &SecretName,
    webhook: &FunctionName,
) -> Result<Done, RegistryError> {
    if !known.secrets.contains_key(name) {
        return Err(RegistryError::NoSuchSecret { name: name.to_string(), field: "secret".to_owned() });
    }
    known.claims.entry(webhook.clone()).or_default().insert(name.clone());
    Ok(Done::Noted)
}

/// Why a function cannot be as it is planned: a secret that it uses does not exist, or does not fit.
pub(super) fn refusal(
    known: &Known,
    vault: &Vault,
    function: &Function,
    under_way: &UnderWay,
) -> Option<RegistryError> {
    for used in function.parts_given().flat_map(|given| &given.secrets) {
        if !known.secrets.contains_key(&used.secret) || under_way.deleted.contains(&used.secret) {
            let (name, field) = (used.secret.to_string(), format!("secrets.{}", used.place.name()));
            return Some(RegistryError::NoSuchSecret { name, field });
        }
    }
    let value = |name: &SecretName| known.value(vault, name);
    let why = function.parts_given().find_map(|given| unfit(given, &value).err())?;
    Some(RegistryError::Field(Box::new(why)))
}

/// Why a secret cannot have this value: a function has it in its environment, where it must be text and have room.
fn misfit(known: &Known, vault: &Vault, name: &SecretName, value: &SecretValue) -> Option<FieldError> {
    let value_of = |other: &SecretName| match other == name {
        true => Some(value.clone()),
        false => known.value(vault, other),
    };
    known.functions.values().find_map(|function| {
        let uses =
            function.parts_given().filter(|given| given.secrets.iter().any(|used| used.secret == *name));
        let why = uses.map(|given| unfit(given, &value_of)).find_map(Result::err)?;
        let message =
            format!("the function {} has it in its environment: {}", function.spec.name, why.message);
        Some(FieldError { message, field: "value".to_owned(), ..why })
    })
}

/// Whether secrets fit into an environment.
fn unfit(given: &Given, value: &dyn Fn(&SecretName) -> Option<SecretValue>) -> Result<(), FieldError> {
    let mut bytes = 0;
    for used in &given.secrets {
        let SecretPlace::Env(variable) = &used.place else { continue };
        // What is missing is another's to tell.
        let Some(value) = value(&used.secret) else { continue };
        bytes += variable.len() + value.expose().len();
        if std::str::from_utf8(value.expose()).is_err() || value.expose().contains(&0) {
            let field = format!("secrets.{variable}");
            let what = format!("the secret {}, whose value is no text", used.secret);
            return Err(FieldError::disagreeing(
                field,
                what,
                "text without NUL as a variable, or `as = \"file\"`",
            ));
        }
    }
    let max = limits::SECRET_ENV_BYTES_MAX;
    if bytes > max {
        let limit =
            format!("at most {max} bytes of names and values in the environment; files may have more");
        return Err(FieldError::disagreeing("secrets", format!("{bytes} bytes"), limit));
    }
    Ok(())
}

impl Function {
    /// What is given to whatever of it may get requests.
    fn parts_given(&self) -> impl Iterator<Item = &Given> {
        let units = self.units().iter().map(|unit| &unit.spec.given);
        [&self.spec.given, &self.serving().1.given].into_iter().chain(units)
    }

    /// Secrets that it uses, each once.
    fn secrets_in_use(&self) -> BTreeSet<SecretName> {
        self.parts_given().flat_map(|given| &given.secrets).map(|used| used.secret.clone()).collect()
    }
}

impl Known {
    /// Functions that use a secret.
    pub(super) fn users_of(&self, name: &SecretName) -> Vec<String> {
        let uses =
            |f: &&Function| f.parts_given().any(|given| given.secrets.iter().any(|s| s.secret == *name));
        let functions = self.functions.values().filter(uses).map(|function| function.spec.name.to_string());
        let claims = self.claims.iter().filter(|(_, claimed)| claimed.contains(name));
        functions.chain(claims.map(|(webhook, _)| format!("{WEBHOOK}{webhook}"))).collect()
    }

    fn value(&self, vault: &Vault, name: &SecretName) -> Option<SecretValue> {
        let secret = self.secrets.get(name)?;
        let value = vault.unseal(name, secret.version, &secret.sealed);
        if value.is_none() {
            // Each was opened at the start or sealed since.
            tracing::error!(secret = %name, "cannot be opened with the key that it was sealed with");
        }
        value
    }
}

/// Reads values for those who are to get them. Holds nothing that keeps the registry going.
#[derive(Clone, Debug)]
pub(crate) struct SecretReader {
    known: Arc<RwLock<Known>>,
    vault: Vault,
}

impl SecretReader {
    /// What a secret holds.
    pub(crate) fn value(&self, name: &SecretName) -> Option<SecretValue> {
        self.known.read().value(&self.vault, name)
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

    /// For those who are to get values, nobody else.
    pub(crate) fn secret_reader(&self) -> SecretReader {
        SecretReader { known: self.known.clone(), vault: self.vault.clone() }
    }

    /// Functions that use a secret, in the order of their names.
    pub(crate) fn users_of(&self, name: &SecretName) -> Vec<String> {
        self.known.read().users_of(name)
    }

    /// What a webhook uses, and nothing else, if it is there.
    pub(crate) fn webhook_uses(&self, webhook: &FunctionName, secret: Option<&SecretName>) {
        let claims = &mut self.known.write().claims;
        match secret {
            Some(secret) => claims.insert(webhook.clone(), BTreeSet::from([secret.clone()])),
            None => claims.remove(webhook),
        };
    }

    /// What is given to every revision that is kept, if anything is.
    pub(crate) fn given(&self) -> Vec<(RevisionId, Vec<SecretName>)> {
        let known = self.known.read();
        let mut all = Vec::new();
        for function in known.functions.values() {
            let id = function.id;
            all.push((id, function.spec.given.secret_names()));
            all.extend(function.units().iter().map(|unit| (unit.id, unit.spec.given.secret_names())));
            let past = |past: &Arc<Past>| (RevisionId { number: past.number, ..id }, past.secrets.to_vec());
            all.extend(function.past.iter().map(past));
        }
        all.retain(|(_, names)| !names.is_empty());
        all
    }

    /// Every secret in the order of their names.
    pub(crate) fn secrets(&self) -> Vec<(SecretName, Secret)> {
        self.known.read().secrets.iter().map(|(name, secret)| (name.clone(), secret.clone())).collect()
    }
}
