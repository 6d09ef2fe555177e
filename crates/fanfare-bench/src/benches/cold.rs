//! Requests to a function at zero, beside a sandbox made by hand.

mod sustained;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanfare_api::{FunctionDocument, HandlerDocument};

use crate::bare::{Bare, Kind};
use crate::bench::{Bench, function_program};
use crate::caller::{Caller, get};
use crate::error::{Context, Result};
use crate::interpreters::Language;
use crate::load::Once;
use crate::platform::{Home, Platform};
use crate::plot::{Axis, Line, Plot};
use crate::report::{Limit, Report};
use crate::stats::Summary;
use crate::{api, package, timing};

const NAME: &str = "cold";
/// Cold starts under way at once in the parallel part.
const IN_FLIGHT: usize = 8;
/// Name of the program in its code.
const PROGRAM: &str = "function";
/// What the plot of cold starts shows: ours, and what they are held against.
const DRAWN: [Turn; 8] = [
    Turn::Ours(Contract::Handler(Language::Python)),
    Turn::Ours(Contract::Handler(Language::PythonWithThread)),
    Turn::Ours(Contract::Handler(Language::Node)),
    Turn::Ours(Contract::Inherited),
    Turn::Ours(Contract::Port),
    Turn::Bare(Kind::Inherited),
    Turn::Fresh(Language::Python),
    Turn::Fresh(Language::Node),
];
const LANGUAGES: [Language; 3] = [Language::Python, Language::PythonWithThread, Language::Node];

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contract {
    Handler(Language),
    Inherited,
    Port,
}

const CONTRACTS: [Contract; 5] = [
    Contract::Handler(Language::Python),
    Contract::Handler(Language::PythonWithThread),
    Contract::Handler(Language::Node),
    Contract::Inherited,
    Contract::Port,
];

impl Contract {
    fn word(self) -> &'static str {
        match self {
            Contract::Handler(Language::Python) => "python",
            Contract::Handler(Language::PythonWithThread) => "python-thread",
            Contract::Handler(Language::Node) => "node",
            Contract::Inherited => "inherited",
            Contract::Port => "port",
        }
    }

    /// As a program is registered.
    fn program(self) -> HandlerDocument {
        let command = vec![format!("./{PROGRAM}")];
        let inherits_listener = self == Contract::Inherited;
        HandlerDocument::Http { command, inherits_listener, protocol: Default::default() }
    }

    fn describe(self) -> &'static str {
        match self {
            Contract::Handler(Language::Python) => "Python handler, from its zygote",
            Contract::Handler(Language::PythonWithThread) => "Python handler, without a zygote",
            Contract::Handler(Language::Node) => "Node.js handler",
            Contract::Inherited => "compiled server, inherited listener",
            Contract::Port => "compiled server, $PORT",
        }
    }
}

/// What takes turns within a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Ours(Contract),
    Bare(Kind),
    /// An interpreter that calls the handler.
    Fresh(Language),
    /// An interpreter that does nothing.
    Nothing(Language),
}

const TURNS: [Turn; 12] = [
    Turn::Ours(Contract::Handler(Language::Python)),
    Turn::Ours(Contract::Handler(Language::PythonWithThread)),
    Turn::Ours(Contract::Handler(Language::Node)),
    Turn::Ours(Contract::Inherited),
    Turn::Ours(Contract::Port),
    Turn::Bare(Kind::Unfiltered),
    Turn::Bare(Kind::Inherited),
    Turn::Bare(Kind::Port),
    Turn::Fresh(Language::Python),
    Turn::Nothing(Language::Python),
    Turn::Fresh(Language::Node),
    Turn::Nothing(Language::Node),
];

impl Turn {
    fn describe(self) -> &'static str {
        match self {
            Turn::Ours(contract) => contract.describe(),
            Turn::Fresh(Language::Node) => "fresh node, no sandbox",
            Turn::Fresh(_) => "fresh python3, no sandbox",
            Turn::Nothing(language) => language.nothing_words(),
            Turn::Bare(Kind::Unfiltered) => "bare, inherited listener, no filter",
            Turn::Bare(Kind::Inherited) => "bare, inherited listener",
            Turn::Bare(Kind::Port) => "bare, $PORT",
        }
    }

    /// What a contract's cold start is held against.
    fn peer_of(contract: Contract) -> Turn {
        match contract {
            Contract::Handler(Language::Node) => Turn::Fresh(Language::Node),
            Contract::Handler(_) => Turn::Fresh(Language::Python),
            Contract::Inherited => Turn::Bare(Kind::Inherited),
            Contract::Port => Turn::Bare(Kind::Port),
        }
    }
}

