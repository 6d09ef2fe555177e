//! `fanfare context`: control APIs by name.

use serde::Serialize;

use crate::args::{ContextAddArgs, ContextCommand, ContextListArgs, ContextNameArgs};
use crate::client::Client;
use crate::contexts::Contexts;
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer};

/// One context: the schema of `-o json`.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    api: &'a str,
    current: bool,
}

pub(crate) async fn run(command: &ContextCommand, printer: Printer) -> Result<Exit, Failure> {
    match command {
        ContextCommand::Add(args) => add(args, printer).await,
        ContextCommand::Use(args) => choose(args, printer),
        ContextCommand::List(args) => list(args, printer),
        ContextCommand::Remove(args) => remove(args, printer),
    }
}

async fn add(args: &ContextAddArgs, printer: Printer) -> Result<Exit, Failure> {
    let client = Client::new(&args.url, printer)?;
    if !args.no_verify {
        let status = client.status().await.map_err(|failure| Failure {
            what: format!("{} is not added: {}", args.name, failure.what),
            next: Some("correct the URL, start what is there, or add it unseen with --no-verify".to_owned()),
            ..failure
        })?;
        printer.stage(format_args!("Verified: Fanfare {}, leader {}", status.version, status.leader.name));
    }
    let mut contexts = Contexts::load()?;
    contexts.add(&args.name, &args.url)?;
    contexts.store()?;
    show(&contexts, &args.name, args.output.output, printer)
}

fn choose(args: &ContextNameArgs, printer: Printer) -> Result<Exit, Failure> {
    let mut contexts = Contexts::load()?;
    if !contexts.contexts.contains_key(&args.name) {
        return Err(contexts.unknown(&args.name, "as given"));
    }
    contexts.current = Some(args.name.clone());
    contexts.store()?;
    show(&contexts, &args.name, args.output.output, printer)
}

fn remove(args: &ContextNameArgs, printer: Printer) -> Result<Exit, Failure> {
    let mut contexts = Contexts::load()?;
    if contexts.contexts.remove(&args.name).is_none() {
        return Err(contexts.unknown(&args.name, "as given"));
    }
    if contexts.current.as_ref() == Some(&args.name) {
        contexts.current = None;
        printer.note("no context is the current one now; choose one with `fanfare context use NAME`");
    }
    contexts.store()?;
    match args.output.output {
        Output::Text | Output::Wide => printer.stage(format_args!("Removed {}", args.name)),
        Output::Url => {}
        Output::Name => printer.out(&args.name)?,
        output => printer.document(output, &serde_json::json!({ "removed": args.name }))?,
    }
    Ok(Exit::Ok)
}

fn show(contexts: &Contexts, name: &str, output: Output, printer: Printer) -> Result<Exit, Failure> {
    let api = contexts.contexts.get(name).map(|context| context.api.as_str()).unwrap_or_default();
    let current = contexts.current.as_deref() == Some(name);
    match output {
        Output::Text | Output::Wide => {
            let used = if current {
                "the current context"
            } else {
                "use it with `fanfare context use` or --context"
            };
            printer.out(format_args!("{name}  {api}  ({used})"))?;
        }
        Output::Name => printer.out(name)?,
        Output::Url => printer.out(api)?,
        output => printer.document(output, &Shown { name, api, current })?,
    }
    Ok(Exit::Ok)
}

fn list(args: &ContextListArgs, printer: Printer) -> Result<Exit, Failure> {
    let contexts = Contexts::load()?;
    let shown: Vec<_> = contexts
        .contexts
        .iter()
        .map(|(name, context)| {
            let current = contexts.current.as_ref() == Some(name);
            Shown { name, api: &context.api, current }
        })
        .collect();
    match args.output.output {
        Output::Text | Output::Wide if shown.is_empty() => {
            printer.note("no contexts; add one with `fanfare context add NAME URL`");
        }
        Output::Text | Output::Wide => {
            let mark = |current| if current { "*" } else { "" }.to_owned();
            let row = |c: &Shown<'_>| vec![mark(c.current), c.name.to_owned(), c.api.to_owned()];
            printer.table(&["", "NAME", "API"], &shown.iter().map(row).collect::<Vec<_>>())?;
        }
        Output::Name => shown.iter().try_for_each(|context| printer.out(context.name))?,
        Output::Url => shown.iter().try_for_each(|context| printer.out(context.api))?,
        output => printer.document(output, &serde_json::json!({ "contexts": shown }))?,
    }
    Ok(Exit::Ok)
}
