//! What is particular to the fake runtime.

use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::conformance::request;
use fanfare_sandbox::fake::{FakeListener, FakeOptions, FakeRuntime};
use fanfare_sandbox::{Runtime, SandboxExit, Started};
use fanfare_types::{Epoch, ExitCause, SandboxId, StartFailureKind, StopMode, Timeouts};
use futures_util::future::{join, join_all};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::subject::{outlets, revision};

struct Rig {
    runtime: FakeRuntime,
    exits: Arc<Mutex<Vec<SandboxExit>>>,
}

fn rig(options: FakeOptions, listener: &Arc<FakeListener>) -> Rig {
    let exits = Arc::new(Mutex::new(Vec::new()));
    let sink = exits.clone();
    let outlets = outlets(Arc::new(move |exit| sink.lock().push(exit)), Arc::new(|_| {}));
    Rig { runtime: FakeRuntime::new(options, listener.clone(), outlets), exits }
}

fn id(n: u64) -> SandboxId {
    SandboxId::new(Epoch(2), n)
}

impl Rig {
    async fn start(&self, n: u64, env: &[(&str, &str)]) -> Started {
        self.runtime.create(id(n), revision(1, env, Timeouts::default().start)).await.unwrap()
    }
}

#[tokio::test]
async fn each_sandbox_answers_at_its_own_address() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let one = rig.start(1, &[]).await;
    let two = rig.start(2, &[]).await;
    assert_ne!(one.endpoint, two.endpoint);
    for (n, started) in [(1, &one), (2, &two)] {
        let reply = request(&started.endpoint, "/a%20b?c=%22", &[]).await.unwrap();
        assert_eq!(reply.status, 200);
        let body =
            format!(r#"{{"sandbox":"{}","method":"GET","path":"/a%20b?c=%22","body_bytes":0}}"#, id(n));
        assert!(reply.rest.ends_with(&format!("\r\n\r\n{body}")), "{reply:?}");
    }
    rig.runtime.stop(id(1), StopMode::Graceful).await;
    assert!(request(&one.endpoint, "/", &[]).await.is_err());
    assert_eq!(request(&two.endpoint, "/", &[]).await.unwrap().status, 200);
}

#[tokio::test]
async fn requests_script_their_answers() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let started = rig.start(1, &[]).await;
    let reply = request(&started.endpoint, "/", &[("x-fake-status", "503")]).await.unwrap();
    assert_eq!(reply.status, 503);
    let reply = request(&started.endpoint, "/", &[("x-fake-body-bytes", "1000")]).await.unwrap();
    assert!(reply.rest.ends_with(&"x".repeat(1000)));
    let reply = request(&started.endpoint, "/", &[("x-fake-status", "no")]).await.unwrap();
    assert_eq!(reply.status, 400);
    assert!(reply.rest.contains("does not understand x-fake-status"));
    let body = "POST / HTTP/1.1\r\nhost: f\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
                3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
    let mut stream = TcpStream::connect(started.endpoint.strip_prefix("tcp:").unwrap()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(r#""method":"POST","path":"/","body_bytes":7"#), "{answer}");
    assert!(request(&started.endpoint, "/", &[("x-fake-exit", "9")]).await.is_err());
    assert_eq!(
        rig.exits.lock().as_slice(),
        [SandboxExit { sandbox: id(1), cause: ExitCause::Status(9), log_tail: String::new() }]
    );
}

#[tokio::test]
async fn an_end_closes_idle_connections() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let started = rig.start(1, &[]).await;
    let mut stream = TcpStream::connect(started.endpoint.strip_prefix("tcp:").unwrap()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: f\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 4096];
    let n = stream.read(&mut answer).await.unwrap();
    assert!(answer[..n].starts_with(b"HTTP/1.1 200"));
    assert!(rig.runtime.crash(id(1), ExitCause::OutOfMemory));
    assert!(
        matches!(stream.read(&mut answer).await, Ok(0) | Err(_)),
        "the connection of a dead sandbox is open"
    );
    assert!(!rig.runtime.crash(id(1), ExitCause::OutOfMemory), "it ends once");
    assert_eq!(rig.exits.lock().iter().map(|exit| exit.cause).collect::<Vec<_>>(), [ExitCause::OutOfMemory]);
}

