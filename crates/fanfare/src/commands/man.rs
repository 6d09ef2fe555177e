//! `fanfare man`: a manual page for each command.

use clap::{Command, CommandFactory};

use crate::args::{Args, ManArgs};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

/// The examples, which help begins with, where a manual page has them: at its end.
fn with_examples(command: Command) -> Command {
    let examples = command.get_before_help().cloned();
    let command = command.mut_subcommands(with_examples);
    match examples {
        Some(examples) => command.after_help(examples),
        None => command,
    }
}

pub(crate) fn run(args: &ManArgs, printer: Printer) -> Result<Exit, Failure> {
    let directory = &args.directory;
    let unwritable = |e: std::io::Error| {
        Failure::usage(format!("cannot write manual pages to {}: {e}", directory.display()))
            .next("give a directory that this user may write to")
    };
    std::fs::create_dir_all(directory).map_err(unwritable)?;
    clap_mangen::generate_to(with_examples(Args::command()), directory).map_err(unwritable)?;
    printer.stage(format_args!("Wrote manual pages to {}", directory.display()));
    Ok(Exit::Ok)
}
