//! `fanfare completions`: a script for a shell.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

pub(crate) fn run(args: &CompletionsArgs, printer: Printer) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "fanfare", &mut script);
    printer.bytes(&script)?;
    Ok(Exit::Ok)
}
