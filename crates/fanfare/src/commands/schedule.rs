//! `fanfare schedule`: one file per verb.

mod describe;
mod list;
mod run;
mod set;

use fanfare_api::{ScheduleOutcome, ScheduleResult, ScheduleState};

use crate::args::{ScheduleArgs, ScheduleCommand};
use crate::commands::{Context, delete};
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &ScheduleArgs) -> Result<Exit, Failure> {
    match &args.command {
        ScheduleCommand::Set(args) => set::run(context, args).await,
        ScheduleCommand::List(args) => list::run(context, args).await,
        ScheduleCommand::Describe(args) => describe::run(context, args).await,
        ScheduleCommand::Pause(args) => {
            let result = context.client.pause_schedule(&args.name, true).await?;
            print(context, &result, "Paused", args.output.output)
        }
        ScheduleCommand::Resume(args) => {
            let result = context.client.pause_schedule(&args.name, false).await?;
            print(context, &result, "Resumed", args.output.output)
        }
        ScheduleCommand::Run(args) => run::run(context, args).await,
        ScheduleCommand::Delete(args) => {
            let delete = async |name: &_| context.client.delete_schedule(name).await;
            delete::each(context, &args.names, &args.output, delete).await
        }
    }
}

/// Says what was done, and when it fires next.
fn print(context: &Context, result: &ScheduleResult, done: &str, output: Output) -> Result<Exit, Failure> {
    let printer = &context.printer;
    match output {
        Output::Json | Output::Yaml => printer.document(output, result)?,
        Output::Name => printer.out(&result.name)?,
        Output::Url => printer.out(url(context, &result.name))?,
        Output::Text | Output::Wide => {
            match result.outcome {
                ScheduleOutcome::Unchanged => printer.stage(format_args!("Unchanged {}", result.name)),
                _ => printer.stage(format_args!("{done} {}", result.name)),
            }
            match &result.next {
                Some(next) => printer.out(format_args!("next  {}  ({})", next.local, next.utc))?,
                None => printer.out("next  none")?,
            }
        }
    }
    Ok(Exit::Ok)
}

fn url(context: &Context, name: &str) -> String {
    context.client.base().join(&format!("/v1/schedules/{name}"))
}

fn state_word(state: ScheduleState) -> &'static str {
    match state {
        ScheduleState::Active => "active",
        ScheduleState::Paused => "paused",
        ScheduleState::Ended => "ended",
        ScheduleState::NoFunction => "no-function",
    }
}
