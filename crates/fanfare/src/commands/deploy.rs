//! `fanfare deploy`: pack, upload, register, prove that it starts.

use std::path::Path;

use fanfare_api::{DeployOutcome, DeployResult, FunctionDocument, FunctionState, HandlerDocument};
use fanfare_types::{FunctionName, HumanDuration, Reason};
use serde::Serialize;

use crate::advice;
use crate::args::{DeployArgs, SourceArgs, WaitArgs};
use crate::changes::{self, Change};
use crate::client::PREPARE_TIMEOUT;
use crate::command_line;
use crate::commands::{Context, data_plane_url, function_url};
use crate::derived::left_open;
use crate::detect::{Wanted, check, detect};
use crate::exit::{Exit, Failure};
use crate::package::{SETTINGS_FILE, pack};
use crate::printer::{Output, counted, human_bytes};
use crate::settings::SettingsArgs;

/// What a deployment came to: the schema of `-o json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Deployed {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) revision: u32,
    pub(crate) outcome: DeployOutcome,
}

pub(crate) async fn run(context: &Context, args: &DeployArgs) -> Result<Exit, Failure> {
    let keep = keeps_settings(args.path.as_deref(), args.reset);
    let described = match &args.path {
        Some(path) => source_document(path, &args.source, &args.settings)?,
        None => fake_document(&args.source, &args.settings)?,
    };
    let keep = keep.then_some(&args.settings);
    let deployed = replace(context, args.path.as_deref(), described, keep, args.wait).await;
    let deployed = deployed.map_err(|failure| args.settings.name_flags(failure))?;
    print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}

/// Whether a registered function keeps the settings that are not named: those of a directory with `fanfare.toml` are
/// what the file says.
pub(crate) fn keeps_settings(path: Option<&Path>, reset: bool) -> bool {
    !reset && !path.is_some_and(|path| path.join(SETTINGS_FILE).is_file())
}

/// Registers the function, with the code at `path`, in the place of the one that has its name; says what thereby
/// changes, and what is kept.
async fn replace(
    context: &Context,
    path: Option<&Path>,
    described: FunctionDocument,
    keep: Option<&SettingsArgs>,
    wait: WaitArgs,
) -> Result<Deployed, Failure> {
    let name = FunctionName::new(&described.name).map_err(|e| Failure::usage(format!("the name {e}")))?;
    let before = context.client.registered(&name).await?;
    if let (Some(before), Some(settings)) = (&before, keep) {
        settings.not_there(before).iter().for_each(|missing| context.printer.warning(missing));
    }
    let document = match (&before, keep) {
        (Some(before), Some(settings)) => keeping(before, &described, settings)?,
        _ => described.clone(),
    };
    // What the control plane would refuse is refused before anything is packed or sent.
    check(&document)?;
    let document = match path {
        Some(path) => upload(context, path, document).await?,
        None => document,
    };
    let kept: Vec<_> = changes::changes(&described, &document).iter().map(Change::now).collect();
    if !kept.is_empty() {
        let kept = kept.join(", ");
        context.printer.stage(format_args!("Kept as it was: {kept} (--reset gives the defaults)"));
    }
    let deployed = register(context, &document, before.as_ref(), wait).await;
    deployed.map_err(|failure| mend(failure, &document))
}

/// What is described, with those settings of `before` that `settings` do not name.
pub(crate) fn keeping(
    before: &FunctionDocument,
    described: &FunctionDocument,
    settings: &SettingsArgs,
) -> Result<FunctionDocument, Failure> {
    let FunctionDocument { name, runtime, handler, code, .. } = described.clone();
    let mut document = FunctionDocument { name, runtime, handler, code, ..left_open(before.clone()) };
    settings.apply(&mut document)?;
    Ok(document)
}

/// A function without code, for the `fake` runtime.
fn fake_document(source: &SourceArgs, settings: &SettingsArgs) -> Result<FunctionDocument, Failure> {
    let name = source.name.as_ref().ok_or_else(|| Failure::usage("a function without code needs --name"))?;
    let mut document = FunctionDocument::new(name.as_str(), HandlerDocument::Fake {});
    settings.apply(&mut document)?;
    Ok(document)
}

/// What to do about code that does not start.
fn mend(failure: Failure, document: &FunctionDocument) -> Failure {
    let name = &document.name;
    if let Some(command) = server_command(&failure, &document.handler) {
        let failure = Failure { undo: None, ..failure };
        return failure.next(format!(
            "it reads $PORT, which programs that serve HTTP are given, and it was taken for a handler: put it in a \
             directory with a fanfare.toml that says `handler = {{ kind = \"http\", command = {command} }}`"
        ));
    }
    if failure.exit != Exit::Function {
        return failure;
    }
    if failure.is(Reason::HandlerNotFound)
        && !failure.what.contains("there is no file")
        && let HandlerDocument::Python { handler, .. } | HandlerDocument::Node { handler, .. } =
            &document.handler
    {
        return failure.next(format!(
            "call the function that is to be run {handler}, or say what it is called with --handler :NAME, then `{}` again",
            command_line::again()
        ));
    }
    if failure.is(Reason::NotListening) {
        return failure.next(format!(
            "have it listen on $PORT, then `{}` again, with a longer --start-timeout where it does listen there in the end",
            command_line::again()
        ));
    }
    failure.next(format!(
        "mend it, then `{}` again; `fanfare logs {name}` has all that it wrote",
        command_line::again()
    ))
}

