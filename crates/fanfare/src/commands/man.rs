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

/// A synopsis as in the help, where options with their values are one word: by itself each option would stand there
/// without its value.
fn with_usage(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    command.mut_subcommands(with_usage).override_usage(usage)
}

pub(crate) fn run(args: &ManArgs, printer: Printer) -> Result<Exit, Failure> {
    let directory = &args.directory;
    let unwritable = |e: std::io::Error| {
        Failure::usage(format!("cannot write manual pages to {}: {e}", directory.display()))
            .next("give a directory that this user may write to")
    };
    std::fs::create_dir_all(directory).map_err(unwritable)?;
    let mut command = with_examples(Args::command());
    command.build();
    clap_mangen::generate_to(with_usage(command), directory).map_err(unwritable)?;
    printer.stage(format_args!("Wrote manual pages to {}", directory.display()));
    Ok(Exit::Ok)
}
