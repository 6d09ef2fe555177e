//! Dependencies that are named beside a handler, installed once per content of the list that names them.

mod node;
mod python;
mod secrets;
mod size;
mod store;

use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::StartFailure;

use crate::revision::{Revision, node_failure};
use crate::shared::Shared;

pub(crate) use node::{fuzz, node};
pub(crate) use python::python;
pub(crate) use size::size;
pub(crate) use store::Store;

/// How long an installation may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// The directory of the installation with this key, made by `install` unless it is there.
async fn installed<F: Future<Output = Result<(), StartFailure>>>(
    shared: &Arc<Shared>,
    revision: &Revision,
    key: &str,
    install: impl FnOnce(PathBuf) -> F,
) -> Result<PathBuf, StartFailure> {
    let id = revision.spec.id;
    if let Some(there) = shared.deps.claim(id, key) {
        return Ok(there);
    }
    let out =
        shared.deps.place(&shared.other_name("install")).map_err(|e| node_failure("dependencies", e))?;
    if let Err(failure) = install(out.clone()).await {
        let _ = tokio::task::spawn_blocking(move || fs::remove_dir_all(out)).await;
        return Err(failure);
    }
    let (publishing, key) = (shared.clone(), key.to_owned());
    let published = tokio::task::spawn_blocking(move || {
        // Others, whose user differs, read it.
        fs::set_permissions(&out, fs::Permissions::from_mode(0o755))
            .map_err(|e| node_failure("dependencies", e))
            .and_then(|()| publishing.deps.publish(id, &out, &key))
            .inspect_err(|_| drop(fs::remove_dir_all(&out)))
    });
    published.await.map_err(|e| node_failure("dependencies", e))?
}