/// Milliseconds of each turn: one list per round.
type Times = Vec<(Turn, Vec<f64>)>;

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Cold starts of the process runtime", bench.command.clone());
    let copies = bench.either(32, 2);
    describe(&mut report, copies);
    let code = code(bench.dir())?;
    let sockets = bench.dir().join("bare");
    fs::create_dir(&sockets).context(sockets.display())?;
    let mut bare = Bare::start(&code, PROGRAM, &sockets)?;
    let mut platform = Platform::start(Home::new(bench.dir())?, None)?;
    deploy(&mut platform, copies)?;
    platform.until_idle()?;

    let mut times: Times = Vec::new();
    let mut stages = CONTRACTS.map(|contract| (contract, timing::Stages::default()));
    for _ in 0..bench.rounds {
        let mut caller = platform.caller()?;
        let mut round = TURNS.map(|turn| (turn, Vec::with_capacity(copies)));
        for copy in 0..copies {
            for turn in bench.shuffled(&TURNS) {
                let elapsed = match turn {
                    Turn::Ours(contract) => call(&mut caller, contract, copy, &mut stages)?,
                    Turn::Bare(kind) => bare.sandbox(kind)?,
                    Turn::Fresh(language) => language.start_for_a_call(&code)?,
                    Turn::Nothing(language) => language.start_for_nothing()?,
                };
                let of = round.iter_mut().filter(|(of, _)| *of == turn);
                of.for_each(|(_, times)| times.push(elapsed.as_secs_f64() * 1e3));
            }
        }
        times.extend(round);
        platform.until_idle()?;
    }
    bare.stop()?;
    tell_sequential(&mut report, &times)?;
    for (contract, stages) in &stages {
        stages.tell(&mut report, &format!("stages: {}", contract.describe()))?;
    }
    parallel(bench, &mut report, &mut platform, copies)?;
    sustained::run(bench, &mut report, &mut platform)?;
    platform.stop()?;
    report.finish()
}

fn describe(report: &mut Report, copies: usize) {
    report.say(format!(
        "Request in to answer out over an open connection to a function at zero whose revision is prepared. {copies} \
         functions of each kind are each called once per round, one request at a time; then all go back to zero."
    ));
    report.say(
        "Bare: one clone into the same kinds of namespaces (mount, process, IPC, host name, pooled network), the same \
         mounts and pivot_root, cgroup limits, user, capabilities and no_new_privs, a system call filter of the same \
         size, then exec of the same program, until it answered the same request. One process, no supervisor, no log. \
         It takes turns with ours in random order.",
    );
    report.say(format!(
        "Fresh python3 and node start an interpreter outside any sandbox, import the same handler and call it once; `{}` and \
         `{}` do nothing at all. Without a zygote: the same handler beside a thread that its import starts, which no fork \
         copies, so that each sandbox starts an interpreter. The parallel part calls all {copies} functions of a kind with \
         {IN_FLIGHT} requests in flight; it has no peer.",
        Language::Python.nothing_words(),
        Language::Node.nothing_words()
    ));
}

/// A directory with the code of all functions, that every user can read.
fn code(dir: &Path) -> Result<PathBuf> {
    let code = dir.join("code");
    fs::create_dir(&code).context(code.display())?;
    fs::copy(function_program()?, code.join(PROGRAM)).context("copy the function")?;
    for (file, text) in LANGUAGES.map(Language::handler) {
        fs::write(code.join(file), text).context("write the handler")?;
    }
    Ok(code)
}

fn name(contract: Contract, copy: usize) -> String {
    format!("{}-{copy}", contract.word())
}

fn deploy(platform: &mut Platform, copies: usize) -> Result<()> {
    let compiled = package::program(&function_program()?, PROGRAM)?;
    platform.api.upload(&compiled)?;
    for contract in CONTRACTS {
        let (handler, package) = match contract {
            Contract::Handler(language) => {
                let (file, text) = language.handler();
                let package = package::text(file, text)?;
                platform.api.upload(&package)?;
                (language.document(), package)
            }
            Contract::Inherited | Contract::Port => (contract.program(), compiled.clone()),
        };
        let names: Vec<String> = (0..copies).map(|copy| name(contract, copy)).collect();
        for name in &names {
            let mut document = FunctionDocument::new(name, handler.clone());
            document.code = Some(package.digest.to_string());
            api::forgets_quickly(&mut document);
            platform.api.deploy(&document)?;
        }
        platform.prepare(&names)?;
    }
    Ok(())
}

fn call(
    caller: &mut Caller,
    contract: Contract,
    copy: usize,
    stages: &mut [(Contract, timing::Stages); CONTRACTS.len()],
) -> Result<Duration> {
    let name = name(contract, copy);
    let (elapsed, answer) = caller.call(&get(&format!("/function/{name}/")))?;
    for (_, stages) in stages.iter_mut().filter(|(of, _)| *of == contract) {
        stages.take(&answer).context(&name)?;
    }
    Ok(elapsed)
}

