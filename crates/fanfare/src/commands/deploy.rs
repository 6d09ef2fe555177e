//! `fanfare deploy`: pack, upload, register, prove that it starts.

use std::path::Path;

use fanfare_api::{DeployOutcome, FunctionDocument, FunctionState, HandlerDocument};
use fanfare_types::FunctionName;
use serde::Serialize;

use crate::args::{DeployArgs, SourceArgs};
use crate::commands::{Context, data_plane_url, function_url};
use crate::detect::{Wanted, detect};
use crate::exit::{Exit, Failure};
use crate::package::pack;
use crate::printer::{Output, human_bytes};
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
    let deployed = match &args.path {
        Some(path) => {
            let document = source_document(path, &args.source, &args.settings)?;
            let document = upload(context, path, document).await?;
            let registered = register(context, &document).await;
            registered.map_err(|failure| mend(failure, path, &document.name))?
        }
        None => register(context, &fake_document(&args.source, &args.settings)?).await?,
    };
    print(context, &deployed, args.output.output)?;
    Ok(Exit::Ok)
}

/// A function without code, for the `fake` runtime.
fn fake_document(source: &SourceArgs, settings: &SettingsArgs) -> Result<FunctionDocument, Failure> {
    let name = source.name.as_ref().ok_or_else(|| Failure::usage("a function without code needs --name"))?;
    let mut document = FunctionDocument::new(name.as_str(), HandlerDocument::Fake {});
    settings.apply(&mut document)?;
    Ok(document)
}

/// What to do about code that does not start.
fn mend(failure: Failure, path: &Path, name: &str) -> Failure {
    match failure.exit {
        Exit::Function => failure.next(format!(
            "mend it, then `fanfare deploy {}` again; `fanfare logs {name}` has all that it wrote",
            path.display()
        )),
        _ => failure,
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
    let files = if package.files == 1 { "1 file".to_owned() } else { format!("{} files", package.files) };
    context.printer.stage(format_args!("Packed {} ({files}, {size})", path.display()));
    if context.client.has_blob(digest).await? {
        context.printer.stage("Code is there already");
    } else {
        context.client.put_blob(package).await?;
        context.printer.stage(format_args!("Uploaded {size}"));
    }
    document.code = Some(digest.to_string());
    Ok(document)
}

/// Registers the function and has a node prove that it starts.
pub(crate) async fn register(context: &Context, document: &FunctionDocument) -> Result<Deployed, Failure> {
    let (client, printer) = (&context.client, &context.printer);
    let name = FunctionName::new(&document.name).map_err(|e| Failure::usage(format!("the name {e}")))?;
    let result = client.put_function(document).await?;
    match result.outcome {
        DeployOutcome::Created => printer.stage(format_args!("Registered {name}")),
        DeployOutcome::Updated => {
            printer.stage(format_args!("Registered {name}, revision {}", result.revision));
        }
        DeployOutcome::Unchanged => printer.stage(format_args!("{name} is unchanged")),
    }
    // What failed to start before is tried again, so that the reason is seen again.
    let prove = match result.outcome {
        DeployOutcome::Created | DeployOutcome::Updated => true,
        DeployOutcome::Unchanged => client.function(&name).await?.state == FunctionState::Failed,
    };
    if prove {
        let prepared = client.prepare(&name).await.map_err(|failure| not_ready(&name, failure))?;
        printer
            .stage(format_args!("Ready: started once on {} in {:.1} ms", prepared.node, prepared.elapsed_ms));
    }
    let url = function_url(&data_plane_url(&client.status().await?)?, &name);
    Ok(Deployed { name: name.to_string(), url, revision: result.revision, outcome: result.outcome })
}

fn not_ready(name: &FunctionName, failure: Failure) -> Failure {
    let what = format!("{name} is registered but does not start: {}", failure.what);
    Failure { what, ..failure.about(name.as_str()) }
}

/// The last line of standard output.
pub(crate) fn print(context: &Context, deployed: &Deployed, output: Output) -> Result<(), Failure> {
    match output {
        Output::Text | Output::Url => context.printer.out(&deployed.url)?,
        Output::Name => context.printer.out(&deployed.name)?,
        Output::Json => context.printer.json(deployed)?,
    }
    Ok(())
}
