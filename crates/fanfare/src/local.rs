//! Roles in this process.

use std::path::Path;
use std::sync::Arc;

use fanfare_control_plane::ControlPlaneError;
use fanfare_store::{RedbStore, Store};

use crate::exit::Failure;
use crate::ports;

/// Opens the embedded store in a data directory.
pub(crate) async fn open_store(data_dir: &Path) -> Result<Arc<dyn Store>, Failure> {
    let directory = data_dir.join("store");
    make_private(data_dir)?;
    // Opening verifies the file, which blocks.
    let opened = tokio::task::spawn_blocking(move || RedbStore::open(&directory)).await;
    let opened = opened.map_err(|e| Failure::platform(format!("cannot open the store: {e}")))?;
    opened.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|e| Failure::platform(e.to_string()))
}

/// Makes a directory for this user alone; one that is there stays as it is.
fn make_private(directory: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|e| {
        Failure::platform(format!("cannot make {}: {e}", directory.display()))
            .next("name a directory of your own with --data-dir")
    })
}

/// The failure of a control plane; of a taken port, who holds it.
pub(crate) fn control_plane_failure(error: &ControlPlaneError) -> Failure {
    match error {
        ControlPlaneError::Listen { address, source } => {
            taken(*address, source, "--api-listen or --grpc-listen")
        }
        _ => Failure::platform(error.to_string()),
    }
}

/// An address that cannot be listened on: who holds it, and which flag chooses another.
pub(crate) fn taken(address: std::net::SocketAddr, source: &std::io::Error, flag: &str) -> Failure {
    let failure = match ports::owner(address) {
        Some(owner) => Failure::platform(format!("cannot listen on {address}: it is held by {owner}")),
        None => Failure::platform(format!("cannot listen on {address}: {source}")),
    };
    failure.next(format!("stop it, or choose another address with {flag}"))
}