#[tokio::test]
async fn a_crash_cuts_requests_and_fails_creations() {
    let listener = FakeListener::tcp().unwrap();
    let rig =
        rig(FakeOptions { create_delay: Duration::from_secs(3600), ..FakeOptions::default() }, &listener);
    let started = rig.start(1, &[("FAKE_CREATE_DELAY_MS", "0")]).await;
    let slow = [("x-fake-sleep-ms", "3600000")];
    let crash = async {
        while rig.runtime.stats(id(1)).unwrap().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        rig.runtime.crash(id(1), ExitCause::Signal(11));
    };
    let (reply, ()) = join(request(&started.endpoint, "/", &slow), crash).await;
    assert!(reply.is_err(), "{reply:?}");

    let mut create = rig.runtime.create(id(2), revision(1, &[], Duration::from_secs(7200)));
    assert!(futures_util::poll!(&mut create).is_pending());
    assert!(rig.runtime.crash(id(2), ExitCause::Signal(11)));
    let failure = create.await.unwrap_err();
    assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Signal(11)));
    assert_eq!(rig.exits.lock().len(), 1, "only the one that was ready has an exit");
}

#[tokio::test]
async fn concurrency_is_counted() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let started = rig.start(1, &[]).await;
    let slow = [("x-fake-sleep-ms", "3600000")];
    let waiting = join_all((0..7).map(|_| request(&started.endpoint, "/", &slow)));
    let then_kill = async {
        while rig.runtime.stats(id(1)).unwrap().in_flight < 7 {
            tokio::task::yield_now().await;
        }
        rig.runtime.stop(id(1), StopMode::Kill).await;
    };
    let (replies, ()) = join(waiting, then_kill).await;
    assert!(replies.iter().all(Result::is_err));
    assert_eq!(rig.runtime.stats(id(1)), None);
    assert_eq!(rig.runtime.totals().in_flight_max, 7);
    let two = rig.start(2, &[]).await;
    for n in 1..=3 {
        request(&two.endpoint, "/", &[]).await.unwrap();
        assert_eq!(rig.runtime.stats(id(2)).unwrap().served, n);
    }
    let stats = rig.runtime.stats(id(2)).unwrap();
    assert_eq!((stats.in_flight, stats.in_flight_max), (0, 1));
}

#[tokio::test]
async fn delays_and_chance_are_repeatable() {
    let options = FakeOptions {
        create_delay: Duration::from_millis(20),
        jitter: Duration::from_millis(60),
        failure_rate: 0.3,
        seed: 42,
        ..FakeOptions::default()
    };
    let mut runs = Vec::new();
    for _ in 0..2 {
        let listener = FakeListener::tcp().unwrap();
        let rig = rig(options, &listener);
        let revision = revision(1, &[], Duration::from_secs(30));
        let creates = (1..=400).map(|n| rig.runtime.create(id(n), revision.clone()));
        let run: Vec<_> =
            join_all(creates).await.into_iter().map(|outcome| outcome.map(|s| s.stages.create)).collect();
        let totals = rig.runtime.totals();
        assert_eq!(totals.started + totals.failed, 400);
        assert!((60..180).contains(&totals.failed), "{totals:?}");
        runs.push(run);
    }
    for outcome in &runs[0] {
        match outcome {
            Ok(delay) => assert!(delay.as_millis() >= 20, "{delay:?}"),
            Err(failure) => assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Status(1))),
        }
    }
    let fates = |run: &[Result<Duration, _>]| run.iter().map(Result::is_ok).collect::<Vec<_>>();
    assert_eq!(fates(&runs[0]), fates(&runs[1]));
}

