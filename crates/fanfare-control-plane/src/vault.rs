//! Sealing secrets for the store, and opening them again.
//!
//! A value is sealed with XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03), under a random nonce of 24 bytes; its secret's
//! name and version are authenticated with it, so that no entry can be put in another's place. The key is in a file of
//! its own, made when the first secret is set. It is never replaced by itself: without it, what it has sealed is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use fanfare_store::{Entry, Store};
use fanfare_types::{SecretName, SecretValue};
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroizing;

use crate::ControlPlaneError;
use crate::registry::secrets_kept;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 24;
/// Bytes of a key file that are read: 64 digits, and what an editor may add.
const KEY_FILE_BYTES_MAX: u64 = 256;

/// A value as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) nonce: [u8; NONCE_BYTES],
    pub(crate) text: Vec<u8>,
}

/// Seals and opens with one key; clones share it.
#[derive(Clone)]
pub(crate) struct Vault {
    path: Arc<Path>,
    /// `None` before there is a key.
    cipher: Arc<RwLock<Option<XChaCha20Poly1305>>>,
    /// Held while one is made.
    making: Arc<Mutex<()>>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Others than its owner may read or change it.
    #[error(
        "its mode is {mode:04o}, so others may read or change it; `chmod 600` it, and if anyone may have read it, set every secret anew"
    )]
    Open {
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("it is no key: 64 hexadecimal digits are expected")]
    Malformed,
    /// There are secrets, and no key.
    #[error(
        "it is not there, and the store holds secrets ({secrets}) that were sealed with it; restore it, or name it with --secrets-key-file"
    )]
    Missing {
        /// How many.
        secrets: usize,
    },
    /// It is another key, or the entry is damaged.
    #[error(
        "it does not open the secret {name} in the store, which was sealed with another key or is damaged; restore the key, or name it with --secrets-key-file"
    )]
    Wrong {
        /// Of which secret.
        name: String,
    },
}

impl Vault {
    /// Reads the key and opens with it every secret that the store holds. Writes nothing; what an interrupted making of
    /// a key has left beside it is removed.
    pub(crate) async fn open(path: PathBuf, store: &dyn Store) -> Result<Vault, ControlPlaneError> {
        let at = path.clone();
        let fail = move |why| ControlPlaneError::SecretsKey { path: at.clone(), why };
        let (read, file) = (path.clone(), path.clone());
        let key = tokio::task::spawn_blocking(move || read_key(&read)).await;
        let key = key.map_err(|e| fail(KeyError::Io { what: "reading it", source: io::Error::other(e) }))?;
        let key = key.map_err(&fail)?;
        let cipher = key.as_deref().map(cipher);
        let (cipher, making) = (Arc::new(RwLock::new(cipher)), Arc::default());
        let vault = Vault { path: file.into(), cipher, making };
        let kept = secrets_kept(store).await?;
        if key.is_none() && !kept.is_empty() {
            return Err(fail(KeyError::Missing { secrets: kept.len() }));
        }
        for (name, secret) in &kept {
            if vault.unseal(name, secret.version, &secret.sealed).is_none() {
                return Err(fail(KeyError::Wrong { name: name.to_string() }));
            }
        }
        let unfinished = unfinished(&vault.path);
        // It may hold the key, and stays as well kept as that one: no reason not to start.
        if let Err(error) = tokio::task::spawn_blocking(move || remove(&unfinished)).await.unwrap_or(Ok(())) {
            tracing::warn!(%error, path = %vault.path.display(), "what an interrupted making of a key has left stays");
        }
        Ok(vault)
    }

    /// Makes the key if there is none yet. Blocks for a write to the disk then.
    pub(crate) fn ensure_key(&self) -> Result<(), String> {
        // One key is made, however many ask; meanwhile whoever seals or opens hears that there is none.
        let _making = self.making.lock();
        if self.cipher.read().is_none() {
            let key = make_key(&self.path)
                .map_err(|e| format!("the key of secrets, {}: {e}", self.path.display()))?;
            tracing::info!(path = %self.path.display(), "secrets are sealed with this key from now on; keep a copy where the store's copies are not");
            *self.cipher.write() = Some(cipher(&key));
        }
        Ok(())
    }

