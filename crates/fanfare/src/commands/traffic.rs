//! `fanfare traffic` and `fanfare tag`: which revisions a function's requests go to.

use fanfare_api::{ShareDocument, TargetDocument, TrafficDocument, TrafficResult};
use fanfare_types::limits::SHARES_MAX;
use fanfare_types::{FunctionName, Target};

use crate::args::{TagArgs, TrafficArgs};
use crate::commands::{Context, data_plane_url, function_url};
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &TrafficArgs) -> Result<Exit, Failure> {
    let share = |(target, weight): &(Target, u32)| ShareDocument {
        revision: TargetDocument(*target),
        weight: *weight,
    };
    let traffic = (!args.shares.is_empty()).then(|| args.shares.iter().map(share).collect());
    let change = TrafficDocument { traffic, tags: None };
    if let Err(error) = change.check() {
        let hint = format!(
            "give each revision once, 100 together: `fanfare traffic {} {}`",
            args.name,
            even(&args.shares)
        );
        return Err(Failure::from(error).next(hint));
    }
    let result = context.client.put_traffic(&args.name, &change).await?;
    print(context, &args.name, &result, args.output.output).await
}

/// The same revisions, each once, with as much for each; what is over is the first one's.
fn even(shares: &[(Target, u32)]) -> String {
    let mut targets: Vec<Target> = Vec::new();
    for (target, _) in shares {
        if targets.len() < SHARES_MAX && !targets.contains(target) {
            targets.push(*target);
        }
    }
    let count = targets.len().max(1);
    let part = 100 / count;
    let share = |(at, target): (usize, &Target)| {
        let weight = if at == 0 { 100 - part * (count - 1) } else { part };
        match target {
            Target::Latest => format!("latest={weight}"),
            Target::Revision(number) => format!("v{number}={weight}"),
        }
    };
    targets.iter().enumerate().map(share).collect::<Vec<_>>().join(" ")
}

pub(crate) async fn tag(context: &Context, args: &TagArgs) -> Result<Exit, Failure> {
    let as_it_is = context.client.put_traffic(&args.name, &TrafficDocument::default()).await?;
    if args.tags.is_empty() {
        if as_it_is.tags.is_empty() {
            let name = &args.name;
            context
                .printer
                .note(format_args!("{name} has no tags; `fanfare tag {name} TAG=REVISION` sets one"));
        }
        return print(context, &args.name, &as_it_is, args.output.output).await;
    }
    let mut tags = as_it_is.tags;
    for (tag, target) in &args.tags {
        match target {
            Some(target) => drop(tags.insert(tag.clone(), TargetDocument(*target))),
            None if tags.remove(tag).is_some() => {}
            None => {
                let what = format!("the function {} has no tag {tag:?} to remove", args.name);
                return Err(Failure::new(Exit::NotFound, what));
            }
        }
    }
    let change = TrafficDocument { traffic: None, tags: Some(tags) };
    let result = context.client.put_traffic(&args.name, &change).await?;
    print(context, &args.name, &result, args.output.output).await
}

async fn print(
    context: &Context,
    name: &FunctionName,
    result: &TrafficResult,
    output: Output,
) -> Result<Exit, Failure> {
    let printer = &context.printer;
    if result.pending {
        printer.note(format_args!(
            "requests go where they went until a revision that is to get some has come up: `fanfare describe {name}`"
        ));
    }
    match output {
        Output::Json | Output::Yaml => printer.document(output, result)?,
        Output::Name => printer.out(&result.name)?,
        Output::Url | Output::Wide | Output::Text => {
            let data_plane = data_plane_url(&context.client.status().await?)?;
            if output == Output::Url {
                printer.out(function_url(&data_plane, name))?;
                let tagged =
                    |tag: &String| printer.out(function_url(&data_plane, format_args!("{name}@{tag}")));
                result.tags.keys().try_for_each(tagged)?;
                return Ok(Exit::Ok);
            }
            for share in &result.traffic {
                let url = function_url(&data_plane, name);
                let revision = share.revision.0.to_string();
                printer.out(format_args!("{:>8} %  revision {revision:<8} {url}", share.weight))?;
            }
            for (tag, target) in &result.tags {
                let url = function_url(&data_plane, format_args!("{name}@{tag}"));
                let revision = target.0.to_string();
                printer.out(format_args!("{tag:>10}  revision {revision:<8} {url}"))?;
            }
        }
    }
    Ok(Exit::Ok)
}
