//! `fanfare completions`: a script for a shell.

use clap_complete::env::Shells;

use crate::args::CompletionsArgs;
use crate::complete::VARIABLE;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

pub(crate) fn run(args: &CompletionsArgs, printer: Printer) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    let shell = args.shell.to_string();
    let failed = |why: String| Failure::platform(format!("there is no script for {shell}: {why}"));
    let completer = Shells::builtins();
    let completer = completer.completer(&shell).ok_or_else(|| failed("it is not known".to_owned()))?;
    completer
        .write_registration(VARIABLE, "fanfare", "fanfare", "fanfare", &mut script)
        .map_err(|e| failed(e.to_string()))?;
    printer.bytes(&script)?;
    Ok(Exit::Ok)
}
