use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;

use fanfare_trace::{Invocation, PlanFunction};

use super::*;
use crate::record::Outcome;
use crate::request::Target;
use crate::results;
use crate::summary::{Lateness, summary};

/// Answers each request by the function that it calls: `echo` as `trace` does, `error` with 500, `close` with an answer
/// and an end, `hangup` with an end alone, `silent` with nothing, `large` with much.
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, accepted) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let count = accepted.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(stream));
            }
        });
        Server { address, accepted }
    }
}

fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(read) = stream.read(&mut buffer) {
        if read == 0 {
            return;
        }
        seen.extend_from_slice(&buffer[..read]);
        if !seen.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut seen)).unwrap();
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").to_owned();
        let function = text.split('/').nth(2).unwrap();
        let execution_ms: u64 = field("requested_cpu: ").parse().unwrap();
        let document = format!(
            r#"{{"Status":"OK","Function":"f","MachineName":"s{}","ExecutionTime":{}}}"#,
            execution_ms % 3,
            execution_ms * 1_000
        );
        let (status, head, body) = match function {
            "error" => (500, "", "no".to_owned()),
            "refused" => (503, "x-fanfare-reason: queue-full\r\n", String::new()),
            "close" => (200, "connection: close\r\n", document),
            "large" => (200, "", "x".repeat(100_000)),
            "huge" => (200, "", "x".repeat(5 << 20)),
            "hangup" => return,
            "silent" => continue,
            _ => (200, "server-timing: queue;dur=0.1, create;dur=1, execute;dur=5\r\n", document),
        };
        let answer = format!("HTTP/1.1 {status} X\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(answer.as_bytes());
        if function == "close" {
            return;
        }
    }
}

fn plan(functions: &[&str], times: impl Iterator<Item = u64>) -> Plan {
    let function =
        |name: &&str| PlanFunction { name: (*name).to_owned(), memory_mib: 1, initial: 0, min: 0, max: 0 };
    let count = functions.len() as u64;
    let invocation = |(n, at_us): (usize, u64)| Invocation {
        at_us,
        function: (n as u64 % count) as u32,
        execution_ms: n as u32 % 50 + 1,
        memory_mib: 1,
        column: 0,
    };
    let plan = Plan {
        span_us: 60_000_000,
        functions: functions.iter().map(function).collect(),
        invocations: times.enumerate().map(invocation).collect(),
        ..Plan::default()
    };
    plan.check().unwrap();
    plan
}

fn requests(plan: &Plan) -> Requests {
    let target = |function: &PlanFunction| Target { name: function.name.clone(), obeys: true };
    Requests { host: "test".to_owned(), targets: plan.functions.iter().map(target).collect() }
}

fn settings(address: SocketAddr) -> Settings {
    Settings { address, senders: 2, connections: 64, timeout: Duration::from_secs(30), realtime: false }
}

fn replayed(plan: &Plan, settings: &Settings) -> Run {
    let progress = Progress::default();
    let run = run(plan, &requests(plan), settings, &progress).unwrap();
    assert!(run.is_complete);
    assert_eq!(progress.sent.load(Ordering::SeqCst), plan.invocations.len() as u64);
    assert_eq!(progress.ended.load(Ordering::SeqCst), plan.invocations.len() as u64);
    run
}

fn names(plan: &Plan) -> Vec<String> {
    plan.functions.iter().map(|function| function.name.clone()).collect()
}

#[test]
fn every_invocation_is_sent_when_it_is_due_and_gets_its_own_answer() {
    let server = Server::start();
    let plan = plan(&["echo"], (0..600).map(|n| n * 500));
    for (senders, connections) in [(1, 1), (1, 64), (3, 10)] {
        let before = server.accepted.load(Ordering::SeqCst);
        let run = replayed(&plan, &Settings { senders, connections, ..settings(server.address) });
        assert!(server.accepted.load(Ordering::SeqCst) - before <= connections);
        for (invocation, record) in plan.invocations.iter().zip(&run.records) {
            assert_eq!((record.outcome, record.status), (Outcome::Ok, 200));
            assert_eq!(record.execution_us, Some(invocation.execution_ms * 1_000));
            let sandbox = &run.sandboxes[record.sandbox.unwrap() as usize];
            assert_eq!(*sandbox, format!("s{}", invocation.execution_ms % 3));
            assert!(record.cold && record.queue_us == Some(100));
            assert!(invocation.at_us <= record.sent_us && record.sent_us <= record.first_byte_us);
            assert!(
                record.first_byte_us <= record.done_us && record.done_us <= run.elapsed.as_micros() as u64
            );
        }
        assert!(run.elapsed >= Duration::from_micros(599 * 500));
    }
}

