//! The certificate that clients are shown, and their handshakes.
//!
//! One port takes both: a TLS client's first byte (22, a handshake record) begins no request. What the handshake agrees
//! on is TLS 1.3 or 1.2, without early data (it could be replayed), and by ALPN HTTP/2 or HTTP/1.1; clients that offer
//! no ALPN are heard as those without TLS are. The host decides which function a request is for; the name that the
//! handshake asks for (SNI) decides nothing, as there is one certificate.
//!
//! Certificate and key are read again when their files change, and when someone asks for it. Connections keep what they
//! began with; what cannot be used changes nothing. The new one has sessions of its own, so none is resumed that began
//! under the old key.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zeroize::Zeroizing;

use crate::clock;
use crate::seldom::Seldom;

/// Bytes of a certificate's or a key's file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Rights on a key's file that nobody may have: any of others, and the group's to write and execute.
const KEY_MODE_FORBIDDEN: u32 = 0o037;

/// Where a data plane has its certificate from, and what handshakes may take.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// A PEM file with the certificate, followed by those that vouch for it.
    pub certificate: PathBuf,
    /// A PEM file with its private key, that others than its owner and group cannot read.
    pub key: PathBuf,
    /// How often it is looked whether the files have changed.
    pub recheck: Duration,
    /// How long a client may take for its handshake.
    pub handshake_timeout: Duration,
    /// Handshakes under way at once, at least one; beyond that the oldest makes way for a new one.
    pub handshakes_max: usize,
}

impl TlsOptions {
    /// With everything else as it usually is.
    #[must_use]
    pub fn new(certificate: PathBuf, key: PathBuf) -> Self {
        TlsOptions {
            certificate,
            key,
            recheck: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 4_096,
        }
    }
}

/// Why a certificate cannot be used. Nothing of a key is ever said.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Others could read the key.
    #[error("{} is a private key with the mode {mode:04o}; `chmod 600` it, or 640 for its group", path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file is not what it should be.
    #[error("{} {why}", path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// The key is another certificate's.
    #[error("the key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

/// The certificate in use.
pub(crate) struct Tls {
    options: TlsOptions,
    current: RwLock<Arc<ServerConfig>>,
    /// The files as they were when they were last looked at.
    seen: RwLock<Stamp>,
    under_way: Mutex<UnderWay>,
    failed: AtomicU64,
    crowding: Seldom,
}

/// Handshakes under way, the oldest first.
#[derive(Default)]
struct UnderWay {
    handshakes: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

/// One handshake under way, until it is dropped.
struct Handshake<'a> {
    tls: &'a Tls,
    number: u64,
    makes_way: Arc<Notify>,
}

impl Tls {
    pub(crate) fn load(options: TlsOptions) -> Result<Self, TlsError> {
        // Before they are read: what changes meanwhile is seen next time.
        let seen = RwLock::new(Stamp::of(&options));
        let current = RwLock::new(Arc::new(config(&options)?));
        let (under_way, failed, crowding) = (Mutex::default(), AtomicU64::new(0), Seldom::default());
        Ok(Tls { options, current, seen, under_way, failed, crowding })
    }

