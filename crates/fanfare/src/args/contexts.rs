//! `fanfare context`.

use clap::{Args as ClapArgs, Subcommand};

use crate::args::OutputArgs;
use crate::complete::context_names;

/// Which control APIs there are, by name.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare context add lab http://10.0.0.1:9091
  fanfare context use lab
  fanfare list --context lab")]
pub(crate) struct ContextArgs {
    #[command(subcommand)]
    pub(crate) command: ContextCommand,
}

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Add one, or change it; its control API is asked for a sign of life first. The first one is used at once.
    Add(ContextAddArgs),
    /// Have commands go there unless told otherwise.
    Use(ContextNameArgs),
    /// List them.
    #[command(visible_alias = "ls")]
    List(ContextListArgs),
    /// Remove one.
    #[command(visible_alias = "rm")]
    Remove(ContextNameArgs),
}

/// `fanfare context add`.
#[derive(ClapArgs, Debug)]
pub(crate) struct ContextAddArgs {
    /// Its name.
    pub(crate) name: String,
    /// Its control API.
    pub(crate) url: String,
    /// Do not ask it for a sign of life.
    #[arg(long)]
    pub(crate) no_verify: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare context list`.
#[derive(ClapArgs, Debug)]
pub(crate) struct ContextListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A context by its name.
#[derive(ClapArgs, Debug)]
pub(crate) struct ContextNameArgs {
    /// Which.
    #[arg(add = context_names())]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
