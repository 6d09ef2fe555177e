//! `fanfare`: every role of the platform, and every client of it, in one binary.

mod args;
mod client;
mod commands;
mod detect;
mod exit;
mod http;
mod lines;
mod package;
mod printer;
mod settings;
mod suggest;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    commands::run(args::Args::parse())
}