    /// Reads the files again; if they cannot be used, what is in use stays.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        *self.seen.write() = Stamp::of(&self.options);
        let fresh = config(&self.options)?;
        *self.current.write() = Arc::new(fresh);
        tracing::info!(certificate = %self.options.certificate.display(), "clients are shown a new certificate");
        Ok(())
    }

    /// Reads the files again whenever they have changed.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.options.recheck).await;
            let tls = self.clone();
            // They may be on a disk that takes its time.
            if let Err(error) = tokio::task::spawn_blocking(move || tls.look()).await {
                tracing::error!(%error, "cannot look for a new certificate");
            }
        }
    }

    fn look(&self) {
        let changed = *self.seen.read() != Stamp::of(&self.options);
        if changed && let Err(error) = self.reload() {
            tracing::error!(%error, "the new certificate cannot be used; clients are shown the old one");
        }
    }

    /// Handshakes that failed, were too slow, or made way for others.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Does the handshake of a connection. `None`: there is nothing to serve.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<Box<TlsStream<TcpStream>>> {
        let done = self.shake_hands(stream).await;
        match done {
            Ok(stream) => Some(Box::new(stream)),
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        }
    }

    async fn shake_hands(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let handshake = self.begin();
        let acceptor = TlsAcceptor::from(self.current.read().clone());
        tokio::select! {
            done = timeout(self.options.handshake_timeout, acceptor.accept(stream)) => done?,
            () = handshake.makes_way.notified() => Err(io::Error::other("it made way for another one")),
        }
    }

    /// Counts a handshake. Where there are too many, the oldest makes way: one of good will takes a few round trips.
    fn begin(&self) -> Handshake<'_> {
        let (makes_way, limit) = (Arc::new(Notify::new()), self.options.handshakes_max.max(1));
        let mut under_way = self.under_way.lock();
        let oldest = match under_way.handshakes.len() < limit {
            true => None,
            false => under_way.handshakes.pop_first(),
        };
        let number = under_way.next;
        under_way.next += 1;
        under_way.handshakes.insert(number, makes_way.clone());
        drop(under_way);
        if let Some((_, oldest)) = oldest {
            oldest.notify_one();
            if let Some(times) = self.crowding.happened(clock::now()) {
                tracing::warn!(limit, times, "too many TLS handshakes are under way; the oldest make way");
            }
        }
        Handshake { tls: self, number, makes_way }
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.tls.under_way.lock().handshakes.remove(&self.number);
    }
}

/// Tells whether a file was replaced or changed.
#[derive(Debug, PartialEq, Eq)]
struct Stamp([Option<[i64; 7]>; 2]);

impl Stamp {
    fn of(options: &TlsOptions) -> Self {
        Stamp([&options.certificate, &options.key].map(|path| {
            let found = std::fs::metadata(path).ok()?;
            let (device, inode) = (found.dev().cast_signed(), found.ino().cast_signed());
            let (bytes, modified) = (found.len().cast_signed(), found.mtime());
            let (modified_ns, changed, changed_ns) = (found.mtime_nsec(), found.ctime(), found.ctime_nsec());
            Some([device, inode, bytes, modified, modified_ns, changed, changed_ns])
        }))
    }
}

fn config(options: &TlsOptions) -> Result<ServerConfig, TlsError> {
    let TlsOptions { certificate, key, .. } = options;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = read_chain(certificate)?;
    let private = read_key(key)?;
    let certified = CertifiedKey::from_der(chain, private, &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::Mismatch { certificate: certificate.clone(), key: key.clone() }
        }
        // What is wrong with a key is not said in its own words.
        rustls::Error::General(_) => invalid(key, "holds a private key of no known kind"),
        other => invalid(certificate, &format!("cannot be used: {other}")),
    })?;
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| invalid(certificate, &format!("cannot be used: {error}")))?;
    let resolver = Arc::new(SingleCertAndKey::from(certified));
    let mut config = versions.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path, |_| Ok(()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| invalid(path, &format!("is no PEM file: {error}")))?;
    if chain.is_empty() { Err(invalid(path, "has no certificate in PEM form")) } else { Ok(chain) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(path, |mode| match mode & KEY_MODE_FORBIDDEN {
        0 => Ok(()),
        _ => Err(TlsError::Exposed { path: path.to_owned(), mode: mode & 0o7777 }),
    })?;
    // Its errors repeat lines of the file.
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| invalid(path, "has no private key in PEM form (PKCS#8, PKCS#1 or SEC1, not encrypted)"))
}

/// The file's bytes, if its mode is `fit`. They may be a key's, and are wiped at their end.
fn read(path: &Path, fit: impl FnOnce(u32) -> Result<(), TlsError>) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let failed = |error| TlsError::Read { path: path.to_owned(), error };
    // Opened for what it is before it is read: a pipe would block.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(invalid(path, "is no regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    fit(found.mode())?;
    // Room for all of it: bytes that grow leave copies behind.
    let room = usize::try_from(found.len().min(FILE_BYTES_MAX)).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid(path, &format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn invalid(path: &Path, why: &str) -> TlsError {
    TlsError::Invalid { path: path.to_owned(), why: why.to_owned() }
}
