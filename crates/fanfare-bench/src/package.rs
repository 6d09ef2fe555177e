//! A function's code, packed.

use std::fs;
use std::path::Path;

use fanfare_types::CodeDigest;
use sha2::{Digest, Sha256};

use crate::error::{Context, Result};

/// A tar archive and its address.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) digest: CodeDigest,
    pub(crate) archive: Vec<u8>,
}

/// Packs one program under this name.
pub(crate) fn program(from: &Path, name: &str) -> Result<Package> {
    pack(name, 0o755, &fs::read(from).context(from.display())?)
}

/// Packs one text under this name.
pub(crate) fn text(name: &str, content: &str) -> Result<Package> {
    pack(name, 0o644, content.as_bytes())
}

fn pack(name: &str, mode: u32, content: &[u8]) -> Result<Package> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    let mut tar = tar::Builder::new(Vec::with_capacity(content.len() + 2048));
    tar.append_data(&mut header, name, content).context(name)?;
    let archive = tar.into_inner().context(name)?;
    Ok(Package { digest: CodeDigest(Sha256::digest(&archive).into()), archive })
}
