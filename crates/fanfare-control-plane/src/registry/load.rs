//! Everything that is kept, at the start of a term.

use fanfare_store::{Entry, SCAN_ENTRIES_MAX, Scan, Store, StoreError};

use super::entry::{FUNCTIONS, peers_prefix, read_function, read_number};
use super::{Known, PeerKind};
use crate::ControlPlaneError;

/// Functions, nodes and data planes. One that cannot be read stops the start: it would be lost silently.
pub(super) async fn known(store: &dyn Store) -> Result<Known, ControlPlaneError> {
    let mut known = Known::default();
    for_each(store, FUNCTIONS, |key, entry| {
        let function = read_function(key, entry)?;
        known.functions.insert(function.spec.name.clone(), function);
        Ok(())
    })
    .await?;
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

async fn for_each(
    store: &dyn Store,
    prefix: &str,
    mut take: impl FnMut(&str, &Entry) -> Result<(), ControlPlaneError>,
) -> Result<(), ControlPlaneError> {
    let mut after = None;
    loop {
        let scan = Scan { prefix: prefix.to_owned(), after, limit: SCAN_ENTRIES_MAX };
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