fn tell_sequential(report: &mut Report, times: &Times) -> Result<()> {
    const GROUP: &str = "one at a time";
    let rounds = |turn: Turn| times.iter().filter(move |(of, _)| *of == turn).map(|(_, times)| times);
    let all = |turn: Turn| rounds(turn).flatten().copied().collect::<Vec<f64>>();
    let medians = |turn: Turn| -> Vec<f64> {
        rounds(turn).filter_map(|times| Summary::of(times)).map(|summary| summary.p50).collect()
    };
    let mut summaries = Vec::new();
    for turn in TURNS {
        summaries.push((turn, report.measure(GROUP, turn.describe(), "ms", &all(turn))?));
    }
    report.plots.push(Plot {
        name: "one",
        title: "Cold starts, one at a time".to_owned(),
        x: Axis::log("milliseconds"),
        y: Axis::linear("share"),
        lines: DRAWN.map(|turn| Line::cdf(turn.describe(), &all(turn))).into(),
    });
    let summary = |turn: Turn| summaries.iter().find(|(of, _)| *of == turn).map(|(_, summary)| *summary);
    for contract in CONTRACTS {
        let (ours, peer) = (Turn::Ours(contract), Turn::peer_of(contract));
        let ratio = format!("{} / {}, medians of rounds", contract.describe(), peer.describe());
        report.ratio(GROUP, ratio, &medians(ours), &medians(peer))?;
        let (Some(of_ours), Some(of_peer)) = (summary(ours), summary(peer)) else { continue };
        let (what, limit) = match contract {
            Contract::Handler(Language::Python) => ("at most 4 ms", 4.0),
            // Nothing is promised of these.
            Contract::Handler(_) => continue,
            Contract::Inherited | Contract::Port => ("at most 1.2 × bare + 0.5 ms", 1.2 * of_peer.p50 + 0.5),
        };
        let what = format!("{}, median ({what})", contract.describe());
        report.budget(what, of_ours.p50, "ms", Limit::AtMost(limit));
        report.budget(format!("{}, p99", contract.describe()), of_ours.p99, "ms", Limit::AtMost(20.0));
    }
    Ok(())
}

fn parallel(bench: &mut Bench, report: &mut Report, platform: &mut Platform, copies: usize) -> Result<()> {
    let group = format!("{copies} functions, {IN_FLIGHT} in flight");
    let mut rates = CONTRACTS.map(|contract| (contract, Vec::new()));
    let mut latencies = CONTRACTS.map(|contract| (contract, Vec::new()));
    let mut stages = timing::Stages::default();
    for _ in 0..bench.rounds {
        for contract in bench.shuffled(&CONTRACTS) {
            let calls: Vec<_> =
                (0..copies).map(|copy| get(&format!("/function/{}/", name(contract, copy)))).collect();
            let mut loader = platform.loader(IN_FLIGHT)?;
            let mut of_round = Vec::new();
            let elapsed = loader.run(
                &mut Once::new(&calls, |copy, latency, answer| {
                    stages.take(&answer).context(name(contract, copy))?;
                    of_round.push(latency.as_secs_f64() * 1e3);
                    Ok(())
                }),
                None,
            )?;
            rates.iter_mut().filter(|(of, _)| *of == contract).for_each(|(_, rates)| {
                rates.push(copies as f64 / elapsed.as_secs_f64());
            });
            latencies.iter_mut().filter(|(of, _)| *of == contract).for_each(|(_, all)| all.extend(&of_round));
            platform.until_idle()?;
        }
    }
    report.plots.push(Plot {
        name: "parallel",
        title: format!("Cold starts, {IN_FLIGHT} in flight"),
        x: Axis::log("milliseconds"),
        y: Axis::linear("share"),
        lines: latencies.iter().map(|(of, samples)| Line::cdf(of.describe(), samples)).collect(),
    });
    for ((contract, rates), (_, latencies)) in rates.iter().zip(&latencies) {
        let rate = report.measure(&group, format!("throughput, {}", contract.describe()), "/s", rates)?;
        report.measure(&group, format!("latency, {}", contract.describe()), "ms", latencies)?;
        let least = match contract {
            Contract::Handler(Language::Python) => 1_200.0,
            Contract::Handler(_) => continue,
            Contract::Inherited | Contract::Port => 600.0,
        };
        let what = format!("cold starts in parallel, {}", contract.describe());
        report.budget(what, rate.p50, "/s", Limit::AtLeast(least));
    }
    Ok(())
}
