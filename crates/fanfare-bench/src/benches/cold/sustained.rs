//! Cold starts for seconds on end, while the sandboxes of those before are taken down.

use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, Quantity};

use super::{Contract, IN_FLIGHT, PROGRAM};
use crate::api;
use crate::bench::{Bench, function_program};
use crate::caller::get;
use crate::error::{Error, Result};
use crate::interpreters::Language;
use crate::load::Work;
use crate::package;
use crate::platform::Platform;
use crate::report::Report;
use crate::timing;
use crate::wire::Answer;

const GROUP: &str = "sustained";
/// A sandbox without requests is taken down after about this.
const WINDOW: &str = "200ms";

/// Calls functions one after the other, round and round.
#[derive(Debug)]
struct Cycle {
    requests: Vec<Vec<u8>>,
    next: usize,
    cold_ms: Vec<f64>,
    warm: usize,
}

impl Work for Cycle {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let id = self.next;
        self.next = (id + 1) % self.requests.len();
        out.extend_from_slice(&self.requests[id]);
        Some(id)
    }

    fn done(&mut self, _: usize, latency: Duration, answer: Answer<'_>) -> Result<()> {
        if answer.status != 200 {
            return Err(Error::new(format!("answered {}: {}", answer.status, answer.text())));
        }
        match timing::is_cold(&answer) {
            true => self.cold_ms.push(latency.as_secs_f64() * 1e3),
            false => self.warm += 1,
        }
        Ok(())
    }
}

pub(super) fn run(bench: &Bench, report: &mut Report, platform: &mut Platform) -> Result<()> {
    // A zygote each: fewer of those.
    let kinds = [(Contract::Handler(Language::Python), 256), (Contract::Inherited, 512)];
    let (span, times) =
        bench.either((Duration::from_secs(5), bench.rounds.min(3)), (Duration::from_millis(300), 1));
    report.say(format!(
        "Sustained: {IN_FLIGHT} requests in flight for {} s, round and round over 256 (Python) and 512 (compiled) functions, \
         whose sandboxes are taken down meanwhile, {WINDOW} after their answer; the rate is that of answers that have \
         waited for a new sandbox.",
        span.as_secs_f64()
    ));
    for (contract, functions) in kinds {
        let functions = bench.either(functions, 16);
        let requests = deploy(platform, contract, functions)?;
        let (mut rates, mut latencies, mut warm) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..times {
            platform.until_idle()?;
            let mut work = Cycle { requests: requests.clone(), next: 0, cold_ms: Vec::new(), warm: 0 };
            let elapsed = platform.loader(IN_FLIGHT)?.run(&mut work, Some(Instant::now() + span))?;
            rates.push(work.cold_ms.len() as f64 / elapsed.as_secs_f64());
            warm.push(work.warm as f64 / (work.warm + work.cold_ms.len()) as f64);
            latencies.extend(work.cold_ms);
        }
        report.measure(GROUP, format!("throughput, {}", contract.describe()), "/s", &rates)?;
        report.measure(GROUP, format!("latency, {}", contract.describe()), "ms", &latencies)?;
        report.measure(
            GROUP,
            format!("share of answers that were warm, {}", contract.describe()),
            "",
            &warm,
        )?;
    }
    platform.until_idle()
}

/// Functions of this kind that are back at zero at once, and the requests that call them.
fn deploy(platform: &Platform, contract: Contract, count: usize) -> Result<Vec<Vec<u8>>> {
    let (handler, package) = match contract {
        Contract::Handler(language) => {
            let (file, text) = language.handler();
            (language.document(), package::text(file, text)?)
        }
        Contract::Inherited | Contract::Port => {
            (contract.program(), package::program(&function_program()?, PROGRAM)?)
        }
    };
    platform.api.upload(&package)?;
    let names: Vec<String> = (0..count).map(|n| format!("sustained-{}-{n}", contract.word())).collect();
    for name in &names {
        let mut document = FunctionDocument::new(name, handler.clone());
        document.code = Some(package.digest.to_string());
        api::forgets_quickly(&mut document);
        document.scaling.stable_window = Some(Quantity::from(WINDOW));
        document.scaling.tick = Some(Quantity::from("50ms"));
        platform.api.deploy(&document)?;
    }
    platform.prepare(&names)?;
    Ok(names.iter().map(|name| get(&format!("/function/{name}/"))).collect())
}
