//! `fanfare`: every role of the platform, and every client of it, in one binary.

mod activation;
mod advice;
mod args;
mod changes;
mod client;
mod command_line;
mod commands;
mod complete;
mod contexts;
mod derived;
mod descriptors;
mod detect;
mod dirigent;
mod dirs;
mod error_document;
mod exit;
mod given;
mod hidden;
mod http;
mod lines;
mod local;
mod logging;
mod package;
mod ports;
mod printer;
mod program;
mod replay;
mod roles;
mod settings;
mod settings_file;
mod signals;
mod suggest;
mod trace_function;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use fanfare_sandbox_process::{LAUNCHER_ARGUMENT, launcher_main};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The launcher clones processes: no thread may have been started, and nothing else read, before it begins.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == LAUNCHER_ARGUMENT) {
        launcher_main();
    }
    // In a sandbox: a cold start waits for it.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == trace_function::ARGUMENT) {
        return trace_function::main();
    }
    // A shell that completes a line asks so, and is answered here.
    CompleteEnv::with_factory(args::Args::command).var(complete::VARIABLE).complete();
    commands::run(args::Args::read())
}
