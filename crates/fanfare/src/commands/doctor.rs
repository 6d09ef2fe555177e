//! `fanfare doctor`: is this machine fit, and is nothing left behind?

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fanfare_api::ClusterStatusDocument;
use fanfare_sandbox::{CodeStore, Orphan, Outlets, Runtime};
use fanfare_sandbox_process::{ProcessOptions, ProcessRuntime, audit};
use fanfare_types::{CodeDigest, StartFailure, StartFailureKind};
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::process::Command;

use crate::args::DoctorArgs;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::ports::{self, Owner};
use crate::printer::{Output, Printer};

/// Longest answer of an interpreter.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer of a control API.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Looks that something must be there at to be left behind: for a moment that is all there is to see of a sandbox that
/// is being made or removed.
const LOOKS: u32 = 4;
/// Time between two of them.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Orphans that are named; all are counted.
const ORPHANS_SHOWN: usize = 20;

/// What was found: the schema of `-o json`.
#[derive(Debug, Serialize)]
struct Report {
    /// The worst of the checks' verdicts; `failed` where something is left behind.
    verdict: Verdict,
    checks: Vec<Check>,
    orphans: Vec<String>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    verdict: Verdict,
    detail: String,
    /// How to mend it; empty when there is nothing to mend.
    fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// Something works less well, or not at all for some functions.
    Lacking,
    /// Nothing works.
    Failed,
}

impl Check {
    fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Check { name: name.into(), verdict: Verdict::Ok, detail: detail.into(), fix: String::new() }
    }

    fn lacking(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { name: name.into(), verdict: Verdict::Lacking, detail: detail.into(), fix: fix.into() }
    }

    fn failed(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { verdict: Verdict::Failed, ..Check::lacking(name, detail, fix) }
    }
}

impl Verdict {
    /// 3 where nothing works or something is left behind; with `strict` 1 where anything is lacking.
    fn exit(self, strict: bool) -> Exit {
        match self {
            Verdict::Failed => Exit::Platform,
            Verdict::Lacking if strict => Exit::Function,
            Verdict::Lacking | Verdict::Ok => Exit::Ok,
        }
    }
}

/// Ends with 0 when everything can run and nothing is left behind.
pub(crate) async fn run(args: &DoctorArgs, printer: Printer) -> Result<Exit, Failure> {
    let data_dir = args.dirs.data_dir()?;
    let run_dir = args.dirs.run_dir()?;
    let options = ProcessOptions::new(&run_dir, &data_dir);
    let mut checks = vec![
        interpreter("python3", &options.python, "Python handlers", "apt-get install python3").await,
        interpreter("node", &options.node, "Node.js handlers", "apt-get install nodejs").await,
        directory("data directory", &data_dir, "--data-dir"),
        directory("run directory", &run_dir, "--run-dir"),
    ];
    checks.extend(ports(args).await);
    checks.extend(isolation(&options).await);
    let pause = || tokio::time::sleep(LOOK_AGAIN);
    let found = lasting(|| audit(&run_dir), pause).await.map_err(|e| {
        Failure::platform(format!("cannot look for orphans in {}: {e}", run_dir.display()))
            .next("run it as the user who runs the node")
    })?;
    let orphans: Vec<String> =
        found.iter().map(|orphan| format!("{} {}", orphan.kind, orphan.what)).collect();
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    let verdict = if orphans.is_empty() { worst } else { Verdict::Failed };
    let report = Report { verdict, checks, orphans };
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &report)?,
        Output::Text | Output::Wide | Output::Name | Output::Url => print(printer, &report)?,
    }
    Ok(report.verdict.exit(args.strict))
}

/// What is there at every look.
async fn lasting(
    mut look: impl FnMut() -> io::Result<Vec<Orphan>>,
    pause: impl AsyncFn(),
) -> io::Result<Vec<Orphan>> {
    let mut found = look()?;
    for _ in 1..LOOKS {
        if found.is_empty() {
            break;
        }
        pause().await;
        let again = look()?;
        found.retain(|orphan| again.contains(orphan));
    }
    Ok(found)
}

