//! `fanfare schedule run`.

use super::url;
use crate::args::ScheduleNameArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &ScheduleNameArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let result = context.client.run_schedule(&args.name).await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => printer.document(output, &result)?,
        Output::Url => printer.out(url(context, &result.name))?,
        Output::Name | Output::Text | Output::Wide => {
            if let Some(id) = &result.invocation {
                printer.out(id)?;
            }
        }
    }
    match &result.invocation {
        Some(id) => {
            printer.note(format_args!("its result: `fanfare async result {id} --wait 30s`"));
            Ok(Exit::Ok)
        }
        None => Err(Failure::new(Exit::Timeout, "no data plane has accepted it yet; it is being tried")
            .next(format!("see `fanfare schedule describe {}`", result.name))),
    }
}
