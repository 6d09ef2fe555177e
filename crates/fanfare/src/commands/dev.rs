//! `fanfare dev`: deploy again on every save, under the same URL.
//!
//! A save is first proved under a second name: what does not start never takes the place of what runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, ScalingDocument};
use fanfare_types::{FunctionName, limits};
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::args::{DevArgs, LogsArgs, OutputArgs, WaitArgs, WhichLines};
use crate::commands::{Context, data_plane_url, deploy, function_url, logs};
use crate::detect::check;
use crate::exit::{Exit, Failure};
use crate::package::SKIPPED;
use crate::printer::Output;

/// A save is over when nothing has changed for so long: editors write, rename and touch in quick succession.
const QUIET: Duration = Duration::from_millis(10);
/// Longest wait for quiet.
const QUIET_WAIT_MAX: Duration = Duration::from_millis(500);
/// Ends the name under which a save is proved.
const PROOF_SUFFIX: &str = ".next";
pub(crate) async fn run(context: &Context, args: &DevArgs) -> Result<Exit, Failure> {
    let (watcher, mut changes) = watch(&args.path)?;
    let mut session = Session { context, args, served: None, logs: None };
    let begun = session.first().await;
    let result = match begun {
        Err(failure) => Err(failure),
        Ok(()) => tokio::select! {
            () = session.serve(&mut changes) => Ok(Exit::Ok),
            _ = tokio::signal::ctrl_c() => Ok(Exit::Ok),
        },
    };
    drop(watcher);
    if let Some(logs) = session.logs.take() {
        logs.abort();
    }
    if let Some(served) = &session.served {
        let name = &served.name;
        context.printer.note(format_args!("{name} stays deployed; `fanfare delete {name}` removes it"));
    }
    result
}

/// Announces changes under `path`. For one file its directory is watched: an atomic save replaces the file.
fn watch(path: &Path) -> Result<(RecommendedWatcher, mpsc::Receiver<()>), Failure> {
    let unwatchable =
        |e: &dyn std::fmt::Display| Failure::usage(format!("cannot watch {}: {e}", path.display()));
    let full = path.canonicalize().map_err(|e| {
        Failure::usage(format!("cannot read {}: {e}", path.display())).next("give a file or a directory")
    })?;
    let (target, mode, only) = if full.is_dir() {
        (full, RecursiveMode::Recursive, None)
    } else {
        let directory = full.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
        (directory, RecursiveMode::NonRecursive, Some(full))
    };
    // One place in the channel: many changes before the next look are one.
    let (changed, changes) = mpsc::channel(1);
    let root = target.clone();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let relevant = match &event {
            Ok(event) => {
                changes_code(&event.kind)
                    && event.paths.iter().any(|path| is_code(path, &root, only.as_deref()))
            }
            // Events were lost: look.
            Err(_) => true,
        };
        if relevant {
            let _full_is_fine = changed.try_send(());
        }
    })
    .map_err(|e| unwatchable(&e))?;
    watcher.watch(&target, mode).map_err(|e| unwatchable(&e))?;
    Ok((watcher, changes))
}

/// Reading does not change code, and packing reads.
fn changes_code(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn is_code(path: &Path, root: &Path, only: Option<&Path>) -> bool {
    match only {
        Some(file) => path == file,
        None => {
            let within = path.strip_prefix(root).unwrap_or(path);
            !within.components().any(|part| SKIPPED.iter().any(|ignored| part.as_os_str() == *ignored))
        }
    }
}

struct Session<'a> {
    context: &'a Context,
    args: &'a DevArgs,
    /// What was last registered.
    served: Option<FunctionDocument>,
    logs: Option<JoinHandle<()>>,
}

