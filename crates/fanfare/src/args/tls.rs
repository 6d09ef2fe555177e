//! What clients that speak TLS are shown.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fanfare_data_plane::TlsOptions;

/// The certificate for clients that speak TLS.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// A certificate in PEM form, followed by those that vouch for it. With it the port where functions are called
    /// takes TLS beside what it takes without.
    #[arg(long, value_name = "FILE", requires = "tls_key", hide_short_help = true)]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM form, which only its owner and group can read.
    #[arg(long, value_name = "FILE", requires = "tls_cert", hide_short_help = true)]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// As the data plane takes it.
    pub(crate) fn options(&self) -> Option<TlsOptions> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsOptions::new(certificate, key))
    }
}