/// The command of a program that was taken for a handler: importing it asked for the port to serve on.
fn server_command(failure: &Failure, handler: &HandlerDocument) -> Option<String> {
    let log = failure.stated.as_ref().and_then(|stated| stated.log_tail.as_deref()).unwrap_or_default();
    match handler {
        HandlerDocument::Python { file, .. }
            if [log, &failure.what].iter().any(|text| text.contains("KeyError: 'PORT'")) =>
        {
            Some(format!("[\"python3\", {file:?}]"))
        }
        _ => None,
    }
}

/// The function that the command line describes, without its code's digest.
pub(crate) fn source_document(
    path: &Path,
    source: &SourceArgs,
    settings: &SettingsArgs,
) -> Result<FunctionDocument, Failure> {
    let wanted = Wanted {
        name: source.name.as_ref().map(FunctionName::as_str),
        handler: source.handler.as_deref(),
        arguments: &source.arguments,
    };
    let mut document = detect(path, &wanted)?;
    settings.apply(&mut document)?;
    Ok(document)
}

/// Packs the code and uploads it unless it is there already; the document then names it.
pub(crate) async fn upload(
    context: &Context,
    path: &Path,
    mut document: FunctionDocument,
) -> Result<FunctionDocument, Failure> {
    if document.handler == (HandlerDocument::Fake {}) {
        return Ok(document);
    }
    let package = pack(path)?;
    let (digest, size) = (package.digest, human_bytes(package.size_bytes));
    let files = counted(package.files as u64, "file");
    let left_out = package.left_out.join(", ");
    // Read here, and not part of the code.
    let settings = if path.join(SETTINGS_FILE).is_file() { " beside fanfare.toml" } else { "" };
    context.printer.stage(format_args!("Packed {} ({files}{settings}, {size})", path.display()));
    if !left_out.is_empty() {
        context.printer.note(format_args!(
            "note: {left_out} stays here, as it may hold secrets: give the function variables with --env or [env]"
        ));
    }
    if context.client.has_blob(digest).await? {
        context.printer.stage("Code is there already");
    } else {
        context.client.put_blob(package).await?;
        context.printer.stage(format_args!("Uploaded {size}"));
    }
    document.code = Some(digest.to_string());
    Ok(document)
}

/// Registers the function, says how it differs from `before`, and has a node prove that it starts unless told not to
/// wait for that.
pub(crate) async fn register(
    context: &Context,
    document: &FunctionDocument,
    before: Option<&FunctionDocument>,
    wait: WaitArgs,
) -> Result<Deployed, Failure> {
    let name = FunctionName::new(&document.name).map_err(|e| Failure::usage(format!("the name {e}")))?;
    let result = context.client.put_function(document).await?;
    let told = before.and_then(advice::one_at_a_time);
    if let Some(advice) = advice::one_at_a_time(document).filter(|advice| Some(advice) != told.as_ref()) {
        context.printer.note(format_args!("note: {advice}"));
    }
    if let (DeployOutcome::Updated, Some(before)) = (result.outcome, before) {
        for change in changes::changes(before, document) {
            context.printer.stage(format_args!("Changed {change}"));
        }
    }
    prove(context, &name, result, wait).await
}

