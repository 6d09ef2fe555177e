//! The control API, as far as benches use it.

use fanfare_api::{
    ClusterStatusDocument, FunctionDocument, FunctionListDocument, HandlerDocument, Quantity, SandboxCounts,
};
use serde::de::DeserializeOwned;

use crate::caller::{Caller, get, request};
use crate::error::{Context, Error, Result};
use crate::package::Package;
use crate::socket::Target;

/// Functions in one page of a list.
const PAGE: usize = 1_000;

/// One control API. Each call has a connection of its own: between two, a server may close an idle one.
#[derive(Debug)]
pub(crate) struct Api {
    target: Target,
}

impl Api {
    pub(crate) fn new(target: Target) -> Api {
        Api { target }
    }

    /// Uploads code.
    pub(crate) fn upload(&self, package: &Package) -> Result<()> {
        let path = format!("/v1/blobs/{}", package.digest);
        self.ask(&request("PUT", &path, "application/x-tar", &package.archive)).map(|_| ())
    }

    /// Registers a function.
    pub(crate) fn deploy(&self, document: &FunctionDocument) -> Result<()> {
        self.ask(&registration(document)?).map(|_| ())
    }

    /// Removes a function.
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.ask(&request("DELETE", &format!("/v1/functions/{name}"), "", b"")).map(|_| ())
    }

    /// Has a node make everything of a function ready but its sandboxes.
    pub(crate) fn prepare(&self, name: &str) -> Result<()> {
        self.ask(&request("POST", &format!("/v1/functions/{name}/prepare"), "", b"")).map(|_| ())
    }

    pub(crate) fn status(&self) -> Result<ClusterStatusDocument> {
        self.json("/v1/status")
    }

    /// Sandboxes of the first thousand functions.
    pub(crate) fn sandboxes(&self) -> Result<Vec<(String, SandboxCounts)>> {
        let page: FunctionListDocument = self.json(&format!("/v1/functions?limit={PAGE}"))?;
        Ok(page.functions.into_iter().map(|function| (function.name, function.sandboxes)).collect())
    }

    fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = self.ask(&get(path))?;
        serde_json::from_slice(&body).context(format!("the answer of {path}"))
    }

    fn ask(&self, request: &[u8]) -> Result<Vec<u8>> {
        let mut caller = Caller::connect(self.target.clone())?;
        let (_, answer) = caller.call(request)?;
        match answer.status {
            200..=299 => Ok(answer.body.to_vec()),
            status => {
                let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
                Err(Error::new(format!("{}: {status}: {}", String::from_utf8_lossy(line), answer.text())))
            }
        }
    }
}

/// The request that registers a function.
pub(crate) fn registration(document: &FunctionDocument) -> Result<Vec<u8>> {
    let body = serde_json::to_vec(document).context("write a function")?;
    Ok(request("POST", "/v1/functions", "application/json", &body))
}

/// A function without code, of the runtime that makes nothing.
pub(crate) fn fake(name: &str) -> FunctionDocument {
    let mut document = FunctionDocument::new(name, HandlerDocument::Fake {});
    document.runtime = Some("fake".to_owned());
    document
}

/// Sets how soon a function without requests is back at zero, so that it can be called cold again.
pub(crate) fn forgets_quickly(document: &mut FunctionDocument) {
    document.scaling.stable_window = Some(Quantity::from("500ms"));
    document.scaling.panic_window_share = Some(1.0);
    document.scaling.tick = Some(Quantity::from("100ms"));
    // All at once, not by halves.
    document.scaling.max_scale_down_rate = Some(1e6);
}