#[test]
fn each_failure_is_told_apart_and_costs_no_other() {
    let server = Server::start();
    let functions = ["echo", "error", "refused", "close", "hangup", "large", "huge", "silent"];
    let plan = plan(&functions, (0..80).map(|n| n * 100));
    let timeout = Duration::from_millis(400);
    let run = replayed(&plan, &Settings { timeout, connections: 80, ..settings(server.address) });
    let expected = [
        Outcome::Ok,
        Outcome::FunctionError,
        Outcome::Refused,
        Outcome::Ok,
        Outcome::Closed,
        Outcome::Ok,
        Outcome::BadAnswer,
        Outcome::Timeout,
    ];
    for (invocation, record) in plan.invocations.iter().zip(&run.records) {
        assert_eq!(record.outcome, expected[invocation.function as usize], "{record:?}");
        if record.outcome == Outcome::Timeout {
            assert!(record.done_us - record.sent_us >= 400_000);
        }
    }
    let totals = summary(&plan, &run, &names(&plan));
    assert_eq!(
        (totals.counts.planned, totals.counts.sent, totals.counts.ok, totals.counts.failed),
        (80, 80, 30, 50)
    );
    assert_eq!(totals.counts.outcomes["timeout"], 10);
    assert_eq!(totals.counts.reasons["queue-full"], 10);
    assert_eq!(totals.functions[7].counts.failed, 10);
    // In InVitro's columns, too.
    let mut out = Vec::new();
    results::write(&plan, &run, &names(&plan), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 81);
    let flags = |row: &str| row.split(',').skip(8).take(2).collect::<Vec<_>>().join(",");
    let rows: Vec<&str> = text.lines().skip(1).take(8).collect();
    let flagged: Vec<String> = rows.iter().map(|row| flags(row)).collect();
    assert_eq!(flagged[..5], ["false,false", "false,true", "false,true", "false,false", "true,false"]);
    assert_eq!(flagged[5..], ["false,false", "false,true", "true,false"]);
}

#[test]
fn nobody_there_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let plan = plan(&["echo"], 0..20);
    let run = replayed(&plan, &settings(address));
    assert!(run.records.iter().all(|record| record.outcome == Outcome::ConnectError));
}

#[test]
fn where_every_connection_is_busy_requests_are_late_and_none_is_left_out() {
    let server = Server::start();
    // The first is never answered: what follows waits until it is given up.
    let plan = plan(&["silent", "echo", "echo", "echo"], 0..4);
    let timeout = Duration::from_millis(300);
    let few = Settings { senders: 1, connections: 1, timeout, ..settings(server.address) };
    let run = replayed(&plan, &few);
    assert_eq!(run.records.iter().filter(|record| record.outcome == Outcome::Ok).count(), 3);
    let late = |record: &Record, at: usize| record.sent_us - plan.invocations[at].at_us;
    assert!((1..4).all(|at| late(&run.records[at], at) >= 299_000), "{:?}", run.records);
    let totals = summary(&plan, &run, &names(&plan));
    assert!(matches!(totals.lateness, Some(Lateness { p50_us: 299_000.., .. })), "{:?}", totals.lateness);
    // The response counts from when it was due, and so holds the wait, which the service does not.
    let (response, service) = (totals.response_ms.unwrap(), totals.service_ms.unwrap());
    assert!(response.p50 >= 299.0 && service.p50 < response.p50, "{response:?} {service:?}");
    // With a connection for each nobody waits for another one.
    let run = replayed(&plan, &Settings { connections: 4, ..few });
    let answered = run.records[1..].iter().all(|record| record.outcome == Outcome::Ok);
    assert!(answered && run.records[1].done_us < run.records[0].done_us);
}

#[test]
fn an_interrupted_run_says_what_it_has() {
    let server = Server::start();
    let mut plan = plan(&["echo", "silent"], [0, 10, 30_000_000].into_iter());
    plan.invocations[2].function = 0;
    let (progress, requests) = (Progress::default(), requests(&plan));
    let (tx, rx) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| tx.send(run(&plan, &requests, &settings(server.address), &progress)).unwrap());
        while progress.ended.load(Ordering::SeqCst) < 1 || progress.sent.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        progress.interrupt();
        let run = rx.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        let outcomes: Vec<_> = run.records.iter().map(|record| record.outcome).collect();
        assert_eq!(outcomes, [Outcome::Ok, Outcome::Interrupted, Outcome::NotSent]);
        assert!(!run.is_complete);
    });
}

#[test]
fn priority_is_had_or_refused_and_nothing_hangs() {
    let server = Server::start();
    let plan = plan(&["echo"], (0..50).map(|n| n * 1_000));
    let first = Settings { realtime: true, ..settings(server.address) };
    let progress = Progress::default();
    match run(&plan, &requests(&plan), &first, &progress) {
        Ok(run) => assert!(run.records.iter().all(|record| record.outcome == Outcome::Ok)),
        Err(error) => {
            assert!(!rustix::process::geteuid().is_root(), "{error}");
            assert!(error.to_string().contains("real-time priority"), "{error}");
        }
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let plan = plan(&["echo"], 0..1);
    let good = settings("127.0.0.1:9".parse().unwrap());
    let refused = |settings: &Settings| run(&plan, &requests(&plan), settings, &Progress::default()).is_err();
    assert!(refused(&Settings { senders: 0, ..good }));
    assert!(refused(&Settings { senders: 65, ..good }));
    assert!(refused(&Settings { senders: 4, connections: 3, ..good }));
    let none = Requests { host: "test".to_owned(), targets: vec![] };
    assert!(run(&plan, &none, &good, &Progress::default()).is_err());
}