/// What isolates sandboxes here, as a runtime reports it that is started in a scratch directory for this.
async fn isolation(machine: &ProcessOptions) -> Vec<Check> {
    let fix = "run as root, on a kernel with unprivileged namespaces, or grant this container the right to make them";
    let failed =
        |e: std::io::Error| vec![Check::failed("sandboxes", format!("cannot be made here: {e}"), fix)];
    let scratch = match tempfile::Builder::new().prefix("fanfare-doctor-").tempdir() {
        Ok(scratch) => scratch,
        Err(e) => return failed(e),
    };
    let options = ProcessOptions {
        python: machine.python.clone(),
        node: machine.node.clone(),
        netns_pool: 0,
        ..ProcessOptions::new(scratch.path().join("run"), scratch.path().join("data"))
    };
    let outlets = Outlets { exits: Arc::new(|_| {}), logs: Arc::new(|_| {}), code: Arc::new(NoCode) };
    let runtime = match ProcessRuntime::start(options, outlets).await {
        Ok(runtime) => runtime,
        Err(e) => return failed(e),
    };
    let checks = runtime.isolation().mechanisms.iter().map(|mechanism| match mechanism.enforced {
        true => Check::ok(mechanism.name, mechanism.detail.clone()),
        false => Check::lacking(mechanism.name, mechanism.detail.clone(), mechanism.fix),
    });
    let checks = checks.collect();
    runtime.shutdown().await;
    checks
}

/// A doctor runs nothing.
struct NoCode;

impl CodeStore for NoCode {
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        let detail = format!("there is no code {code}");
        let failure = StartFailure { kind: StartFailureKind::Code, detail, log_tail: String::new() };
        Box::pin(async { Err(failure) })
    }
}

async fn interpreter(name: &str, path: &Path, serves: &str, fix: &str) -> Check {
    let answer = Command::new(path).arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(VERSION_TIMEOUT, answer).await {
        Ok(Ok(output)) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Check::ok(name, format!("{}: {version}", path.display()))
        }
        Ok(Ok(output)) => Check::lacking(name, format!("{} fails: {}", path.display(), output.status), fix),
        Ok(Err(e)) => Check::lacking(name, format!("{}: {e}; {serves} cannot run", path.display()), fix),
        Err(_) => {
            Check::lacking(name, format!("{} did not answer within {VERSION_TIMEOUT:?}", path.display()), fix)
        }
    }
}

