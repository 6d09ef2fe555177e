//! `fanfare webhook delete`.

use crate::args::WebhookDeleteArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

/// Deletes each; goes on after a failure, and ends with the first one's exit code.
pub(crate) async fn run(context: &Context, args: &WebhookDeleteArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let mut exit = Exit::Ok;
    let mut deleted = Vec::new();
    for name in &args.names {
        match context.client.delete_webhook(name).await {
            Ok(()) => {
                printer.stage(format_args!("Deleted {name}"));
                deleted.push(name.to_string());
            }
            Err(failure) => {
                printer.failure(&failure);
                exit = if exit == Exit::Ok { failure.exit } else { exit };
            }
        }
    }
    match args.output.output {
        Output::Text | Output::Wide | Output::Url => {}
        Output::Json | Output::Yaml => {
            printer.document(args.output.output, &serde_json::json!({ "deleted": deleted }))?;
        }
        Output::Name => deleted.iter().try_for_each(|name| printer.out(name))?,
    }
    Ok(exit)
}
