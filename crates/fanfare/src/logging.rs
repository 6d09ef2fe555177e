//! Where roles write what happens.

use tracing_subscriber::EnvFilter;

/// Names what is written: a level, or `tracing-subscriber` directives.
pub(crate) const VARIABLE: &str = "FANFARE_LOG";

/// Writes events to standard error, from `level` on unless [`VARIABLE`] says otherwise. A second call does nothing.
pub(crate) fn start(level: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let _already_started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}