/// Whether it, or the nearest directory above it, can be written to. Nothing is made.
fn directory(name: &str, path: &Path, flag: &str) -> Check {
    let fix = format!("make it writable for this user, or choose another with {flag}");
    let Some(nearest) = path.ancestors().find(|ancestor| ancestor.exists()) else {
        return Check::failed(name, format!("{} is nowhere", path.display()), fix);
    };
    let writable = rustix::fs::access(nearest, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    match (writable, nearest == path) {
        (Ok(()), true) => Check::ok(name, path.display().to_string()),
        (Ok(()), false) => Check::ok(name, format!("{} will be made", path.display())),
        (Err(e), _) => Check::failed(name, format!("{} cannot be written to: {e}", nearest.display()), fix),
    }
}

/// The three ports of a platform: each is well when it is free, or when the platform itself answers there.
async fn ports(args: &DoctorArgs) -> Vec<Check> {
    let quiet = Printer::new(true, false, Output::Text);
    let api = answering(Client::new(&format!("http://{}", args.api_listen), quiet).ok()).await;
    let functions = match &api {
        Some(status) => status.data_planes.iter().any(|d| d.address == args.listen.to_string()),
        None => false,
    };
    // The streams are not asked: the control API says where they are, or belongs to the process that listens there. An
    // ordinary user does not see the owner of root's sockets.
    let api_owner = api.as_ref().and_then(|_| ports::owner(args.api_listen));
    let stated = api.as_ref().and_then(|status| status.leader.streams.as_ref()?.parse().ok());
    let stated = stated.is_some_and(|held| ports::clash(held, args.grpc_listen));
    let streams = |owner: Option<&Owner>| stated || owner.is_some() && api_owner.as_ref() == owner;
    let version = api.as_ref().map(|status| status.version.as_str()).unwrap_or_default();
    vec![
        port("functions", args.listen, "--listen", |_| {
            functions.then(|| "Fanfare calls functions here".to_owned())
        }),
        port("control API", args.api_listen, "--api-listen", |_| {
            api.is_some().then(|| format!("Fanfare {version} answers here"))
        }),
        port("streams", args.grpc_listen, "--grpc-listen", |owner| {
            streams(owner).then(|| "the same Fanfare listens here".to_owned())
        }),
    ]
}

/// What the control API says, if one answers.
async fn answering(client: Option<Client>) -> Option<ClusterStatusDocument> {
    tokio::time::timeout(ANSWER_TIMEOUT, client?.status()).await.ok()?.ok()
}

/// One port. `ours` says what of the platform is there, if the platform is.
fn port(
    what: &str,
    address: SocketAddr,
    flag: &str,
    ours: impl FnOnce(Option<&Owner>) -> Option<String>,
) -> Check {
    let name = format!("port {}", address.port());
    let owner = ports::owner(address);
    let bound = std::net::TcpListener::bind(address);
    let by = match &owner {
        Some(owner) => format!("held by {owner}"),
        None => "held by a process that this user cannot see".to_owned(),
    };
    match bound {
        Ok(_) => Check::ok(name, format!("{what}: free")),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => match ours(owner.as_ref()) {
            Some(ours) => Check::ok(name, format!("{what}: {ours}, {by}")),
            None => {
                let fix = format!("stop it, or choose another address with {flag}");
                Check::lacking(name, format!("{what}: {by}"), fix)
            }
        },
        Err(e) => Check::lacking(name, format!("{what}: {e}"), format!("choose another address with {flag}")),
    }
}

fn print(printer: Printer, report: &Report) -> Result<(), Failure> {
    let width = report.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Lacking => "LACKING",
            Verdict::Failed => "FAILED",
        };
        printer.out(format_args!("{verdict:<8} {:<width$}  {}", check.name, check.detail))?;
        if !check.fix.is_empty() {
            printer.out(format_args!("{:<8} {:<width$}  fix: {}", "", "", check.fix))?;
        }
    }
    for orphan in report.orphans.iter().take(ORPHANS_SHOWN) {
        printer.out(format_args!("orphan   {orphan}"))?;
    }
    let count = report.orphans.len();
    printer.out(format_args!("{count} {}", if count == 1 { "orphan" } else { "orphans" }))?;
    if count > 0 {
        printer.out(
            "fix: start and stop `fanfare up` (or `fanfare node`) once: it removes what an earlier run left",
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_a_failure_only_where_that_is_asked_for() {
        let cases = [
            (Verdict::Ok, Exit::Ok, Exit::Ok),
            (Verdict::Lacking, Exit::Ok, Exit::Function),
            (Verdict::Failed, Exit::Platform, Exit::Platform),
        ];
        for (verdict, exit, strict) in cases {
            assert_eq!((verdict.exit(false), verdict.exit(true)), (exit, strict), "{verdict:?}");
        }
        assert!(Verdict::Ok < Verdict::Lacking && Verdict::Lacking < Verdict::Failed);
    }

    #[tokio::test]
    async fn what_comes_and_goes_is_not_left_behind() {
        let orphan = |what: &str| Orphan { kind: "cgroup", what: what.to_owned() };
        let looks: [&[&str]; 4] =
            [&["made", "left", "removed"], &["left", "removed", "made next"], &["left"], &["left", "made"]];
        for (taken, last) in [(4, Some("left")), (0, None)] {
            let mut looked = 0;
            let look = || {
                looked += 1;
                let there = looks.iter().take(taken).nth(looked - 1).copied().unwrap_or_default();
                Ok(there.iter().map(|what| orphan(what)).collect())
            };
            let found = lasting(look, async || {}).await.unwrap();
            assert_eq!(found, last.map(orphan).into_iter().collect::<Vec<_>>());
            assert_eq!(looked, taken.max(1), "looked at again only where something is there");
        }
    }
}
