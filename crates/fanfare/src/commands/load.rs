//! `fanfare load`: load that does not wait for its answers.

mod figures;
mod functions;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_load::summary::{LatenessBound, summary};
use fanfare_load::{Progress, Requests, Run, Settings};
use fanfare_trace::Plan;

use crate::args::LoadArgs;
use crate::commands::{Context, data_plane};
use crate::descriptors;
use crate::exit::{Exit, Failure};
use crate::http::Base;
use crate::replay::{self, files, plan};
use crate::signals::Signals;
use figures::{Figures, Used};
use functions::Deployed;
use report::Report;

/// Between two words about how far it has come.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What a replay came to, and what the platform used meanwhile.
struct Measured {
    run: Run,
    used: Used,
}

pub(crate) async fn run(context: &Context, args: &LoadArgs) -> Result<Exit, Failure> {
    let plan = Arc::new(plan::make(&context.printer, &args.what, args.seed, args.function.as_ref())?);
    if let Some(path) = &args.write_plan {
        files::write_plan(&plan, path)?;
        context.printer.stage(format_args!("Wrote the plan to {}", path.display()));
    }
    if args.dry_run {
        return replay::report::print_plan(&context.printer, &plan, args.output.output).map(|()| Exit::Ok);
    }
    let out = args.out.as_deref().map(files::prepare).transpose()?;
    descriptors::raise();
    let mut signals = Signals::listen()?;
    let base = data_plane(context, args.data_plane.as_deref()).await?;
    let address = address(&base).await?;
    let deployed = tokio::select! {
        deployed = functions::deploy(context, args, &plan) => deployed?,
        () = signals.next() => {
            functions::clean(context, args).await;
            return Err(interrupted("before anything was sent"));
        }
    };
    let measured = measure(context, args, &plan, &deployed, address, &mut signals).await;
    // Whatever came of it: nothing is left behind that nobody asked for.
    functions::remove(context, args, &deployed).await;
    let Measured { run, used } = measured?;

    let names = deployed.names();
    let totals = summary(&plan, &run, &names);
    let bound = LatenessBound { p99_us: u64::try_from(args.lateness_max.as_micros()).unwrap_or(u64::MAX) };
    let report = Report::new(&plan, &run, totals, used, bound);
    if let Some(out) = &out {
        files::write_invocations(out, &plan, &run, &names)?;
        files::write_summary(out, &plan, &report)?;
        context.printer.stage(format_args!("Wrote all invocations to {}", out.display()));
    }
    report::print(&context.printer, &report, args.output.output)?;
    Ok(report.exit())
}

/// Replays the plan, with a look at the platform before and after.
async fn measure(
    context: &Context,
    args: &LoadArgs,
    plan: &Arc<Plan>,
    deployed: &Deployed,
    address: SocketAddr,
    signals: &mut Signals,
) -> Result<Measured, Failure> {
    let wanted = args.connections.max(args.senders) as usize;
    let connections = descriptors::connections(wanted);
    if connections < wanted {
        context.printer.warning(format_args!(
            "{connections} connections at once, and not {wanted}: more open files are not allowed (`ulimit -Hn`)"
        ));
    }
    let requests = Requests { host: address.to_string(), targets: deployed.targets.clone() };
    let settings = Settings {
        address,
        senders: args.senders as usize,
        connections,
        timeout: args.timeout + functions::TIMEOUT_GRACE,
        realtime: args.realtime,
    };
    let before = Figures::take(context, address).await;
    let progress = Arc::new(Progress::default());
    let total = plan.invocations.len();
    context.printer.stage(format_args!("Sending {total} invocations to {address}"));
    let (of_run, their_plan) = (progress.clone(), plan.clone());
    let mut replay =
        tokio::task::spawn_blocking(move || fanfare_load::run(&their_plan, &requests, &settings, &of_run));
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + TOLD_EVERY, TOLD_EVERY);
    let ended = loop {
        tokio::select! {
            ended = &mut replay => break ended,
            _ = ticks.tick() => tell(context, &progress, total),
            () = signals.next(), if !progress.is_interrupted() => {
                context.printer.note("interrupted: nothing more is sent, and what is under way is given up");
                progress.interrupt();
            }
        }
    };
    let run = ended.map_err(|e| Failure::platform(format!("the load generator broke off: {e}")))?;
    let run = run.map_err(|e| Failure::platform(format!("cannot make load: {e}")))?;
    let used = before.since(context, address, deployed.ordered_before).await;
    Ok(Measured { run, used })
}

fn tell(context: &Context, progress: &Progress, total: usize) {
    let now = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (sent, ended, failed) = (now(&progress.sent), now(&progress.ended), now(&progress.failed));
    let under_way = sent.saturating_sub(ended);
    context.printer.stage(format_args!("{sent} of {total} sent, {under_way} under way, {failed} failed"));
}

/// The address of a data plane.
async fn address(base: &Base) -> Result<SocketAddr, Failure> {
    let url = base.to_string();
    let (host, path) = match url.trim_start_matches("http://").split_once('/') {
        Some((host, path)) => (host, path),
        None => (url.trim_start_matches("http://"), ""),
    };
    if !path.is_empty() {
        return Err(Failure::usage(format!(
            "load is made at a data plane's own address, and {url} has a path"
        )));
    }
    let host = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let mut found = tokio::net::lookup_host(&host)
        .await
        .map_err(|e| Failure::platform(format!("cannot find {host}: {e}")))?;
    found.next().ok_or_else(|| Failure::platform(format!("{host} has no address")))
}

fn interrupted(when: &str) -> Failure {
    Failure::new(Exit::Interrupted, format!("interrupted {when}"))
}
