//! `fanfare delete`, and the deletions of everything else that has a name.

use std::fmt::Display;

use crate::args::{DeleteArgs, OutputArgs};
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &DeleteArgs) -> Result<Exit, Failure> {
    let delete = async |name: &_| {
        context.client.delete_function(name).await.map_err(|failure| failure.about(name.as_str()))
    };
    each(context, &args.names, &args.output, delete).await
}

/// Deletes each; goes on after a failure, and ends with the first one's exit code.
pub(super) async fn each<N: Display>(
    context: &Context,
    names: &[N],
    output: &OutputArgs,
    delete: impl AsyncFn(&N) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let mut exit = Exit::Ok;
    let mut deleted = Vec::new();
    for name in names {
        match delete(name).await {
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
    match output.output {
        Output::Text | Output::Wide | Output::Url => {}
        Output::Name => deleted.iter().try_for_each(|name| printer.out(name))?,
        output => printer.document(output, &serde_json::json!({ "deleted": deleted }))?,
    }
    Ok(exit)
}
