//! What the system costs, measured beside its peers in the same run: `cargo xtask bench`.

mod affinity;
mod api;
mod args;
mod bare;
mod bench;
mod benches;
mod caller;
mod compare;
mod direct;
mod echo;
mod emulate;
mod h2load;
mod haproxy;
mod inherit;
mod interpreters;
mod load;
mod machine;
mod nginx;
mod output;
mod package;
mod paths;
mod platform;
mod plot;
mod ports;
mod process;
mod proxy;
mod relay;
mod report;
mod roles;
mod socket;
mod timing;
mod upstream;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};

pub(crate) use fanfare_load::{error, procfs, stats, wire};

use args::{Args, Name};
use bench::Bench;
use error::{Context, Error, Result};
use machine::Machine;
use report::Report;

/// As in `fanfare`, whose parts some of this program's roles are.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A standard error that is closed has no reader.
            let _ = writeln!(std::io::stderr(), "fanfare-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    // This program again, in the roles that its benches need.
    match args.next().as_deref() {
        Some(fanfare_sandbox_process::LAUNCHER_ARGUMENT) => fanfare_sandbox_process::launcher_main(),
        Some(upstream::ARGUMENT) => upstream::run(args),
        Some(bare::ARGUMENT) => bare::run(args),
        Some(emulate::ARGUMENT) => emulate::run(args),
        _ => measure(&Args::parse_from(std::env::args().skip(1))),
    }
}

fn measure(args: &Args) -> Result<()> {
    let directory = output::directory(args)?;
    let machine = Machine::here(&directory);
    print(&format!("{}\nseed {}, {} rounds\n", machine.describe(), args.seed, args.rounds))?;
    let names = if args.names.is_empty() { Name::value_variants() } else { &args.names };
    let mut failed = Vec::new();
    for name in names {
        let begun = Instant::now();
        // One bench that cannot measure does not keep the others from it.
        match one(args, *name, &directory) {
            Ok(report) => {
                let json = output::json(&directory, args, &machine, &report)?;
                print(&report.text())?;
                print(&format!("  {:.1} s, {}\n", begun.elapsed().as_secs_f64(), json.display()))?;
                if args.write {
                    output::write(&machine, &report)?;
                }
            }
            Err(error) => {
                print(&format!("\n{name:?}: FAILED: {error}\n"))?;
                failed.push(format!("{name:?}"));
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!("could not measure: {}", failed.join(", ")))),
    }
}

fn one(args: &Args, name: Name, directory: &std::path::Path) -> Result<Report> {
    let mut bench = Bench::new(args, args.repeat(name), directory)?;
    if let Some(base) = &args.compare_with {
        return compare::run(args, name, base, &mut bench);
    }
    match name {
        Name::Warm => benches::warm::run(&mut bench),
        Name::Http2 => benches::http2::run(&mut bench),
        Name::Hops => benches::hops::run(&mut bench),
        Name::Cold => benches::cold::run(&mut bench),
        Name::Surge => benches::surge::run(&mut bench),
        Name::Register => benches::register::run(&mut bench),
        Name::Memory => benches::memory::run(&mut bench),
        Name::Control => benches::control::run(&mut bench),
        Name::Sweep => benches::sweep::run(&mut bench),
        Name::Ablations => benches::ablations::run(&mut bench),
        Name::Steps => benches::steps::run(&mut bench),
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("print")
}
