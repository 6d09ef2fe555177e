//! `fanfare man`: a manual page for each command.

use clap::CommandFactory;

use crate::args::{Args, ManArgs};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

pub(crate) fn run(args: &ManArgs, printer: Printer) -> Result<Exit, Failure> {
    let directory = &args.directory;
    let unwritable = |e: std::io::Error| {
        Failure::usage(format!("cannot write manual pages to {}: {e}", directory.display()))
            .next("give a directory that this user may write to")
    };
    std::fs::create_dir_all(directory).map_err(unwritable)?;
    clap_mangen::generate_to(Args::command(), directory).map_err(unwritable)?;
    printer.stage(format_args!("Wrote manual pages to {}", directory.display()));
    Ok(Exit::Ok)
}
