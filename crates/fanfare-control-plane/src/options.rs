//! Settings of one control plane.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_api::FunctionDocument;
use fanfare_policy::Placement;
use fanfare_types::CodeDigest;

/// What a control plane must be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, as `status` shows it.
    pub name: String,
    /// Where code blobs are kept. Made with mode 0700.
    pub data_dir: PathBuf,
    /// The key that secrets are sealed with, made when the first one is set.
    pub secrets_key: PathBuf,
    /// Where the control API listens. Anyone who reaches it may do anything: keep it on loopback.
    pub api_address: SocketAddr,
    /// Where nodes and data planes connect; `None` when all of them are in this process.
    pub link_address: Option<SocketAddr>,
    /// How nodes are chosen.
    pub placement: Placement,
    /// Code that no function has referred to for this long is removed.
    pub blob_grace: Duration,
    /// What `/metrics` says beside the control plane's own: of roles in the same process.
    pub more_metrics: Option<MoreMetrics>,
    /// How often unreferenced code is looked for.
    pub blob_collect_interval: Duration,
    /// The images that functions may be registered with as Dirigent's; `None`: its forms are not taken.
    pub dirigent: Option<Vec<Image>>,
}

/// What an image's name stands for.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its names: as forms write them, or only their last part, without registry and tag.
    pub names: Vec<String>,
    /// The function that it is, without its code. Its own name is not looked at.
    pub document: FunctionDocument,
    /// Its code; `None` where nothing is run.
    pub code: Option<ImageCode>,
}

/// An image's code, packed. It is kept while the control plane runs, whether functions refer to it or not.
#[derive(Clone, Debug)]
pub struct ImageCode {
    /// Of the archive's bytes.
    pub digest: CodeDigest,
    /// A tar archive, from where it is read on.
    pub archive: Arc<std::fs::File>,
}

/// Metrics of another role, in Prometheus' text format.
#[derive(Clone)]
pub struct MoreMetrics(pub Arc<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for MoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MoreMetrics")
    }
}

impl Options {
    /// Port of the control API.
    pub const API_PORT: u16 = 9091;
    /// Port that nodes and data planes connect to.
    pub const LINK_PORT: u16 = 9090;

    /// The defaults: both listeners on loopback.
    #[must_use]
    pub fn new(data_dir: PathBuf) -> Self {
        Options {
            name: "control-plane".to_owned(),
            secrets_key: data_dir.join("secrets.key"),
            data_dir,
            api_address: (Ipv4Addr::LOCALHOST, Options::API_PORT).into(),
            link_address: Some((Ipv4Addr::LOCALHOST, Options::LINK_PORT).into()),
            placement: Placement::Kubernetes,
            more_metrics: None,
            blob_grace: Duration::from_secs(3_600),
            blob_collect_interval: Duration::from_secs(600),
            dirigent: None,
        }
    }
}