impl Session<'_> {
    /// Registers what is there. A function that does not start is no reason to stop: the next save may mend it.
    async fn first(&mut self) -> Result<(), Failure> {
        let Context { client, printer } = self.context;
        let document = self.packed(self.context).await?;
        let name = FunctionName::new(&document.name).map_err(|e| Failure::usage(format!("the name {e}")))?;
        let before = client.registered(&name).await?;
        match deploy::register(self.context, &document, before.as_ref(), WaitArgs::default()).await {
            Ok(_) => {}
            Err(failure) if failure.exit == Exit::Function => printer.failure(&failure),
            Err(failure) => return Err(failure),
        }
        self.served = Some(document);
        printer.out(function_url(&data_plane_url(&client.status().await?)?, &name))?;
        printer.note(format_args!("watching {}; Ctrl-C ends", self.args.path.display()));
        self.follow_logs(name);
        Ok(())
    }

    /// Until the watcher is gone.
    async fn serve(&mut self, changes: &mut mpsc::Receiver<()>) {
        while changes.recv().await.is_some() {
            settle(changes).await;
            let begin = Instant::now();
            match self.reload().await {
                Ok(true) => {
                    self.warm().await;
                    let ms = begin.elapsed().as_secs_f64() * 1e3;
                    self.context.printer.note(format_args!("reloaded in {ms:.0} ms"));
                }
                Ok(false) => {}
                Err(failure) => {
                    self.context.printer.failure(&failure);
                    self.context.printer.note("the version before goes on serving");
                }
            }
        }
    }

    /// Registers what is there now, once it is proved; `false` when nothing has changed.
    async fn reload(&mut self) -> Result<bool, Failure> {
        let quiet = Context { printer: self.context.printer.quieter(), ..self.context.clone() };
        let document = self.packed(&quiet).await?;
        if self.served.as_ref() == Some(&document) {
            return Ok(false);
        }
        self.replace(&document).await?;
        self.served = Some(document);
        Ok(true)
    }

    async fn packed(&self, context: &Context) -> Result<FunctionDocument, Failure> {
        let document = deploy::source_document(&self.args.path, &self.args.source, &self.args.settings)
            .map_err(|failure| self.args.settings.name_flags(failure))?;
        let name = FunctionName::new(&document.name).map_err(|e| Failure::usage(format!("the name {e}")))?;
        // As a deployment would: what `update` has set meanwhile is not undone by a save.
        let document = match context.client.registered(&name).await? {
            Some(before) if deploy::keeps_settings(Some(&self.args.path), false) => {
                deploy::keeping(&before, &document, &self.args.settings)?
            }
            _ => document,
        };
        check(&document).map_err(|e| self.args.settings.name_flags(e.into()))?;
        deploy::upload(context, &self.args.path, document).await
    }

    /// Has a node start the function once under another name, and registers it only when that went well.
    async fn replace(&self, document: &FunctionDocument) -> Result<(), Failure> {
        let Context { client, printer } = self.context;
        let name = proof_name(&document.name)?;
        // The proof alone is wanted, not its sandboxes; the profile has a say in other fields.
        let profile = document.scaling.profile;
        let scaling = ScalingDocument { profile, initial: Some(0), ..ScalingDocument::default() };
        let proof = FunctionDocument { name: name.to_string(), scaling, ..document.clone() };
        client.put_function(&proof).await?;
        let proved = client.prepare(&name, None).await;
        let register = async {
            match proved {
                Ok(_) => client.put_function(document).await.map(|_| ()),
                Err(failure) => Err(Failure { next: None, ..failure }),
            }
        };
        let (removed, registered) = tokio::join!(client.delete_function(&name), register);
        if let Err(failure) = removed {
            printer.warning(format_args!("cannot remove {name}: {failure}"));
        }
        registered
    }

    /// Has the new version's template made. Meanwhile the platform replaces the sandboxes of the version before, which
    /// goes on serving until the first new one is ready.
    async fn warm(&self) {
        let Some(name) = self.served.as_ref().and_then(|served| FunctionName::new(&served.name).ok()) else {
            return;
        };
        if let Err(failure) = self.context.client.prepare(&name, None).await {
            self.context.printer.failure(&failure.about(name.as_str()));
        }
    }

    fn follow_logs(&mut self, name: FunctionName) {
        let context = self.context.clone();
        self.logs = Some(tokio::spawn(async move {
            let output = OutputArgs { output: Output::Text };
            let args = LogsArgs { name: None, follow: true, which: WhichLines::default(), tail: 0, output };
            if let Err(failure) = logs::copy(&context, &name, &args).await {
                context.printer.warning(format_args!("logs are no longer shown: {failure}"));
            }
        }));
    }
}

/// Waits until the save is over.
async fn settle(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while let Ok(Some(())) = tokio::time::timeout(QUIET, changes.recv()).await {} };
    let _busy_for_too_long = tokio::time::timeout(QUIET_WAIT_MAX, quiet).await;
}

fn proof_name(name: &str) -> Result<FunctionName, Failure> {
    let keep = limits::FUNCTION_NAME_LEN_MAX - PROOF_SUFFIX.len();
    let stem: String = name.chars().take(keep).collect();
    FunctionName::new(&format!("{stem}{PROOF_SUFFIX}")).map_err(|e| Failure::usage(format!("the name {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_have_valid_names() {
        assert_eq!(proof_name("hello").unwrap().as_str(), "hello.next");
        assert_eq!(proof_name(&"x".repeat(63)).unwrap().as_str().len(), 63);
    }

    #[tokio::test]
    async fn every_way_of_saving_is_seen_and_reading_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hello.py");
        std::fs::write(&file, "1").unwrap();
        let (_watcher, mut changes) = watch(&file).unwrap();
        let limit = Duration::from_secs(10);
        let saves: [&dyn Fn(); 3] = [
            &|| std::fs::write(&file, "2").unwrap(),
            &|| {
                std::fs::write(dir.path().join(".hello.swp"), "3").unwrap();
                std::fs::rename(dir.path().join(".hello.swp"), &file).unwrap();
            },
            &|| {
                std::fs::remove_file(&file).unwrap();
                std::fs::write(&file, "4").unwrap();
            },
        ];
        for save in saves {
            save();
            tokio::time::timeout(limit, changes.recv()).await.unwrap().unwrap();
            settle(&mut changes).await;
        }
        // A later save is the first event after a read and after another file's change.
        std::fs::read(&file).unwrap();
        std::fs::write(dir.path().join("other.py"), "x").unwrap();
        settle(&mut changes).await;
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn caches_and_histories_are_not_code() {
        let root = Path::new("/app");
        assert!(is_code(Path::new("/app/lib/a.py"), root, None));
        assert!(!is_code(Path::new("/app/lib/__pycache__/a.pyc"), root, None));
        assert!(!is_code(Path::new("/app/.git/index"), root, None));
    }
}
