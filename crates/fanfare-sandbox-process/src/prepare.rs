//! Getting everything about a revision ready that its sandboxes share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fanfare_types::{Contract, StartFailure, StartFailureKind};

use crate::deps;
use crate::revision::{Files, Prepared, Revision, assemble, failure, node_failure};
use crate::shared::{Shared, is_executable};

/// What a revision's sandboxes need, made at the first call. It is needed since `since`.
pub(crate) async fn prepared(
    shared: &Arc<Shared>,
    revision: &Arc<Revision>,
    since: Instant,
) -> Result<Arc<Prepared>, StartFailure> {
    if let Some(prepared) = revision.prepared.get() {
        return Ok(prepared);
    }
    let (shared, revision) = (shared.clone(), revision.clone());
    // A task of its own: it is for all sandboxes, and must not end with the time of the one that asked first.
    let making =
        tokio::spawn(async move { revision.prepared.get_or_make(since, prepare(&shared, &revision)).await });
    making.await.map_err(|e| node_failure("preparing", e))?
}

async fn prepare(shared: &Arc<Shared>, revision: &Arc<Revision>) -> Result<Arc<Prepared>, StartFailure> {
    let spec = &revision.spec;
    let code = match spec.code {
        Some(digest) => shared.outlets.code.directory(digest).await?,
        // A program of the host's alone.
        None => empty_directory(shared)?,
    };
    let options = &shared.options;
    let (shim, deps) = match &spec.contract {
        Contract::Python { .. } => {
            interpreter(&options.python)?;
            let deps = deps::python(shared, revision, &code).await?;
            (Some(shared.shims.python(shared, revision).await), deps)
        }
        Contract::Node { .. } => {
            interpreter(&options.node)?;
            (Some(""), deps::node(shared, revision, &code).await?)
        }
        Contract::Http { .. } | Contract::Fake => (None, None),
    };
    let files = Files {
        run_dir: &options.run_dir,
        code: &code,
        deps: deps.as_deref(),
        shims: shim.map(|python| (shared.shims.dir(), python)),
    };
    assemble(spec, &files, &options.python, &options.node).map(Arc::new)
}

fn interpreter(program: &Path) -> Result<(), StartFailure> {
    match is_executable(program) {
        Ok(true) => Ok(()),
        _ => Err(failure(
            StartFailureKind::InterpreterMissing,
            format!("{} is not on this node, or not executable", program.display()),
        )),
    }
}

fn empty_directory(shared: &Shared) -> Result<PathBuf, StartFailure> {
    let dir = shared.options.data_dir.join("empty");
    fs::create_dir_all(&dir).map_err(|e| node_failure("empty directory", e))?;
    Ok(dir)
}
