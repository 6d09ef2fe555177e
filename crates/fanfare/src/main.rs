//! `fanfare`: every role of the platform, and every client of it, in one binary.

mod args;
mod client;
mod commands;
mod detect;
mod dirs;
mod exit;
mod http;
mod lines;
mod local;
mod logging;
mod package;
mod ports;
mod printer;
mod settings;
mod signals;
mod suggest;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::run(args::Args::parse())
}
