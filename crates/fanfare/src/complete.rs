//! What a shell offers while a line is typed, beyond what the grammar says.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use tokio::runtime::Builder;

use crate::args::GlobalArgs;
use crate::client::Client;
use crate::contexts::{self, Contexts};
use crate::printer::{Output, Printer};

/// The variable by which a shell's script has this program complete a line.
pub(crate) const VARIABLE: &str = "FANFARE_COMPLETE";
/// Longest that a line being typed waits for names.
const PATIENCE: Duration = Duration::from_millis(500);

/// Names of registered functions.
pub(crate) fn function_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = typed.to_str().and_then(ask).unwrap_or_default();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Names of secrets.
pub(crate) fn secret_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let secrets = asked(async |client| client.secrets().await.ok()).unwrap_or_default();
        let names = secrets.into_iter().map(|secret| secret.name);
        names.filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
    })
}

/// Names of contexts.
pub(crate) fn context_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let contexts = Contexts::load().unwrap_or_default().contexts;
        contexts.into_keys().filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
    })
}

/// Asks for names of functions.
fn ask(typed: &str) -> Option<Vec<String>> {
    asked(async |client| client.names(typed).await.ok())
}

/// Asks the control API that the environment names; `None` where nobody answers in time: nothing is offered then.
fn asked<T>(question: impl AsyncFnOnce(Client) -> Option<T>) -> Option<T> {
    let api = contexts::api(&GlobalArgs::default()).ok()?;
    let client = Client::new(&api, Printer::new(true, false, Output::Text)).ok()?;
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, question(client)).await }).ok()?
}
