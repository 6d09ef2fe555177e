//! `fanfare list`.

use fanfare_api::{FunctionListDocument, FunctionState, FunctionSummaryDocument};

use crate::args::ListArgs;
use crate::commands::{Context, data_plane_url, function_url};
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &ListArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let functions = context.client.functions().await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => {
            printer.document(output, &FunctionListDocument { functions, next: None })?;
        }
        Output::Name => functions.iter().try_for_each(|f| printer.out(&f.name))?,
        Output::Url => {
            let data_plane = data_plane_url(&context.client.status().await?)?;
            functions.iter().try_for_each(|f| printer.out(function_url(&data_plane, &f.name)))?;
        }
        Output::Text | Output::Wide if functions.is_empty() => {
            printer.note("no functions; register one with `fanfare deploy PATH`");
        }
        Output::Wide => wide(context, &functions).await?,
        Output::Text => {
            let row = |f: &FunctionSummaryDocument| {
                vec![
                    f.name.clone(),
                    f.kind.clone(),
                    f.revision.to_string(),
                    state_word(f.state).to_owned(),
                    format!("{}/{}", f.sandboxes.ready, f.sandboxes.wanted),
                ]
            };
            let rows: Vec<_> = functions.iter().map(row).collect();
            printer.table(&["NAME", "KIND", "REVISION", "STATE", "READY"], &rows)?;
        }
    }
    Ok(Exit::Ok)
}

async fn wide(context: &Context, functions: &[FunctionSummaryDocument]) -> Result<(), Failure> {
    let data_plane = data_plane_url(&context.client.status().await?)?;
    let row = |f: &FunctionSummaryDocument| {
        vec![
            f.name.clone(),
            f.kind.clone(),
            f.runtime.clone(),
            f.revision.to_string(),
            state_word(f.state).to_owned(),
            f.sandboxes.ready.to_string(),
            f.sandboxes.starting.to_string(),
            f.sandboxes.stopping.to_string(),
            f.sandboxes.wanted.to_string(),
            function_url(&data_plane, &f.name),
        ]
    };
    let header =
        ["NAME", "KIND", "RUNTIME", "REVISION", "STATE", "READY", "STARTING", "STOPPING", "WANTED", "URL"];
    context.printer.table(&header, &functions.iter().map(row).collect::<Vec<_>>())?;
    Ok(())
}

pub(crate) fn state_word(state: FunctionState) -> &'static str {
    match state {
        FunctionState::Idle => "idle",
        FunctionState::Starting => "starting",
        FunctionState::NoRoom => "no room",
        FunctionState::Ready => "ready",
        FunctionState::Failed => "failed",
        FunctionState::Degraded => "degraded",
    }
}