    /// Seals a value. `None` where there is no key: see [`Vault::ensure_key`].
    pub(crate) fn seal(&self, name: &SecretName, version: u64, value: &SecretValue) -> Option<Sealed> {
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce).ok()?;
        let bound = bound(name, version);
        let payload = Payload { msg: value.expose(), aad: &bound };
        let text = self.cipher.read().as_ref()?.encrypt(&nonce.into(), payload).ok()?;
        Some(Sealed { nonce, text })
    }

    /// Opens a value; `None` when it is not what was sealed with this key under this name and version.
    pub(crate) fn unseal(&self, name: &SecretName, version: u64, sealed: &Sealed) -> Option<SecretValue> {
        let bound = bound(name, version);
        let payload = Payload { msg: &sealed.text, aad: &bound };
        let value = self.cipher.read().as_ref()?.decrypt(&sealed.nonce.into(), payload).ok()?;
        Some(SecretValue::new(value))
    }
}

impl Sealed {
    /// As text, for the store.
    pub(crate) fn encode(&self) -> String {
        STANDARD.encode([&self.nonce[..], &self.text].concat())
    }

    /// From [`Sealed::encode`].
    pub(crate) fn decode(text: &str) -> Option<Sealed> {
        let bytes = STANDARD.decode(text).ok()?;
        let (nonce, text) = bytes.split_first_chunk()?;
        Some(Sealed { nonce: *nonce, text: text.to_vec() })
    }
}

/// What a sealed value is bound to.
fn bound(name: &SecretName, version: u64) -> Vec<u8> {
    format!("fanfare secret 1\0{name}\0{version}").into_bytes()
}

fn cipher(key: &[u8; KEY_BYTES]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.into())
}

fn random(mut bytes: &mut [u8]) -> Result<(), KeyError> {
    while !bytes.is_empty() {
        let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
        let got = got.map_err(|e| KeyError::Io { what: "drawing random bytes", source: e.into() })?;
        bytes = &mut bytes[got..];
    }
    Ok(())
}

type Key = Zeroizing<[u8; KEY_BYTES]>;

/// The key in a file, if the file is there.
fn read_key(path: &Path) -> Result<Option<Key>, KeyError> {
    let fail = |what| move |source| KeyError::Io { what, source };
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(fail("opening it"))?,
    };
    let meta = file.metadata().map_err(fail("looking at it"))?;
    if meta.mode() & 0o077 != 0 {
        return Err(KeyError::Open { mode: meta.mode() & 0o7777 });
    }
    let mut text = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES_MAX as usize + 1));
    match file.take(KEY_FILE_BYTES_MAX + 1).read_to_string(&mut text) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(KeyError::Malformed),
        other => other.map_err(fail("reading it"))?,
    };
    let digits = text.trim_end().as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return Err(KeyError::Malformed);
    }
    let mut key = Key::default();
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(KeyError::Malformed);
        };
        *byte = high << 4 | low;
    }
    Ok(Some(key))
}

/// Where a key is written before it is in its place.
fn unfinished(path: &Path) -> PathBuf {
    let mut making = path.to_owned();
    making.as_mut_os_string().push(".new");
    making
}

/// Removes what a crash has left, which is no key of anything that is not in its place too.
fn remove(unfinished: &Path) -> Result<(), KeyError> {
    match fs::remove_file(unfinished) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(KeyError::Io { what: "removing an unfinished one", source })
        }
        _ => Ok(()),
    }
}

/// Makes a file with a new key, whole or not at all, and never over another one: a key that is there already, from
/// whomever or from an attempt that failed after it was in its place, is the key.
fn make_key(path: &Path) -> Result<Key, KeyError> {
    let fail = |what| move |source| KeyError::Io { what, source };
    let mut key = Key::default();
    random(&mut *key)?;
    let mut digits = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
    for byte in key.iter() {
        for half in [byte >> 4, byte & 15] {
            digits.push(char::from_digit(half.into(), 16).unwrap_or_default());
        }
    }
    digits.push('\n');
    let making = unfinished(path);
    remove(&making)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&making)
        .map_err(fail("making it"))?;
    file.write_all(digits.as_bytes()).and_then(|()| file.sync_all()).map_err(fail("writing it"))?;
    match fs::hard_link(&making, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let there = read_key(path)?;
            key = there.ok_or_else(|| fail("reading it")(io::ErrorKind::NotFound.into()))?;
        }
        other => other.map_err(fail("making it"))?,
    }
    fs::remove_file(&making).map_err(fail("finishing it"))?;
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail("making it last"))?;
    Ok(key)
}

