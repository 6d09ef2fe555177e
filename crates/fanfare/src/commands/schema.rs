//! `fanfare schema`: what `fanfare.toml` may hold, for editors.

use crate::exit::{Exit, Failure};
use crate::printer::Printer;

pub(crate) fn run(printer: Printer) -> Result<Exit, Failure> {
    printer.json(&fanfare_api::settings_schema())?;
    Ok(Exit::Ok)
}
