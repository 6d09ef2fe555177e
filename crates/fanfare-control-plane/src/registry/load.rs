//! Everything that is kept, at the start of a term.

use std::sync::Arc;

use fanfare_store::{Entry, Scan, Store, StoreError};
use fanfare_types::{FunctionName, FunctionSpec};

use super::entry::{
    FUNCTIONS, REVISIONS, function_key, peers_prefix, read_function, read_number, read_past, revision_key,
    revisions_prefix,
};
use super::secrets::{Secret, secrets_kept};
use super::{Function, Known, PeerKind, StandIn, history};
use crate::ControlPlaneError;
use crate::limits::LOAD_PAGE_ENTRIES;

/// What is found under a subject's key.
pub(super) enum Kept {
    Function(Option<Box<Function>>),
    Peer(Option<u32>),
    Secret(Option<Box<Secret>>),
}

/// Functions, secrets, nodes and data planes. One that cannot be read stops the start: it would be lost silently.
pub(super) async fn known(store: &dyn Store) -> Result<Known, ControlPlaneError> {
    let mut known = Known::default();
    for_each(store, FUNCTIONS, |key, entry| {
        let function = read_function(key, entry)?;
        known.functions.insert(function.spec.name.clone(), function);
        Ok(())
    })
    .await?;
    for_each(store, REVISIONS, |key, entry| {
        let (id, past, spec) = read_past(key, entry)?;
        if let Some(function) = known.functions.get_mut(&spec.name).filter(|f| f.id.function == id) {
            function.remember(past, &spec);
        }
        Ok(())
    })
    .await?;
    for function in known.functions.values_mut() {
        complete(function)?;
        function.stand_in = stand_in(store, function).await?;
    }
    known.secrets = secrets_kept(store).await?;
    for kind in [PeerKind::Node, PeerKind::DataPlane] {
        let peers = known.peers.entry(kind).or_default();
        let prefix = peers_prefix(kind);
        for_each(store, prefix, |key, entry| {
            peers.insert(key[prefix.len()..].into(), read_number(key, entry)?);
            Ok(())
        })
        .await?;
    }
    Ok(known)
}

/// One function with its earlier revisions, if there is one of that name.
pub(super) async fn function(
    store: &dyn Store,
    name: &FunctionName,
) -> Result<Option<Function>, ControlPlaneError> {
    let key = function_key(name);
    let Some(entry) = store.get(key.clone()).await? else { return Ok(None) };
    let mut function = read_function(&key, &entry)?;
    for_each(store, &revisions_prefix(name), |key, entry| {
        let (id, past, spec) = read_past(key, entry)?;
        if id == function.id.function {
            function.remember(past, &spec);
        }
        Ok(())
    })
    .await?;
    complete(&mut function)?;
    function.stand_in = stand_in(store, &function).await?;
    Ok(Some(function))
}

/// The earlier revision that serves in the place of one that cannot start: that to which a rollback would go.
pub(super) async fn stand_in(
    store: &dyn Store,
    function: &Function,
) -> Result<Option<Arc<StandIn>>, ControlPlaneError> {
    let before = || history::before(&function.past, history::digest(&function.spec));
    let Some(number) = function.failed.as_ref().and_then(|_| before()) else { return Ok(None) };
    let spec = past_spec(store, &function.spec.name, number).await?;
    Ok(Some(Arc::new(StandIn { number, spec })))
}

/// What an earlier revision was.
pub(super) async fn past_spec(
    store: &dyn Store,
    name: &FunctionName,
    number: u32,
) -> Result<Arc<FunctionSpec>, ControlPlaneError> {
    let key = revision_key(name, number);
    let Some(entry) = store.get(key.clone()).await? else {
        return Err(ControlPlaneError::Entry { key, detail: "it is not there".to_owned() });
    };
    Ok(read_past(&key, &entry)?.2)
}

/// Puts earlier revisions in order (keys are ordered as text), and makes sure that none is missing that gets requests.
fn complete(function: &mut Function) -> Result<(), ControlPlaneError> {
    function.past.sort_unstable_by_key(|past| past.number);
    let (latest, past) = (function.id.number, &function.past);
    let there = |number| number == latest || past.iter().any(|past| past.number == number);
    match function.units().iter().find(|unit| !there(unit.id.number)) {
        None => Ok(()),
        Some(unit) => Err(ControlPlaneError::Entry {
            key: function_key(&function.spec.name),
            detail: format!("revision {} gets requests and is not there", unit.id.number),
        }),
    }
}

pub(crate) async fn for_each(
    store: &dyn Store,
    prefix: &str,
    mut take: impl FnMut(&str, &Entry) -> Result<(), ControlPlaneError>,
) -> Result<(), ControlPlaneError> {
    let mut after = None;
    loop {
        let scan = Scan { prefix: prefix.to_owned(), after, limit: LOAD_PAGE_ENTRIES };
        let page = store.scan(scan).await.map_err(|error: StoreError| ControlPlaneError::Store(error))?;
        for (key, entry) in &page.entries {
            take(key, entry)?;
        }
        after = page.entries.into_iter().next_back().map(|(key, _)| key);
        if !page.more {
            return Ok(());
        }
    }
}