/// What is wrong with a stored secret.
pub(crate) fn unreadable(key: &str, entry: &Entry) -> ControlPlaneError {
    let detail = format!("{} bytes that are no sealed secret", entry.value.len());
    ControlPlaneError::Entry { key: key.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use fanfare_store::MemoryStore;

    use super::*;

    fn name(text: &str) -> SecretName {
        SecretName::new(text).unwrap()
    }

    async fn vault(path: &Path) -> Vault {
        let vault = Vault::open(path.to_owned(), &MemoryStore::new()).await.unwrap();
        vault.ensure_key().unwrap();
        vault
    }

    #[tokio::test]
    async fn a_sealed_value_is_opened_under_its_name_and_version_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.key");
        let vault = vault(&path).await;
        let value = SecretValue::new(b"canary".to_vec());
        let sealed = vault.seal(&name("db"), 3, &value).unwrap();
        let again = vault.seal(&name("db"), 3, &value).unwrap();
        assert_ne!(sealed, again, "a nonce is drawn for each");
        assert_eq!(Sealed::decode(&sealed.encode()).unwrap(), sealed);
        assert!(!sealed.text.windows(6).any(|window| window == b"canary"));
        assert_eq!(vault.unseal(&name("db"), 3, &sealed), Some(value.clone()));
        assert_eq!(vault.unseal(&name("db"), 2, &sealed), None);
        assert_eq!(vault.unseal(&name("d"), 3, &sealed), None);
        for at in 0..sealed.text.len() {
            let mut bent = sealed.clone();
            bent.text[at] ^= 1;
            assert_eq!(vault.unseal(&name("db"), 3, &bent), None, "byte {at}");
        }
        let other = self::vault(&dir.path().join("other.key")).await;
        assert_eq!(other.unseal(&name("db"), 3, &sealed), None);
        let reopened = self::vault(&path).await;
        assert_eq!(reopened.unseal(&name("db"), 3, &sealed), Some(value));
    }

    #[tokio::test]
    async fn a_key_is_made_once_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.key");
        // As a crash leaves it.
        fs::write(dir.path().join("secrets.key.new"), "12").unwrap();
        let vault = vault(&path).await;
        let made = fs::read_to_string(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!((made.len(), made.trim_end().len()), (65, 64));
        vault.ensure_key().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // A key that came there meanwhile is not overwritten.
        assert_eq!(make_key(&path).unwrap(), read_key(&path).unwrap().unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), made);
    }

    #[tokio::test]
    async fn a_key_that_was_made_but_for_its_end_is_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join("secrets.key"), dir.path().join("secrets.key.new"));
        let store = MemoryStore::new();
        let vault = Vault::open(path.clone(), &store).await.unwrap();
        // An attempt fails with the key in its place already.
        let half_made = |digits: &str| {
            fs::write(&path, digits).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(&left, digits).unwrap();
        };
        half_made("no key");
        assert!(vault.ensure_key().unwrap_err().contains("it is no key"));
        half_made(&"a5".repeat(32));
        vault.ensure_key().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a5".repeat(32));
        assert!(!left.exists());
        let value = SecretValue::new(b"v".to_vec());
        let sealed = vault.seal(&name("db"), 1, &value).unwrap();
        // A crash there leaves the same; a start removes it.
        half_made(&"a5".repeat(32));
        let reopened = Vault::open(path.clone(), &store).await.unwrap();
        assert!(!left.exists());
        assert_eq!(reopened.unseal(&name("db"), 1, &sealed), Some(value));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        assert!(read_key(&path).unwrap().is_none());
        for bad in ["", "12", &"g".repeat(64), &"a".repeat(63), &"é".repeat(32), &"a".repeat(1_000)] {
            fs::write(&path, bad).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(read_key(&path), Err(KeyError::Malformed)), "{bad:?}");
        }
        fs::write(&path, "A5".repeat(32)).unwrap();
        assert_eq!(*read_key(&path).unwrap().unwrap(), [0xa5; 32]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read_key(&path), Err(KeyError::Open { mode: 0o640 })));
    }
}