#[tokio::test]
async fn use_follows_requests() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions { busy_cpu_milli: 800, ..FakeOptions::default() }, &listener);
    let started = rig.start(1, &[]).await;
    rig.start(2, &[]).await;
    let begun = std::time::Instant::now();
    rig.runtime.usage();
    request(&started.endpoint, "/", &[("x-fake-sleep-ms", "100")]).await.unwrap();
    let mut usage = rig.runtime.usage();
    let busy_share_min = 0.1 / begun.elapsed().as_secs_f64();
    usage.sort_by_key(|usage| usage.sandbox);
    assert!((800.0 * busy_share_min..=800.0).contains(&usage[0].cpu_milli), "{busy_share_min}: {usage:?}");
    assert_eq!(usage[1].cpu_milli, 0.0);
}

#[tokio::test]
async fn options_can_change() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions { failure_rate: 1.0, ..FakeOptions::default() }, &listener);
    let revision = revision(1, &[], Timeouts::default().start);
    assert!(rig.runtime.create(id(1), revision.clone()).await.is_err());
    assert_eq!(rig.runtime.prepare(revision.clone()).await, Ok(()), "a trial start is not left to chance");
    rig.runtime.set_options(FakeOptions::default());
    assert!(rig.runtime.create(id(1), revision).await.is_ok());
}

#[tokio::test]
async fn a_misspelt_script_fails_the_start() {
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let revision = revision(1, &[("FAKE_START", "sometimes")], Timeouts::default().start);
    let failure = rig.runtime.create(id(1), revision.clone()).await.unwrap_err();
    assert_eq!(failure.kind, StartFailureKind::HandlerNotFound);
    assert_eq!(rig.runtime.prepare(revision).await.unwrap_err(), failure);
    assert!(rig.runtime.sandboxes().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn runtimes_share_a_listener() {
    let listener = FakeListener::tcp().unwrap();
    let rigs = [rig(FakeOptions::default(), &listener), rig(FakeOptions::default(), &listener)];
    let one = rigs[0].start(1, &[]).await;
    let two = rigs[1].start(2, &[]).await;
    for started in [&one, &two] {
        assert_eq!(request(&started.endpoint, "/", &[]).await.unwrap().status, 200);
    }
    assert!(rigs[0].runtime.audit().await.is_empty() && rigs[1].runtime.audit().await.is_empty());
    let [first, second] = rigs;
    drop(first.runtime);
    assert!(first.exits.lock().is_empty(), "a lost runtime says nothing");
    assert!(request(&one.endpoint, "/", &[]).await.is_err());
    assert_eq!(request(&two.endpoint, "/", &[]).await.unwrap().status, 200);
    drop(second);
}

#[tokio::test]
async fn a_unix_socket_answers_for_nobody_and_for_the_one_that_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = FakeListener::unix(&path).unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let started = rig.start(1, &[]).await;
    assert_eq!(&*started.endpoint, format!("unix:{}", path.display()));
    let reply = request(&started.endpoint, "/", &[]).await.unwrap();
    assert!(reply.rest.contains(r#""sandbox":"""#), "{reply:?}");
    assert_eq!(rig.runtime.stats(id(1)).unwrap().served, 0);
    let name = id(1).to_string();
    let named = [("x-fanfare-sandbox", name.as_str())];
    assert!(request(&started.endpoint, "/", &named).await.unwrap().rest.contains(&name));
    assert_eq!(rig.runtime.stats(id(1)).unwrap().served, 1);
    assert!(request(&started.endpoint, "/", &[("x-fanfare-sandbox", "s999")]).await.is_err());
    drop(rig);
    drop(listener);
    assert!(!path.exists(), "the socket is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_at_once() {
    const COUNT: u64 = 5_000;
    let listener = FakeListener::tcp().unwrap();
    let rig = rig(FakeOptions::default(), &listener);
    let revision = revision(1, &[], Timeouts::default().start);
    let mut endpoints = std::collections::BTreeSet::new();
    for n in 1..=COUNT {
        endpoints.insert(rig.runtime.create(id(n), revision.clone()).await.unwrap().endpoint);
    }
    assert_eq!(endpoints.len() as u64, COUNT, "each has an address of its own");
    let last = endpoints.last().unwrap();
    assert_eq!(request(last, "/", &[]).await.unwrap().status, 200);
    rig.runtime.shutdown().await;
    assert_eq!(rig.exits.lock().len() as u64, COUNT);
    assert!(rig.runtime.audit().await.is_empty());
}
