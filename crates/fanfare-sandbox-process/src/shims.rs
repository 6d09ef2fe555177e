//! The language shims, carried inside the program and written to the data directory at start.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{StartFailure, StartFailureKind};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::build::Build;
use crate::launcher::protocol::Bind;
use crate::revision::{Revision, text};
use crate::root::{OUT_DIR, SHIM_DIR};
use crate::shared::Shared;

/// Name of the JavaScript shim.
pub(crate) const NODE_FILE: &str = "fanfare_shim.cjs";
const PYTHON_FILE: &str = "fanfare_shim.py";
const PYTHON_SHIM: &str = include_str!("../shims/python/fanfare_shim.py");
const NODE_SHIM: &str = include_str!("../shims/node/fanfare_shim.cjs");
/// How long compiling the Python shim may take.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of the compiled shim.
const COMPILED_BYTES_MAX: u64 = 4 << 20;

/// The shims on disk.
#[derive(Debug)]
pub(crate) struct Shims {
    dir: PathBuf,
    /// The file to start Python with.
    python: OnceCell<String>,
}

/// Lower-case hexadecimal of the first 16 bytes of a SHA-256.
pub(crate) fn short_hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// What identifies an interpreter's version: its real path, size and time of change.
pub(crate) fn interpreter_key(program: &Path) -> io::Result<String> {
    let real = program.canonicalize()?;
    let meta = real.metadata()?;
    let changed = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(short_hash(&[
        real.as_os_str().as_encoded_bytes(),
        &meta.len().to_le_bytes(),
        &changed.as_nanos().to_le_bytes(),
    ]))
}

impl Shims {
    /// Writes them below `data_dir`, in a directory named after their content.
    pub(crate) fn install(data_dir: &Path) -> io::Result<Self> {
        let dir = data_dir.join("shims").join(short_hash(&[PYTHON_SHIM.as_bytes(), NODE_SHIM.as_bytes()]));
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        for (name, content) in [(PYTHON_FILE, PYTHON_SHIM), (NODE_FILE, NODE_SHIM)] {
            publish(&dir, name, content.as_bytes())?;
        }
        Ok(Shims { dir, python: OnceCell::new() })
    }

    /// The directory that sandboxes see as `/shim`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of the file to start Python with: compiled for this interpreter, which saves 10 ms of each start, or
    /// the source where compiling fails.
    pub(crate) async fn python(&self, shared: &Arc<Shared>, revision: &Revision) -> &str {
        let compile = || async {
            match self.compile(shared, revision).await {
                Ok(name) => name,
                Err(failure) => {
                    tracing::warn!(
                        detail = failure.detail,
                        log = failure.log_tail,
                        "the Python shim is not compiled"
                    );
                    PYTHON_FILE.to_owned()
                }
            }
        };
        self.python.get_or_init(compile).await
    }

    async fn compile(&self, shared: &Arc<Shared>, revision: &Revision) -> Result<String, StartFailure> {
        let node = |e: io::Error| crate::revision::node_failure("shim", e);
        let python = &shared.options.python;
        let name = format!("fanfare_shim-{}.pyc", interpreter_key(python).map_err(node)?);
        if self.dir.join(&name).is_file() {
            return Ok(name);
        }
        let out = self.dir.join(shared.other_name("compile"));
        let argv =
            ["-s", "-B", &format!("{SHIM_DIR}/{PYTHON_FILE}"), "compile", &format!("{OUT_DIR}/shim.pyc")];
        let build = Build {
            what: "shim",
            program: "compiling the shim",
            function: revision.spec.id.function,
            uid: revision.uid,
            argv: std::iter::once(text(python)?).chain(argv.map(str::to_owned)).collect(),
            env: vec!["LANG=C.UTF-8".to_owned(), "HOME=/tmp".to_owned()],
            note: None,
            cwd: "/",
            binds: vec![Bind { from: text(&self.dir)?, to: SHIM_DIR.to_owned(), writable: false }],
            egress: None,
            out: out.clone(),
            timeout: COMPILE_TIMEOUT,
            files: Vec::new(),
        };
        build.run(shared, StartFailureKind::Node).await?;
        let compiled = read_made(&out.join("shim.pyc")).and_then(|bytes| publish(&self.dir, &name, &bytes));
        let _ = fs::remove_dir_all(&out);
        compiled.map_err(node)?;
        Ok(name)
    }
}

/// Reads a file that a build has made; not what a link in its place leads to.
fn read_made(path: &Path) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut bytes = Vec::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.take(COMPILED_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > COMPILED_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {COMPILED_BYTES_MAX} bytes"))),
        false => Ok(bytes),
    }
}

/// Writes a file so that others see all of it or nothing.
pub(crate) fn publish(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let part = dir.join(format!(".{name}.{}", std::process::id()));
    fs::write(&part, content)?;
    fs::set_permissions(&part, fs::Permissions::from_mode(0o644))?;
    match fs::rename(&part, &path) {
        // Another was writing the same, and was faster.
        Err(_) if fs::read(&path).is_ok_and(|there| there == content) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_are_written_once_and_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let shims = Shims::install(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(shims.dir().join(PYTHON_FILE)).unwrap(), PYTHON_SHIM);
        fs::write(shims.dir().join(NODE_FILE), "damaged").unwrap();
        let again = Shims::install(dir.path()).unwrap();
        assert_eq!(again.dir(), shims.dir());
        assert_eq!(fs::read_to_string(shims.dir().join(NODE_FILE)).unwrap(), NODE_SHIM);
        assert_eq!(fs::read_dir(shims.dir()).unwrap().count(), 2);
    }

    #[test]
    fn parts_cannot_be_shifted_against_each_other() {
        assert_ne!(short_hash(&[b"ab", b"c"]), short_hash(&[b"a", b"bc"]));
        assert_eq!(short_hash(&[b"a"]).len(), 32);
    }
}
