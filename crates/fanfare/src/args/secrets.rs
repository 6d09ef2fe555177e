//! `fanfare secret`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use fanfare_types::SecretName;

use crate::args::OutputArgs;
use crate::complete::secret_names;

/// Values that functions get and nothing shows: encrypted where they are kept, in no log, answer or command line.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret set db-password < password.txt
  fanfare secret set tls-key --from-file key.pem
  fanfare secret list
  fanfare secret delete db-password")]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

/// What to do with secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set one, or give it a new value, from standard input or a file; on a terminal it is asked for.
    Set(SecretSetArgs),
    /// List them, without their values.
    #[command(visible_alias = "ls")]
    List(SecretListArgs),
    /// Show one, without its value.
    Describe(SecretNameArgs),
    /// Delete some.
    #[command(visible_alias = "rm")]
    Delete(SecretDeleteArgs),
}

/// `fanfare secret set`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret set db-password < password.txt
  pass show db | fanfare secret set db-password
  fanfare secret set tls-key --from-file key.pem

A value is never an argument: those are seen by other users of the machine and kept in the shell's history. Of standard
input one line break at the end is left out; a file is taken as it is. A value has 1 byte to 64 KiB.")]
pub(crate) struct SecretSetArgs {
    /// The secret: 1 to 63 of a-z 0-9 - _ .
    #[arg(value_parser = secret_name, add = secret_names())]
    pub(crate) name: SecretName,
    // Taken so that it can be said where values go, and shown to nobody.
    #[arg(hide = true)]
    pub(crate) value: Option<OsString>,
    /// Take the bytes of this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare secret list`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret list
  fanfare secret list -o json")]
pub(crate) struct SecretListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A secret by its name.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret describe db-password
  fanfare secret describe db-password -o json")]
pub(crate) struct SecretNameArgs {
    /// Which.
    #[arg(value_parser = secret_name, add = secret_names())]
    pub(crate) name: SecretName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare secret delete`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret delete db-password
  fanfare secret list -o name | xargs fanfare secret delete")]
pub(crate) struct SecretDeleteArgs {
    /// Which.
    #[arg(required = true, value_parser = secret_name, add = secret_names())]
    pub(crate) names: Vec<SecretName>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

pub(super) fn secret_name(text: &str) -> Result<SecretName, String> {
    SecretName::new(text).map_err(|e| format!("the name {e}"))
}