/// Tells what a registration did, and has a node prove that the function starts unless told not to wait for that.
pub(crate) async fn prove(
    context: &Context,
    name: &FunctionName,
    result: DeployResult,
    wait: WaitArgs,
) -> Result<Deployed, Failure> {
    let (client, printer) = (&context.client, &context.printer);
    match result.outcome {
        DeployOutcome::Created => printer.stage(format_args!("Registered {name}")),
        DeployOutcome::Updated => {
            printer.stage(format_args!("Registered {name}, revision {}", result.revision));
        }
        DeployOutcome::Unchanged => printer.stage(format_args!("{name} is unchanged")),
    }
    // What failed to start before is tried again, so that the reason is seen again; and so is what has no sandbox, of
    // which a control plane that was restarted does not know whether it starts.
    let due = match result.outcome {
        _ if wait.no_wait => false,
        DeployOutcome::Created | DeployOutcome::Updated => true,
        DeployOutcome::Unchanged => {
            let status = client.function(name).await?;
            status.state != FunctionState::Ready || status.sandboxes.old > 0
        }
    };
    if due {
        let prepared = tokio::select! {
            prepared = client.prepare(name, wait.wait_timeout) => prepared,
            _ = tokio::signal::ctrl_c() => return Err(interrupted(name, result.revision)),
        };
        match prepared {
            Ok(prepared) => printer.stage(format_args!(
                "Ready: started once on {} in {:.1} ms",
                prepared.node, prepared.elapsed_ms
            )),
            // The control plane has said nothing: the wait was over first.
            Err(failure) if failure.exit == Exit::Timeout && failure.stated.is_none() => {
                return Err(waited_enough(name, result.revision, wait));
            }
            Err(failure) => return Err(not_ready(context, name, result.revision, failure).await),
        }
    }
    // Only a courtesy, as what was asked for is done.
    if let Ok(status) = client.function(name).await
        && status.revisions.first().is_some_and(|latest| latest.weight == 0)
    {
        printer.note(format_args!(
            "revision {} gets no requests: `fanfare traffic {name} latest=100` gives it all",
            result.revision
        ));
    }
    let url = function_url(&data_plane_url(&client.status().await?)?, name);
    Ok(Deployed { name: name.to_string(), url, revision: result.revision, outcome: result.outcome })
}

/// What Ctrl-C leaves behind.
fn interrupted(name: &FunctionName, revision: u32) -> Failure {
    let undo = match revision {
        ..=1 => format!("`fanfare delete {name}` removes it"),
        _ => format!("`fanfare rollback {name}` goes back"),
    };
    let what = format!(
        "interrupted: {name} stays registered, revision {revision}, and it is not known yet to start"
    );
    let next = format!("`fanfare describe {name}` says whether it does; {undo}");
    Failure::new(Exit::Interrupted, what).next(next)
}

/// The wait for the proof is over, and the proof goes on.
fn waited_enough(name: &FunctionName, revision: u32, wait: WaitArgs) -> Failure {
    let limit = HumanDuration(wait.wait_timeout.unwrap_or(PREPARE_TIMEOUT));
    let which = match revision {
        ..=1 => name.to_string(),
        _ => format!("revision {revision} of {name}"),
    };
    let what = format!(
        "{which} is registered, and it is not known yet whether it starts: the wait of {limit} is over"
    );
    Failure::new(Exit::Timeout, what)
        .next(format!("`fanfare describe {name}` says whether it does; --wait-timeout DURATION waits longer"))
}

/// A revision that does not start, and who answers meanwhile.
async fn not_ready(context: &Context, name: &FunctionName, revision: u32, failure: Failure) -> Failure {
    let first = revision <= 1;
    let what = match first {
        true => format!("{name} is registered but does not start: {}", failure.what),
        false => format!("revision {revision} of {name} is registered but does not start: {}", failure.what),
    };
    // Only a courtesy: that the function does not start is told whatever comes of this question.
    let status = context.client.function(name).await.ok();
    let serving =
        status.as_ref().map(|status| status.serving_revision).filter(|serving| *serving != revision);
    // A rollback goes to the newest other revision that is not known to be broken, and is refused where there is none.
    let works = serving.is_some()
        || status.as_ref().is_some_and(|status| {
            status.revisions.iter().any(|other| other.revision != revision && other.failure.is_none())
        });
    let old = status.map_or(0, |status| status.sandboxes.old);
    let still = match (serving, old) {
        (Some(serving), _) => Some(format!("revision {serving} goes on serving")),
        _ if first => None,
        (None, 0) => Some("nothing answers until it starts".to_owned()),
        (None, old) => Some(format!(
            "the revision before still answers in {} until it goes idle",
            counted(old.into(), "sandbox")
        )),
    };
    let undo = match (first, works) {
        (true, _) => Some(format!("it stays registered: `fanfare delete {name}` removes it")),
        (false, true) => Some(format!("`fanfare rollback {name}` goes back")),
        (false, false) => None,
    };
    Failure { what, still, undo, ..failure.about(name.as_str()) }
}

/// The last line of standard output.
pub(crate) fn print(context: &Context, deployed: &Deployed, output: Output) -> Result<(), Failure> {
    match output {
        Output::Text | Output::Url => context.printer.out(&deployed.url)?,
        Output::Wide => {
            let outcome = match deployed.outcome {
                DeployOutcome::Created => "created",
                DeployOutcome::Updated => "updated",
                DeployOutcome::Unchanged => "unchanged",
            };
            let Deployed { name, url, revision, .. } = deployed;
            context.printer.out(format_args!("{name}  revision {revision}  {outcome}  {url}"))?;
        }
        Output::Name => context.printer.out(&deployed.name)?,
        Output::Json | Output::Yaml => context.printer.document(output, deployed)?,
    }
    Ok(())
}
