//! Runs many seeds, and shows the first that breaks a promise.
#![allow(
    clippy::disallowed_methods,
    reason = "the program around the simulator: it may use threads and print"
)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fanfare_sim::{NAMES, Report, draw, golden, run, run_told};

const HELP: &str = "\
Usage: fanfare-seeds [--seeds N] [--from SEED] [--scenario NAME] [--told]

  Runs N seeds from SEED on. Each draws a world of its own, of the scenario of that name, or of all of them in turn.
  --told prints every line of what happens.
";
/// Lines that are shown of what came before a broken promise.
const LINES_SHOWN: usize = 50;

struct Options {
    seeds: u64,
    from: u64,
    scenario: Option<String>,
    told: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if options.told {
        return told(&options);
    }
    if let Some(violation) = golden() {
        eprintln!("BROKEN: {}: {}", violation.invariant, violation.detail);
        return ExitCode::FAILURE;
    }
    let (next, events, faults, requests) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let broken: Mutex<Option<u64>> = Mutex::new(None);
    // What a run that panics has to say is said below, with what led to it.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = options.from + next.fetch_add(1, Ordering::Relaxed);
                    let found = |broken: &Option<u64>| broken.is_some_and(|earlier| earlier <= seed);
                    if seed >= options.from + options.seeds || broken.lock().is_ok_and(|b| found(&b)) {
                        return;
                    }
                    let report = catch_unwind(AssertUnwindSafe(|| one(&options, seed)));
                    if let Ok(report) = &report {
                        events.fetch_add(report.events, Ordering::Relaxed);
                        faults.fetch_add(report.faults, Ordering::Relaxed);
                        requests.fetch_add(report.requests.len() as u64, Ordering::Relaxed);
                    }
                    if report.is_err() || report.is_ok_and(|report| report.violation.is_some()) {
                        // The lowest is shown, however many threads there are.
                        let mut broken = broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        *broken = Some(broken.map_or(seed, |earlier| earlier.min(seed)));
                    }
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let broken = broken.into_inner().unwrap_or_default();
    if let Some(seed) = broken {
        return show(&options, seed);
    }
    println!(
        "{} seeds from {}: {} requests, {} faults, {} events; every invariant held",
        options.seeds,
        options.from,
        requests.into_inner(),
        faults.into_inner(),
        events.into_inner()
    );
    ExitCode::SUCCESS
}

fn name(options: &Options, seed: u64) -> &str {
    let in_turn = NAMES[usize::try_from(seed % NAMES.len() as u64).unwrap_or(0)].0;
    options.scenario.as_deref().unwrap_or(in_turn)
}

fn one(options: &Options, seed: u64) -> Report {
    let scenario = draw(name(options, seed), seed).unwrap_or_else(|| unreachable!("names are checked"));
    run(&scenario, seed)
}

fn told(options: &Options) -> ExitCode {
    for seed in options.from..options.from + options.seeds {
        let scenario = draw(name(options, seed), seed).unwrap_or_else(|| unreachable!("names are checked"));
        let report = run_told(&scenario, seed, |line| println!("{line}"));
        println!("{report}");
        if report.violation.is_some() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Lets a broken seed happen again, and shows how it came to that.
fn show(options: &Options, seed: u64) -> ExitCode {
    let name = name(options, seed);
    let mut lines: VecDeque<String> = VecDeque::with_capacity(LINES_SHOWN);
    let again = catch_unwind(AssertUnwindSafe(|| {
        let scenario = draw(name, seed).unwrap_or_else(|| unreachable!("names are checked"));
        run_told(&scenario, seed, |line| {
            if lines.len() == LINES_SHOWN {
                lines.pop_front();
            }
            lines.push_back(line);
        })
    }));
    for line in lines {
        eprintln!("  {line}");
    }
    match again {
        Ok(report) => eprintln!("{report}"),
        Err(_) => eprintln!("scenario {name}, seed {seed}: BROKEN: it panicked, as above"),
    }
    eprintln!("see it again: cargo xtask sim --scenario {name} --from {seed} --seeds 1 --told");
    ExitCode::FAILURE
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { seeds: 1_000, from: 1, scenario: None, told: false };
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().and_then(|value| value.parse().ok());
            value.ok_or_else(|| format!("{arg} takes a number"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--scenario" => {
                let name = args.next().unwrap_or_default();
                if !NAMES.iter().any(|(known, _)| *known == name) {
                    let names: Vec<_> =
                        NAMES.iter().map(|(name, what)| format!("  {name}: {what}")).collect();
                    return Err(format!("there is no scenario {name:?}; there are\n{}", names.join("\n")));
                }
                options.scenario = Some(name);
            }
            "--told" => options.told = true,
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    Ok(options)
}
